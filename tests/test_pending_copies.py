"""Copies under way: who waits for which, whose failure is told to whom, and what is forgotten."""

import pytest

from kvlib.tensors.pending_copies import PendingCopies


class Waited:
    """A copy that notes what is asked of it, and ends when somebody waits."""

    def __init__(self, name, log, error=None, done=False):
        self.name, self.log, self.error, self.done = name, log, error, done

    def note(self, how):
        self.log.append(f"{how} {self.name}")
        self.done = self.error is None

    def wait(self):
        self.note("wait")
        if self.error:
            raise self.error

    def result(self):
        self.note("result")
        if self.error:
            raise self.error

    def ended(self):
        self.note("ended")
        return self.error is None


@pytest.fixture
def log():
    return []


@pytest.fixture
def pending(log):
    """Block 1 leaves, 2 and 3 arrive together in two layers, 4 leaves and arrives."""
    made = PendingCopies(num_layers=2)
    made.leave(1, Waited("1", log))
    made.arrive([2, 3], [Waited("first", log), Waited("second", log)])
    made.leave(4, Waited("4", log))
    made.arrive([4], [Waited("4 first", log), Waited("4 second", log)])
    made.check()
    return made


def test_blocks_are_counted_once_whatever_their_copies_do(pending):
    assert len(pending) == 4 and pending.arriving == {2, 3, 4}


def test_a_read_waits_for_its_layer_of_what_arrives_and_for_nothing_else(pending, log):
    pending.before_read({1, 2, 9}, 0)
    assert log == ["wait first"] and len(pending) == 4
    log.clear()
    pending.before_read({2}, 1)
    assert log == ["wait second", "result first", "result second"]
    assert pending.arriving == {3, 4} and len(pending) == 3
    log.clear()
    pending.before_read({1, 2}, 1)
    assert log == []


def test_a_write_waits_for_what_leaves_too_and_only_once(pending, log):
    pending.before_write({1, 9}, 0)
    pending.before_write({1}, 0)
    assert log == ["ended 1"] and len(pending) == 3
    log.clear()
    pending.before_write({4}, 0)
    assert log == ["wait 4 first", "ended 4"] and 4 in pending.arriving
    pending.before_write({2}, 1)
    assert pending.arriving == {3, 4}


def test_of_several_copies_that_leave_the_last_counts(log):
    pending = PendingCopies(num_layers=1)
    pending.leave(1, Waited("old", log))
    pending.leave(1, Waited("new", log))
    pending.before_write({1}, 0)
    assert log == ["ended new"]


def test_one_block_is_copied_over_another_when_all_of_both_is_there(pending, log):
    pending.before_copy(src=2, dst=1)
    assert log == ["wait second", "result first", "result second", "ended 1"]
    log.clear()
    pending.before_copy(src=9, dst=3)
    assert log == ["wait second", "result first", "result second"]
    assert len(pending) == 1
    log.clear()
    pending.leave(5, Waited("5", log))
    pending.before_copy(src=5, dst=9)
    assert log == []  # a block that leaves may be read


def test_a_layer_that_failed_is_told_to_whoever_reads_the_last_one(log):
    pending = PendingCopies(num_layers=2)
    pending.arrive([1], [Waited("first", log, OSError("torn")), Waited("second", log)])
    for _ in range(2):
        with pytest.raises(OSError, match="torn"):
            pending.before_read({1}, 1)
        assert pending.arriving == {1}


def test_what_did_not_arrive_whole_is_named_once_all_its_copies_ended(log):
    pending = PendingCopies(num_layers=2)
    pending.arrive([1], [Waited("torn", log, OSError()), Waited("rest", log)])
    pending.arrive([2], [Waited("sound", log), Waited("sound too", log)])
    pending.arrive([3], [Waited("other", log), Waited("other too", log)])
    assert pending.unarrived({1, 2, 9}) == {1}
    assert sorted(log) == ["ended rest", "ended sound", "ended sound too", "ended torn"]


def test_what_failed_to_leave_lets_the_next_owner_write(log):
    pending = PendingCopies(num_layers=1)
    pending.leave(1, Waited("1", log, OSError()))
    pending.before_write({1}, 0)
    assert not len(pending)


def test_blocks_given_away_are_forgotten_with_what_arrives_in_them(pending, log):
    pending.forget([2, 4, 9])
    assert pending.arriving == {3} and len(pending) == 3  # 1 and 4 still leave
    pending.before_read({2, 4}, 1)
    assert log == []


def test_what_ended_well_is_forgotten_and_nothing_else(log):
    pending = PendingCopies(num_layers=2)
    pending.arrive([1], [Waited("a", log, done=True), Waited("b", log, done=True)])
    pending.arrive([2], [Waited("c", log, done=True), Waited("d", log)])
    pending.leave(3, Waited("e", log, done=True))
    pending.leave(4, Waited("f", log))
    pending.forget_done()
    assert pending.arriving == {2} and len(pending) == 2
    pending.before_write({3, 4}, 0)
    assert log == ["ended f"]


@pytest.mark.parametrize("copies", [1, 3])
def test_a_block_that_arrives_in_other_layers_than_there_are_is_found(pending, log, copies):
    pending.arrive([7], [Waited("x", log)] * copies)
    with pytest.raises(AssertionError, match=f"block 7 arrives in {copies} layers"):
        pending.check()
