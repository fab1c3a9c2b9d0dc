"""The timeline says of each line of a stored log what the line says."""

import re

import pytest

from kvlib.engine_logs import parse
from kvlib.show.drawings import find
from kvlib.show.drawings.log_timeline import ADVICE, LINES, LOGS, told

DRAW = find("log_timeline").draw


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("line", [1, 9, 16, LINES])
def test_a_line_is_told_as_it_was_printed(log, line):
    lines = told(log).lines
    facts = parse(lines[min(line, len(lines)) - 1]).facts
    svg = DRAW(log=log, line=line, kept=False)
    run, wait = re.search(r"(\d+) run, (\d+) wait", svg).groups()
    used = float(re.search(r"used ([\d.]+) %", svg)[1])
    assert (int(run), int(wait)) == (facts["running"], facts["waiting"])
    assert used == pytest.approx(100 * facts["used_share"], abs=0.051)


def test_the_four_logs_show_three_of_the_states():
    states = {log: {s.state for s in told(log).log.samples} for log in LOGS}
    assert states["quiet"] == {"room for more"} and states["cautious"] == {"held back"}
    assert "memory full" in states["full"] and "held back" in states["capped"]
    assert set().union(*states.values()) < set(ADVICE)


def test_what_is_left_out_is_shown_only_when_asked_for():
    plain, whole = (DRAW(log="quiet", line=20, kept=kept) for kept in (False, True))
    assert "kept for later" not in plain and "kept for later 90.2 %" in whole
    assert whole.count("url(#log_timeline-cached)") == 1 + 19  # the key; nothing on the first line


def test_lost_memory_is_marked_on_its_line_and_said():
    svg = DRAW(log="full", line=13, kept=False)
    assert "50 lost their memory" in svg and "Memory full." in svg
    assert svg.count("url(#log_timeline-wasted)") == 1 + 3


def test_the_concurrency_is_the_pool_over_the_longest_request():
    assert "Pool 15,728 tokens: 3.8 requests of 4,096." in DRAW(log="full", line=1, kept=False)
