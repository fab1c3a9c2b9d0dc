"""Four ways to give out a memory come out as published; the drawing tells what was counted."""

from statistics import fmean

import pytest

from kvlib.show.drawings.budget_admission import (
    LONGEST,
    OUTPUT,
    PROMPT,
    WAYS,
    budget_admission,
    serve,
    served,
    slots_of,
)
from kvlib.workloads import lognormal

# Kwon et al., SOSP 2023, Fig. 2: used, reservation, internal, external and others.
PUBLISHED = {
    "maximum": (20.4, 13.3, 57.3, 8.9),
    "power of two": (26.8, 17.9, 13.6, 41.6),
    "oracle": (38.2, 25.2, 0.0, 36.6),
    "paged": (96.3,),
}


def split(way, fit):
    """Mean of three seeds, in percent."""
    runs = (lognormal(800, seed, PROMPT, OUTPUT, 2048).requests for seed in range(3))
    parts = [serve(requests, 15_728, 2048, way, fit)[1] for requests in runs]
    return [100 * fmean(shares) for shares in zip(*parts, strict=True)]


@pytest.mark.parametrize("way", WAYS)
def test_the_four_way_split_is_consistent_with_the_published_one(way):
    found = split(way, "buddy")
    assert found[: len(PUBLISHED[way])] == pytest.approx(PUBLISHED[way], abs=5)
    assert sum(found) == pytest.approx(100)


def test_with_first_fit_it_is_not():
    """The buddy's rounding is the assumption behind the published split."""
    assert split("oracle", "first fit")[0] > PUBLISHED["oracle"][0] + 10


@pytest.mark.parametrize("lengths", LONGEST)
def test_paging_runs_the_most_and_nobody_waits_with_room(lengths):
    runs = {way: served(lengths, 2, way, "first fit")[0] for way in WAYS}
    at_once = [run.mean_running for run in runs.values()]
    assert at_once == sorted(at_once)
    assert runs["paged"].waited_with_room == 0 < runs["oracle"].waited_with_room
    assert runs["maximum"].peak_running == 2


def test_all_requests_fit_the_longest_length():
    for lengths in LONGEST:
        run, parts = served(lengths, 1, "oracle", "buddy")
        assert (run.refused, run.num_requests) == (0, 400)
        assert min(parts) > -1e-9 and sum(parts) == pytest.approx(1)
    assert [slots_of(name, 7.68) % 16 for name in LONGEST] == [0, 0, 0]


def test_the_sentence_is_the_simulations():
    paged, parts = served("azure-conv", 2, "paged", "")
    oracle, _ = served("azure-conv", 2, "oracle", "buddy")
    svg = budget_admission(2, "azure-conv", "buddy")
    assert f"{paged.recomputed_tokens:,} tokens are computed twice" in svg
    assert f"Paging runs {paged.mean_running / oracle.mean_running:.1f} times" in svg
    assert f"{100 * parts.used:.1f} % used, {paged.mean_running:.1f} run at once" in svg
