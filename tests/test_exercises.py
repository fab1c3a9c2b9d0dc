"""Every exercise accepts its solution, refuses what is wrong, and says why in a sentence."""

from __future__ import annotations

import ast
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from kvlib import exercises

SLUGS = exercises.slugs()
WRONG = [
    pytest.param(slug, source, id=f"{slug}-{index}")
    for slug in SLUGS
    for index, source in enumerate((*exercises.load(slug).wrong, exercises.load(slug).stub))
]


def run(source: str) -> dict:
    namespace: dict = {}
    exec(source, namespace)
    return namespace


def test_the_exercises_of_the_book_are_there() -> None:
    assert {"kv-bytes", "users-that-fit", "append-attention", "count-forwards"} <= set(SLUGS)


@pytest.mark.parametrize("slug", SLUGS)
def test_the_solution_passes_as_source_and_as_function(slug: str) -> None:
    exercise = exercises.load(slug)
    by_source = exercises.check_source(slug, exercise.solution)
    by_answer = exercises.check(slug, run(exercise.solution)[exercise.answer_name])
    assert by_source.passed, by_source
    assert by_source == by_answer
    assert by_source.message.endswith(("gave the right answer.", "that is the value."))


@pytest.mark.parametrize(("slug", "source"), WRONG)
def test_a_wrong_answer_is_refused_with_what_was_expected_and_what_came(
    slug: str, source: str
) -> None:
    verdict = exercises.check_source(slug, source)
    assert not verdict.passed, "the check accepts it"
    rule = f"say 'should be …' or 'should return …', and 'yours …': {verdict.message}"
    assert "should be" in verdict.message or "should return" in verdict.message, rule
    assert "yours" in verdict.message, rule
    assert repr(verdict).startswith("Not yet: ")
    assert repr(verdict).endswith(".")


@pytest.mark.parametrize("slug", SLUGS)
def test_an_exercise_is_complete_and_needs_the_standard_library_only(slug: str) -> None:
    exercise = exercises.load(slug)
    assert len(exercise.wrong) >= 2
    assert exercise.solution not in exercise.wrong
    assert exercise.task.strip()
    path = exercises.FOLDER / f"{slug}.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= sys.stdlib_module_names
        if isinstance(node, ast.ImportFrom):
            assert node.module in sys.stdlib_module_names


def test_the_hints_of_kv_bytes_name_what_is_missing() -> None:
    exercise = exercises.load("kv-bytes")
    assert "layers and KV heads seem to be missing" in repr(
        exercises.check_source("kv-bytes", exercise.stub)
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def kv_bytes(:", "SyntaxError in line 1"),
        ("x = 1\ny = 1 / 0", "ZeroDivisionError in line 2: division by zero"),
        ("raise SystemExit('bye')", "SystemExit in line 1: bye"),
        ("kv_byte = 3", "defines no kv_bytes"),
        ("kv_bytes = 3", "asks for the function kv_bytes"),
        ("def kv_bytes(a): return 1", r"kv_bytes(3, 5, 4, 7, 1, 2) raised TypeError"),
        ("def kv_bytes(*a): return kv_bytes(*a)", "raised RecursionError"),
        ("def kv_bytes(*a): raise SystemExit(3)", "raised SystemExit: 3"),
    ],
)
def test_source_that_fails_is_a_verdict_that_says_where(source: str, words: str) -> None:
    verdict = exercises.check_source("kv-bytes", source)
    assert not verdict.passed
    assert words in verdict.message


def test_a_right_answer_is_told_how_often_it_was_right() -> None:
    verdict = exercises.check_source("kv-bytes", exercises.load("kv-bytes").solution)
    assert repr(verdict) == "Passed: all 5 calls gave the right answer."


@pytest.mark.parametrize(
    ("stub", "name"),
    [
        ("import math\n\nx = y = 3\n", "x"),
        ("'what to do'\nfirst.place = 1\ndef answer():\n    pass\nlate = 2\n", "answer"),
    ],
)
def test_what_the_stub_defines_first_is_asked_for(stub: str, name: str) -> None:
    exercise = replace(exercises.load("kv-bytes"), stub=stub)
    assert exercise.answer_name == name


def test_a_stub_that_defines_nothing_is_an_error() -> None:
    exercise = replace(exercises.load("kv-bytes"), stub="import math\n")
    with pytest.raises(ValueError, match="the stub of kv-bytes defines no function and no value"):
        _ = exercise.answer_name


VALUE = """
TASK, STUB, SOLUTION, WRONG = "How many?", "blocks = 0", "blocks = 3", ()
def check(answer):
    return None if answer + 0 == 3 else f"blocks should be 3, yours is {answer}."
"""


def test_an_exercise_may_ask_for_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "how-many.py").write_text(VALUE)
    monkeypatch.setattr(exercises, "FOLDER", tmp_path)
    sources = ("blocks = 3", "blocks = 4", "def blocks():\n    return 3")
    right, wrong, function = (exercises.check_source("how-many", each) for each in sources)
    assert repr(right) == "Passed: that is the value."
    assert repr(wrong) == "Not yet: blocks should be 3, yours is 4."
    assert not function.passed and "raised TypeError: unsupported operand" in function.message


def test_what_an_exercise_and_a_verdict_say_stays() -> None:
    with pytest.raises(FrozenInstanceError):
        exercises.load("kv-bytes").solution = ""
    with pytest.raises(FrozenInstanceError):
        exercises.check("kv-bytes", 3).passed = True


def test_source_runs_in_a_namespace_of_its_own() -> None:
    exercises.check_source("kv-bytes", "leak = 1\n" + exercises.load("kv-bytes").solution)
    verdict = exercises.check_source("kv-bytes", "kv_bytes = lambda *_: leak")
    assert "NameError" in verdict.message


def test_what_the_source_prints_is_kept_apart() -> None:
    solution = exercises.load("kv-bytes").solution
    verdict = exercises.check_source("kv-bytes", solution + "\nprint('seen')")
    assert verdict.printed == "seen\n"


def test_an_answer_may_change_its_inputs_without_changing_the_check() -> None:
    exercise = exercises.load("append-attention")
    for _ in range(2):
        assert exercises.check_source("append-attention", exercise.solution).passed


def test_append_attention_refuses_answers_of_the_wrong_shape() -> None:
    for answer in (lambda *_: None, lambda *_: [], lambda *_: [[1.0]], lambda *_: [1.0]):
        assert not exercises.check("append-attention", answer).passed


def test_an_unknown_exercise_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no exercise 'kv-byte'; near: kv-bytes"):
        exercises.check("kv-byte", None)
