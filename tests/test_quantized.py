"""The quantised cache: codes of full blocks, exact elsewhere, two ways alike, bounds kept."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import kvlib
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.precision import Precision, cache_bytes
from kvlib.sizes import KVShape
from kvlib.tensors.attention import reference_attention
from kvlib.tensors.codes import decode, encode
from kvlib.tensors.quantized import QuantizedKVCache

SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=8)
HEADS, SIZE = 6, 4
PAIRS = {
    "int8": (Precision(8, along="channel"), Precision(8)),
    "int4": (Precision(4, along="channel"), Precision(4, 4)),
    "int2": (Precision(2, along="channel"), Precision(2, 4, symmetric=True)),
    "fp8": (Precision(kind="fp8"), Precision(kind="fp8", along="channel")),
    "static": (Precision.static(0.03), Precision.static(0.01, kind="fp8")),
}
ways = pytest.mark.parametrize("way", ["cpu", "dequantize"])
pairs = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def made(pair=PAIRS["int4"], num_blocks=16, num_seqs=3, **options):
    keys, values = pair
    cache = QuantizedKVCache(
        SHAPE, num_blocks, SIZE, keys=keys, values=values, num_seqs=num_seqs, **options
    )
    return poisoned(cache)


def poisoned(cache):
    """Every byte of codes and scales says NaN where a float can, and so does every row."""
    for side in cache.codes.sides:
        side.fill_(255)
    for side in (cache.store.keys, cache.store.values):
        side.fill_(torch.nan)
    return cache


def numbers(tokens, seed=0):
    """Keys, values and queries of two layers; each token has its own."""
    generator = torch.Generator().manual_seed(seed)
    count = len(tokens)
    kv = torch.randn(2, 2, count, 2, 8, generator=generator)
    return kv, torch.randn(2, count, HEADS, 8, generator=generator)


def step(cache, new, seed=0):
    """One whole step; returns what was written and what came out, by layer."""
    (kv, q), outs = numbers([t for tokens in new.values() for t in tokens], seed), []
    with cache.step(new) as plan:
        for layer in range(2):
            cache.write(layer, *kv[layer], plan)
            outs.append(cache.attend(layer, q[layer], plan))
    return kv, q, torch.stack(outs)


def whole(cache, seq_id):
    """[2 layers, keys and values, Hkv, tokens, D]."""
    return torch.stack([torch.stack(cache.read(seq_id, layer)) for layer in range(2)])


@ways
@pairs
def test_full_blocks_are_codes_and_the_rest_is_exact(pair, way):
    cache = made(pair, way=way)
    cache.add("a")
    kv, _, _ = step(cache, {"a": range(11)})
    read = whole(cache, "a").transpose(2, 3)
    for side, precision in enumerate(pair):
        blocks = kv[:, side, :8].unflatten(1, (2, SIZE)).transpose(2, 3)
        expected = decode(encode(blocks, precision), precision, 8, SIZE)
        assert torch.equal(read[:, side, :8], expected.transpose(2, 3).flatten(1, 2))
    assert torch.equal(read[:, :, 8:], kv[:, :, 8:])
    cache.check()


@ways
def test_what_a_step_brings_is_attended_to_before_it_is_coded(way):
    cache, exact = made(PAIRS["int2"], way=way), kvlib.PagedKVCache(SHAPE, 12, SIZE)
    outs = []
    for each in (cache, exact):
        each.add("a")
        outs.append(step(each, {"a": range(11)})[2])
    torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-5)


@pairs
@pytest.mark.parametrize("lengths", [(1, 3), (4, 9), (17, 8), (0, 30)])
def test_the_kernel_and_the_plain_way_agree(pair, lengths):
    found = []
    for way in ("cpu", "dequantize"):
        cache = made(pair, way=way)
        for i, seq_id in enumerate("ab"):
            cache.add(seq_id)
            step(cache, {seq_id: range(lengths[i])}, seed=i)
        outs = [step(cache, {"a": [1] * n, "b": [2]}, seed=9 + n)[2] for n in (1, 2, 5, 9)]
        found.append(torch.cat(outs, 1))
        assert (cache.counters.kernels["quantized_cpu"] >= 8) == (way == "cpu")
    assert torch.isfinite(found[0]).all()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@ways
@pairs
def test_scores_and_outputs_keep_the_stated_bound(pair, way):
    """|score error| <= sum |q_d| h_d / sqrt(D), |output error| <= 2 tanh(e / 2) max|v| + h."""
    cache = made(pair, way=way)
    cache.add("a")
    kv, _, _ = step(cache, {"a": range(24)}, seed=3)
    q = numbers([0], 4)[1]
    with cache.step({"a": [0]}) as plan:
        new = numbers([0], 5)[0]
        for layer in range(2):
            cache.write(layer, *new[layer], plan)
        outs = [cache.attend(layer, q[layer], plan) for layer in range(2)]
    full = torch.cat([kv, new], 2)
    for layer, out in enumerate(outs):
        k, v = full[layer]
        k_read = cache.read("a", layer)[0].transpose(0, 1)
        for head in range(HEADS):
            mine = head // (HEADS // 2)
            h_k, h_v = (bounds(x[:24, mine], p) for x, p in zip((k, v), pair, strict=True))
            query = q[layer, 0, head]
            e = (query.abs() @ h_k).item() / math.sqrt(8)
            off = (k_read[:, mine] - k[:, mine]) @ query / math.sqrt(8)
            assert off.abs().max() <= e + 1e-6
            allowed = 2 * math.tanh(e / 2) * v[:, mine].abs().max() + h_v.max()
            expected = reference_attention(q[layer, :, head : head + 1], k[:, [mine]], v[:, [mine]])
            assert (out[0, head] - expected[0][0, 0]).abs().max() <= allowed + 1e-5


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=6), st.floats(0.01, 5), st.data())
def test_scores_that_move_by_e_move_an_output_by_2_tanh_half_e(scores, e, data):
    shifts = data.draw(st.lists(st.floats(-e, e), min_size=len(scores), max_size=len(scores)))
    values = data.draw(st.lists(st.floats(-1, 1), min_size=len(scores), max_size=len(scores)))
    scores, shifts, values = (torch.tensor(x).double() for x in (scores, shifts, values))
    off = ((scores + shifts).softmax(0) - scores.softmax(0)) @ values
    assert off.abs() <= 2 * math.tanh(e / 2) + 1e-12


@pytest.mark.parametrize("e", [0.1, 1.0, 3.0])
def test_no_smaller_bound_of_an_output_would_hold(e):
    """The worst: one key has 1 / (1 + exp(e)) of the weight and rises by e, the other falls."""
    scores, values = torch.tensor([-e, 0.0]).double(), torch.tensor([1.0, -1.0]).double()
    moved = scores + torch.tensor([e, -e])
    off = (moved.softmax(0) - scores.softmax(0)) @ values
    assert off.item() == pytest.approx(2 * math.tanh(e / 2))


@ways
def test_the_stated_bound_of_an_output_is_reached(way):
    """Two keys lie half way between two codes, and are read back half a step off, one up, one down.

    Seven channels are that wrong; the last sets the weights, and keeps the other tokens out of it.
    """
    e, root = 3.0, 8**0.5
    across, last = torch.tensor([1.5, 0.5, 0.0, 3.0]), torch.tensor([1.0, 0.0, 3.0, 3.0])
    k = torch.cat([across[:, None].expand(4, 7), last[:, None]], 1)[:, None].expand(4, 2, 8)
    v = torch.tensor([1.0, -1.0, 0.0, 0.0])[:, None, None].expand(4, 2, 8)
    far = torch.tensor([0.0] * 7 + [100.0]).expand(1, 2, 8)
    q = torch.tensor([2 * e * root / 7] * 7 + [-3 * e * root]).expand(1, HEADS, 8)
    outs = []
    for cache in (made(PAIRS["int2"], way=way), kvlib.PagedKVCache(SHAPE, 4, SIZE)):
        cache.add("a")
        for keys, values in ((k, v), (far, far)):
            with cache.step({"a": [0] * len(keys)}) as plan:
                cache.write(0, keys, values, plan)
                cache.write(1, keys, values, plan)
                if len(keys) == 1:
                    outs.append(cache.attend(1, q, plan))
    off = (outs[0] - outs[1]).abs()
    torch.testing.assert_close(off, torch.full_like(off, 2 * math.tanh(e / 2)), rtol=1e-3, atol=0)


def bounds(x, precision):
    """Half a step for each channel: the largest of all groups that a number of it is in."""
    blocks = x.unflatten(0, (-1, SIZE))
    if precision.along == "channel":
        ends = zip(blocks.amin(1).flatten(), blocks.amax(1).flatten(), strict=True)
        found = torch.tensor([precision.half_step(a.item(), b.item()) for a, b in ends])
        return found.view(len(blocks), -1).amax(0)
    groups = x.unflatten(-1, (-1, precision.group_size or 8))
    ends = zip(groups.amin(-1).flatten(), groups.amax(-1).flatten(), strict=True)
    found = torch.tensor([precision.half_step(a.item(), b.item()) for a, b in ends])
    return found.view(len(x), -1).amax(0).repeat_interleave(precision.group_size or 8)


@pytest.mark.parametrize("seq_id, other", ["ab", "ba"])
def test_a_long_step_leaves_the_rows_of_others_alone(seq_id, other):
    cache = made(way="cpu")
    for each in "ab":
        cache.add(each)
        step(cache, {each: range(3)})
    before = whole(cache, other)
    step(cache, {seq_id: range(9)}, seed=1)
    assert torch.equal(whole(cache, other), before)


@pytest.mark.parametrize("kept", range(12))
def test_what_truncate_keeps_is_read_back_as_before(kept):
    cache = made(way="cpu")
    cache.add("a")
    step(cache, {"a": range(11)})
    before = whole(cache, "a")
    cache.truncate("a", kept)
    assert torch.equal(whole(cache, "a"), before[:, :, :, :kept])


class CacheMachine(RuleBasedStateMachine):
    """Any order of steps, forks, cuts and failures attends to what a list of tokens would hold."""

    def __init__(self):
        super().__init__()
        self.pair = PAIRS["int4"]
        self.cache = made(self.pair, num_blocks=10, num_seqs=3, way="cpu")
        self.held, self.count = {}, 0
        self.add("a")

    def block_coded(self, x):
        """[2, 2, Hkv, n, D] with the tokens of full blocks as they are read back."""
        size = x.shape[3] // SIZE * SIZE
        if not size:
            return x
        sides = []
        for side, precision in enumerate(self.pair):
            blocks = x[:, side, :, :size].unflatten(2, (-1, SIZE))
            sides.append(decode(encode(blocks, precision), precision, 8, SIZE).flatten(2, 3))
        return torch.cat([torch.stack(sides, 1), x[:, :, :, size:]], 3)

    def kept(self, seq_id, new):
        """What the sequence holds after a step: what was coded stays, what is full gets coded."""
        old = self.held[seq_id]
        coded = old.shape[3] // SIZE * SIZE
        tail = torch.cat([old[:, :, :, coded:], new], 3)
        return torch.cat([old[:, :, :, :coded], self.block_coded(tail)], 3)

    @rule(seq_id=st.sampled_from("abcd"))
    def add(self, seq_id):
        try:
            self.cache.add(seq_id)
        except (OutOfBlocks, ValueError):
            assert seq_id in self.held or len(self.held) == 3
        else:
            self.held[seq_id] = torch.zeros(2, 2, 2, 0, 8)

    @rule(
        counts=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), min_size=1),
        fails=st.sampled_from(["", "", "", "", "write", "attend", "large"]),
    )
    def steps(self, counts, fails):
        counts = {s: n for s, n in counts.items() if s in self.held}
        self.count += 1
        kv, q = numbers(range(sum(counts.values())), self.count)
        try:
            with self.cache.step({s: [0] * n for s, n in counts.items()}) as plan:
                for layer in range(2):
                    k, v = kv[layer]
                    if fails == "large" and layer and len(k):
                        k = k * torch.inf
                    self.cache.write(layer, k, v, plan)
                    if fails == "write" and layer:
                        raise RuntimeError("between two layers")
                    out = self.cache.attend(layer, q[layer], plan)
                    self.attends_to_a_list(layer, counts, kv[layer], q[layer], out)
                if fails == "attend":
                    raise RuntimeError("at the end")
        except (OutOfBlocks, SequenceTooLong):
            return
        except (RuntimeError, ValueError):
            assert fails
            return
        begin = 0
        for seq_id, n in counts.items():
            new = kv[:, :, begin : begin + n].transpose(2, 3)
            self.held[seq_id] = self.kept(seq_id, new)
            begin += n

    def attends_to_a_list(self, layer, counts, kv, q, out):
        begin = 0
        for seq_id, n in counts.items():
            mine, begin = slice(begin, begin + n), begin + n
            old = self.held[seq_id][layer].transpose(1, 2)
            k, v = torch.cat([old, kv[:, mine]], 1)
            if n:
                expected, _ = reference_attention(q[mine], k, v)
                torch.testing.assert_close(out[mine].double(), expected, rtol=1e-4, atol=1e-5)

    @rule(parent=st.sampled_from("abcd"), child=st.sampled_from("abcd"))
    def fork(self, parent, child):
        try:
            self.cache.fork(parent, child)
        except (OutOfBlocks, KeyError, ValueError):
            assert parent not in self.held or child in self.held or len(self.held) == 3
        else:
            self.held[child] = self.held[parent]

    @rule(order=st.permutations("abcd"), twice=st.booleans())
    def reorder(self, order, twice):
        live = [s for s in order if s in self.held]
        sources = dict(zip(sorted(live), live, strict=True))
        if twice and live:
            sources = dict.fromkeys(live, live[0])
        self.cache.reorder(sources)
        before = dict(self.held)
        self.held.update({s: before[source] for s, source in sources.items()})

    @precondition(lambda self: any(self.cache.length(s) for s in self.held))
    @rule(data=st.data())
    def truncate(self, data):
        seq_id = data.draw(st.sampled_from([s for s in self.held if self.cache.length(s)]))
        n = data.draw(st.integers(0, self.cache.length(seq_id)))
        self.cache.truncate(seq_id, n)
        self.held[seq_id] = self.held[seq_id][:, :, :, :n]

    @precondition(lambda self: len(self.held) > 1)
    @rule(seq_id=st.sampled_from("abcd"))
    def free(self, seq_id):
        if self.held.pop(seq_id, None) is None:
            with pytest.raises(KeyError):
                self.cache.free(seq_id)
        else:
            self.cache.free(seq_id)

    @invariant()
    def reads_what_a_list_would(self):
        self.cache.check()
        for seq_id, held in self.held.items():
            assert torch.equal(whole(self.cache, seq_id), held), seq_id


CacheMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
)
TestCacheMachine = CacheMachine.TestCase


class Full(RuntimeError):
    """No memory left."""


def fails_at(monkeypatch, owner, name, count):
    """Lets a method fail at its `count`-th call, half done; returns what was called."""
    calls, real = [], getattr(owner, name)

    def call(*args):
        calls.append(args)
        if len(calls) == count:
            raise Full
        return real(*args)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("cut", [None, 6], ids=["as it grew", "cut out of a full block"])
def test_a_commit_that_fails_half_way_leaves_nothing_behind(monkeypatch, count, cut):
    """Two sides of the rows, then two of each layer behind them: six times something is coded."""
    cache = made(way="cpu")
    for seq_id in "ab":
        cache.add(seq_id)
    step(cache, {"a": range(8), "b": range(7)})
    cache.fork("a", "c")
    if cut:
        cache.truncate("a", cut)
    before = [whole(cache, s) for s in "abc"]
    free, copied = cache.ledger.num_free, len(before[0])
    assert copied == 2
    calls = fails_at(monkeypatch, cache.codes, "put", count)
    with pytest.raises(Full):
        step(cache, {"a": range(9)}, seed=5)
    assert len(calls) == count
    monkeypatch.undo()
    cache.check()
    assert cache.ledger.num_free == free and not cache._fresh
    assert all(torch.equal(whole(cache, s), old) for s, old in zip("abc", before, strict=True))
    kv, _, _ = step(cache, {"a": range(9)}, seed=6)
    rest = (cache.length("a")) % SIZE
    assert torch.equal(whole(cache, "a")[:, :, :, -rest:], kv[:, :, -rest:].transpose(2, 3))
    assert all(torch.equal(whole(cache, s), old) for s, old in zip("bc", before[1:], strict=True))


def test_a_fork_or_reorder_without_memory_for_the_rows_changes_nothing(monkeypatch):
    cache = made(way="cpu")
    for seq_id, n in (("a", 6), ("b", 3)):
        cache.add(seq_id)
        step(cache, {seq_id: range(n)}, seed=n)
    before = {s: whole(cache, s) for s in "ab"}
    for call in (lambda: cache.fork("a", "c"), lambda: cache.reorder({"a": "b", "b": "a"})):
        fails_at(monkeypatch, cache.recent, "copied", 1)
        with pytest.raises(Full):
            call()
        monkeypatch.undo()
        cache.check()
        assert cache.ledger.seq_ids == ("a", "b")
        assert all(torch.equal(whole(cache, s), old) for s, old in before.items())
    with pytest.raises(KeyError):
        cache.fork("nobody", "c")
    with pytest.raises(KeyError):
        cache.reorder({"a": "nobody", "nobody": "a"})
    cache.check()


def test_what_was_written_stays_when_the_caller_uses_the_memory_again():
    cache = made(PAIRS["int8"], way="cpu")
    cache.add("a")
    kv = numbers(range(11))[0]
    with cache.step({"a": range(11)}) as plan:
        for layer in range(2):
            k, v = kv[layer].clone()
            cache.write(layer, k, v, plan)
            k.fill_(torch.nan), v.fill_(torch.nan)
    assert torch.equal(whole(cache, "a")[:, :, :, 8:], kv[:, :, 8:].transpose(2, 3))


def test_the_bytes_allocated_are_those_the_sizes_promise():
    for keys, values in PAIRS.values():
        cache = QuantizedKVCache(SHAPE, 7, SIZE, keys=keys, values=values, num_seqs=3)
        assert cache.nbytes == cache_bytes(SHAPE, 7, SIZE, keys, values, num_seqs=3)
        half = QuantizedKVCache(
            SHAPE, 7, SIZE, keys=keys, values=values, num_seqs=3, dtype=torch.float16
        )
        assert half.nbytes == cache_bytes(SHAPE, 7, SIZE, keys, values, num_seqs=3, full_bytes=2)


def test_a_decode_step_reads_codes_and_nothing_in_full_precision_but_the_row():
    cache = made(PAIRS["int8"], way="cpu")
    cache.add("a")
    step(cache, {"a": range(16)})
    before = cache.counters.snapshot()
    step(cache, {"a": [1]})
    work = cache.counters.snapshot().since(before)
    assert work.bytes_read == 2 * (4 * cache.codes.block_bytes + 2 * 2 * 8 * 4)
    assert work.bytes_copied == 0 and work.kernels == {"quantized_cpu": 2}
    plain = made(PAIRS["int8"], way="dequantize")
    plain.add("a")
    step(plain, {"a": range(16)})
    before = plain.counters.snapshot()
    step(plain, {"a": [1]})
    work = plain.counters.snapshot().since(before)
    full = 2 * 17 * 2 * 2 * 8 * 4
    assert work.bytes_copied == full and work.bytes_read == full + 2 * 4 * plain.codes.block_bytes


@pytest.mark.parametrize("bad", [1e5, -1e5, torch.inf, torch.nan])
def test_DT_3_a_number_that_no_scale_can_hold_is_refused_and_leaves_nothing(bad):
    cache = made(PAIRS["int8"], way="cpu")
    cache.add("a")
    step(cache, {"a": range(6)})
    before = whole(cache, "a")
    kv = numbers([0] * 4)[0]
    kv[0, 0, 1, 0, 3] = bad
    refused = pytest.raises(ValueError, match="k must be finite and within 65504, what scales")
    with refused, cache.step({"a": range(4)}) as plan:
        cache.write(0, *kv[0], plan)
    assert cache.length("a") == 6 and torch.equal(whole(cache, "a"), before)
    cache.check()


def test_DT_3_wide_scales_take_it_and_bfloat16_rounds_it():
    wide = Precision(8, scale_dtype="float32")
    cache = made((wide, wide), way="cpu", dtype=torch.bfloat16)
    cache.add("a")
    kv = torch.full((4, 2, 8), -1e5).bfloat16()
    with cache.step({"a": range(4)}) as plan:
        for layer in range(2):
            cache.write(layer, kv, kv, plan)
    assert (cache.read("a", 1)[0] == -99_840).all()


def test_QC_5_keys_and_values_go_through_their_own_scales():
    for k_scale, v_scale in ((1.0, 1.0), (2.0, 4.0)):
        pair = Precision.static(k_scale), Precision.static(v_scale, kind="fp8")
        cache = made(pair, way="cpu")
        cache.add("a")
        with cache.step({"a": range(4)}) as plan:
            for layer in range(2):
                k, v = torch.full((4, 2, 8), 2.0), torch.full((4, 2, 8), 4.0)
                cache.write(layer, k, v, plan)
        for layer in range(2):
            k, v = cache.read("a", layer)
            assert (k == 2).all() and (v == 4).all()


def test_more_sequences_than_rows_wait():
    cache = made(num_seqs=1)
    assert cache.can_add()
    cache.add("a")
    assert not cache.can_add()
    for call in (lambda: cache.add("b"), lambda: cache.fork("a", "b")):
        with pytest.raises(OutOfBlocks, match=r"asked for a row of full precision, 0 free of 1"):
            call()
    cache.check()
    cache.free("a")
    cache.add("b")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"values": Precision(4, 3)}, "divide the head of 8 channels: got groups of 3"),
        ({"keys": Precision(4, 8, along="channel")}, "the block of 4 tokens, which is the group"),
        ({"way": "gpu"}, "no way to attend 'gpu'; known: cpu, dequantize"),
        ({"num_seqs": 0}, "num_seqs must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        QuantizedKVCache(SHAPE, 4, SIZE, **options)
    with pytest.raises(ValueError, match="an MLA shape has one latent"):
        QuantizedKVCache(KVShape(1, kv_lora_rank=8, qk_rope_head_dim=4), 4)


def test_it_runs_where_the_device_is(device):
    cache = made(PAIRS["int8"], device=device)
    cache.add("a")
    kv, q = numbers(range(9))
    with cache.step({"a": range(9)}) as plan:
        for layer in range(2):
            cache.write(layer, *kv[layer].to(device), plan)
            assert cache.attend(layer, q[layer].to(device), plan).device.type == device.type
    assert all(side.device.type == device.type for side in cache.codes.sides)


def test_eight_bits_say_what_full_precision_says(real_model):
    model, tokenizer = real_model
    prompt = tokenizer.encode("The capital of France is")
    exact = kvlib.generate(model, prompt, 24, cache=kvlib.PagedKVCache(model.kv_shape, 8))
    cache = QuantizedKVCache(model.kv_shape, 8)
    found = kvlib.generate(model, prompt, 24, cache=cache)
    assert found.tokens == exact.tokens and cache.lossy
    assert found.work.tokens_forwarded == exact.work.tokens_forwarded
    if cache.way == "cpu":
        assert found.work.kernels["quantized_cpu"] > 20 * model.kv_shape.num_layers
