"""Graded exercises: one file each in `exercises/`, one check for notebook and page.

An exercise file holds `TASK` (markdown), `STUB` (source the reader completes), `check(answer)`,
`SOLUTION` (source) and `WRONG` (sources a check must refuse). Its `check` returns None for a right
answer, else a sentence that says for which input it fails, what was expected and what came.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from kvlib.sizes import near

FOLDER = Path(__file__).resolve().parents[1] / "exercises"


@dataclass(frozen=True)
class Exercise:
    """One exercise as its file states it.

    Attributes:
        slug: the file's name without `.py`.
        task: what to do, in markdown.
        stub: the source a reader starts from.
        judge: the file's `check`: None for a right answer, else a sentence.
        solution: a source that passes.
        wrong: sources that must not pass.
    """

    slug: str
    task: str
    stub: str
    judge: Callable[[Any], str | None]
    solution: str
    wrong: tuple[str, ...]

    @property
    def answer_name(self) -> str:
        """The name the stub defines: what the reader's source must define too."""
        for node in ast.parse(self.stub).body:
            if isinstance(node, ast.FunctionDef):
                return node.name
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                return node.targets[0].id
        raise ValueError(f"the stub of {self.slug} defines no function and no value")


@dataclass(frozen=True)
class Verdict:
    """What a check found; prints as a sentence.

    Attributes:
        passed: whether the answer is right.
        message: the sentence.
        printed: what the reader's source wrote to standard output, if it was run from source.
    """

    passed: bool
    message: str
    printed: str = ""

    def __repr__(self) -> str:
        return f"{'Passed' if self.passed else 'Not yet'}: {self.message}"


class _Watched:
    """A reader's function that remembers its last call, so that an error can name it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.calls = 0
        self.last = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [repr(arg) for arg in args] + [f"{name}={arg!r}" for name, arg in kwargs.items()]
        self.last = f"{getattr(self._function, '__name__', 'answer')}({', '.join(given)})"
        self.calls += 1
        return self._function(*args, **kwargs)


def slugs() -> list[str]:
    """Returns the names of all exercises, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def load(slug: str) -> Exercise:
    """Returns an exercise by name.

    Raises:
        ValueError: there is none; the message lists the near names.
    """
    if slug not in slugs():
        raise ValueError(near(slug, slugs(), "exercise"))
    spec = importlib.util.spec_from_file_location(slug.replace("-", "_"), FOLDER / f"{slug}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Exercise(
        slug, module.TASK, module.STUB, module.check, module.SOLUTION, tuple(module.WRONG)
    )


def check(slug: str, answer: Any) -> Verdict:
    """Checks a reader's answer: the function or value the stub asks for.

    A wrong answer is a verdict, not an error; so is an answer that raises.

    Raises:
        ValueError: there is no such exercise.
    """
    exercise = load(slug)
    if not callable(answer):
        if f"def {exercise.answer_name}(" in exercise.stub:
            return Verdict(False, f"{slug} asks for the function {exercise.answer_name}.")
        fault = exercise.judge(answer)
        return Verdict(fault is None, fault or "that is the value.")
    watched = _Watched(answer)
    try:
        fault = exercise.judge(watched)
    except (Exception, SystemExit) as error:
        fault = f"{watched.last} raised {type(error).__name__}: {error}"
    return Verdict(fault is None, fault or f"all {watched.calls} calls gave the right answer.")


def check_source(slug: str, source: str) -> Verdict:
    """Runs a reader's source in a fresh namespace and checks what it defines.

    Raises:
        ValueError: there is no such exercise.
    """
    name = load(slug).answer_name
    namespace: dict[str, Any] = {"__name__": "answer"}
    printed = StringIO()
    with redirect_stdout(printed):
        try:
            exec(compile(source, "answer", "exec"), namespace)
        except (Exception, SystemExit) as error:
            verdict = Verdict(False, explain(error))
        else:
            if name in namespace:
                verdict = check(slug, namespace[name])
            else:
                verdict = Verdict(False, f"the source defines no {name}.")
    return Verdict(verdict.passed, verdict.message, printed.getvalue())


def explain(error: BaseException) -> str:
    """Returns an error that a reader's source raised as one sentence, with the line it arose in."""
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}{_line(error)}: {words}"


def _line(error: BaseException) -> str:
    """Returns where in the reader's source an error arose."""
    if isinstance(error, SyntaxError):
        return f" in line {error.lineno}"
    trace, line = error.__traceback__, None
    while trace:
        if trace.tb_frame.f_code.co_filename == "answer":
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" in line {line}" if line else ""
