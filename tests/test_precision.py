"""Formats: exact bytes with padding and scales, the engines' published bits, and clear refusals."""

import pytest

from kvlib.precision import Precision, cache_bytes
from kvlib.sizes import KVShape


@pytest.mark.parametrize("head_dim, code_bytes, offset", [(5, 3, 4), (6, 3, 4), (64, 32, 32)])
def test_QC_6_a_scale_begins_at_a_multiple_of_its_bytes(head_dim, code_bytes, offset):
    layout = Precision(4, symmetric=True).layout(head_dim)
    assert (layout.row_bytes, layout.scale_offset) == (code_bytes, offset)
    assert layout.block_bytes == offset + 2


def test_QC_6_padding_and_scales_are_in_the_bytes_of_a_cache():
    assert Precision(4, symmetric=True).layout(80)[:2] == (40, 40)
    four = Precision(4, symmetric=True)
    # 3 tokens of 5 codes: 9 bytes, one of padding, 3 scales of 2 bytes.
    assert four.layout(5, 3).block_bytes == 16
    assert cache_bytes(KVShape(2, 3, 5), 7, 3, four, four) == 2 * 3 * 7 * 2 * 16
    row = 2 * 3 * 5 * 4
    assert cache_bytes(KVShape(2, 3, 5), 7, 3, four, four, num_seqs=4) == 2 * 3 * (7 * 32 + 4 * row)


@pytest.mark.parametrize(
    "engine, precision, bits",
    [
        ("llama.cpp q8_0", Precision(8, 32, symmetric=True), 8.5),
        ("llama.cpp q4_0", Precision(4, 32, symmetric=True), 4.5),
        ("llama.cpp q4_1", Precision(4, 32), 5.0),
        ("LMDeploy INT8", Precision(8), 8.25),
        ("LMDeploy INT4", Precision(4), 4.25),
        ("LightLLM int8kv", Precision(8, symmetric=True), 8.125),
        ("ExLlama, 6 bits less two", Precision(4, 32, symmetric=True), 4.5),
        ("KIVI values", Precision(2, 32), 3.0),
        ("one static scale", Precision.static(kind="fp8"), 8.0),
    ],
)
def test_bits_of_an_element_are_those_that_engines_state(engine, precision, bits):
    assert precision.bits_per_element(128, block_size=32) == bits, engine


def test_along_a_channel_the_block_is_the_group():
    keys = Precision(2, along="channel")
    assert keys.bits_per_element(128, block_size=32) == 3.0
    assert keys.bits_per_element(128, block_size=16) == 4.0
    with pytest.raises(ValueError, match="the block of 16 tokens, which is the group: got groups"):
        Precision(2, 32, along="channel").layout(128, 16)
    assert Precision(2, 16, along="channel").layout(128, 16) == keys.layout(128, 16)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bits": 3}, "bits is one of 8, 4, 2, got 3"),
        ({"bits": 8.0}, "bits is one of"),
        ({"bits": 4, "kind": "fp8"}, "bits is one of 8, got 4"),
        ({"along": "head"}, "along is one of token, channel, got 'head'"),
        ({"kind": "float"}, "kind is one of int, fp8"),
        ({"scale_dtype": "bfloat16"}, "no scale_dtype 'bfloat16'; known: float16"),
        ({"scale_dtype": "power_of_two"}, "a minimum is no power of two"),
        ({"scale": 0.0}, "a static scale is a finite number above 0, got 0.0"),
        ({"scale": float("nan")}, "a static scale is a finite"),
        ({"group_size": 0}, "group_size must be at least 1, got 0"),
    ],
)
def test_what_is_no_format_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Precision(**options)


@pytest.mark.parametrize("group", [3, 48, 128])
def test_groups_that_do_not_divide_the_head_are_refused(group):
    with pytest.raises(ValueError, match=f"divide the head of 64 channels: got groups of {group}"):
        Precision(4, group).layout(64)


def test_QC_5_a_static_scale_is_1_unless_said_otherwise():
    assert Precision.static().scale == 1.0
    assert Precision.static(2.0).layout(64) == (64, 64, 0, 64)


def test_half_a_step_counts_what_a_static_scale_cuts():
    assert Precision.static(0.1).half_step(-1.0, 1.0) == 0.05
    assert Precision.static(0.1).half_step(-20.0, 1.0) == pytest.approx(7.3)
    assert Precision.static(1e-12).half_step(0.0, 4e-10) == pytest.approx(4e-10 - 127e-12)


def test_a_sign_that_all_numbers_share_wastes_codes_without_a_minimum():
    one_sided = {"low": 10.0, "high": 11.0}
    with_minimum = Precision(4, scale_dtype="float32").half_step(**one_sided)
    without = Precision(4, symmetric=True, scale_dtype="float32").half_step(**one_sided)
    assert without > 20 * with_minimum


@pytest.mark.parametrize(
    "precision, most",
    [
        (Precision(), 65504.0),
        (Precision(kind="fp8"), 65504.0),
        (Precision(scale_dtype="float32"), float.fromhex("0x1p126")),
        (Precision(symmetric=True, scale_dtype="power_of_two"), float.fromhex("0x1p126")),
        (Precision.static(), float.fromhex("0x1p126")),  # no scale is stored
    ],
)
def test_the_largest_number_is_what_a_stored_scale_can_hold(precision, most):
    assert precision.largest == most


def test_half_a_step_of_fp8_is_that_of_its_largest_numbers():
    """Between 256 and 448, e4m3 goes by 32."""
    assert Precision.static(kind="fp8").half_step(-448.0, 448.0) == 16.0
    assert Precision(kind="fp8", scale_dtype="float32").half_step(-44.8, 4.0) == pytest.approx(1.6)


def test_half_a_step_counts_that_a_float16_is_rounded():
    """A minimum by a thousandth of 3, a scale by a thousandth, and neither by less than 2^-24."""
    found = Precision(4).half_step(-3.0, 12.0)
    assert found == pytest.approx((15 + 3 / 1024) / 30 * 1025 / 1024, rel=1e-6)
    signed = Precision(4, symmetric=True)
    assert signed.half_step(-7.0, 2.0) == pytest.approx(1025 / 2048, rel=1e-6)
    tiny = 2.0**-24
    assert signed.half_step(-7 * tiny, 0.0) == pytest.approx(1.5 * tiny, rel=1e-3)
    assert signed.half_step(0.0, 0.0) == 0.0
