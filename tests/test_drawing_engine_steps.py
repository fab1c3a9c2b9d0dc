"""The steps drawn are the scheduler's: budgets hold, and every token is accounted for."""

import pytest

from kvlib.show.drawings.engine_steps import (
    BLOCK_SIZE,
    CHUNK,
    LAST_STEP,
    ORDERS,
    PROMPTS,
    REQUESTS,
    engine_steps,
    shots,
)

BLOCKS = (8, 10, 12, 16, 24)
RUNS = [(p, o, b) for p in PROMPTS for o in ORDERS for b in BLOCKS]


@pytest.mark.parametrize("run", RUNS)
def test_all_is_computed_once_and_again_what_was_lost(run):
    rows = [row for shot in shots(*run) for row in shot.rows]
    needed = sum(r.prompt_tokens + r.output_tokens - 1 for r in REQUESTS)
    assert sum(row.new - row.again for row in rows) == needed
    lost = sum(len(shot.preempted) for shot in shots(*run))
    assert (sum(row.again for row in rows) > 0) == (lost > 0)
    assert len(shots(*run)) < LAST_STEP


@pytest.mark.parametrize("run", RUNS)
def test_a_request_holds_blocks_for_what_it_has_and_computes(run):
    for shot in shots(*run):
        for order, row in enumerate(shot.rows):
            held = shot.owners.count(order) * BLOCK_SIZE
            assert held >= row.before + row.new
            away = row.state in ("done", "waits", "not here yet", "loses its memory")
            assert bool(held) == (not away)


def test_chunks_keep_the_budget_and_whole_prompts_do_not():
    def largest(prompts):
        return max(sum(row.new for row in shot.rows) for shot in shots(prompts, "decode", 24))

    assert (largest("chunks"), largest("whole")) == (CHUNK, 26)


def test_somebody_stands_still_only_with_prompts_first():
    for prompts, order, blocks in RUNS:
        states = {row.state for shot in shots(prompts, order, blocks) for row in shot.rows}
        assert order == "prefill" or "stands still" not in states
    assert "stands still" in engine_steps(2, "whole", "prefill", 24)


def test_less_memory_takes_more_steps_with_chunks():
    assert [len(shots("chunks", "decode", blocks)) for blocks in BLOCKS] == [42, 36, 27, 23, 20]
    assert "Memory lost: 1 x" in engine_steps(6, "chunks", "decode", 10)
    assert "All done after 36 steps" in engine_steps(37, "chunks", "decode", 10)
    assert "All done" not in engine_steps(36, "chunks", "decode", 10)
