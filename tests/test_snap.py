"""SnapKV: a prompt is cut down once, by what its end looks at; the answer stays whole."""

import pytest
import torch

from kvlib.tensors.snap import SnapKVCache
from kvlib.token_budget import snap
from lossy_cases import GROUP, SHAPE, Text, held


def chosen(text, num_tokens, budget, observe, kernel, sinks):
    """Returns who stays, [layer][head], by the rule of the memory half on float64 weights."""

    def rows(layer, head):
        heads = range(head * GROUP, (head + 1) * GROUP)
        found = []
        for query in range(num_tokens):
            keys = list(range(query + 1))
            each = sum(text.weights(layer, q_head, query, keys) for q_head in heads)
            found.append(each.tolist() + [0.0] * (num_tokens - query - 1))
        return found

    return [
        [snap(rows(layer, head), budget, observe, kernel=kernel, sinks=sinks) for head in range(2)]
        for layer in range(2)
    ]


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("budget, observe, sinks", [(6, 2, 0), (9, 4, 2), (5, 5, 0), (13, 1, 3)])
def test_the_prompts_end_chooses_in_each_head(budget, observe, sinks, kernel, device):
    text = Text(14, seed=6, device=device)
    cache = SnapKVCache(SHAPE, 1, budget, observe, kernel, sinks=sinks, device=device)
    cache.add("a")
    list(text.steps(cache, [14]))
    assert held(cache) == chosen(text, 14, budget, observe, kernel, sinks)


def test_the_answer_stays_whole_and_the_prompt_as_it_was_cut():
    cache = SnapKVCache(SHAPE, 1, 6, 2, 3)
    cache.add("a")
    text = Text(30)
    list(text.steps(cache, [14]))
    after_prompt = held(cache)
    list(text.steps(cache, [1, 1, 3, 8], start=14))
    answer = list(range(14, 27))
    assert held(cache) == [[head + answer for head in layer] for layer in after_prompt]
    assert cache.ledger.num_held("a") == 6 + 13 and cache.length("a") == 27


def test_rows_double_when_an_answer_needs_it_and_room_puts_it_off():
    for room, row_lens in ((0, [6, 12, 12, 24]), (9, [15, 15, 15, 15])):
        text, cache = Text(30), SnapKVCache(SHAPE, 1, 6, 2, 3, room=room)
        per_token = SHAPE.bytes_per_token("float32")
        cache.add("a")
        seen = []
        for rows, *_ in text.steps(cache, [14, 1, 5, 3]):
            seen.append(cache.ledger.row_len)
            assert cache.store.nbytes == seen[-1] * per_token
            assert cache._held_positions.shape[3] == seen[-1]
            assert rows.stop == cache.length("a")
        assert seen == row_lens
        assert cache.counters.bytes_copied == (0 if room else (6 + 12) * per_token)


def test_growth_outgrows_open_plans():
    text, cache = Text(20), SnapKVCache(SHAPE, 2, 6, 2, 3)
    for seq_id in "ab":
        cache.add(seq_id)
        list(text.steps(cache, [9], seq_id))
    cache.free("b")
    cache.add("b")
    waiting = cache.plan({"b": [0] * 3})
    list(text.steps(cache, [1], "a", start=9))
    with pytest.raises(ValueError, match="older than the last growth"):
        cache.write(0, text.k[0, :3], text.v[0, :3], waiting)
    cache.abort(waiting)
    cache.check()


def test_a_prompt_within_the_budget_is_cut_by_nobody_ever():
    text, cache = Text(30), SnapKVCache(SHAPE, 1, 6, 2, 3)
    cache.add("a")
    list(text.steps(cache, [6, 5, 1]))
    assert held(cache) == [[list(range(12))] * 2] * 2
    assert cache.weight_bytes == 0


def test_a_prompt_in_two_steps_is_cut_in_the_first_alone():
    text, cache = Text(30), SnapKVCache(SHAPE, 1, 6, 2, 3)
    cache.add("a")
    list(text.steps(cache, [9, 11]))
    assert cache.ledger.num_held("a") == 6 + 11


def test_the_second_look_at_the_prompt_is_counted():
    """Two observing queries of six heads over 14 keys, in two layers, four bytes each."""
    text, cache = Text(20), SnapKVCache(SHAPE, 1, 6, 2, 3)
    cache.add("a")
    list(text.steps(cache, [14]))
    assert cache.weight_bytes == 2 * 6 * 2 * 14 * 4
    assert cache.counters.attention_pairs == 14 * 15 // 2 + 13 + 14
    assert set(cache.counters.kernels) == {"sdpa_contiguous"}


def test_a_finished_sequence_leaves_its_row_to_a_prompt():
    text, cache = Text(30), SnapKVCache(SHAPE, 1, 6, 2, 3)
    cache.add("a")
    list(text.steps(cache, [9, 4]))
    cache.free("a")
    cache.add("b")
    list(text.steps(cache, [9], "b"))
    fresh = SnapKVCache(SHAPE, 1, 6, 2, 3)
    fresh.add("b")
    list(text.steps(fresh, [9], "b"))
    assert held(cache, "b") == held(fresh, "b") and cache.ledger.num_held("b") == 6
    rows = [each.store.keys[:, 0, :, :6] for each in (cache, fresh)]
    assert torch.equal(*rows)


@pytest.mark.parametrize(
    "sizes, said",
    [
        ({"budget": 4, "observe": 5}, r"asked for 0 \+ 5, there are 4"),
        ({"budget": 8, "observe": 5, "sinks": 4}, r"asked for 4 \+ 5, there are 8"),
        ({"budget": 8, "observe": 5, "kernel": 4}, "a kernel has a middle, so it is odd: got 4"),
        ({"budget": 8, "observe": 5, "kernel": 0}, "kernel must be at least 1, got 0"),
        ({"budget": 8, "observe": 5, "room": -1}, "room must be at least 0, got -1"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        SnapKVCache(SHAPE, 1, **sizes)
