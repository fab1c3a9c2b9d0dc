"""What a cache holds follows from its layers, not from a field of the config that no layer uses."""

import torch

from kvlib.sizes import KVShape
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.paged import PagedKVCache

VAULT = {"num_layers": 26, "num_kv_heads": 1, "head_dim": 2, "window": 512}


def means(cache, num_tokens):
    """What zero queries find in the first and the last layer: the mean of the values seen."""
    values = torch.arange(num_tokens, dtype=torch.float32)[:, None, None].expand(-1, 1, 2)
    cache.add("a")
    with cache.step({"a": [0] * num_tokens}) as plan:
        outs = []
        for layer in (0, 25):
            cache.write(layer, torch.zeros_like(values), values, plan)
            outs.append(cache.attend(layer, torch.zeros(num_tokens, 1, 2), plan)[-1, 0, 0].item())
    return outs


def test_SW_7_a_window_that_no_layer_uses_hides_and_saves_nothing() -> None:
    shape = KVShape(**VAULT, num_local_layers=0)
    assert shape.bytes_per_sequence(600, "float16") == 26 * 600 * 2 * 2 * 2
    for cache in (ContiguousKVCache(shape, 1, 600), PagedKVCache(shape, 38, 16, way="gather")):
        assert means(cache, 600) == [299.5, 299.5]


def test_a_window_that_half_of_the_layers_use_saves_in_those() -> None:
    shape = KVShape(**VAULT, num_local_layers=13)
    assert shape.bytes_per_sequence(600, "float16") == 13 * (600 + 512) * 2 * 2 * 2


def test_layers_that_read_another_layers_cache_are_not_counted() -> None:
    """Cross-layer sharing has no field of its own: `num_layers` counts the layers that cache."""
    whole, pairs = KVShape(30, 3, 64), KVShape(15, 3, 64)
    assert 2 * pairs.bytes_per_sequence(100, "float16") == whole.bytes_per_sequence(100, "float16")
    caches = [ContiguousKVCache(shape, 1, 100, device="meta") for shape in (whole, pairs)]
    assert caches[0].nbytes == 2 * caches[1].nbytes
