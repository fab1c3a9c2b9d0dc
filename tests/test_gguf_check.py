"""A GGUF file is looked through before a reader believes it; a folder gets all of it or nothing."""

import os
import struct
import time

import pytest

from kvlib.tensors import gguf_check, gguf_convert
from kvlib.tensors.gguf_check import check_gguf
from kvlib.tensors.gguf_convert import convert_gguf
from test_gguf_convert import write_gguf

UINT32, STRING, LIST, F32, Q4_1 = 4, 8, 9, 0, 3


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def field(name, value=7, kind=UINT32):
    return text(name) + struct.pack("<II", kind, value)


def listed(name, kind, num, data=b""):
    return text(name) + struct.pack("<IIQ", LIST, kind, num) + data


def tensor(name, dims, offset, kind=F32):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(*parts, tensors=0, fields=0, magic=b"GGUF", version=3, data=b""):
    head = magic + struct.pack("<IQQ", version, tensors, fields) + b"".join(parts)
    return head + bytes(-len(head) % 32) + data


TWO = (tensor("a", [8], 0), tensor("b", [2, 4], 32))
SOUND = gguf(
    field("general.alignment", 32),
    listed("words", STRING, 2, text("ä") + text("")),
    listed("a", UINT32, 3, bytes(12)),  # a field may be called what a weight is called
    *TWO,
    fields=3,
    tensors=2,
    data=bytes(64),
)


def refused(path, data, call=check_gguf):
    path.write_bytes(data)
    start = time.process_time()
    with pytest.raises(ValueError, match=r"tiny\.gguf is no") as error:
        call(path)
    assert time.process_time() - start < 2
    assert len(str(error.value)) < 400
    return str(error.value)


def test_a_sound_file_passes(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(SOUND)
    check_gguf(path)
    write_gguf(path)
    check_gguf(path)


def test_cut_at_any_length_it_is_refused(tmp_path):
    path = tmp_path / "tiny.gguf"
    for length in range(len(SOUND)):
        refused(path, SOUND[:length])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (gguf(magic=b"GGML"), "does not begin with GGUF"),
        (gguf(version=1), "version 1 is not read"),
        (gguf(version=3 << 24), "version 50331648 is not read"),
        (gguf(fields=2**64 - 1), "bytes are to come"),
        (gguf(tensors=2**64 - 1), "bytes are to come"),
        (gguf(struct.pack("<Q", 2**63), fields=1), "a text of 9,223,372,036,854,775,808 bytes"),
        (gguf(listed("n", UINT32, 2**60), fields=1), "more than 600,000 values"),
        (gguf(listed("n", STRING, 2**60), fields=1), "more than 600,000 values"),
        (gguf(listed("n", UINT32, 599_000), fields=1), "bytes are to come"),
        (gguf(listed("n", STRING, 1, struct.pack("<Q", 2**64 - 1)), fields=1), "a text of 18,446"),
        (gguf(listed("n", LIST, 1), fields=1), "of kind 9, which is not read"),
        (gguf(field("n", kind=13), fields=1), "of kind 13, which is not read"),
        (gguf(field("n"), field("n"), fields=2), "b'n' stands in it twice"),
        (gguf(field("general.alignment", 0), fields=1), "a power of two, got 0"),
        (gguf(field("general.alignment", 24), fields=1), "a power of two, got 24"),
        (gguf(*TWO[:1] * 2, tensors=2, data=bytes(64)), "b'a' stands in it twice"),
        (gguf(tensor("a", [], 0), tensors=1), "0 dimensions"),
        (gguf(tensor("a", [1] * 5, 0), tensors=1), "5 dimensions"),
        (gguf(text("a") + struct.pack("<I", 2**32 - 1), tensors=1), "4294967295 dimensions"),
        (gguf(tensor("a", [0], 0), tensors=1), "is not read"),
        (gguf(tensor("a", [8], 0, kind=4), tensors=1), "kind 4"),
        (gguf(tensor("a", [2**63, 2**63], 0), tensors=1), "there are 0"),
        (gguf(tensor("a", [8], 2**64 - 32), tensors=1, data=bytes(32)), "there are 32"),
        (gguf(tensor("a", [9], 0), tensors=1, data=bytes(32)), "there are 32"),
        (gguf(tensor("a", [1], 4), tensors=1, data=bytes(32)), "a tensor at 4"),
        (gguf(tensor("a", [40], 0, Q4_1), tensors=1, data=bytes(64)), "whole groups of 32"),
        (
            gguf(tensor("a", [9], 0), tensor("b", [8], 32), tensors=2, data=bytes(64)),
            "tensors overlap: 36 bytes at 0, and 32",
        ),
        (
            gguf(tensor("a", [8], 0), tensor("b", [8], 0), tensors=2, data=bytes(64)),
            "tensors overlap: 32 bytes at 0, and 0",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_file_says_of_itself_is_held_against_it(tmp_path, data, said):
    assert said in refused(tmp_path / "tiny.gguf", data)


def test_so_many_weights_as_memory_has_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_check, "MAX_WEIGHTS", 15)
    assert "more than 15 weights" in refused(tmp_path / "tiny.gguf", SOUND)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "tiny.gguf")
    with pytest.raises(OSError, match="only a plain file is read"):
        check_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def whole(tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    return (tmp_path / "tiny.gguf").read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"llama.block_count", b"llama.block_cOunt"),
        (b"blk.0.attn_q.weight", b"blk.0.attn_Q.weight"),
        (b"blk.0.attn_q.weight", b"blk0.attn_q.weight."),
        (b"tokenizer.ggml.merges", b"tokenizer.ggml.Merges"),
        (b"1 2", b"1  "),
        (b"<|im_end|>", b"<|im_en\xff\xff\xff"),
    ],
    ids=str,
)
def test_a_sound_file_of_another_model_is_refused_and_leaves_nothing(tmp_path, whole, old, new):
    assert len(old) == len(new) and old in whole
    (out := tmp_path / "out").mkdir()
    data = whole.replace(old, new)
    said = refused(tmp_path / "tiny.gguf", data, lambda path: convert_gguf(path, out))
    assert "is no model that is known here" in said
    assert not list(out.iterdir())


def test_a_model_with_two_weights_on_the_same_bytes_is_refused(tmp_path, whole):
    """The reader itself would take it."""

    def offset(name):
        return whole.index(name) + len(name) + 4 + 2 * 8 + 4

    up, gate = offset(b"blk.0.ffn_up.weight"), offset(b"blk.0.ffn_gate.weight")
    data = whole[:up] + whole[gate : gate + 8] + whole[up + 8 :]
    (out := tmp_path / "out").mkdir()
    said = refused(tmp_path / "tiny.gguf", data, lambda path: convert_gguf(path, out))
    assert "tensors overlap" in said
    assert not list(out.iterdir())


def test_sizes_that_no_model_has_are_refused(tmp_path, whole):
    name = b"llama.attention.head_count_kv"
    at = whole.index(name) + len(name) + 4
    data = whole[:at] + bytes(4) + whole[at + 4 :]
    (out := tmp_path / "out").mkdir()
    said = refused(tmp_path / "tiny.gguf", data, lambda path: convert_gguf(path, out))
    assert "num_kv_heads must be at least 1, got 0" in said
    assert not list(out.iterdir())


def test_a_full_disk_in_the_middle_leaves_nothing(tmp_path, whole, monkeypatch):
    def full(weights, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_convert, "save_file", full)
    (out := tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="No space left"):
        convert_gguf(tmp_path / "tiny.gguf", out)
    assert not list(out.iterdir())


def test_a_token_that_stands_in_it_twice_is_refused():
    fields = {
        "tokenizer.ggml.tokens": ["a", "b", "a"],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [1, 1, 1],
    }
    with pytest.raises(ValueError, match="1 of 3 tokens stand in it twice"):
        gguf_convert._tokenizer(fields.__getitem__)
