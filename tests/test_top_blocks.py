"""The cache that reads few blocks: which ones, what is counted, and exact where it says so."""

from copy import deepcopy

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conftest import small_config
from exact_caches import fill, poison
from kvlib.plan import OutOfBlocks
from kvlib.sizes import KVShape
from kvlib.tensors.attention import reference_attention
from kvlib.tensors.generate import generate
from kvlib.tensors.graph import DecodeGraph
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.paged_attention import WAYS
from kvlib.tensors.top_blocks import TopBlocksKVCache

TEXT = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=8)


def forward(model, cache, new, **options):
    tokens = torch.tensor([t for ts in new.values() for t in ts], device=model.device)
    with cache.step(new) as plan:
        return model(tokens, cache, plan, **options)


def few(model, top_k, block_size=3, num_blocks=16, **options):
    place = {"dtype": model.dtype, "device": model.device}
    return poison(
        TopBlocksKVCache(model.kv_shape, num_blocks, block_size, top_k=top_k, **place, **options)
    )


@pytest.fixture(params=[way for way in WAYS if way != "triton"])
def way(request, device):
    if request.param == "cpu" and device.type != "cpu":
        pytest.skip("the compiled kernel attends on a CPU")
    return request.param


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_with_room_for_all_blocks_nothing_changes(small_model, way, block_size, monkeypatch):
    """Token for token, and byte for byte but for keeping the extremes."""
    monkeypatch.setattr(small_model, "one_call", False)  # it rounds in another order
    whole = poison(
        PagedKVCache(small_model.kv_shape, 24, block_size, way=way, device=small_model.device)
    )
    cache = few(small_model, 20, block_size, 24, way=way)
    for each in (whole, cache):
        each.add("a")
    for size in (4, 1, 1, 3, 1):
        start = cache.length("a")
        new = {"a": TEXT[start : start + size]}
        got, expected = (forward(small_model, c, new) for c in (cache, whole))
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert cache.counters.attention_pairs == whole.counters.attention_pairs
    assert cache.counters.kernels == whole.counters.kernels
    cache.check()


def filled(cache, lengths, generator, device):
    """Adds texts of these lengths, in steps of 5 tokens; returns their keys and values."""
    held = {seq_id: [[], []] for seq_id in lengths}
    for seq_id in lengths:
        cache.add(seq_id)
    for chunk in range(0, max(lengths.values()), 5):
        new = {s: [0] * min(5, n - chunk) for s, n in lengths.items() if n > chunk}
        size = (sum(map(len, new.values())), cache.store.keys.shape[2], 8)
        k, v = torch.randn(2, *size, generator=generator).to(device)
        with cache.step(new) as plan:
            for layer in (0, 1):
                cache.write(layer, k, v, plan)
        start = 0
        for s, tokens in new.items():
            for side, fresh in zip(held[s], (k, v), strict=True):
                side.append(fresh[start : start + len(tokens)])
            start += len(tokens)
    return held


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_a_decode_query_attends_to_its_chosen_blocks_and_to_nothing_else(way, heads, top_k, device):
    """A batch of three lengths, blocks in no order, against float64 over the chosen keys alone."""
    num_q, num_kv = heads
    shape, size = KVShape(2, num_kv, 8), 4
    cache = poison(TopBlocksKVCache(shape, 16, size, top_k=top_k, way=way, device=device))
    generator = torch.Generator().manual_seed(3)
    lengths = {"a": 17, "b": 3, "c": 12}
    held = filled(cache, lengths, generator, device)
    q = torch.randn(3, num_q, 8, generator=generator).to(device)
    k, v = torch.randn(2, 3, num_kv, 8, generator=generator).to(device)
    with cache.step({s: [0] for s in lengths}) as plan:
        for layer in (0, 1):
            cache.write(layer, k, v, plan)
        out = cache.attend(1, q, plan)
        places, bounds = cache.chosen(1, q, plan.context)
    cache.check()
    for s, seq_id in enumerate(lengths):
        keys, values = (
            torch.cat([*old, new[s : s + 1]]) for old, new in zip(held[seq_id], (k, v), strict=True)
        )
        blocks = -(-len(keys) // size)
        for h in range(num_kv):
            chosen = [p for p in places[s, h].tolist() if p < blocks]
            assert len(chosen) == len(set(chosen)) == min(top_k, blocks)
            assert blocks - 1 in chosen
            seen = [t for p in chosen for t in range(p * size, min((p + 1) * size, len(keys)))]
            mine = slice(h * num_q // num_kv, (h + 1) * num_q // num_kv)
            near = {"rtol": 1e-5, "atol": 1e-5}
            expected, _ = reference_attention(
                q[s : s + 1, mine], keys[seen][:, h : h + 1], values[seen][:, h : h + 1]
            )
            torch.testing.assert_close(out[s : s + 1, mine].double(), expected, **near)
            unread = [t for t in range(len(keys)) if t not in seen]
            if unread and top_k > 1:
                best = bounds[s, h].amax(0)[[p for p in chosen if p < blocks - 1]].min()
                assert (q[s, mine] @ keys[unread][:, h].T).max() <= best + 1e-5


def test_a_step_of_both_kinds_reads_all_for_the_long_and_few_for_the_single(small_model, way):
    """The same tokens in steps of their own give the same logits, and cost the same."""
    apart, together = few(small_model, 2, way=way), few(small_model, 2, way=way)
    for cache in (apart, together):
        for seq_id in "abc":
            cache.add(seq_id)
        forward(small_model, cache, {"a": TEXT[:13], "b": TEXT[:4]})
    before = [cache.counters.snapshot() for cache in (apart, together)]
    got = forward(small_model, together, {"a": [1], "b": [2, 3, 4, 5, 6], "c": []})
    expected = [forward(small_model, apart, each) for each in ({"b": [2, 3, 4, 5, 6]}, {"a": [1]})]
    torch.testing.assert_close(got[0], expected[1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], expected[0][0], rtol=1e-5, atol=1e-5)
    costs = [c.counters.since(b) for c, b in zip((apart, together), before, strict=True)]
    for name in ("bytes_read", "bytes_written", "attention_pairs", "tokens_forwarded"):
        assert getattr(costs[0], name) == getattr(costs[1], name)


def test_bytes_are_counted_where_they_are_read(small_model):
    """13 tokens in blocks of 3, two of five read: 3 + 1 tokens, 5 extremes, one key again."""
    per_token = small_model.kv_shape.bytes_per_token("float32")
    cache = few(small_model, top_k=2)
    cache.add("a")
    before = cache.counters.snapshot()
    forward(small_model, cache, {"a": TEXT[:12]})
    work = cache.counters.since(before)
    assert work.bytes_read == 12 * per_token + 12 * per_token // 2
    assert work.bytes_written == 12 * per_token + 4 * per_token
    assert work.kernels == {cache.way: 2}
    before = cache.counters.snapshot()
    forward(small_model, cache, {"a": TEXT[12:13]})
    work = cache.counters.since(before)
    assert work.bytes_read == (3 + 1) * per_token + 5 * per_token + per_token // 2
    assert work.bytes_written == per_token + per_token
    assert work.attention_pairs == 4
    assert work.kernels == {cache.way: 2, "block_bounds": 2}
    assert cache.nbytes == (17 * 3 + 17) * per_token


def test_dense_layers_and_first_blocks_are_read(small_model):
    per_token = small_model.kv_shape.bytes_per_token("float32")
    cache = few(small_model, top_k=2, first_blocks=1, dense_layers=1)
    cache.add("a")
    forward(small_model, cache, {"a": TEXT[:12]})
    before = cache.counters.snapshot()
    with cache.step({"a": [0]}) as plan:
        q, k = torch.ones(1, 6, 8, device=cache.device), torch.ones(1, 2, 8, device=cache.device)
        for layer in (0, 1):
            cache.write(layer, k, k, plan)
            cache.attend(layer, q, plan)
        assert cache.chosen(1, q, plan.context)[0].tolist() == [[[0, 4], [0, 4]]]
    read = cache.counters.since(before).bytes_read
    assert read == (13 + 4 + 5) * per_token // 2 + per_token // 2


def test_a_far_block_is_found_again_when_a_query_asks_for_it():
    """What a cache that drops tokens cannot do: unread now, read later."""
    cache = TopBlocksKVCache(KVShape(1, 1, 2), 8, 2, top_k=2, way="gather")
    cache.add("a")
    seen = []
    for token in range(10):
        k = torch.tensor([[[1.0, 0.0] if token == 1 else [0.0, 1.0]]])
        with cache.step({"a": [0]}) as plan:
            cache.write(0, k, torch.full_like(k, float(token)), plan)
            for q in ([[[0.0, 50.0]]], [[[99.0, 0.0]]]):
                out = cache.attend(0, torch.tensor(q), plan)
        seen.append(round(out[0, 0, 0].item(), 2))
    assert seen[1:] == [1.0] * 9


def test_free_slots_and_blocks_never_show(small_model):
    cache, clean = few(small_model, 2), few(small_model, 2)
    cache.add("old")
    forward(small_model, cache, {"old": [3] * 40})
    cache.free("old")
    fill(cache.store, float("nan"))
    cache.extremes.fill_(torch.nan)
    for each in (cache, clean):
        each.add("a")
    for token in TEXT:
        got, expected = (forward(small_model, c, {"a": [token]}) for c in (cache, clean))
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    cache.check()


def test_the_extremes_of_a_failed_step_are_gone(small_model):
    """A huge key, written and taken back: the block is bounded by what it holds."""
    cache, untouched = few(small_model, 2), few(small_model, 2)
    for each in (cache, untouched):
        each.add("a")
        forward(small_model, each, {"a": TEXT[:10]})
    with pytest.raises(RuntimeError, match="power cut"), cache.step({"a": [1]}) as plan:
        for layer in (0, 1):
            cache.write(layer, *torch.full((2, 1, 2, 8), 1e6, device=cache.device), plan)
        raise RuntimeError("power cut")
    cache.check()
    for token in TEXT[10:]:
        got, expected = (forward(small_model, c, {"a": [token]}) for c in (cache, untouched))
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    held = [each.ledger.table("a") for each in (cache, untouched)]
    assert torch.equal(cache.extremes[:, :, held[0]], untouched.extremes[:, :, held[1]])


@pytest.mark.parametrize("act", ["fork", "truncate", "reorder"])
def test_going_on_from_another_past_is_as_if_there_had_been_no_other(small_model, act):
    """Seven tokens in blocks of 3, then another end: shared, cut and exchanged blocks."""
    cache, fresh = few(small_model, 2), few(small_model, 2)
    cache.add("a")
    forward(small_model, cache, {"a": TEXT[:7]})
    name = "a"
    if act == "fork":
        cache.fork("a", "b")
        forward(small_model, cache, {"a": [90] * 4})
        name = "b"
    elif act == "truncate":
        forward(small_model, cache, {"a": [90] * 4})
        cache.truncate("a", 7)
    else:
        cache.add("b")
        forward(small_model, cache, {"b": [90] * 5})
        cache.reorder({"a": "b", "b": "a"})
        name = "b"
    fresh.add("a")
    forward(small_model, fresh, {"a": TEXT[:7]})
    cache.check()
    for token in TEXT[7:]:
        got = forward(small_model, cache, {name: [token]})
        expected = forward(small_model, fresh, {"a": [token]})
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    cache.check()


@pytest.mark.parametrize("room", [2, 5])
def test_fixed_shapes_give_the_logits_of_free_ones(device, room):
    """Two blocks of 8 read, up to four held: in a graph the choice is made on the device."""
    model = Llama.random(small_config(head_dim=32), seed=1, device=device)
    texts = {"a": TEXT, "b": TEXT[::-1]}
    fixed, free = (few(model, 2, block_size=8, num_blocks=12) for _ in range(2))
    for cache in (fixed, free):
        for seq_id, text in texts.items():
            cache.add(seq_id)
            forward(model, cache, {seq_id: (text * 2)[:17]})
    graph = DecodeGraph(model, fixed, num_seqs=room, max_blocks=4)
    for position in range(17, 29):
        tokens = {seq_id: (text * 2)[position] for seq_id, text in texts.items()}
        if position == 20:
            tokens.pop("a")
        before = fixed.counters.snapshot(), free.counters.snapshot()
        got = graph.step(tokens)
        expected = forward(model, free, {s: [t] for s, t in tokens.items()})
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert fixed.counters.since(before[0]) == free.counters.since(before[1])
    fixed.check()


def test_no_step_waits_for_its_device():
    with torch.device("meta"):
        model = Llama(small_config())
    cache = TopBlocksKVCache(model.kv_shape, 16, 2, top_k=2, device="meta")
    for seq_id in "ab":
        cache.add(seq_id)
    for new in ({"a": [1] * 9, "b": [4]}, {"a": [5], "b": [6]}, {"a": [1], "b": [7, 8]}):
        tokens = torch.empty(sum(map(len, new.values())), dtype=torch.int64, device="meta")
        with cache.step(new) as plan:
            assert model(tokens, cache, plan).device.type == "meta"
    assert cache.counters.kernels["block_bounds"] == 6


def test_what_cannot_be_is_refused_before_anything_is_allocated():
    for options, message in (
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_k": 2, "first_blocks": 2}, "asked for top_k 2, at least 3 are needed"),
        ({"top_k": 2, "first_blocks": -1}, "first_blocks must be at least 0"),
        ({"top_k": 2, "dense_layers": 3}, "3 dense layers of 2"),
    ):
        with pytest.raises(ValueError, match=message):
            TopBlocksKVCache(SHAPE, 4, 2, **options)
    with pytest.raises(TypeError, match="top_k"):
        TopBlocksKVCache(SHAPE, 4, 2, top_k=1.5)


def test_it_says_that_it_is_lossy():
    assert TopBlocksKVCache.lossy and not PagedKVCache.lossy
    assert "**Lossy.**" in TopBlocksKVCache.__doc__


@pytest.mark.model
def test_the_real_model_says_the_same_with_all_blocks_and_something_else_with_few(real_model):
    model, tokenizer = real_model
    prompt = tokenizer.encode(
        "The library in the old town lends books and maps. It opens at nine. " * 4
    )
    exact = generate(model, prompt, 12, cache=PagedKVCache(model.kv_shape, 16, 8))
    for top_k, same in ((16, True), (1, False)):
        cache = TopBlocksKVCache(model.kv_shape, 16, 8, top_k=top_k)
        got = generate(model, prompt, 12, cache=cache)
        assert (got.tokens == exact.tokens) == same
        assert (got.work.bytes_read < exact.work.bytes_read) != same


class Machine(RuleBasedStateMachine):
    """Any order of what may be done to sequences keeps every block's extremes right."""

    def __init__(self):
        super().__init__()
        self.cache = poison(TopBlocksKVCache(SHAPE, 6, 2, top_k=2, way="gather"))
        self.texts, self.count = {}, 0
        self.generator = torch.Generator().manual_seed(0)

    def _write(self, new, fails=False):
        try:
            plan = self.cache.plan(new)
        except (OutOfBlocks, ValueError):
            return
        total = sum(map(len, new.values()))
        drawn = [torch.randn(2, total, 2, 8, generator=self.generator) for _ in range(2)]
        for layer in (0, 1)[: 1 if fails else 2]:
            self.cache.write(layer, *drawn[layer], plan)
            q = torch.randn(total, 4, 8, generator=self.generator)
            assert self.cache.attend(layer, q, plan).isfinite().all()
        if fails:
            return self.cache.abort(plan)
        self.cache.commit(plan)
        start = 0
        for seq_id, tokens in new.items():
            rows = torch.stack(drawn)[:, :, start : start + len(tokens)]
            self.texts[seq_id] = torch.cat((self.texts[seq_id], rows), 2)
            start += len(tokens)

    @rule()
    def add(self):
        self.cache.add(self.count)
        self.texts[self.count] = torch.empty(2, 2, 0, 2, 8)
        self.count += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), fails=st.booleans())
    def step(self, data, fails):
        ids = data.draw(st.sets(st.sampled_from(sorted(self.texts)), min_size=1, max_size=3))
        self._write({s: [0] * data.draw(st.integers(0, 3)) for s in sorted(ids)}, fails)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(sorted(self.texts)))
        self.cache.fork(parent, self.count)
        self.texts[self.count] = self.texts[parent].clone()
        self.count += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def truncate(self, data):
        seq_id = data.draw(st.sampled_from(sorted(self.texts)))
        keep = data.draw(st.integers(0, self.texts[seq_id].shape[2]))
        self.cache.truncate(seq_id, keep)
        self.texts[seq_id] = self.texts[seq_id][:, :, :keep]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data):
        seq_id = data.draw(st.sampled_from(sorted(self.texts)))
        self.cache.free(seq_id)
        del self.texts[seq_id]

    @precondition(lambda self: len(self.texts) > 1)
    @rule(data=st.data())
    def reorder(self, data):
        ids = sorted(self.texts)
        sources = {s: data.draw(st.sampled_from(ids)) for s in ids}
        self.cache.reorder(sources)
        self.texts = {s: self.texts[source].clone() for s, source in sources.items()}

    @invariant()
    def extremes_and_keys_are_right(self):
        self.cache.check()
        for seq_id, text in self.texts.items():
            table = self.cache.ledger.table(seq_id)
            slots = [table[p // 2] * 2 + p % 2 for p in range(text.shape[2])]
            for layer in (0, 1):
                k, v = self.cache.store.read(layer, torch.tensor(slots, dtype=torch.int64))
                assert torch.equal(torch.stack((k, v)), text[layer])


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_check_finds_extremes_that_do_not_hold(small_model):
    cache = few(small_model, 2)
    cache.add("a")
    forward(small_model, cache, {"a": TEXT[:7]})
    good = deepcopy(cache.extremes)
    for side, change in ((0, 1.0), (1, -1.0), (1, 1.0)):
        cache.extremes = good.clone()
        cache.extremes[side, 1, cache.ledger.table("a")[0]] += change
        with pytest.raises(AssertionError, match="extremes of block"):
            cache.check()
