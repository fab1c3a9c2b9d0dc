"""The race drawn is the scheduler's own run, and what the page says of it holds."""

import re

import pytest

from kvlib.show.drawings.admission_race import (
    ANYTHING,
    MARKED,
    REQUESTS,
    RULES,
    admission_race,
    raced,
)

ALLOWED, MEMORY = (128, 256, 512, ANYTHING), (1024, 2048, 4096)
PLAIN = "prompt only"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("memory", MEMORY)
def test_all_requests_are_accounted_for(rule, memory):
    run = raced(rule, memory, 512, 0.0)
    assert run.num_requests == REQUESTS == run.finished + run.unfinished
    assert run.refused == 0
    parts = ("used", "reservation", "internal_fragmentation", "external_fragmentation", "free")
    assert sum(map(run.share, parts)) == pytest.approx(1)
    assert (run.recomputed_tokens > 0) == (run.preempted > 0)


def test_the_figures_are_the_runs():
    svg = admission_race(512, 0.05, 2048)
    runs = {r: raced(r, 2048, 512, 0.05 if r == MARKED else 0.0) for r in RULES}
    for run in runs.values():
        twice = f"{100 * run.recomputed_share:.0f} % twice"
        assert f">{run.mean_running:.1f} run, {twice}<" in svg
    strips = [float(w) for w in re.findall(r'<rect[^>]*width="([\d.]+)"[^>]*height="16"', svg)]
    frames, used, held = strips[::3], strips[1::3], strips[2::3]
    assert len(frames) == len(RULES)
    for run, frame, inside, beside in zip(runs.values(), frames, used, held, strict=True):
        assert inside / frame == pytest.approx(run.share("used"), abs=0.005)
        empty = run.share("reservation") + run.share("internal_fragmentation")
        assert beside / frame == pytest.approx(empty, abs=0.005)
    lines = [float(w) for w in re.findall(r'<rect[^>]*width="([\d.]+)"[^>]*height="7"', svg)]
    again = [run.recomputed_share for run in runs.values()]
    assert [w / frames[0] for w in lines] == pytest.approx(again, abs=0.005)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("allowed", ALLOWED)
def test_the_certain_rule_takes_nothing_back_and_the_hopeful_ones_use_most(allowed, memory):
    runs = {rule: raced(rule, memory, allowed, 0.01) for rule in RULES}
    assert runs["prompt + max_new"].preempted == 0 == runs["prompt + max_new"].recomputed_tokens
    hopeful = runs[PLAIN]
    assert hopeful.preempted > 0
    assert hopeful.share("used") > 0.85
    for name in ("prompt + max_new", "predicted peak", "discounted"):
        assert runs[name].share("used") < hopeful.share("used")
        assert runs[name].recomputed_share < hopeful.recomputed_share / 3


@pytest.mark.parametrize("memory", MEMORY)
def test_no_watermark_is_the_prompt_alone_and_more_of_it_recomputes_less(memory):
    none = raced(MARKED, memory, 512, 0.0)
    plain = raced(PLAIN, memory, 512, 0.0)
    assert (none.steps, none.preempted) == (plain.steps, plain.preempted)
    runs = [none, *(raced(MARKED, memory, 512, mark) for mark in (0.05, 0.2))]
    again = [run.recomputed_share for run in runs]
    batch = [run.mean_running for run in runs]
    assert again == sorted(again, reverse=True) and again[2] < again[0] / 2
    assert batch == sorted(batch, reverse=True)


def test_a_watermark_moves_its_own_row_only():
    runs = (admission_race(512, mark, 2048) for mark in (0.0, 0.2))
    rows = [re.findall(r">([\d.]+ run, \d+ % twice)<", svg) for svg in runs]
    changed = [a != b for a, b in zip(*rows, strict=True)]
    assert changed == [rule == MARKED for rule in RULES]


def test_what_the_page_says_of_it_holds():
    def lost(mark, memory):
        return raced(MARKED, memory, 512, mark).preempted

    assert [lost(mark, 2048) for mark in (0.0, 0.05)] == [95, 39]
    assert [lost(mark, 1024) for mark in (0.0, 0.05, 0.1)] == [109, 65, 41]
    told = [
        [raced(rule, 2048, allowed, 0.0).mean_running for rule in RULES]
        for allowed in (512, ANYTHING)
    ]
    assert [f"{n:.1f}" for n in told[0]] == ["2.9", "8.6", "6.7", "12.0", "12.0"]
    assert [f"{n:.1f}" for n in told[1]] == ["2.0", "7.9", "3.9", "11.4", "11.4"]
