"""Siblings of the public cases about few bits: the largest numbers, and any way a text may come."""

import pytest
import torch

from every_cache import DIM, HALVES, SHAPE, run, text
from kvlib.precision import Precision
from kvlib.tensors.codes import decode, encode
from kvlib.tensors.quantized import QuantizedKVCache
from test_codes import FORMATS

FULL = Precision(8, scale_dtype="float32")


@pytest.mark.parametrize("precision", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_the_largest_numbers_come_back_finite_in_every_format_and_type(precision, dtype):
    """A scale is rounded up, so the last code may lie beyond what the type can say."""
    most = largest(min(precision.largest, torch.finfo(dtype).max), dtype)
    x = torch.tensor([-most, most, 0.0, most / 3] * 3)[None].repeat(6, 1).to(dtype)
    back = decode(encode(x, precision), precision, 12, 6, dtype)
    assert back.isfinite().all(), back
    off = (back.double() - x.double()).abs().max()
    rounding = torch.finfo(dtype).eps * most
    assert off <= precision.half_step(-most, most) * (1 + 1e-6) + rounding


@pytest.mark.parametrize("way", ["cpu", "dequantize"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_largest_numbers_are_attended_to_in_few_bits(way, dtype):
    most = largest(65504.0, dtype)
    cache = QuantizedKVCache(
        SHAPE, 4, 2, keys=FULL, values=Precision(2), num_seqs=1, way=way, dtype=dtype
    )
    v = torch.full((3, 2, DIM), most).to(dtype)
    v[:, :, 0] = -most
    k = torch.zeros(3, 2, DIM, dtype=dtype)
    out = run(cache, k, v, torch.ones(3, 4, DIM, dtype=dtype), (2, 1))
    assert out.isfinite().all()
    torch.testing.assert_close(out[-1, 0].float(), v[0, 0].float(), rtol=2e-3, atol=0)


def test_a_number_just_beyond_the_scales_is_refused_in_a_type_that_cannot_tell():
    """In bfloat16 the limit itself would be rounded up to the number that is beyond it."""
    cache = QuantizedKVCache(SHAPE, 4, 2, num_seqs=1, dtype=torch.bfloat16)
    cache.add("a")
    beyond = torch.full((1, 2, DIM), 65536.0, dtype=torch.bfloat16)
    assert beyond[0, 0, 0] <= 65504.0, "which is how torch compares them"
    with pytest.raises(ValueError, match="within 65504"), cache.step({"a": [0]}) as plan:
        cache.write(0, beyond, beyond, plan)


def largest(most, dtype):
    """The largest number of a type that is no larger."""
    there = torch.tensor(most).to(dtype)
    return float(there if there.double() <= most else torch.nextafter(there, there * 0))


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_codes_do_not_depend_on_how_a_text_came(bits):
    """A block is coded when it is full, so groups are the same however the tokens are chunked."""
    k, v, q = text(23)
    formats = {"keys": Precision(bits, along="channel"), "values": Precision(bits)}
    found = []
    for chunks in ((23,), (1,) * 23, (3, 9, 11)):
        cache = QuantizedKVCache(SHAPE, 8, 4, num_seqs=1, **formats)
        run(cache, k, v, q, chunks)
        found.append(torch.stack(cache.read("a", 0)))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
