"""The partition drawing tells what the simulator counts, and parts never beat the pool."""

import re

import pytest

from kvlib.request import Request
from kvlib.show.drawings import find
from kvlib.show.drawings.pool_partition import (
    ALL,
    REQUESTS,
    SHARES,
    SLOTS,
    languages,
    parts,
    pool_partition,
    rejected,
    serve,
)

AT_ONCE = [Request(i, 0.0, prompt_tokens=1, output_tokens=1) for i in range(4)]
LABELS = ["Python", "Python", "Python", "Rust"]


def share(**values):
    """The percentage that the picture states."""
    return float(re.search(r"([\d.]+) % of all requests", find("pool_partition")(**values))[1])


def test_a_part_that_is_full_cannot_borrow_from_one_that_is_idle():
    one_pool = serve(AT_ONCE, LABELS, {ALL: 8})
    halves = serve(AT_ONCE, LABELS, {"Python": 4, "Rust": 4})
    assert rejected(one_pool) == 0
    assert rejected(halves) == 25
    assert (halves["Python"].turned_away, halves["Rust"].turned_away) == (1, 0)


def test_a_part_protects_the_few_from_a_flood_of_others():
    long = [Request(i, 0.0, prompt_tokens=1, output_tokens=9) for i in range(2)]
    short = [Request(2 + i, 0.03 * i, prompt_tokens=1, output_tokens=1) for i in range(5)]
    labels = ["Python"] * 2 + ["Rust"] * 5
    one_pool = serve(long + short, labels, {ALL: 20})
    halves = serve(long + short, labels, {"Python": 10, "Rust": 10})
    assert one_pool[ALL].turned_away == 5
    assert (halves["Python"].turned_away, halves["Rust"].turned_away) == (1, 0)


def test_who_never_fits_a_part_counts_as_rejected():
    runs = serve(AT_ONCE, LABELS, {"Python": 8, "Rust": 1})
    assert (runs["Rust"].refused, rejected(runs)) == (1, 25)


def test_no_request_is_lost_between_the_parts():
    for partition in ("shared", "proportional", "equal"):
        svg = pool_partition(SLOTS, partition, "poisson")
        assert sum(map(int, re.findall(r"of (\d+) rejected", svg))) == REQUESTS
        assert sum(parts(SLOTS, partition).values()) <= SLOTS


@pytest.mark.parametrize("gaps", ["poisson", "trace"])
@pytest.mark.parametrize("slots", [SLOTS, 2 * SLOTS, 4 * SLOTS, 8 * SLOTS])
def test_parts_never_reject_fewer_than_the_pool(slots, gaps):
    shared = share(slots=slots, partition="shared", gaps=gaps)
    for partition in ("proportional", "equal"):
        assert share(slots=slots, partition=partition, gaps=gaps) >= shared


def test_an_equal_part_of_twice_the_memory_holds_every_request_and_still_rejects():
    svg = pool_partition(2 * SLOTS, "equal", "poisson")
    assert "could never fit" in svg
    assert share(slots=2 * SLOTS, partition="equal", gaps="poisson") > 5
    assert share(slots=2 * SLOTS, partition="shared", gaps="poisson") == 0


def test_languages_are_drawn_in_their_shares_and_again_the_same():
    drawn = languages(20_000, seed=3)
    assert drawn == languages(20_000, seed=3) != languages(20_000, seed=4)
    for name, percent in SHARES.items():
        assert drawn.count(name) / 200 == pytest.approx(percent, abs=1)
