"""What every lossy cache must do, and the window with sinks."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exact_caches import fill
from kvlib.plan import OutOfBlocks
from kvlib.sizes import KVShape
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.generate import generate
from kvlib.tensors.sink_window import SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache
from kvlib.token_budget import sinks_and_window
from lossy_cases import BUDGET, LOSSY, NUM_Q_HEADS, SHAPE, Text, held, seen_by, sink_window, state

EVERY = pytest.mark.parametrize("make", LOSSY.values(), ids=LOSSY)
CHUNKS = ([14], [1] * 14, [3, 4, 7], [9, 1, 1, 3])


def close(got, expected):
    torch.testing.assert_close(got.double().cpu(), expected, rtol=1e-5, atol=1e-5)


@EVERY
@pytest.mark.parametrize("chunks", CHUNKS)
def test_attention_is_that_of_a_mask_over_what_it_says_it_holds(make, chunks, device):
    text, cache = Text(14, device=device), make(device=device)
    fill(cache.store, float("nan"))
    cache.add("a")
    for rows, out, before in text.steps(cache, chunks):
        close(out, text.reference(rows, seen_by(cache, before, rows)))
        cache.check()


@EVERY
def test_it_says_it_is_lossy_and_its_text_begins_with_that(make):
    cache = make()
    assert cache.lossy
    assert "\n\n    **Lossy.**" in type(cache).__doc__


@EVERY
@pytest.mark.parametrize("chunks", [[9, 1, 1, 3], [10] + [1] * 4])
def test_the_output_is_off_by_at_most_twice_the_lost_share_of_the_largest_value(make, chunks):
    text, cache = Text(14), make()
    cache.add("a")
    worst = 0.0
    for rows, out, before in text.steps(cache, chunks):
        seen = seen_by(cache, before, rows)
        whole = text.reference(rows, lambda layer, head, query: list(range(query + 1)))
        error = (out - whole).norm(dim=-1)
        for layer, at, head in torch.cartesian_prod(*map(torch.arange, error.shape)).tolist():
            query, group = rows.start + at, head // (NUM_Q_HEADS // 2)
            weights = text.weights(layer, head, query, list(range(query + 1)))
            lost = 1 - weights[seen(layer, group, query)].sum().item()
            largest = text.v[layer, : query + 1, group].norm(dim=-1).max().item()
            assert error[layer, at, head] <= 2 * lost * largest + 1e-5
            worst = max(worst, lost)
    assert worst > 0.3


@EVERY
@pytest.mark.parametrize("chunks", [[8], [3, 1, 1, 1]])
def test_a_failed_step_leaves_no_trace(make, chunks):
    text, (cache, other) = Text(16), (make(), make())
    for each in (cache, other):
        each.add("a")
        list(text.steps(each, chunks))
    before, start = state(cache), cache.length("a")
    for size in (1, 5):
        for layers in (0, 1, 2):
            with pytest.raises(RuntimeError, match="power cut"), cache.step({"a": [0] * size}) as p:
                junk = torch.full((size, 2, 8), 9.0)
                for layer in range(layers):
                    cache.write(layer, junk, junk, p)
                    cache.attend(layer, torch.full((size, 6, 8), 9.0), p)
                raise RuntimeError("power cut")
            assert state(cache) == before
    assert not cache._fresh and not getattr(cache, "_moves", {})
    (_, got, _), (_, expected, _) = (next(text.steps(c, [3], start=start)) for c in (cache, other))
    assert torch.equal(got, expected)


@EVERY
def test_a_budget_as_long_as_the_text_chooses_the_tokens_of_an_exact_cache(
    make, small_model, small_shape
):
    prompt = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    exact = ContiguousKVCache(small_shape, 1, 20, device=small_model.device)
    cache = make(budget=20, device=small_model.device)
    expected, got = (generate(small_model, prompt, 9, cache=c) for c in (exact, cache))
    assert got.agrees_with(expected)
    assert got.work.attention_pairs == expected.work.attention_pairs
    fewer = generate(small_model, prompt, 9, cache=make(device=small_model.device))
    assert max(abs(a - b) for a, b in zip(fewer.gaps, expected.gaps, strict=True)) > 0.05
    assert fewer.work.bytes_read < expected.work.bytes_read


@pytest.mark.model
@EVERY
def test_the_real_model_says_the_same_with_room_for_all(make, real_model):
    model, tokenizer = real_model
    prompt = tokenizer.encode("The librarian counted the chairs every day and wrote the number")
    cache = type(make())(model.kv_shape, 1, 24, 24)
    exact = ContiguousKVCache(model.kv_shape, 1, 24)
    expected, got = (generate(model, prompt, 6, cache=each) for each in (exact, cache))
    assert len(prompt) + 6 < 24
    assert got.agrees_with(expected)


@EVERY
def test_bytes_are_those_of_the_budget_and_do_not_grow_with_the_text(make):
    cache = make()
    size = cache.nbytes
    per_token = SHAPE.bytes_per_token("float32")
    beside = size - 2 * BUDGET * per_token
    assert cache.store.nbytes == 2 * BUDGET * per_token
    # One position or score is 4 bytes beside the 2 * 8 * 4 of a key and a value.
    assert beside in (0, 2 * BUDGET * per_token // 16, 2 * BUDGET * per_token // 8)
    cache.add("a")
    list(Text(40).steps(cache, [40]))
    assert cache.nbytes == size
    assert size < 2 * 40 * per_token / 5


@EVERY
def test_rows_are_counted_and_given_back(make):
    cache, text = make(), Text(9)
    for seq_id in "ab":
        cache.add(seq_id)
    with pytest.raises(OutOfBlocks, match="asked for 1 row, 0 free of 2"):
        cache.add("c")
    assert not cache.can_add()
    list(text.steps(cache, [9], "a"))
    cache.free("a")
    cache.add("c")
    (_, out, before), *_ = text.steps(cache, [3], "c")
    assert before == [[[], []], [[], []]] and cache.length("c") == 3
    close(out, text.reference(slice(0, 3), lambda layer, head, query: list(range(query + 1))))


@EVERY
def test_two_open_steps_do_not_mix(make):
    cache, texts = make(), {"a": Text(12, seed=1), "b": Text(12, seed=2)}
    for seq_id, text in texts.items():
        cache.add(seq_id)
        list(text.steps(cache, [8], seq_id))
    before = {seq_id: held(cache, seq_id) for seq_id in texts}
    with_room = cache.plan({"a": [0]}), cache.plan({"b": [0]})
    if isinstance(cache, SnapKVCache):  # the first growth outgrew nobody, the rows are long now
        assert cache.ledger.row_len > BUDGET
    rows = slice(8, 9)
    for layer in (0, 1):
        for plan, text in zip(with_room, texts.values(), strict=True):
            cache.write(layer, text.k[layer, rows], text.v[layer, rows], plan)
        for plan, (seq_id, text) in zip(with_room, texts.items(), strict=True):
            out = cache.attend(layer, text.q[layer, rows], plan)
            expected = text.reference(rows, seen_by(cache, before[seq_id], rows))
            close(out, expected[layer])
    cache.abort(with_room[1])
    cache.commit(with_room[0])
    assert held(cache, "b") == before["b"] and held(cache, "a") != before["a"]


@EVERY
def test_several_sequences_in_one_step(make):
    cache, texts = make(), [Text(12, seed=seed) for seed in (1, 2)]
    for seq_id, text, first in zip("ab", texts, (8, 1), strict=True):
        cache.add(seq_id)
        list(text.steps(cache, [first], seq_id))
    spans = slice(8, 10), slice(1, 4)
    before = held(cache, "a"), held(cache, "b")
    with cache.step({"a": [0] * 2, "b": [0] * 3}) as plan:
        for layer in (0, 1):
            q, k, v = (
                torch.cat([getattr(t, side)[layer, s] for t, s in zip(texts, spans, strict=True)])
                for side in "qkv"
            )
            cache.write(layer, k, v, plan)
            out = cache.attend(layer, q, plan)
            parts = out[:2], out[2:]
            for part, text, rows, was in zip(parts, texts, spans, before, strict=True):
                close(part, text.reference(rows, seen_by(cache, was, rows))[layer])
    assert (cache.length("a"), cache.length("b")) == (10, 4)


def test_PE_1_rows_held_and_the_next_position_are_two_counters():
    """A cache of 4, tokens 0 to 5: rows 2 to 5 remain, and the next token is at position 6."""
    cache = SinkWindowKVCache(SHAPE, 1, 0, 4)
    cache.add("a")
    list(Text(6).steps(cache, [6]))
    assert len(cache.positions("a")) == 4 and cache.positions("a") == [2, 3, 4, 5]
    with cache.step({"a": [0]}) as plan:
        assert plan.host.positions == (6,)
        Text(1).attend(cache, plan, slice(0, 1))


@EVERY
def test_PE_1_every_lossy_cache_counts_positions_and_rows_apart(make):
    cache = make(budget=4)
    cache.add("a")
    list(Text(6).steps(cache, [6]))
    assert {len(head) for layer in held(cache) for head in layer} == {4}
    assert cache.length("a") == 6
    plan = cache.plan({"a": [0]})
    assert plan.positions.tolist() == [6]
    cache.abort(plan)


def test_PE_3_a_sibling_what_goes_is_known_by_its_position_and_not_by_its_slot():
    """Slots hold positions 0, 1, 5, 6, 7, 4; going back to 7 frees the slot of 7, not the last."""
    cache = SinkWindowKVCache(SHAPE, 1, 2, 4)
    cache.add("a")
    list(Text(8).steps(cache, [8]))
    assert cache.ledger.held_slots("a") == [0, 1, 4, 5, 2, 3]
    cache.truncate("a", 7)
    assert cache.positions("a") == [0, 1, 4, 5, 6]
    assert cache.ledger.held_slots("a") == [0, 1, 4, 5, 2]


@pytest.mark.parametrize("sinks, window", [(0, 8), (2, 6)])
def test_SW_2_a_sibling_nothing_goes_until_one_token_is_too_many(sinks, window):
    """Eight slots, six keys 10.0 to 10.5, then 10.6 to 10.9: exactly full drops nothing."""
    cache = SinkWindowKVCache(KVShape(1, 1, 1), 1, sinks, window)
    cache.add("a")
    contents = []
    for chunk in (range(100, 106), [106], [107], [108], [109]):
        keys = torch.tensor([tenth / 10 for tenth in chunk]).reshape(-1, 1, 1)
        with cache.step({"a": [0] * len(keys)}) as plan:
            cache.write(0, keys, keys, plan)
            cache.attend(0, keys, plan)
        slots = torch.tensor(cache.ledger.held_slots("a"))
        contents.append(
            [round(10 * key) for key in cache.store.read(0, slots)[0].flatten().tolist()]
        )
    assert contents[:3] == [list(range(100, stop)) for stop in (106, 107, 108)]
    first = list(range(100, 100 + sinks))
    assert contents[3:] == [first + list(range(start + sinks, start + 8)) for start in (101, 102)]


def test_SW_4_a_sibling_a_first_prompt_longer_than_the_row():
    """Window 4, prompt of 7: tokens 3 to 6 stay, and token 3 still sees 0 to 3 while it is read."""
    text, cache = Text(7), SinkWindowKVCache(SHAPE, 1, 0, 4)
    cache.add("a")
    (rows, out, _), *_ = text.steps(cache, [7])
    assert cache.positions("a") == [3, 4, 5, 6]
    window = text.reference(rows, lambda layer, head, at: list(range(max(0, at - 3), at + 1)))
    close(out, window)


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("sinks, window", [(0, 4), (2, 4), (1, 1), (5, 3), (20, 2)])
def test_sinks_and_window_are_held_however_the_tokens_come(sinks, window, chunks):
    text, cache = Text(14), SinkWindowKVCache(SHAPE, 1, sinks, window)
    cache.add("a")
    for rows, out, _ in text.steps(cache, chunks):
        assert cache.positions("a") == sinks_and_window(rows.stop, sinks, window)
        close(out, text.reference(rows, lambda _, __, at: sinks_and_window(at + 1, sinks, window)))


def test_pairs_are_those_of_the_mask():
    cache = SinkWindowKVCache(SHAPE, 1, 2, 4)
    cache.add("a")
    list(Text(14).steps(cache, [5, 1, 8]))
    assert cache.counters.attention_pairs == sum(min(at + 1, 6) for at in range(14))


@pytest.mark.parametrize("keep", [0, 1, 2, 5, 6, 7])
def test_after_going_back_the_text_goes_on_as_if_nothing_had_been_there(keep):
    text, other = Text(16, seed=3), Text(16, seed=4)
    caches = [SinkWindowKVCache(SHAPE, 1, 2, 6) for _ in range(2)]
    for cache in caches:
        cache.add("a")
    list(text.steps(caches[0], [8]))
    caches[0].truncate("a", keep)
    caches[0].check()
    if keep:
        list(text.steps(caches[1], [keep]))
    for size in (1, 2, 5):
        start = caches[0].length("a")
        outs = [next(other.steps(cache, [size], start=start))[1] for cache in caches]
        assert torch.equal(*outs) and held(caches[0]) == held(caches[1])


@pytest.mark.parametrize("sizes", [(-1, 4), (2, 0), (1.0, 4), (True, 4)])
def test_sizes_are_whole_numbers(sizes):
    with pytest.raises((TypeError, ValueError), match=r"must be a(t least| whole number)"):
        SinkWindowKVCache(SHAPE, 1, *sizes)


class LossyMachine(RuleBasedStateMachine):
    """Any lossy cache under random steps, some of which fail, against masks over what it holds."""

    make = staticmethod(sink_window)

    def __init__(self):
        super().__init__()
        self.cache = self.make()
        fill(self.cache.store, float("nan"))
        self.texts = {}

    @precondition(lambda self: len(self.texts) < 2)
    @rule(seed=st.integers(0, 99))
    def add(self, seed):
        seq_id = object()
        self.cache.add(seq_id)
        self.texts[seq_id] = Text(40, seed)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), size=st.integers(0, 9), layers=st.integers(0, 2), fails=st.booleans())
    def step(self, data, size, layers, fails):
        seq_id = data.draw(st.sampled_from(list(self.texts)))
        text, start = self.texts[seq_id], self.cache.length(seq_id)
        rows = slice(start, min(start + size, 40))
        before = held(self.cache, seq_id)
        if fails:
            was = state(self.cache, seq_id)
            plan = self.cache.plan({seq_id: [0] * (rows.stop - rows.start)})
            for layer in range(layers):
                self.cache.write(layer, text.k[layer, rows], text.v[layer, rows], plan)
                self.cache.attend(layer, text.q[layer, rows], plan)
            self.cache.abort(plan)
            assert state(self.cache, seq_id) == was
            return
        with self.cache.step({seq_id: [0] * (rows.stop - rows.start)}) as plan:
            out = text.attend(self.cache, plan, rows)
        close(out, text.reference(rows, seen_by(self.cache, before, rows)))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data):
        seq_id = data.draw(st.sampled_from(list(self.texts)))
        del self.texts[seq_id]
        self.cache.free(seq_id)

    @invariant()
    def what_is_held_is_counted(self):
        self.cache.check()
        assert len(self.texts) + self.cache.ledger.num_free == 2
        for seq_id in self.texts:
            length, sizes = self.cache.length(seq_id), set()
            for layer in held(self.cache, seq_id):
                for head in layer:
                    assert len(set(head)) == len(head) and all(0 <= at < length for at in head)
                    assert length == 0 or length - 1 in head, "the newest token was given up"
                    sizes.add(len(head))
            (size,) = sizes
            if isinstance(self.cache, SnapKVCache):
                assert min(length, BUDGET) <= size <= self.cache.ledger.row_len
            else:
                assert size == min(length, BUDGET)


@EVERY
def test_random_steps_some_of_which_fail(make):
    machine = type("Machine", (LossyMachine,), {"make": staticmethod(make)})
    case = machine.TestCase
    case.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
    case("runTest").debug()


@pytest.mark.parametrize("made", LOSSY.values(), ids=LOSSY)
def test_what_was_written_stays_when_the_caller_uses_the_memory_again(made):
    texts = Text(4), Text(4)
    caches = made(), made()
    for text, cache, spoil in zip(texts, caches, (False, True), strict=True):
        cache.add("a")
        with cache.step({"a": [0] * 4}) as plan:
            text.attend(cache, plan, slice(0, 4))
            if spoil:
                text.k.fill_(9), text.v.fill_(9)
    clean, spoiled = (cache.store.keys[:, 0, :, :4] for cache in caches)
    assert torch.equal(clean, spoiled) and not (clean == 9).any()
