"""Models from files: what is loaded, what is refused, and what a damaged file gets told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvlib.tensors import weights
from kvlib.tensors.weights import load_model
from tiny_folder import same_weights, write_folder

NORM = "model.norm.weight"
Change = Callable[[dict[str, torch.Tensor]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "tiny")


def rewrite(folder: Path, change: Change) -> None:
    """Saves the weights again after `change(state)`."""
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file({name: tensor.clone() for name, tensor in state.items()}, path)


def shard(folder: Path, weight_map: object = None) -> Path:
    """Splits the weights in two files; an explicit `weight_map` replaces the true one."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    true_map = {n: f"model-{1 + (i % 2)}.safetensors" for i, n in enumerate(names)}
    for file in set(true_map.values()):
        save_file({n: state[n].clone() for n in names if true_map[n] == file}, folder / file)
    index = {"weight_map": true_map if weight_map is None else weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("sharded", [False, True])
def test_a_folder_gives_its_weights_and_its_tokenizer(folder: Path, sharded: bool) -> None:
    if sharded:
        shard(folder)
    model, tokenizer = load_model(folder)
    assert same_weights(model)
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert tokenizer.decode(tokenizer.encode("Ça va 12?")) == "Ça va 12?"
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2, 0))


def test_dtype_and_device_are_those_asked_for(folder: Path) -> None:
    model, _ = load_model(folder, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    model, _ = load_model(str(folder), device="meta")
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_old_rotary_buffers_are_left_out(folder: Path) -> None:
    rewrite(folder, lambda s: s.update({"model.layers.0.self_attn.rotary_emb.inv_freq": s[NORM]}))
    assert same_weights(load_model(folder)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(NORM), r"1 missing: model\.norm\.weight"),
        (lambda s: s.update(extra=s[NORM]), r"1 not in a Llama of this config: extra"),
        (lambda s: s.update({NORM: s[NORM][:-1]}), r"norm\.weight is \[31\], expected \[32\]"),
        (
            lambda s: s.update({NORM: s[NORM].to(torch.int8)}),
            r"1 quantized: model\.norm\.weight is torch\.int8",
        ),
        (lambda s: s.clear(), r"20 missing"),
    ],
    ids=["missing", "extra", "shape", "dtype", "empty"],
)
def test_tensors_that_do_not_fit_the_config_are_named(
    folder: Path, change: Change, message: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gpt2"},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        {"rope_scaling": "twice"},
        {"num_key_value_heads": 3},
        {"hidden_size": "32"},
    ],
    ids=str,
)
def test_another_architecture_is_refused_before_a_model_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict
) -> None:
    folder = write_folder(tmp_path / "tiny", **changes)
    monkeypatch.setattr(weights, "Llama", None)
    with pytest.raises(ValueError, match=r"config\.json: "):
        load_model(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\xff"], ids=range(5))
def test_a_config_that_is_no_object_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"config\.json: expected"):
        load_model(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_model(folder)


def test_a_broken_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizers file"):
        load_model(folder)


def test_a_pickle_is_refused_with_the_reason(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin.*opening a pickle can run"):
        load_model(folder)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'smollm2'; .*smollm2-135m"):
        load_model("smollm2")


def header_end(path: Path) -> int:
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


@pytest.mark.parametrize(
    "keep",
    [
        lambda head, size: 0,
        lambda head, size: 7,
        lambda head, size: 8,
        lambda head, size: head - 1,
        lambda head, size: head,
        lambda head, size: head + 1,
        lambda head, size: size - 1,
    ],
    ids=["nothing", "7", "8", "header-1", "header", "header+1", "all-1"],
)
def test_a_file_cut_short_says_what_was_expected_and_what_there_is(
    folder: Path, keep: Callable[[int, int], int]
) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: keep(header_end(path), len(whole))])
    with pytest.raises(
        ValueError, match=r"model\.safetensors: expected .* got .* bytes.* copy it again"
    ):
        load_model(folder)


def test_a_file_with_bytes_behind_its_end_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(
        ValueError, match=f"expected a whole safetensors file, got {size + 1:,} bytes"
    ):
        load_model(folder)


def test_no_flipped_bit_of_a_header_changes_a_weight_unseen(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    refused = 0
    for position in range(0, header_end(path), 5):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 7
        path.write_bytes(damaged)
        try:
            assert same_weights(load_model(folder)[0])
        except ValueError as error:
            assert "model.safetensors" in str(error) or "do not fit" in str(error)
            refused += 1
    assert refused > 300


@pytest.mark.parametrize("length", [2**63, weights.MAX_HEADER_BYTES + 1])
def test_a_header_that_claims_too_much_is_never_read(folder: Path, length: int) -> None:
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.write(length.to_bytes(8, "little"))
        file.truncate(2 * weights.MAX_HEADER_BYTES)
    with pytest.raises(ValueError, match=f"header claims {length:,}, over 10,485,760"):
        load_model(folder)


@pytest.mark.parametrize(
    "file",
    ["../model-1.safetensors", "/model-1.safetensors", "..\\model-1.safetensors", "model.bin", 7],
)
def test_a_shard_outside_the_folder_is_refused(folder: Path, file: object) -> None:
    shard(folder, {NORM: file})
    shutil.copy(folder / "model-1.safetensors", folder.parent)
    with pytest.raises(ValueError, match=r"index\.json: a shard is a \.safetensors file beside it"):
        load_model(folder)


@pytest.mark.parametrize("weight_map", [[], {}, "model-1.safetensors", 3])
def test_an_index_without_a_map_is_refused(folder: Path, weight_map: object) -> None:
    shard(folder, weight_map)
    with pytest.raises(ValueError, match="expected a weight_map"):
        load_model(folder)


def test_a_missing_shard_and_a_tensor_in_two_shards_are_named(folder: Path) -> None:
    shard(folder)
    second = folder / "model-2.safetensors"
    shutil.copy(folder / "model-1.safetensors", second)
    with pytest.raises(ValueError, match=r"model-2\.safetensors: .* came in another shard already"):
        load_model(folder)
    second.unlink()
    with pytest.raises(FileNotFoundError, match=r"model-2\.safetensors"):
        load_model(folder)
