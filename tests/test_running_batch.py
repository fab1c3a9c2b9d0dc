"""The batch's sums follow its requests, and a preemption is paid once: by a copy or again."""

import pytest

from kvlib.kv_memory import KVMemory
from kvlib.plan import OutOfBlocks
from kvlib.preemption import SwapSpace, newest, oldest
from kvlib.request import Request
from kvlib.running_batch import RunningBatch
from kvlib.served import ServedRequest


def job(order, prompt, outputs):
    return ServedRequest.arrived(Request(order, None, prompt, outputs), order, 0.0, 99, None)


def batch(num_blocks=4, block_size=2, swap=None):
    """Two requests of 3 tokens each, of which the first will end at 4 and the second at 9."""
    made = RunningBatch(KVMemory(num_blocks, block_size), swap)
    jobs = [job(0, 3, 1), job(1, 3, 6)]
    assert [made.start(each, 3) for each in jobs] == [0, 0]
    return made, jobs


def sums(made):
    return made.room_tokens, made.computed_tokens, made.needed_tokens


def test_the_sums_follow_those_who_run():
    made, (first, second) = batch(5)
    assert sums(made) == (8, 0, 8)
    made.grow(second, 5)
    assert sums(made) == (10, 0, 4 + 6)
    first.num_computed = made.computed_tokens = 3
    made.check([])
    made.stop(first)
    assert sums(made) == (6, 0, 6) and [*made] == [second]
    made.check([])


def test_room_behind_the_end_of_a_request_is_never_needed():
    made, (first, _) = batch(8)
    for num_tokens in (5, 7):
        made.grow(first, num_tokens)
        assert sums(made) == (first.room + 4, 0, 8)
        made.check([])


def test_what_finds_no_room_changes_nothing():
    made, (first, _) = batch()
    with pytest.raises(OutOfBlocks):
        made.grow(first, 5)
    with pytest.raises(OutOfBlocks):
        made.start(job(2, 1, 1), 1)
    assert sums(made) == (8, 0, 8) and len(made) == 2
    made.check([])


def test_policies_read_it_as_a_sequence():
    made, (first, second) = batch()
    assert (newest(made), oldest(made), made[:1]) == (second, first, [first])
    assert first in made and job(0, 3, 1) not in made


@pytest.mark.parametrize(
    "space, copied, again", [(None, 0, 3), (SwapSpace(2), 0, 3), (SwapSpace(3), 3, 0)]
)
def test_who_comes_back_is_copied_or_computed_again(space, copied, again):
    made, (_, second) = batch(swap=space)
    second.num_computed = made.computed_tokens = 3
    second.num_lost = 9  # of an earlier time
    assert made.save(second) == copied == second.num_swapped
    made.stop(second)
    made.check([second])
    assert second.num_preempted == 1
    assert made.start(second, 4) == copied == second.num_computed
    assert (made.recomputed_tokens, second.num_lost, second.num_started) == (again, again, 2)
    assert space is None or space.num_free == space.num_tokens
    made.check([])


def test_who_is_not_wanted_any_more_leaves_the_host_too():
    made, (_, second) = batch(swap=SwapSpace(9))
    second.num_computed = made.computed_tokens = 3
    made.save(second)
    made.stop(second)
    made.forget_swapped(second)
    assert (second.num_swapped, made.swap.num_free) == (0, 9)


def test_only_who_runs_is_stopped():
    made, _ = batch()
    with pytest.raises(ValueError):
        made.stop(job(0, 3, 1))
    assert sums(made) == (8, 0, 8)


class Remembering(KVMemory):
    """Memory in which somebody else left the first tokens of whoever starts."""

    finds = 0

    def start(self, job, num_tokens):
        super().start(job, num_tokens)
        job.num_cached = job.num_computed = self.finds


@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.parametrize("found", [0, 2, 4])
def test_what_is_found_in_memory_when_it_comes_back_counts_beside_the_copy(swapped, found):
    """Three tokens were computed; more may be found, if another with the same tokens went on."""
    made = RunningBatch(Remembering(8, 2), SwapSpace(3 if swapped else 2))
    one = job(0, 5, 3)
    made.start(one, 5)
    one.num_computed = made.computed_tokens = 3
    made.save(one)
    made.stop(one)
    made.memory.finds = found
    assert made.start(one, 5) == 3 * swapped
    assert one.num_computed == made.computed_tokens == max(found, 3 * swapped)
    assert made.recomputed_tokens == (0 if swapped else max(0, 3 - found))
    assert one.num_cached_first == 0 and one.num_cached == found
    made.check([])
