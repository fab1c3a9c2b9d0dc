"""What is drawn is what the index does: hits, losses and the order of loss agree step by step."""

from itertools import pairwise

import pytest

from kvlib.show.drawings.prefix_blocks import POLICIES, PROMPTS, prefix_blocks, shots

SIZES = range(8, 20)
RUNS = [(policy, size) for policy in POLICIES for size in SIZES]


@pytest.mark.parametrize("run", RUNS)
def test_a_request_finds_the_run_of_its_keys_that_is_in_the_line(run):
    line = ()
    for shot in shots(*run):
        known = [block in line for block in shot.blocks]
        assert shot.found == (known.index(False) if False in known else len(known))
        line = shot.line


@pytest.mark.parametrize("run", RUNS)
def test_what_is_lost_stood_first_in_the_line(run):
    """The blocks that the request found have left the line before."""
    for before, shot in pairwise(shots(*run)):
        left = [block for block in before.line if block not in shot.blocks[: shot.found]]
        needed = len(shot.blocks) + 1 - shot.found
        assert list(shot.lost) == left[: max(0, needed - before.empty)]


@pytest.mark.parametrize("run", RUNS)
def test_every_block_is_empty_or_kept_once(run):
    for shot in shots(*run):
        assert shot.empty + len(shot.line) == run[1]
        assert len(set(shot.line)) == len(shot.line)


def test_one_name_with_two_keys_is_what_stands_behind_something_else():
    keys = {key for shot in shots("tail", 19) for name, key in shot.blocks if name == "Qa"}
    assert len(keys) == 2 and len(PROMPTS) == 10


def test_the_end_first_is_never_worse_here_and_counting_wins_in_a_small_cache():
    found = {run: sum(shot.found for shot in shots(*run)) for run in RUNS}
    assert all(found["tail", size] >= found["head", size] for size in SIZES)
    costs = [found["tail", size] - found["head", size] for size in SIZES]
    assert costs == [2, 3, 2, 2, 3, 4, 0, 1, 3, 5, 0, 0]
    assert [size for size in SIZES if found["fifo", size] > found["tail", size]] == [14, 15, 17]
    assert (found["tail", 8], found["lfu", 8]) == (11, 14)
    assert {found[policy, size] for policy in POLICIES for size in (18, 19)} == {24}


def test_the_end_is_kept_behind_the_beginning():
    line = [name for name, _ in shots("tail", 19)[2].line]
    assert line == ["Qb", "Qc", "Aa", "Qa", "S2", "S1"]
    line = [name for name, _ in shots("head", 19)[2].line]
    assert line == ["Qb", "S1", "S2", "Qa", "Aa", "Qc"]


def test_the_words_say_what_was_lost():
    assert ">Lost for it: nothing<" in prefix_blocks(3, "tail", 10)
    assert ">Lost for it: Qb<" in prefix_blocks(4, "tail", 10)
