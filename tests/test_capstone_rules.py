"""The capstone's rules, without an engine: the trace, the score, the table, the exit status."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from kvlib import capstone as rules
from kvlib.capstone import Ask, Refused, Score, graded, leaderboard
from kvlib.tensors import capstone as judge
from kvlib.tensors import capstone_file

ROOT = Path(__file__).resolve().parents[1]


def score(name="x", good=10, seconds=2.0):
    return Score(name, good, 64, seconds, 0, 0, 4123, 99)


def test_a_seed_makes_the_same_requests_on_every_host():
    asks = rules.trace()
    text = repr([(round(ask.arrival_s, 6), ask.prompt) for ask in asks])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "23cdcab99626d0ea"
    long = [i for i, ask in enumerate(asks) if len(ask.prompt) >= 256]
    assert long == [7, 15, 23, 31, 39, 47, 55, 63]
    assert len({ask.prompt[:96] for ask in asks}) == 4 + 8


def test_the_page_says_the_rules_as_they_are():
    page = json.loads((ROOT / "chapters/05_practice/capstone.ipynb").read_text("utf-8"))
    text = "\n".join("".join(cell["source"]) for cell in page["cells"])
    text = re.sub(r"\{term\}`(.+?)(?: <.+?>)?`", r"\1", text)  # as it is read, without links
    for said in (
        f"its first token at most {rules.TTFT_S} s after it arrived",
        f"no two neighbouring tokens more than {rules.GAP_S} s apart",
        f"The memory is {rules.NUM_BLOCKS} blocks of {rules.BLOCK_SIZE} tokens",
        f"({rules.MAX_NEW_TOKENS} for everybody)",
        "Sixty-four requests.",
    ):
        assert said in text
    assert rules.NUM_REQUESTS == len(rules.trace()) == 64


@pytest.mark.parametrize(
    ("times", "whole", "found"),
    [
        ([1.5, 1.59], True, "good"),
        ([1.61, 1.62], True, "late"),
        ([1.1, 1.2], False, "late"),
        ([], False, "late"),
        ([1.0, 1.125], True, "stalled"),
        ([1.5, 1.5, 1.5625, 1.625], True, "good"),
    ],
)
def test_a_request_is_good_late_or_stalled(times, whole, found):
    both = graded("x", [times] * 2, [whole] * 2, [Ask(1.0, (5,))] * 2, 4.0, (9, 3))
    counts = {"good": both.good, "late": both.late, "stalled": both.stalled}
    assert counts == {"good": 0, "late": 0, "stalled": 0, found: 2}
    assert both.goodput == (0.5 if found == "good" else 0)
    assert (both.finished, both.forwarded, both.steps) == (2 * whole, 9, 3)


def test_the_limits_themselves_are_kept():
    asks = [Ask(0.0, (5,))]
    at_the_limit = graded("x", [[rules.TTFT_S]], [True], asks, 1.0, (1, 1))
    gap = graded("x", [[0.0, rules.GAP_S]], [True], asks, 1.0, (1, 1))
    assert at_the_limit.good == gap.good == 1


def test_a_run_of_no_time_has_no_goodput():
    assert score(seconds=0.0).goodput == 0.0


def test_the_table_is_as_wide_for_every_name():
    rows = [score("a" * 40, 1), score("b", 20), score("c", 20)]
    assert leaderboard(rows).splitlines() == [
        "engine                    goodput     good     late  stalled finished   tokens",
        "b                           10.00       20        0        0       64    4,123",
        "c                           10.00       20        0        0       64    4,123",
        "aaaaaaaaaaaaaaaaaaaaaaaa     0.50        1        0        0       64    4,123",
    ]


@pytest.fixture
def four(monkeypatch):
    """Four references of 4, 3, 2 and 1 good requests a second."""
    monkeypatch.setattr(judge, "references", lambda: [score(f"r{n}", 2 * n) for n in (4, 3, 2, 1)])


@pytest.mark.parametrize(("good", "status"), [(10, 0), (9, 1), (11, 0)])
@pytest.mark.usefixtures("four")
def test_a_pass_is_a_quarter_more_than_the_best(good, status, monkeypatch, capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("")
    monkeypatch.setattr(capstone_file, "grade_apart", lambda path: score(path.stem, good))
    assert rules.main([str(file)]) == status
    lines = capsys.readouterr().out.splitlines()
    last = "to pass: 5.00, 1.25 times the best of the four"
    assert lines[-1] == ("your engine beats all four", last)[status]
    assert [line.split()[0] for line in lines[1:6]] == ["mine", "r4", "r3", "r2", "r1"]


@pytest.mark.usefixtures("four")
def test_without_a_file_the_four_are_shown(capsys):
    assert rules.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["r4", "r3", "r2", "r1"]


@pytest.mark.parametrize("arguments", [["missing.py"], [__file__, __file__], ["."]])
@pytest.mark.usefixtures("four")
def test_anything_but_one_file_is_answered_with_the_usage(arguments, capsys):
    assert rules.main(arguments) == 2
    assert capsys.readouterr().out.startswith("python -m kvlib.capstone [my_engine.py]: one file")


def test_who_is_refused_is_told_why(monkeypatch, capsys):
    def refuse(path):
        raise Refused(f"{path.name} took too long")

    monkeypatch.setattr(capstone_file, "grade_apart", refuse)
    assert rules.main([__file__]) == 1
    assert capsys.readouterr().out == "refused: test_capstone_rules.py took too long\n"
