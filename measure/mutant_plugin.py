"""What pytest does under a mutant: each test's end is told; tests are collected once for many."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import hypothesis
import pytest

from mutant_import import Finder

if TYPE_CHECKING:
    from mutant_run import Runner


class Told:
    """A pytest plugin: tells each test's end through a pipe, and leaves at the first failure."""

    def __init__(self, runner: Runner, function: str = "", pipe: int = -1) -> None:
        self.pipe, self.runner, self.function = pipe, runner, function
        self.seconds = 0.0

    def tell(self, kind: str, what: str) -> None:
        """Writes one line into the pipe."""
        os.write(self.pipe, f"{kind} {what}\n".encode())

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Puts the mutant before the file, and bounds what a property tries."""
        # Before pytest's own, which takes a module whose doctests are asked for from the disk.
        sys.meta_path.sort(key=lambda finder: not isinstance(finder, Finder))
        few = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile(
            "mutants",
            deadline=None,
            phases=few,
            database=None,
            derandomize=True,
        )
        hypothesis.settings.load_profile("mutants")
        most = self.runner.examples
        fewer = property(lambda settings: min(settings._max_examples, most))
        type.__setattr__(hypothesis.settings, "max_examples", fewer)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Leaves where tests cannot be collected."""
        if report.failed:
            self.leave(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Puts the likeliest to fail first."""
        items.sort(key=lambda item: self.runner.rank(item.nodeid, self.function))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Tells that a test begins, and sets its limit."""
        self.tell("runs", nodeid)
        signal.setitimer(signal.ITIMER_PROF, self.runner.limit_s(nodeid))
        self.seconds = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tells what a test took."""
        self.seconds += report.duration
        if report.failed:
            self.leave(report.nodeid)
        if report.when == "teardown":
            self.tell("took", f"{self.seconds:.3f} {report.nodeid}")

    def leave(self, nodeid: str) -> None:
        """Tells which test failed, and ends the process."""
        self.tell("fails", nodeid)
        os._exit(1)


class Collected(Told):
    """Collects the tests, and then lets the runner try as many mutants on them as it likes."""

    def __init__(self, runner: Runner, work: Callable[[], None]) -> None:
        super().__init__(runner)
        self.work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Does the work in place of the tests."""
        self.items = session.items
        gc.freeze()
        self.work()
        return True

    def run_all(self, function: str) -> None:
        """Runs every test, those that are likeliest to fail first."""
        items = sorted(self.items, key=lambda item: self.runner.rank(item.nodeid, function))
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
