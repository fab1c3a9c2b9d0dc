"""A pytest plugin that skips what needs a package which is not installed, and names the package.

For `make gpu`, which installs nothing. Everywhere else a missing package is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from run_notebook import missing_package


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A file that cannot be imported for want of a package is skipped as a whole."""
    report: Any = yield
    if report.failed and (package := missing_package(report.call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"needs {package}, which is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """So is a test whose fixture meets a missing package ..."""
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """... or that meets one itself."""
    return (yield from _skipping())


def _skipping() -> Iterator[None]:
    try:
        return (yield)
    except ImportError as error:
        if package := missing_package(error):
            pytest.skip(f"needs {package}, which is not installed")
        raise
