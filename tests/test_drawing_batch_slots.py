"""The picture of static batches seats every request once, and counts what the rows wait."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.show.drawings import find
from kvlib.show.drawings.batch_slots import POLICIES, answers, stays, steps_and_idle

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=24).map(tuple)


@given(LENGTHS, st.integers(1, 8), st.sampled_from(list(POLICIES)))
def test_every_request_runs_once_and_no_row_holds_two(lengths, num_rows, policy):
    found = stays(lengths, num_rows, policy)
    assert [stay.request for stay in found] == list(range(len(lengths)))
    assert [stay.end - stay.start for stay in found] == list(lengths)
    for row in range(num_rows):
        mine = sorted((stay.start, stay.end) for stay in found if stay.row == row)
        assert all(end <= start for (_, end), (start, _) in pairwise(mine))
    assert {stay.row for stay in found} <= set(range(num_rows))


@given(LENGTHS, st.integers(1, 8))
def test_static_batches_take_the_sum_of_their_longest(lengths, num_rows):
    batches = [lengths[i : i + num_rows] for i in range(0, len(lengths), num_rows)]
    assert steps_and_idle(lengths, num_rows, "static")[0] == sum(map(max, batches))


@given(LENGTHS, st.integers(1, 8))
def test_refilling_is_never_slower_and_leaves_no_row_idle_while_one_waits(lengths, num_rows):
    found = stays(lengths, num_rows, "refill")
    assert max(stay.end for stay in found) <= steps_and_idle(lengths, num_rows, "static")[0]
    last_start = max(stay.start for stay in found)
    for row in range(num_rows):
        busy = sum(min(s.end, last_start) - min(s.start, last_start) for s in found if s.row == row)
        assert busy == last_start


@pytest.mark.parametrize(("policy", "steps", "idle"), [("static", 1741, 53), ("refill", 1010, 19)])
def test_the_picture_tells_these_figures(policy, steps, idle):
    counted, share = steps_and_idle(answers(), 4, policy)
    assert (counted, round(100 * share)) == (steps, idle)
    words = re.sub(r"</text><text[^>]*>", " ", find("static_batch")(batch_size=4, policy=policy))
    assert f"{steps:,} steps; the rows are idle {idle} %" in words
    assert ("1.72 x as long" in words) == (policy == "refill")
