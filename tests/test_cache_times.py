"""What measure/cache_times.py times is done by every cache, and comes out alike in each round."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "measure"))
cache_times = importlib.import_module("cache_times")


def test_every_cache_stores_and_attends(monkeypatch):
    monkeypatch.setattr(cache_times, "REPEATS", 2)
    rows = cache_times.at_length(5, torch.device("cpu"))
    assert [row["cache"] for row in rows] == list(cache_times.MAKE)
    for row in rows:
        assert row["update_s"]["median"] > 0 < row["query_s"]["median"]


@pytest.mark.parametrize("kind", cache_times.MAKE)
def test_a_query_reads_what_was_stored_and_the_next_token(kind):
    held = cache_times.Held(kind, 5, torch.device("cpu"))
    run, seen = held.query(), []
    attend = held.cache.attend
    held.cache.attend = lambda *args: seen.append(attend(*args))
    run()
    assert len(seen) == cache_times.SHAPE.num_layers
    assert all(out.shape == held.q.shape and out.isfinite().all() for out in seen)
