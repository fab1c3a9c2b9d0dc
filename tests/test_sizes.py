"""Bytes of the KV cache: the values that published cases fix, the laws, every refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.sizes import DTYPE_BYTES, UNIT_BYTES, KVShape, format_bytes, near, num_bytes

LLAMA = KVShape(num_layers=32, num_kv_heads=8, head_dim=128)
# 36 layers, full and 128-token sliding in turn: the shape of gpt-oss-120b.
HYBRID = KVShape(36, 8, 64, window=128, num_local_layers=18)
MLA = KVShape(61, kv_lora_rank=512, qk_rope_head_dim=64)

sizes = st.integers(1, 300)
dtypes = st.sampled_from(sorted(DTYPE_BYTES))


@st.composite
def shapes(draw: st.DrawFn) -> KVShape:
    layers = draw(st.integers(1, 12))
    # Even widths, so that a row of int4 is whole bytes.
    first, second = draw(st.integers(1, 8)), 2 * draw(st.integers(1, 32))
    kind = draw(st.sampled_from(["heads", "mla"]))
    widths = (
        {"num_kv_heads": first, "head_dim": second}
        if kind == "heads"
        else {"kv_lora_rank": 2 * first, "qk_rope_head_dim": second}
    )
    if draw(st.booleans()):
        widths |= {"window": draw(sizes), "num_local_layers": draw(st.integers(0, layers))}
    return KVShape(layers, **widths)


def test_heads_are_kv_heads_and_no_factor_is_added() -> None:
    mha = replace(LLAMA, num_kv_heads=32)
    assert mha.bytes_per_token("float16") == 524_288
    assert LLAMA.bytes_per_token("float16") == 131_072
    assert LLAMA.bytes_per_sequence(131_072, "float16") == 16 * 2**30
    assert replace(LLAMA, num_layers=1).bytes_per_sequence(1024, "float16") == 4_194_304


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(1, 73_728), (128, 9_437_184), (131_072, 4_836_556_800)]
)
def test_local_layers_stop_growing_at_the_window(num_tokens: int, expected: int) -> None:
    assert HYBRID.bytes_per_sequence(num_tokens, "bfloat16") == expected


def test_the_window_counts_the_query_itself() -> None:
    local = KVShape(1, 1, 1, window=4, num_local_layers=1)
    held = [local.bytes_per_sequence(n, "int8") // 2 for n in range(1, 9)]
    assert held == [1, 2, 3, 4, 4, 4, 4, 4]


def test_a_window_that_no_layer_uses_changes_nothing() -> None:
    unused = KVShape(26, 1, 256, window=512, num_local_layers=0)
    assert unused.bytes_per_sequence(600, "bfloat16") == 600 * unused.bytes_per_token("bfloat16")


def test_mla_stores_one_latent_and_not_two() -> None:
    assert MLA.elements_per_layer == 576
    assert MLA.bytes_per_sequence(1, "float32") == 61 * 576 * 4


def test_a_stage_counts_the_layers_it_holds() -> None:
    whole = KVShape(48, 4, 128)
    stages = [replace(whole, num_layers=n) for n in (16, 32)]
    n = 262_144
    assert whole.bytes_per_token("float16") == 98_304
    assert [s.bytes_per_sequence(n, "float16") // 2**30 for s in (*stages, whole)] == [8, 16, 24]
    assert int(Fraction("3.18") * 2**30) // stages[0].bytes_per_token("float16") == 104_202


def test_a_thousand_tokens_are_not_1024() -> None:
    for n, gib in [(1000, 0.1220703125), (1024, 0.125), (128_000, 15.625), (131_072, 16.0)]:
        assert LLAMA.bytes_per_sequence(n, "float16") / 2**30 == gib


@given(shapes(), dtypes, sizes)
def test_linear_in_tokens_below_the_window(shape: KVShape, dtype: str, n: int) -> None:
    n = min(n, shape.window or n)
    assert shape.bytes_per_sequence(n, dtype) == n * shape.bytes_per_token(dtype)


@given(shapes(), dtypes, sizes)
def test_beyond_the_window_only_full_layers_grow(shape: KVShape, dtype: str, n: int) -> None:
    n += shape.window or 0
    grown = shape.bytes_per_sequence(n + 1, dtype) - shape.bytes_per_sequence(n, dtype)
    assert grown == shape.bytes_per_token(dtype, beyond_window=True)


@given(shapes(), dtypes, sizes, st.integers(1, 64))
def test_a_sequence_never_shrinks_as_it_grows(shape: KVShape, dtype: str, n: int, b: int) -> None:
    shorter = shape.bytes_per_sequence(n, dtype, block_size=b)
    assert shorter <= shape.bytes_per_sequence(n + 1, dtype, block_size=b)


@given(shapes(), dtypes, sizes, st.integers(1, 64))
def test_blocks_round_up_by_less_than_one_block(shape: KVShape, dtype: str, n: int, b: int) -> None:
    exact = shape.bytes_per_sequence(n, dtype)
    in_blocks = shape.bytes_per_sequence(n, dtype, block_size=b)
    assert 0 <= in_blocks - exact < shape.bytes_per_block(b, dtype)


@given(shapes(), dtypes, sizes, st.integers(1, 64))
def test_without_local_layers_a_sequence_is_whole_blocks(
    shape: KVShape, dtype: str, n: int, b: int
) -> None:
    full = replace(shape, window=None, num_local_layers=0)
    blocks = (n + b - 1) // b
    in_blocks = full.bytes_per_sequence(n, dtype, block_size=b)
    assert in_blocks == blocks * full.bytes_per_block(b, dtype)


@given(shapes(), dtypes, sizes, st.data())
def test_layers_split_in_two_add_up(
    shape: KVShape, dtype: str, n: int, data: st.DataObject
) -> None:
    full = data.draw(st.integers(0, shape.num_full_layers))
    local = data.draw(st.integers(0, shape.num_local_layers))
    kept, rest = full + local, shape.num_layers - full - local
    parts = [(kept, local), (rest, shape.num_local_layers - local)]
    stages = [replace(shape, num_layers=a, num_local_layers=b) for a, b in parts if a]
    total = sum(stage.bytes_per_sequence(n, dtype) for stage in stages)
    assert total == shape.bytes_per_sequence(n, dtype)


@given(shapes(), sizes)
def test_int4_is_half_of_int8_and_a_quarter_of_float16(shape: KVShape, n: int) -> None:
    int4, int8, float16 = (shape.bytes_per_sequence(n, d) for d in ("int4", "int8", "float16"))
    assert 4 * int4 == 2 * int8 == float16


def test_formatted_bytes_name_their_unit() -> None:
    assert format_bytes(17_179_869_184) == "17.18 GB"
    assert format_bytes(17_179_869_184, "GiB") == "16.00 GiB"
    assert UNIT_BYTES == {
        "B": 1,
        "KB": 1000,
        "MB": 1_000_000,
        "GB": 1_000_000_000,
        "TB": 1_000_000_000_000,
        "KiB": 1024,
        "MiB": 1_048_576,
        "GiB": 1_073_741_824,
        "TiB": 1_099_511_627_776,
    }


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KVShape(0, 8, 128), "num_layers must be at least 1, got 0"),
        (lambda: KVShape(32, -8, 128), "num_kv_heads must be at least 1, got -8"),
        (lambda: KVShape(32, 8), "give num_kv_heads and head_dim, .* got num_kv_heads$"),
        (lambda: KVShape(32), "got none of them"),
        (lambda: replace(LLAMA, kv_lora_rank=512), "or for MLA kv_lora_rank and qk_rope_head_dim"),
        (lambda: replace(HYBRID, window=0), "window must be at least 1, got 0"),
        (lambda: replace(HYBRID, num_local_layers=None), "window=128 .* how many of the 36 layers"),
        (lambda: replace(LLAMA, num_local_layers=2), "got 2 of 32 layers, window=None"),
        (lambda: replace(HYBRID, num_local_layers=37), "got 37 of 36 layers, window=128"),
        (lambda: replace(HYBRID, num_local_layers=-1), "num_local_layers must be at least 0"),
        (lambda: LLAMA.bytes_per_sequence(0, "int8"), "num_tokens must be at least 1, got 0"),
        (lambda: LLAMA.bytes_per_sequence(9, "int8", block_size=0), "block_size must be at least"),
        (lambda: LLAMA.bytes_per_block(-16, "int8"), "block_size must be at least 1, got -16"),
        (lambda: LLAMA.bytes_per_token("fp16"), "no dtype 'fp16'; known: float32, .*, int8, int4$"),
        (lambda: KVShape(1, 2, 5).bytes_per_token("int4"), "5 elements of int4 take 2.5 bytes"),
        (lambda: num_bytes(3, "int4"), "3 elements of int4 take 1.5 bytes, not whole"),
        (lambda: format_bytes(1, "gb"), "no unit 'gb'; known: B, KB, .*, TiB$"),
    ],
)
def test_bad_input_is_refused_with_its_numbers(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KVShape(32, 8, 128.0), "head_dim must be a whole number, got 128.0"),
        (lambda: KVShape(True, 8, 128), "num_layers must be a whole number, got True"),
        (lambda: replace(HYBRID, window=1.5), "window must be a whole number, got 1.5"),
        (lambda: LLAMA.bytes_per_sequence(1e9, "int8"), "num_tokens must be a whole number, got 1"),
        (lambda: LLAMA.bytes_per_block("16", "int8"), "block_size must be a whole number"),
    ],
)
def test_a_size_that_is_not_whole_is_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build()


def test_of_many_names_only_the_near_ones_are_listed() -> None:
    known = ["fox", "fan", *"abcdefghijkl"]
    assert near("FAX", known) == "no name 'FAX'; near: fox, fan"
    assert near("???", known) == "no name '???'; known: " + ", ".join(known)


def test_twelve_names_are_all_listed_and_of_thirteen_five_of_a_kind() -> None:
    twelve = ["fox", "fan", *"abcdefghij"]
    assert near("fax", twelve) == "no name 'fax'; known: " + ", ".join(twelve)
    inside = [f"{letter}, sent by fax" for letter in "abcdef"]
    said = near("fax", [*inside, *"abcdefg"]).partition("near: ")[2]
    assert said == ", ".join(inside[:5])
    alike = ["faxa", "faxb", "faxc", "faxd", "faxe", "faxf"]  # as near as each other
    said = near("faxz", [*alike, *"abcdefg"]).partition("near: ")[2].split(", ")
    assert len(said) == 5 and set(said) < set(alike)
