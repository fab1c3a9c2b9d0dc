"""The steps drawn are the scheduler's, and every token computed is accounted for."""

import re

import pytest

from kvlib.show.drawings.engine_timeline import (
    BLOCK_SIZE,
    LAST_STEP,
    LOSERS,
    NAMES,
    SIZES,
    engine_timeline,
    timeline,
    words,
)

RUNS = [(b, t, loser) for b in (6, 7, 8, 10, 16) for t in (4, 8, 32) for loser in LOSERS]
NEEDED = sum(prompt + answer - 1 for prompt, answer in SIZES)


@pytest.mark.parametrize("run", RUNS)
def test_budget_memory_and_order_hold(run):
    blocks, budget, loser = run
    shots = timeline(*run)
    assert len(shots) <= LAST_STEP
    for shot in shots:
        assert sum(cell.tokens for cell in shot.cells) <= budget
        assert 0 <= shot.held <= blocks
    for i in range(len(NAMES)):
        states = [shot.cells[i].state for shot in shots]
        end = states.index("done") if "done" in states else len(states)
        assert set(states[end:]) <= {"done"} and states[end - 1] in ("decode", "again")
        assert "host" not in states or loser == "swap"
        assert not {"again", "lost"} & set(states) or loser == "recompute"


@pytest.mark.parametrize("run", RUNS)
def test_what_is_said_is_what_was_computed(run):
    shots = timeline(*run)
    cells = [cell for shot in shots for cell in shot.cells]
    computed = sum(cell.tokens for cell in cells)
    again = computed - NEEDED + sum(cell.found for cell in cells)
    assert (again > 0) == any(cell.state == "again" for cell in cells)
    said = f"{len(shots)} steps, {computed} tokens computed, {again} of them again."
    assert said in engine_timeline(1, *run)


def test_less_memory_takes_longer_and_swaps_compute_nothing_twice():
    steps = {loser: [len(timeline(b, 8, loser)) for b in (6, 7, 8, 10, 16)] for loser in LOSERS}
    assert steps == {"recompute": [28, 25, 21, 17, 14], "swap": [27, 24, 19, 15, 14]}
    assert "81 tokens computed, 16 of them again" in engine_timeline(1, 8, 8, "recompute")


def computed_again(*run):
    return int(re.search(r"(\d+) of them again", engine_timeline(1, *run))[1])


def test_what_the_page_says_of_it():
    assert [computed_again(b, 8, "recompute") for b in (16, 10, 8, 7, 6)] == [3, 14, 16, 18, 11]
    assert [computed_again(8, t, "recompute") for t in (4, 8, 32)] == [10, 16, 20]
    found = {run for run in RUNS for s in timeline(*run) if s.cells[4].found}
    assert not any(blocks == 6 for blocks, _, _ in found)
    assert {blocks for blocks, budget, _ in found if budget == 32} == {16}
    assert (8, 8, "recompute") in found


def test_a_step_in_words():
    desc = re.search("<desc>(.*?)</desc>", engine_timeline(7, 8, 8, "recompute"))[1]
    assert desc.startswith("Step 7 of 21: A answers; B answers; C waits, memory lost; D waits")
    assert "7 of 8 blocks held" in desc
    found = [w for s in timeline(8, 8, "recompute") for w in map(words, NAMES, s.cells)]
    assert "E computes 4 of its prompt, 8 found" in found or "8 found" in " ".join(found)
    assert "Step 14 of 14" in engine_timeline(LAST_STEP, 16, 8, "recompute")
    assert BLOCK_SIZE == 4
