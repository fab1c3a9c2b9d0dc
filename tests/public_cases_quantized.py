"""Public cases about numbers in few bits: stored, rounded and laid out."""

import pytest
import torch

from exact_caches import EXACT
from kvlib.precision import Precision
from kvlib.sizes import KVShape
from kvlib.tensors.codes import decode, encode, stored_scales
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.sink_window import RollingKVCache
from kvlib.tensors.snap import SnapKVCache
from public_cases import case

ONE = KVShape(num_layers=1, num_kv_heads=1, head_dim=2)


def back(x, precision):
    return decode(encode(x, precision), precision, x.shape[-1], x.shape[-2])


def caches(dtype):
    """Every cache that stores numbers of this type, with one sequence."""
    for make in EXACT.values():
        yield make(ONE, dtype=dtype)
    yield RollingKVCache(ONE, 1, 4, dtype=dtype)
    yield HeavyHitterKVCache(ONE, 1, 4, recent=1, dtype=dtype)
    yield SnapKVCache(ONE, 1, 4, observe=1, kernel=1, dtype=dtype)
    wide = Precision(8, scale_dtype="float32")
    yield QuantizedKVCache(ONE, 4, 2, keys=wide, values=wide, num_seqs=1, dtype=dtype)


@case("QC-1")
def groups_without_a_range_come_back_as_they_were():
    equal = torch.tensor([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0], [-9.0, -9.0, -9.0]])
    for bits in (8, 4, 2):
        for scale in ("float16", "float32"):
            precision = Precision(bits, scale_dtype=scale)
            assert torch.equal(back(equal, precision), equal)
            held = stored_scales(encode(equal, precision), precision, 3, 3)
            assert torch.isfinite(held).all()
            turned = Precision(bits, along="channel", scale_dtype=scale)
            assert torch.equal(back(equal.T.contiguous(), turned), equal.T)


@case("QC-3")
def the_rounded_scale_encodes_as_well_as_decodes():
    precision = Precision(4, symmetric=True, scale_dtype="power_of_two")
    x = torch.tensor([[10.0, 0.0]])
    data = encode(x, precision)
    assert stored_scales(data, precision, 2, 1).tolist() == [2.0]
    assert (data[0] & 15).item() - 7 == 5
    assert back(x, precision)[0, 0] == 10.0


@case("QC-5")
def a_scale_nobody_gave_is_one_and_keys_and_values_have_their_own():
    assert Precision.static().scale == 1.0
    for k_scale, v_scale in ((1.0, 1.0), (2.0, 4.0)):
        formats = {"keys": Precision.static(k_scale), "values": Precision.static(v_scale)}
        for way in ("cpu", "dequantize"):
            cache = QuantizedKVCache(ONE, 2, 2, num_seqs=1, way=way, **formats)
            cache.add("a")
            k, v = torch.full((2, 1, 2), 2.0), torch.full((2, 1, 2), 4.0)
            with cache.step({"a": [0, 0]}) as plan:
                cache.write(0, k, v, plan)
            assert [side.unique().tolist() for side in cache.read("a", 0)] == [[2.0], [4.0]]
            with cache.step({"a": [0]}) as plan:
                cache.write(0, k[:1], v[:1], plan)
                seen = cache.attend(0, k[:1], plan)
                assert seen.flatten().tolist() == pytest.approx([4.0, 4.0])


@case("QC-6")
def a_scale_lies_at_a_multiple_of_its_bytes_and_is_counted():
    layouts = [Precision(4, symmetric=True).layout(head_dim) for head_dim in (5, 6, 64, 80)]
    assert [each.row_bytes for each in layouts] == [3, 3, 32, 40]
    assert [each.scale_offset for each in layouts] == [4, 4, 32, 40]
    assert [each.block_bytes for each in layouts] == [6, 6, 34, 42]
    odd = KVShape(num_layers=1, num_kv_heads=1, head_dim=5)
    symmetric = Precision(4, symmetric=True)
    cache = QuantizedKVCache(odd, 3, 1, keys=symmetric, values=symmetric, num_seqs=1)
    assert cache.codes.nbytes == 3 * 2 * 6


@case("DT-3")
def a_number_beyond_the_type_is_never_stored_as_infinity():
    """A cache converts nothing, so a wide number does not fit; a quantised one refuses infinity."""
    large = torch.full((1, 1, 2), -1e5)
    assert torch.finfo(torch.float16).min == -65504
    for cache in caches(torch.float16):
        cache.add("a")
        with (
            pytest.raises(ValueError, match=r"float16.*float32"),
            cache.step({"a": [0]}) as plan,
        ):
            cache.write(0, large, large, plan)
        assert cache.length("a") == 0
        cache.check()
    half = QuantizedKVCache(ONE, 4, 2, num_seqs=1, dtype=torch.float16)
    half.add("a")
    with pytest.raises(ValueError, match="finite"), half.step({"a": [0]}) as plan:
        half.write(0, large.half(), large.half(), plan)
    for cache in caches(torch.bfloat16):
        cache.add("a")
        with cache.step({"a": [0]}) as plan:
            cache.write(0, large.bfloat16(), large.bfloat16(), plan)
            seen = cache.attend(0, torch.zeros(1, 1, 2, dtype=torch.bfloat16), plan)
        assert seen.unique().tolist() == [-99_840]
