"""Results do not hang on how many threads compute them: equal bits or within stated bounds."""

from contextlib import contextmanager

import pytest
import torch

from conftest import small_config
from exact_caches import EXACT
from kvlib.precision import Precision
from kvlib.tensors.attention import contiguous_attention
from kvlib.tensors.engine import Engine
from kvlib.tensors.generate import generate
from kvlib.tensors.kernels import few_rows
from kvlib.tensors.kernels.build import NoCompiler
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.quantized import QuantizedKVCache

ATTENTION, LOGITS = 1e-5, 5e-4
THREADS = (1, 2)
PROMPT = [7 * i % 97 for i in range(60)]
STARTS = range(0, 40, 10)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_each(call):
    """What a call gives with one thread and with two."""
    found = []
    for count in THREADS:
        with threads(count):
            found.append(call())
    return found


@pytest.fixture(scope="module")
def model():
    """Wide enough that torch does share the work out: it leaves small tensors to one thread."""
    sizes = {"hidden_size": 96, "intermediate_size": 1024, "head_dim": 16, "vocab_size": 997}
    return Llama.random(small_config(**sizes, max_position_embeddings=128), seed=3)


def logits_of(model, cache):
    """Logits of a prompt and of three tokens after it, read through a cache."""
    cache.add("a")
    rows, new = [], PROMPT
    for _ in range(4):
        with cache.step({"a": new}) as plan:
            rows.append(model(torch.tensor(new), cache, plan)[0])
        new = [int(rows[-1].argmax())]
    return torch.stack(rows)


@pytest.mark.parametrize("kind", EXACT)
def test_logits_through_every_exact_cache(model, kind):
    """Paged, on a CPU with a compiler, that is one call of a kernel; the others go by layers."""
    first, *others = with_each(
        lambda: logits_of(model, EXACT[kind](model.kv_shape, max_seq_len=80, num_seqs=1))
    )
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=LOGITS)


@pytest.mark.parametrize("way", ["reference", "gather", "chunked", "cpu"])
def test_every_way_to_attend(model, way):
    try:
        PagedKVCache(model.kv_shape, 4, way=way)
    except NoCompiler as error:
        pytest.skip(str(error))
    k, v = torch.randn(2, 500, 2, 16, generator=torch.Generator().manual_seed(0))
    q = torch.randn(500, 6, 16, generator=torch.Generator().manual_seed(1))

    def attended():
        cache = PagedKVCache(model.kv_shape, 40, 16, way=way)
        cache.add("a")
        with cache.step({"a": [0] * 499}) as plan:
            for layer in range(2):
                cache.write(layer, k[:499], v[:499], plan)
        with cache.step({"a": [0]}) as plan:
            for layer in range(2):
                cache.write(layer, k[499:], v[499:], plan)
            return cache.attend(1, q[499:], plan)

    expected = contiguous_attention(q[499:], k.transpose(0, 1), v.transpose(0, 1))
    for each in with_each(attended):
        torch.testing.assert_close(each, expected, rtol=0, atol=ATTENTION)


def test_a_row_of_the_decode_kernel_to_the_last_bit():
    try:
        few_rows.product(torch.ones(1, 8), torch.ones(8, 8))
    except NoCompiler as error:
        pytest.skip(str(error))
    x, weight = torch.randn(3, 513), torch.randn(1031, 513)
    first, *others = with_each(lambda: few_rows.product(x, weight))
    assert all(torch.equal(other, first) for other in others)


def test_a_lossy_cache_loses_the_same(model):
    def text():
        codes = {"keys": Precision(2), "values": Precision(2)}
        return logits_of(model, QuantizedKVCache(model.kv_shape, 20, 8, **codes, num_seqs=1))

    first, *others = with_each(text)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=LOGITS)


def test_an_engine_with_preemption_writes_the_same_texts(model):
    def texts():
        engine = Engine(model, num_blocks=9, block_size=8)
        requests = [engine.submit(PROMPT[start : start + 20], 8) for start in STARTS]
        engine.run()
        return [tuple(each.tokens) for each in requests]

    alone = [generate(model, PROMPT[start : start + 20], 8) for start in STARTS]
    for found in with_each(texts):
        for tokens, one in zip(found, alone, strict=True):
            assert tokens == one.tokens
