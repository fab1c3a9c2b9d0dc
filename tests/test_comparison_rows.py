"""What is counted of a run, as a row of a record and as a line of a table."""

import pytest

from kvlib.comparison import compare
from kvlib.comparison_rows import COUNTS, TIMES, row, table
from kvlib.engine_configs import Configuration
from kvlib.request import Request
from kvlib.serving_run import ServingRun


class Second:
    """Every step takes a second."""

    def seconds(self, step):
        return 1.0


def counted(**more):
    """A run whose shares and means need rounding."""
    run = ServingRun(
        None,
        **{"timed": True, "now_s": 16.0, "good": 5} | more,
        **dict(finished=7, refused=2, preempted=3, steps=1234, peak_running=6),
        **dict(prompt_tokens=700, cached_tokens=473, computed_tokens=900, recomputed_tokens=300),
        **dict(busy_s=4.0, request_s=9.25),
    )
    run.part_s = {
        "used": 667.4,
        "reservation": 150.0,
        "internal_fragmentation": 80.0,
        "external_fragmentation": 3.0,
        "free": 99.6,
    }
    return run


COUNTED = {
    "percent": {
        "used": 66.7,
        "reservation": 15.0,
        "internal_fragmentation": 8.0,
        "external_fragmentation": 0.3,
        "free": 10.0,
    },
    "mean_running": 2.3,
    "peak_running": 6,
    "hit_percent": 67.6,
    "preempted": 3,
    "recomputed_tokens": 300,
    "recomputed_percent": 33.3,
    "finished": 7,
    "refused": 2,
    "steps": 1234,
}


def test_a_row_rounds_counts_to_a_tenth_and_times_to_three_digits():
    run = counted()
    for value in range(1, 101):
        run.ttft_s.add(value * 1.2345)
        run.tpot_s.add(value / 1000)
    found = row(run)
    times = {key: found.pop(key) for key in list(found) if key not in COUNTED}
    assert found == COUNTED
    assert times.pop("seconds") == 16.0 and times.pop("good_per_s") == 0.312
    exact = {"ttft_s_p50": 61.7, "ttft_s_p99": 122, "tpot_s_p50": 0.05, "tpot_s_p99": 0.099}
    assert times == pytest.approx(exact, rel=0.01)
    assert all(value == float(f"{value:.3g}") for value in times.values())


def test_the_percentiles_are_the_50th_and_the_99th():
    """Powers of two, so that no two of them are within a histogram's precision."""
    run = counted()
    for power in range(100):
        run.ttft_s.add(2.0**power)
        run.tpot_s.add(2.0 ** (power + 1))
    found = row(run)
    for name, more in (("ttft_s", 0), ("tpot_s", 1)):
        assert found[f"{name}_p50"] == pytest.approx(2.0 ** (49 + more), rel=0.02)
        assert found[f"{name}_p99"] == pytest.approx(2.0 ** (98 + more), rel=0.02)


@pytest.mark.parametrize("by_clock, asked", [(False, True), (True, False), (False, False)])
def test_without_a_clock_or_where_times_mean_nothing_a_row_has_none(by_clock, asked):
    run = counted(timed=by_clock)
    run.ttft_s.add(1)
    run.tpot_s.add(1)
    assert row(run, timed=asked) == COUNTED


def test_a_time_that_no_request_had_is_missing():
    one = compare({"a": Configuration(8)}, [Request(0, 0.0, 20, 1)], 96, 64, clock=Second())["a"]
    found = row(one)
    assert found["seconds"] == 1.0 and found["ttft_s_p99"] == 1.0
    assert [key for key in found if key.startswith("tpot")] == []
    never = compare({"a": Configuration(8)}, [Request(0, 0.0, 999, 1)], 96, 64, clock=Second())["a"]
    assert row(never) == row(never, timed=False) and row(never)["refused"] == 1


def test_a_table_is_right_aligned_under_headings_of_six_letters_or_more():
    rows = {"a": {"n": 1234567, "x": {"y": 12.345}}, "a longer name": {"x": {}}, "c": {"n": 0}}
    assert table(rows, {"n": "n", "seven l": "x.y", "n twice more": "n"}).splitlines() == [
        " " * 22 + "       n  seven l  n twice more",
        "a" + " " * 21 + "  1,234,567     12.3     1,234,567",
        "a longer name" + " " * 9 + "       -        -             -",
        "c" + " " * 21 + "       0        -             0",
    ]


def test_two_spaces_part_columns_where_a_page_has_room_for_them():
    """Headings of several words ran together."""
    for words, gap in ((48, "  "), (49, " ")):
        found = table({"a": {"n": 1}}, {"x" * words: "n"}).splitlines()
        assert found[0] == " " * 22 + gap + "x" * words


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"),
        (7, "7"),
        (4321, "4,321"),
        (4321.6, "4,322"),
        (100.0, "100"),
        (99.44, "99.4"),
        (99.0, "99.0"),
        (1.0, "1.0"),
        (1.26, "1.3"),
        (0.98765, "0.988"),
        (0.01234, "0.0123"),
        (0.0, "0"),
        (None, "-"),
    ],
)
def test_a_number_is_shown_with_the_digits_it_needs(value, text):
    assert table({"a": {"n": value}}, {"n": "n"}).splitlines()[1].split() == ["a", text]


def test_every_heading_of_the_book_has_its_number():
    run = counted()
    run.ttft_s.add(2)
    run.tpot_s.add(3)
    heading, numbers = table({"a": row(run)}, COUNTS | TIMES).splitlines()
    assert " ".join(heading.split()) == (
        "% used at once lost % twice 1st, 50 % 1st, 99 % each, 50 % each, 99 %"
    )
    assert numbers.split() == ["a", "66.7", "2.3", "3", "33.3", "2.0", "2.0", "3.0", "3.0"]
