"""A model's folder that means harm: config, index, tokenizer and weights, each with one error."""

import json
import os
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvlib.tensors.llama_config import MOST_LAYERS, LlamaConfig
from kvlib.tensors.tokenizer import Tokenizer
from kvlib.tensors.weights import load_model
from test_weights import shard
from tiny_folder import HF_CONFIG, same_weights, write_folder

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "tiny")


def refused(folder, name, most_s=2.0):
    """The error that a folder gets; its cost is counted in this process's own time."""
    start = time.process_time()
    with pytest.raises(ValueError) as error:
        load_model(folder, device="cpu")
    assert time.process_time() - start < most_s
    assert name in str(error.value) and len(str(error.value)) < 700
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 0}, "num_q_heads must be at least 1, got 0"),
        ({"num_attention_heads": 0, "head_dim": None}, "num_q_heads must be at least 1, got 0"),
        ({"num_key_value_heads": 0}, "num_kv_heads must be at least 1, got 0"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"num_hidden_layers": 10**9}, "num_layers is more than 1,000"),
        ({"num_hidden_layers": MOST_LAYERS + 1}, "num_layers is more than 1,000"),
        ({"vocab_size": 2**62, "hidden_size": 2**62}, "vocab_size is more than 1,048,576"),
        ({"vocab_size": 10**400}, "vocab_size is more than 1,048,576"),
        ({"hidden_size": -32}, "hidden_size must be at least 1"),
        ({"hidden_size": 32.0}, "hidden_size must be a whole number"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"hidden_size": "9" * 10_000}, "hidden_size must be a whole number"),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be at least 1"),
        ({"rope_theta": 0}, "rope_theta must be above 0 and finite, got 0"),
        ({"rope_theta": "10000"}, "rope_theta must be a number, got '10000'"),
        ({"rope_theta": 10**400}, "rope_theta must be above 0 and finite"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps must be above 0"),
        ({"rms_norm_eps": None}, "rms_norm_eps must be a number, got None"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is true or false, got 'false'"),
        ({"rope_scaling": [1]}, "rope scaling is an object, got [1]"),
        ({"rope_parameters": LLAMA3 | {"factor": 0}}, "factor must be above 0"),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "a low and a higher frequency, got 1.0",
        ),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": "1"}}, "low_freq_factor must be a number"),
        ({"model_type": "x" * 10_000}, "only model_type 'llama' is read"),
        ({"eos_token_id": "</s>"}, "an id that begins or ends a text must be a whole number"),
        ({"eos_token_id": [2, -1]}, "an id that begins or ends a text must be at least 0, got -1"),
        ({"bos_token_id": [1]}, "an id that begins or ends a text must be a whole number"),
        ({"eos_token_id": 261}, "are below vocab_size 261, got 261"),
        ({"bos_token_id": 9999}, "are below vocab_size 261, got 9999"),
        ({"vocab_size": 260}, "embed_tokens.weight is [261, 32], expected [260, 32]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_config_that_no_model_has_is_refused_with_its_reason(tmp_path, changes, said):
    assert said in refused(write_folder(tmp_path / "tiny", **changes), "tiny")


def test_a_config_that_leaves_out_what_follows_from_the_rest_is_read(tmp_path):
    changes = {
        "num_key_value_heads": None,
        "rope_parameters": {"rope_theta": 5e5},
        "head_dim": None,
    }
    config = LlamaConfig.from_hf(HF_CONFIG | changes)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 8, 5e5)
    assert LlamaConfig.from_hf(HF_CONFIG | {"rope_scaling": LLAMA3}).rope_scaling == LLAMA3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"model_type": "llama", "model_type": "gpt2"}', "'model_type' stands twice"),
        (b'{"rms_norm_eps": NaN}', "NaN is no finite number"),
        (b'{"rms_norm_eps": 1e999}', "1e999 is no finite number"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "digits"),
        (b" " * 2**20 * 17, "at most 16,777,216 are read"),
        ('{"model_type": "llama"}'.encode("utf-16"), "utf-8"),
    ],
    ids=["twice", "nan", "infinite", "deep", "digits", "long", "utf-16"],
)
def test_a_config_that_says_two_things_or_none_is_refused(folder, text, said):
    (folder / "config.json").write_bytes(text)
    assert said in refused(folder, "config.json: expected JSON")
    with pytest.raises(ValueError, match=r"config\.json: ") as error:
        Tokenizer.from_folder(folder)
    assert said in str(error.value)


def test_a_mark_and_other_ends_of_lines_in_a_config_change_nothing(folder):
    path = folder / "config.json"
    text = json.dumps(json.loads(path.read_text()), indent=1).replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    model, tokenizer = load_model(folder)
    assert same_weights(model) and tokenizer.eos_ids == (2, 0)


@pytest.mark.parametrize("text", ["[]", "3", '"llama"', "null"])
def test_a_tokenizers_config_that_is_no_object_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json: expected a JSON object"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    "text", [b"\xff\xfe{}", b"[" * 100_000, b'{"version": "1.0", "model": {"type": "BPE"}}', b""]
)
def test_a_tokenizer_that_is_none_is_refused(folder, text):
    (folder / "tokenizer.json").write_bytes(text)
    assert "is not a tokenizers file" in refused(folder, "tokenizer.json")


@pytest.mark.parametrize(
    "name",
    [
        *("a\0.safetensors", "C:a.safetensors", "a b.safetensors", ".safetensors", "x" * 300),
        *("x" * 300 + ".safetensors", "\ud800.safetensors", "a.safetensors\n", "/a.safetensors"),
        *("..", "a/../b.safetensors", "~a.safetensors", None, ["a.safetensors"], {}, 7),
    ],
    ids=lambda name: repr(name)[:30],
)
def test_a_shard_has_a_plain_name(folder, name):
    shard(folder, {"model.norm.weight": name})
    assert "a shard is a .safetensors file beside it" in refused(folder, "index.json")


def rewrite_header(path, change):
    """Writes the weights again with another header over the same bytes."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = change(json.loads(data[8:end]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def changed(name, **fields):
    return lambda header: header | {name: header[name] | fields}


NORM = "model.norm.weight"


def overlapping(header):
    """Two weights on the same bytes, and none on those that one of them had."""
    other = next(name for name in header if name.endswith("post_attention_layernorm.weight"))
    return header | {NORM: header[NORM] | {"data_offsets": header[other]["data_offsets"]}}


def twice(header):
    """One weight in two shapes: who looks for the first sees another than who keeps the last."""
    said = header[NORM] | {"shape": [2, 16]}
    return json.dumps(header).encode()[:-1] + f', "{NORM}": {json.dumps(said)}}}'.encode()


@pytest.mark.parametrize(
    "change",
    [
        overlapping,
        changed(NORM, data_offsets=[0, 2**63]),
        changed(NORM, data_offsets=[64, 0]),
        changed(NORM, data_offsets=[-128, 0]),
        changed(NORM, shape=[2**62, 2**62]),
        changed(NORM, shape=[2**64]),
        changed(NORM, shape=[-32]),
        changed(NORM, shape=[]),
        changed(NORM, dtype="F99"),
        changed(NORM, dtype="F64"),
        lambda header: header | {"__metadata__": {"a": 1}},
        lambda header: header | {"__metadata__": []},
        lambda header: header | {"more": header[NORM]},
        lambda header: header | {"x" * 5_000_000: header[NORM]},
        lambda header: {},
        lambda header: [],
        lambda header: twice(header),
        lambda header: b"[" * 100_000,
        lambda header: b'{"a":' * 100_000,
        lambda header: b"\xff" * 100,
    ],
)
def test_weights_that_do_not_lie_where_their_header_says_are_refused(folder, change):
    rewrite_header(folder / "model.safetensors", change)
    refused(folder, "model.safetensors: expected a whole safetensors file")


@pytest.mark.parametrize("name", ["x" * 100_000, "\x1b[2J\r\n", "a\u202eb", "\ud800"])
def test_a_tensor_with_a_name_for_no_eyes_is_named_short(folder, name):
    path = folder / "model.safetensors"
    state = load_file(path)
    if name != "\ud800":  # the library that writes cannot write it
        save_file(state | {name: torch.zeros(1)}, path)
        said = refused(folder, "1 not in a Llama of this config")
        assert said.isprintable()
    else:
        rewrite_header(path, lambda header: json.dumps(header | {name: header[NORM]}).encode())
        refused(folder, "model.safetensors")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_pipe_in_the_place_of_a_file_does_not_block(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(OSError, match="only a plain file is read") as error:
        load_model(folder)
    assert error.value.filename.endswith(name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_shard_that_is_a_pipe_does_not_block(folder):
    shard(folder)
    (folder / "model-1.safetensors").unlink()
    os.mkfifo(folder / "model-1.safetensors")
    with pytest.raises(OSError, match="only a plain file is read"):
        load_model(folder)
