"""The metric sheet: what was not measured says so, and counters subtract."""

from kvlib.metrics import Metrics, WorkCounters
from kvlib.waste import Allocation, split


def test_work_since_a_snapshot_is_the_difference():
    counters = WorkCounters(tokens_forwarded=3, bytes_read=10)
    counters.kernels["sdpa"] += 2
    before = counters.snapshot()
    counters.tokens_forwarded += 4
    counters.kernels["sdpa"] += 1
    work = counters.since(before)
    assert (work.tokens_forwarded, work.bytes_read, work.kernels["sdpa"]) == (4, 0, 1)
    assert before.kernels["sdpa"] == 2


def test_a_row_says_what_was_not_measured():
    row = Metrics("seven rows", admitted_requests=7, split=split(20, [Allocation(8, 5, 5)])).row()
    assert row["admitted_requests"] == "7"
    assert row["split"] == "25.0% used"
    assert row["ttft_s"] == "not measured"
