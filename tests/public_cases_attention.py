"""Public cases about masks, precision and alignment, tried on every way to attend."""

import math

import pytest
import torch

from exact_caches import EXACT
from kvlib.sizes import KVShape
from kvlib.tensors.aligned import aligned_empty
from kvlib.tensors.attention import causal_mask, contiguous_attention, reference_attention
from kvlib.tensors.attention_parts import merge
from kvlib.tensors.device import device
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.paged_attention import WAYS
from kvlib.tensors.way_choice import choose_way
from public_cases import case

ONE = KVShape(num_layers=1, num_kv_heads=1, head_dim=4)
CPU = torch.device("cpu")


def paged_ways(dtype=torch.float32, shape=ONE):
    """The names of the ways that this machine has for a paged cache."""
    for way in WAYS:
        try:
            yield choose_way(way, CPU, dtype, shape, 16)
        except ValueError:
            continue


def caches(dtype=torch.float32, shape=ONE):
    """Each exact cache, and the paged one by each way."""
    for make in EXACT.values():
        yield make(shape, dtype=dtype)
    for way in paged_ways(dtype, shape):
        yield PagedKVCache(shape, 4, 16, way=way, dtype=dtype)


def attended(cache, k, v, q):
    """Stores tokens of one sequence and returns what the queries, its last tokens, see."""
    cache.add("a")
    before = len(k) - len(q)
    for part in (slice(0, before), slice(before, len(k))):
        with cache.step({"a": [0] * len(k[part])}) as plan:
            if not len(k[part]):
                continue
            cache.write(0, k[part], v[part], plan)
            out = cache.attend(0, q if part.start == before else k[part], plan)
    return out


def values(numbers, dtype=torch.float32, head_dim=4):
    return torch.tensor(numbers, dtype=dtype)[:, None, None].expand(-1, 1, head_dim).contiguous()


@case("CM-1")
def new_tokens_see_the_cache_and_each_other():
    v, q = values([0.0, 1, 2, 3, 4, 5]), torch.zeros(2, 1, 4)
    assert causal_mask(2, 6).int().tolist() == [[1, 1, 1, 1, 1, 0], [1] * 6]
    for cache in caches():
        out = attended(cache, torch.zeros_like(v), v, q)
        torch.testing.assert_close(out[:, 0, 0], torch.tensor([2.0, 2.5]))


@case("CM-2")
def one_query_sees_all_keys():
    v, q = values([0.0, 1, 2, 3, 4]), torch.zeros(1, 1, 4)
    for cache in caches():
        out = attended(cache, torch.zeros_like(v), v, q)
        assert out[0, 0].tolist() == pytest.approx([2.0] * 4)


@case("DT-1")
def scores_beyond_the_range_of_half_precision_are_kept():
    shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=128)
    k, v = values([256.0, 256.0], torch.float16, 128), values([1.0, 3.0], torch.float16, 128)
    assert 128 * 256.0**2 / math.sqrt(128) == pytest.approx(741_455.2)
    assert torch.finfo(torch.float16).max == 65_504
    out, _ = reference_attention(k[1:], k, v)
    assert out.flatten()[0] == 2.0
    for cache in caches(torch.float16, shape):
        assert attended(cache, k, v, k[1:])[0, 0].tolist() == [2.0] * 128


@case("DT-4")
def with_and_without_a_cache_agree_within_the_bound_of_each_type():
    bounds = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
    made = torch.Generator().manual_seed(3)
    k, v, q = (torch.randn(9, 1, 4, generator=made) for _ in range(3))
    for dtype, bound in bounds.items():
        mine = tuple(side.to(dtype) for side in (k, v, q[6:]))
        whole, _ = reference_attention(mine[2], mine[0], mine[1])
        for cache in caches(dtype):
            out = attended(cache, *mine)
            assert out.dtype == dtype
            torch.testing.assert_close(out.double(), whole, atol=bound, rtol=bound)


@case("FR-6")
def alignment_is_in_bytes():
    sizes = {}
    for dtype, width in ((torch.float16, 500), (torch.float16, 512), (torch.float16, 96)):
        rows = aligned_empty((3, width), 256, dtype, "cpu")
        assert rows.data_ptr() % 256 == 0 and rows[1].data_ptr() % 256 == 0
        sizes[width * 2] = rows.stride(0) * dtype.itemsize
    assert sizes == {1000: 1024, 1024: 1024, 192: 256}
    assert [given - asked for asked, given in sizes.items()] == [24, 0, 64]
    assert aligned_empty((2, 96), 256, torch.float32, "cpu").stride(0) == 128  # 384 → 512 bytes


@case("FR-4")
def the_stride_of_a_block_is_its_padded_size():
    blocks = aligned_empty((10, 48), 64, torch.float16, "cpu")  # 96 bytes of payload each
    assert blocks.stride(0) * 2 == 128
    assert blocks[9].data_ptr() - blocks[0].data_ptr() == 1_152
    assert 1_280 // (blocks.stride(0) * 2) == 10 != 1_280 // 96


@case("EN-1")
def without_cuda_the_cpu_is_used_and_cuda_is_refused():
    if torch.cuda.is_available():
        assert device().type == "cuda" and device("cpu").type == "cpu"
        return
    assert device().type == "cpu"
    with pytest.raises(RuntimeError, match=r"asked for device 'cuda'.*0 CUDA"):
        device("cuda")


@case("EM-1")
def nobody_is_asked_about_nothing_and_an_empty_part_weighs_nothing():
    """A query sees itself at least; parts that saw nothing have weight 0 when parts are merged."""
    seen, _ = reference_attention(torch.zeros(1, 1, 4), torch.zeros(3, 1, 4), values([0.0, 1, 2]))
    nothing = torch.full((1, 1, 4), math.nan), torch.full((1, 1), -math.inf)
    part = seen.float(), torch.zeros(1, 1)
    assert contiguous_attention(
        torch.zeros(0, 1, 4), torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)
    ).shape == (0, 1, 4)
    assert merge([part, nothing])[0].flatten().tolist() == [1.0] * 4
    out, lse = merge([nothing, nothing])
    assert out.flatten().tolist() == [0.0] * 4 and lse.item() == -math.inf
