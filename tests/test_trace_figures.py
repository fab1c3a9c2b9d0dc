"""Recomputes what the records `chapters/measured/trace_*.json` say of the traces.

A script `measure/trace_<topic>.py` has a function `figures()`; the record holds what it returns.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

from kvlib import measured
from kvlib.buddy import power_of_two
from kvlib.reservation import (
    ReserveMaximum,
    ReserveOracle,
    ReservePowerOfTwo,
    useful_share,
)
from test_traces import whole

ROOT = Path(__file__).resolve().parents[1]
TOPICS = sorted(path.stem for path in (ROOT / "measure").glob("trace_*.py"))


def figures(topic: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The script's figures today; without a trace a visible skip, which fails where `CI=true`."""
    monkeypatch.syspath_prepend(ROOT / "measure")
    monkeypatch.delitem(sys.modules, topic, raising=False)
    try:
        found = importlib.import_module(topic).figures()
    except FileNotFoundError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error}; with CI=true it has to be there")
        pytest.skip(str(error))
    return json.loads(json.dumps(found))


@pytest.mark.parametrize("topic", TOPICS)
def test_a_record_is_what_the_traces_give_today(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of the file is not compared: a trace has two forms with equal requests."""
    found = figures(topic, monkeypatch)
    record = measured.load(f"{topic}.cpu")
    assert record is not None, f"run python measure/{topic}.py"
    kept = {key: record["data"].get(key) for key in found}
    assert kept == found, f"run python measure/{topic}.py, if this was meant"


# Percent of the reserved slots that hold a token, averaged over decoding: the maximum that is
# reserved, then the shares reserving it, a power of two, the true length, and the last two where a
# buddy allocator rounds the whole up.
USEFUL = {
    "azure-conv": (16_384, [7.5, 81.5, 87.9, 57.4, 62.1]),
    "azure-code": (8_192, [26.0, 94.0, 96.5, 67.9, 69.9]),
    "arxiv": (4_096, [59.1, 69.5, 79.4, 44.5, 63.3]),
    "mooncake-conv": (131_072, [10.0, 96.5, 98.0, 67.5, 68.5]),
}


@pytest.mark.parametrize("name", USEFUL)
def test_the_useful_share_of_four_reservations_is_the_published_one(name: str) -> None:
    max_seq_len, percents = USEFUL[name]
    exact = [ReserveMaximum(max_seq_len), ReservePowerOfTwo(), ReserveOracle()]
    shares = [useful_share(policy, whole(name)) for policy in exact]
    shares += [useful_share(policy, whole(name), power_of_two) for policy in exact[1:]]
    assert [100 * share for share in shares] == pytest.approx(percents, abs=0.051)


def test_a_missing_trace_is_a_visible_skip_and_a_failure_where_ci_is_true(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "measure")
    monkeypatch.setattr("whole_traces.BESIDE", tmp_path)
    monkeypatch.delenv("KVLIB_TRACES", raising=False)
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="the trace azure-conv is neither in"):
        figures("trace_reservations", monkeypatch)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="with CI=true it has to be there"):
        figures("trace_reservations", monkeypatch)
