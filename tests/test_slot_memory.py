"""Rows that keep what their last request left: the right one is chosen, and nothing is invented."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.content import TokenContent
from kvlib.plan import OutOfBlocks
from kvlib.request import Request
from kvlib.served import ServedRequest
from kvlib.slot_memory import SlotMemory


def job(tokens, prompt=None):
    """A request with these tokens, of which the first `prompt` are known."""
    known = len(tokens) if prompt is None else prompt
    request = Request(0, None, known, max(1, len(tokens) - known))
    return ServedRequest(request, 0, 0.0, 64, 64, TokenContent(tokens, 1), num_tokens=known)


def run(memory, tokens):
    """Runs a request to its end and returns how many tokens it found."""
    one = job(tokens)
    memory.start(one, len(tokens))
    found, one.num_computed = one.num_cached, len(tokens)
    memory.stop(one)
    memory.check()
    return found


def test_a_follow_up_finds_all_but_the_token_it_must_compute():
    memory = SlotMemory(2, 64)
    assert run(memory, [1, 2, 3, 4]) == 0
    assert run(memory, [1, 2, 3, 4]) == 3
    assert run(memory, [1, 2, 3, 4, 5, 6]) == 4


def test_the_row_that_begins_most_alike_is_taken():
    memory = SlotMemory(3, 64)
    for tokens in ([1, 2, 3], [1, 2, 9, 9, 9], [7, 7, 7]):
        run(memory, tokens)
    assert run(memory, [1, 2, 9, 9, 8]) == 4
    assert run(memory, [7, 7, 7, 7]) == 3


def test_a_shared_beginning_of_a_tenth_does_not_choose_a_row():
    memory = SlotMemory(2, 64)
    run(memory, [1] + [2] * 9)
    run(memory, [5] * 10)
    assert run(memory, [1] + [3] * 19) == 1  # 1 of 20: the oldest row, which is the same one
    assert run(memory, [2] + [3] * 19) == 0
    assert run(memory, [1] + [3] * 19) == 19


def test_a_row_that_is_in_use_is_not_found():
    memory = SlotMemory(2, 64)
    first = job([1, 2, 3])
    memory.start(first, 3)
    first.num_computed = 3
    assert memory.cached_tokens(job([1, 2, 3, 4])) == 0
    memory.stop(first)
    assert memory.cached_tokens(job([1, 2, 3, 4])) == 3


def test_what_was_not_computed_is_not_kept():
    memory = SlotMemory(1, 64)
    first = job([1, 2, 3, 4, 5])
    memory.start(first, 5)
    first.num_computed = 2
    memory.stop(first)
    assert memory.num_kept == 2
    assert memory.cached_tokens(job([1, 2, 3, 4, 5])) == 2


def test_sizes_are_those_of_whole_rows():
    memory = SlotMemory(3, 10)
    assert (memory.size, memory.most, memory.num_free) == (30, 10, 30)
    memory.start(job([1, 2]), 2)
    assert (memory.num_free, memory.num_held, memory.rounded(1), memory.stranded(5)) == (
        20,
        10,
        10,
        0,
    )


def test_misuse_is_refused_and_changes_nothing():
    memory, one = SlotMemory(1, 4), job([1, 2])
    with pytest.raises(ValueError, match="does not run"):
        memory.stop(one)
    with pytest.raises(OutOfBlocks, match="asked for 5 tokens"):
        memory.start(one, 5)
    memory.start(one, 2)
    with pytest.raises(ValueError, match="runs already"):
        memory.start(one, 2)
    with pytest.raises(OutOfBlocks, match="0 rows of 4 idle"):
        memory.start(job([3]), 1)
    with pytest.raises(OutOfBlocks, match="asked for 5 tokens in a row of 4"):
        memory.grow(one, 5)
    memory.grow(one, 4)
    memory.check()
    for bad in ((0, 4), (1, 0), (1, 4, 1.5), (1, 4, -0.1)):
        with pytest.raises(ValueError):
            SlotMemory(*bad)


@given(st.integers(0, 10**6))
def test_never_more_is_found_than_is_shared(seed):
    random, memory, before = Random(seed), SlotMemory(3, 64), []
    for _ in range(30):
        tokens = [random.randrange(2) for _ in range(random.randrange(1, 12))]
        shared = [
            sum(1 for i in range(len(tokens)) if other[: i + 1] == tokens[: i + 1])
            for other in before
        ]
        assert run(memory, tokens) <= min(max(shared, default=0), len(tokens) - 1)
        before.append(tokens)


def test_a_memory_begins_idle_and_empty():
    memory = SlotMemory(3, 10)
    assert (memory.num_held, memory.num_kept, memory.grows) == (0, 0, False)
    assert memory.cost(job([1, 2]), 2) == memory.rounded(1) == 10
    assert memory.stranded(1) == memory.cached_tokens(job([1, 2])) == 0
    memory.check()


@pytest.mark.parametrize(("shared", "found"), [(0, 0), (1, 0), (2, 2), (3, 3), (9, 9)])
def test_more_than_a_tenth_of_a_prompt_chooses_a_row(shared, found):
    """Of ten tokens one is no more than a tenth: the row that has been idle longest is taken."""
    memory = SlotMemory(2, 64)
    run(memory, [5] * 10)
    run(memory, [1] * 10)
    assert run(memory, [1] * shared + [3] * (10 - shared)) == found


@pytest.mark.parametrize(("similarity", "found"), [(0.0, 1), (0.5, 0), (1.0, 0)])
def test_the_share_that_chooses_a_row_can_be_set(similarity, found):
    memory = SlotMemory(2, 64, similarity)
    run(memory, [5] * 10)
    run(memory, [1] * 10)
    assert run(memory, [1] + [3] * 9) == found


def test_a_row_that_was_never_used_is_taken_before_any_other():
    memory = SlotMemory(3, 64)
    for tokens in ([1] * 5, [2] * 5, [3] * 5, [4] * 5):  # the fourth takes the first one's row
        assert run(memory, tokens) == 0
    found = [memory.cached_tokens(job([token] * 5)) for token in (1, 2, 3, 4)]
    assert found == [0, 4, 4, 4]


@pytest.mark.parametrize("shared", range(10))
def test_the_common_beginning_is_found_to_the_token(shared):
    """Behind it the two differ, then they have the same tokens again."""
    memory = SlotMemory(1, 64)
    run(memory, [7] * 10)
    assert memory.cached_tokens(job([7] * shared + [8] + [7] * (9 - shared))) == shared
    assert memory.cached_tokens(job([7] * 20, prompt=shared + 1)) == shared


def test_of_tokens_that_nobody_knows_nothing_is_kept_or_found():
    """Five tokens computed, of which three are known; then a request without any."""
    memory, first, unknown = SlotMemory(2, 64), job([1, 2, 3]), job([1, 2, 3, 4])
    unknown.content = None
    memory.start(first, 3)
    first.num_computed = 5
    memory.stop(first)
    assert (memory.num_kept, memory.cached_tokens(unknown)) == (3, 0)
    memory.start(unknown, 4)
    assert (unknown.num_cached, unknown.num_computed, unknown.room) == (0, 0, 64)
    unknown.num_computed = 4
    memory.stop(unknown)
    assert (unknown.room, unknown.num_computed, memory.num_kept) == (0, 0, 3)
    memory.check()


def test_a_row_may_be_filled_to_its_end():
    memory, full = SlotMemory(1, 4), job([1, 2, 3, 4])
    memory.start(full, 4)
    full.num_computed = 4
    memory.index(full)
    assert memory.cached_tokens(job([1, 2, 3, 4])) == 0  # nothing is idle
    memory.stop(full)
    memory.check()
    assert memory.num_kept == 4


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (
            lambda memory, one: memory._idle.append(memory._idle[0]),
            r"\(2, 3\) rows, each once, of 2",
        ),
        (lambda memory, one: memory._idle.pop(), r"\(1, 1\) rows, each once, of 2"),
        (lambda memory, one: setattr(memory._idle[0], "num_kept", 5), "a row holds too much"),
        (lambda memory, one: setattr(memory._idle[0], "num_kept", -1), "a row holds too much"),
        (lambda memory, one: setattr(one, "room", 3), "room miscounted"),
    ],
)
def test_a_check_finds_what_is_wrong(spoil, found):
    memory, one = SlotMemory(2, 4), job([1, 2])
    memory.start(one, 2)
    memory.check()
    spoil(memory, one)
    with pytest.raises(AssertionError, match=found):
        memory.check()
