"""Runs a module's tests on mutants of it, each in a process of its own that has all else imported.

The file on the disk stays as it is. Where a change lies inside a function, a process that has
collected the tests is forked and the function given its new code. Elsewhere (a default, a class, a
decorator) the import system is handed the mutant's text in a process that has not imported it yet.
So a run that is killed leaves nothing behind.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mutant_code import change
from mutant_import import Finder
from mutant_plugin import Collected, Told
from mutant_text import ROOT

MEMORY_BYTES = 6 << 30
QUIET = ["-x", "-q", "-s", "--no-header", "-m", "not model and not browser"]
QUIET += ["-p", "no:cacheprovider"]


class Outcome(NamedTuple):
    """What became of a mutant.

    Attributes:
        status: `killed`, `timeout` (killed, too) or `survived`.
        by: the test that failed or did not end.
        durations: seconds of each test that passed.
    """

    status: str
    by: str
    durations: dict[str, float]


class Runner:
    """Tries mutants of one module on its tests, those first that killed mutants nearby.

    Args:
        module: its path, relative to the repository.
        tests: the test files, relative to it, too.
        examples: how many examples a property is tried on at most.
    """

    def __init__(self, module: str, tests: list[str], examples: int = 100) -> None:
        self.path = ROOT / module
        self.name = ".".join(Path(module).with_suffix("").parts)
        self.tests, self.examples = tests, examples
        self.durations: dict[str, float] = {}
        self.collect_s = 30.0  # of the processor, until the first test
        self.kills: Counter[tuple[str, str]] = Counter()

    def rank(self, nodeid: str, function: str) -> tuple[float, float]:
        """Returns what orders the tests: how likely they are to fail, for their time."""
        near, far = self.kills[nodeid, function], self.kills[nodeid, ""]
        seconds = self.durations.get(nodeid, 0.0)
        return -(10 * near + far) / (0.02 + seconds), seconds

    def limit_s(self, nodeid: str) -> float:
        """Returns the processor's seconds after which a test counts as not ending."""
        return 2 + 5 * self.durations[nodeid] if nodeid in self.durations else 120

    def inside(self, mutants: list, note: Callable[[str, Outcome], bool]) -> None:
        """Tries the mutants that change the inside of a function, in one session of pytest.

        Args:
            mutants: as `mutations.mutants` gives them; others are left out.
            note: told each key and outcome, in a process of its own; says whether to go on.
        """
        session = os.fork()
        if session:
            os.waitpid(session, 0)
            return
        self._enter()
        plugin = Collected(self, lambda: self._each(plugin, mutants, note))
        pytest.main([*QUIET, *self.tests], plugins=[plugin])
        os._exit(0)

    def _each(self, plugin: Collected, mutants: list, note: Callable[[str, Outcome], bool]) -> None:
        def run(pipe: int, function: str) -> None:
            plugin.pipe = pipe
            plugin.run_all(function)

        self._clean(self._fork(lambda pipe: run(pipe, "")))
        module = sys.modules.get(self.name)
        for mutant in mutants:
            changed = module and change(module, mutant.source)
            if changed is None:
                continue

            def work(pipe: int, mutant=mutant, changed=changed) -> None:
                changed()
                run(pipe, mutant.function)

            if not note(mutant.key, self._outcome(*self._fork(work), mutant.function)):
                return

    def start(self) -> Outcome:
        """Runs the tests on the module as it is, and notes their times."""
        return self._clean(self._whole(self.path.read_text(encoding="utf-8"), ""))

    def run(self, source: str, function: str) -> Outcome:
        """Runs the tests on the module with this text."""
        return self._outcome(*self._whole(source, function), function)

    def _whole(self, source: str, function: str) -> tuple[list[str], int]:
        def work(pipe: int) -> None:
            self._enter()
            sys.meta_path.insert(0, Finder(self.name, self.path, source))
            plugin = Told(self, function, pipe)
            os._exit(pytest.main([*QUIET, *self.tests], plugins=[plugin]))

        return self._fork(work)

    def _fork(self, work: Callable[[int], None]) -> tuple[list[str], int]:
        """Does some work in a process of its own; returns what it told and its exit code."""
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(ours)
            os.setpgid(0, 0)
            signal.setitimer(signal.ITIMER_PROF, self.collect_s)
            try:
                work(theirs)
            except BaseException:  # whatever a mutant can raise: it did not pass
                os._exit(1)
            os._exit(0)
        os.close(theirs)
        wall_s = 120 + 20 * sum(self.durations.values()) if self.durations else 900
        lines, ended = _read(ours, time.monotonic() + wall_s)
        os.close(ours)
        if not ended:
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        return lines, os.waitstatus_to_exitcode(status)

    def _clean(self, told: tuple[list[str], int]) -> Outcome:
        outcome = self._outcome(*told, "")
        self.kills.clear()
        self.durations = outcome.durations
        if outcome.status != "survived" or not self.durations:
            print(f"{self.path.name}: without a mutant {outcome.by or 'no test'} fails", flush=True)
            os._exit(1)
        return outcome

    def _outcome(self, lines: list[str], code: int, function: str) -> Outcome:
        said = [line.split(" ", 1) for line in lines]
        took = (what.split(" ", 1) for kind, what in said if kind == "took")
        durations = {nodeid: float(seconds) for seconds, nodeid in took}
        if code == 0:
            return Outcome("survived", "", durations)
        failed = [what for kind, what in said if kind in ("fails", "runs")]
        by = failed[-1] if failed else "the import"
        self.kills[by, function] += 1
        self.kills[by, ""] += 1
        return Outcome("killed" if code > 0 else "timeout", by, durations)

    def _enter(self) -> None:
        """Makes this a process for tests: silent, bounded, in the repository."""
        if "KVLIB_MUTANT_LOG" not in os.environ:
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(ROOT)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"


def _read(pipe: int, until: float) -> tuple[list[str], bool]:
    """Returns the lines that came, and whether the other side closed the pipe in time."""
    text = b""
    while (left := until - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            part = os.read(pipe, 1 << 16)
            if not part:
                return text.decode().splitlines(), True
            text += part
    return text.decode().splitlines(), False
