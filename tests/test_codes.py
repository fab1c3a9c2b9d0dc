"""Codes in torch: within half a step in every format, stored scales on both sides, no infinity."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.precision import Precision
from kvlib.tensors.codes import decode, encode, rounded, stored_scales

HEAD_DIM, BLOCK = 12, 6


def formats():
    """Every combination that is a format."""
    for bits, along, symmetric, scale in product(
        (8, 4, 2), ("token", "channel"), (True, False), ("float16", "float32", "power_of_two")
    ):
        if symmetric or scale != "power_of_two":
            yield Precision(bits, None, along, symmetric, scale)
    for scale, along in product(("float16", "float32", "power_of_two"), ("token", "channel")):
        yield Precision(along=along, scale_dtype=scale, kind="fp8")
    yield from (Precision(4, 4), Precision(2, 3, symmetric=True), Precision(8, 1))


FORMATS = tuple(formats())


def back(x, precision):
    return decode(encode(x, precision), precision, x.shape[-1], x.shape[-2])


def groups(x, precision):
    """The numbers with the group last."""
    if precision.along == "channel":
        return x.transpose(-1, -2)
    return x.unflatten(-1, (-1, precision.group_size or x.shape[-1]))


def step_of(x, precision):
    """Each group's stored scale, one number a group."""
    block, head_dim = x.shape[-2:]
    held = stored_scales(encode(x, precision), precision, head_dim, block)
    return held if precision.along == "channel" else held.unflatten(-1, (block, -1))


@settings(max_examples=150)
@given(
    precision=st.sampled_from(FORMATS),
    seed=st.integers(0, 999),
    spread=st.sampled_from([1e-4, 1.0, 300.0]),
    shift=st.sampled_from([0.0, 0.1, -7.0, 1000.0]),
)
def test_a_number_is_read_back_within_half_a_step(precision, seed, spread, shift):
    x = torch.randn(2, BLOCK, HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    x = x * spread + shift
    off = groups((back(x, precision) - x).abs(), precision).amax(-1)
    widest = 32 if precision.kind == "fp8" else 1
    # float32 arithmetic adds a few last digits of the numbers themselves.
    noise = 4e-7 * x.abs().max()
    assert (off <= widest * step_of(x, precision) / 2 + noise).all()
    held = groups(x, precision)
    for low, high, error in zip(
        held.amin(-1).flatten().tolist(),
        held.amax(-1).flatten().tolist(),
        off.flatten().tolist(),
        strict=True,
    ):
        assert error <= precision.half_step(low, high) + noise


@pytest.mark.parametrize("precision", [f for f in FORMATS if f.has_minimum], ids=str)
def test_QC_1_groups_of_equal_numbers_come_back_exactly(precision):
    for number in (0.0, 9.0, -9.0):
        data = encode(torch.full((BLOCK, HEAD_DIM), number), precision)
        assert (decode(data, precision, HEAD_DIM, BLOCK) == number).all()
        assert torch.isfinite(stored_scales(data, precision, HEAD_DIM, BLOCK)).all()


@pytest.mark.parametrize("precision", FORMATS, ids=str)
def test_QC_1_zeros_are_zeros_in_every_format(precision):
    assert (back(torch.zeros(BLOCK, HEAD_DIM), precision) == 0).all()


def test_QC_3_the_stored_scale_encodes_and_decodes():
    """10 / 7 is stored as 2: code 5. Coded with 10 / 7 itself it would be 7 and come back as 14."""
    precision = Precision(4, symmetric=True, scale_dtype="power_of_two")
    data = encode(torch.tensor([[10.0, -3.0]]), precision)
    assert stored_scales(data, precision, 2, 1).tolist() == [2.0]
    assert decode(data, precision, 2, 1)[0, 0] == 10


def test_a_scale_that_is_a_power_of_two_stays_as_it_is():
    precision = Precision(4, symmetric=True, scale_dtype="power_of_two")
    for number, scale in ((7.0, 1.0), (7.1, 2.0), (1.75, 0.25), (14.0, 2.0)):
        data = encode(torch.tensor([[number, 0.0]]), precision)
        assert stored_scales(data, precision, 2, 1).tolist() == [scale]


def test_QC_5_static_scales_of_keys_and_values_are_their_own():
    for scale, number in ((1.0, 2.0), (1.0, 4.0), (2.0, 2.0), (4.0, 4.0)):
        for kind in ("int", "fp8"):
            assert (
                back(torch.full((1, 4), number), Precision.static(scale, kind=kind)) == number
            ).all()


def test_a_static_scale_cuts_what_lies_beyond():
    x = torch.tensor([[1000.0, -1000.0, 3.0]])
    assert back(x, Precision.static())[0].tolist() == [127, -127, 3]
    assert back(x, Precision.static(kind="fp8"))[0].tolist() == [448, -448, 3]


def test_DT_3_scales_hold_what_they_say_and_bfloat16_rounds():
    stored = torch.tensor(-1e5).bfloat16().float()
    assert stored == -99_840
    wide = Precision(8, scale_dtype="float32")
    assert (back(stored.expand(2, 4), wide) == -99_840).all() and wide.largest > 1e5
    narrow = Precision(8)
    assert narrow.largest == 65_504
    x = torch.tensor([[-65_504.0, 65_504.0]])
    assert torch.isfinite(back(x, narrow)).all()


@pytest.mark.parametrize("precision", [*FORMATS, Precision.static(2.0**100)], ids=str)
def test_DT_3_what_a_format_says_it_holds_comes_back_finite_and_within_half_a_step(precision):
    """From the lowest number to the highest it is twice as far as from zero."""
    most = precision.largest
    x = torch.full((BLOCK, HEAD_DIM), most)
    x[::2, ::2] = x[1::2, 1::2] = -most
    off = (back(x, precision).double() - x.double()).abs().max().item()
    assert off <= 1.000001 * precision.half_step(-most, most)


def test_half_a_step_counts_the_smallest_float16():
    """Both the minimum and the step lie between two of the numbers a float16 has near zero."""
    precision = Precision(2)
    for group in ([-1.221e-7, 7e-10, -2.89e-8, -8.26e-8], [-6e-9, 1.2e-7, 3.1e-8, 5.2e-8]):
        x = torch.tensor([group])
        off = (back(x, precision).double() - x.double()).abs().max().item()
        assert off <= precision.half_step(x.min().item(), x.max().item())


@given(st.floats(-6e4, 6e4, width=32), st.booleans())
def test_a_float16_is_rounded_to_the_side_that_is_safe(x, up):
    exact = torch.tensor([x])
    found = rounded(exact, "float16", up=up)
    assert (found >= exact) if up else (found <= exact)
    assert (found - exact).abs() <= max(abs(x) * 2**-10, 2**-24)


def test_codes_of_a_row_share_bytes_as_the_kernel_expects():
    """Six codes of 4 bits in 3 bytes: code d is in byte d % 3, the upper half from d = 3 on."""
    x = torch.tensor([[0.0, 1, 2, 3, 4, 15]])
    data = encode(x, Precision(4))
    assert data[0:3].tolist() == [0x30, 0x41, 0xF2]
