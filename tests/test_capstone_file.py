"""A file that is graded: each mistake gets its sentence, and none of them ends the judge."""

import json
import pickle
import sys
from multiprocessing import active_children

import pytest

from kvlib.capstone import Refused, Score
from kvlib.tensors.capstone_file import grade_apart, grade_file, read_score

MISTAKES = {
    "def build(:": r"bad.py failed: SyntaxError: .* \(bad.py, line 1\)",
    "def build(model, n):\n    1 / 0": "bad.py failed in line 2: ZeroDivisionError",
    "def build(model, n):\n    pass": "build should return an engine with `submit`, .* NoneType",
    "raise SystemExit(0)": "bad.py failed in line 1: SystemExit: 0",
    "def build(model):\n    pass": "bad.py failed: TypeError: build",
    "x = 1": "bad.py should have a function build",
}


@pytest.mark.parametrize("source, said", MISTAKES.items(), ids=range(len(MISTAKES)))
def test_each_mistake_in_a_file_gets_its_sentence(tmp_path, source, said):
    bad = tmp_path / "bad.py"
    bad.write_text(source + "\n")
    with pytest.raises(Refused, match=said):
        grade_file(bad)
    assert not [name for name in sys.modules if name.startswith("graded ")]


def test_a_file_that_is_no_text_is_refused(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(Refused, match=r"bad.py failed: UnicodeDecodeError"):
        grade_file(bad)


def test_a_file_may_have_dataclasses_and_its_annotations_are_its_own(tmp_path):
    fine = tmp_path / "fine.py"
    fine.write_text(
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Row:\n    n: int\n    m: 'int' = 1\n"
        "assert Row.__annotations__['n'] is int\n"
        "def build(model, num_blocks):\n    raise KeyError(Row(3))\n"
    )
    with pytest.raises(Refused, match=r"in line 8: KeyError: Row\(n=3, m=1\)"):
        grade_file(fine)


@pytest.mark.parametrize(
    "source, said, limit_s",
    [
        ("while True:\n    pass", "should be through within 1 s, yours was not", 1),
        ("import os\nos._exit(0)", "bad.py ended the program, exit status 0", 180),
    ],
    ids=["hangs", "exits"],
)
def test_a_process_of_its_own_may_hang_or_exit(tmp_path, source, said, limit_s):
    bad = tmp_path / "bad.py"
    bad.write_text(source + "\n")
    with pytest.raises(Refused, match=said):
        grade_apart(bad, limit_s)
    assert not active_children()


SAID = {**dict.fromkeys(("good", "finished", "late", "stalled", "forwarded", "steps"), 1)}
SAID |= {"name": "x", "seconds": 2.0}


def test_a_score_comes_from_the_other_process_as_it_was():
    assert read_score(json.dumps(SAID).encode(), "x.py") == Score(**SAID)
    with pytest.raises(Refused, match=r"^no token$"):
        read_score(b'{"refused": "no token"}', "x.py")


@pytest.mark.parametrize(
    "said",
    [
        pickle.dumps(Score(**SAID)),
        b"",
        b"\xff",
        b"[]",
        b"5",
        b'"refused"',
        b'["refused"]',
        b"[" * 60_000,
        json.dumps(SAID | {"more": 1}).encode(),
        json.dumps({"name": "x"}).encode(),
        json.dumps(SAID | {"seconds": float("nan")}).encode(),
        json.dumps(SAID | {"good": "99"}).encode(),
        json.dumps(SAID | {"good": None}).encode(),
    ],
    ids=range(13),
)
def test_what_is_no_score_is_refused_and_never_unpickled(said):
    with pytest.raises(Refused, match=r"x\.py should leave it to the judge to say its score"):
        read_score(said, "x.py")


FORGED = """
import os
from pathlib import Path

class Opened:
    def __reduce__(self):
        return (Path.write_text, (Path({aim!r}), "opened"))

def build(model, num_blocks):
    import pickle
    try:
        raise KeyError
    except KeyError as error:
        frame = error.__traceback__.tb_frame
    while "there" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["there"].send_bytes(pickle.dumps(Opened()))
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xfe", "utf-8"),
        (b"(" * 5000, "paren"),
        (b" " * (2**20 + 1), "at most 1,048,576 are read"),
    ],
    ids=["bytes", "deep", "long"],
)
def test_a_file_that_is_no_engine_is_refused(tmp_path, data, said):
    (tmp_path / "bad.py").write_bytes(data)
    with pytest.raises(Refused, match=r"bad\.py failed") as refused:
        grade_file(tmp_path / "bad.py")
    assert said in str(refused.value) and len(str(refused.value)) < 300


def test_a_graded_file_cannot_make_the_judge_run_anything(tmp_path):
    """It finds the line that its score goes through, and writes a pickle into it."""
    aim, bad = tmp_path / "aim", tmp_path / "bad.py"
    bad.write_text(FORGED.format(aim=str(aim)))
    with pytest.raises(Refused, match=r"bad\.py should leave it to the judge"):
        grade_apart(bad, 60)
    assert not aim.exists() and not active_children()
