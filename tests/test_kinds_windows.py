"""Siblings of the public cases about windows: a ring and blocks against a list of positions."""

from random import Random

import pytest
import torch

from kvlib.rolling_ledger import RollingLedger
from kvlib.sizes import KVShape
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.sink_window import RollingKVCache


def random_windows():
    draw = Random(5)
    for _ in range(60):
        window, length = draw.randint(1, 9), draw.randint(1, 24)
        yield window, length, draw.randint(0, length), draw.choice((1, 2, 3, 5))


@pytest.mark.parametrize("kind", ["ring", "blocks"])
def test_a_ring_and_blocks_go_back_just_where_the_next_query_finds_its_window(kind):
    """Allowed is what leaves each position of the next query's window; then all is as if new."""
    refused = 0
    for window, length, keep, size in random_windows():
        cache, numbers = made(kind, window, size), torch.arange(float(length + 3))
        feed(cache, numbers[:length])
        first = max(0, length - window)
        # A ring with a window of 1 needs nothing that came before; blocks are given back whole.
        held = min(first, keep) if kind == "ring" else first // size * size
        if keep not in (0, length) and max(0, keep - window + 1) < held:
            refused += 1
            with pytest.raises(ValueError, match="gone"):
                cache.truncate("a", keep)
            assert cache.length("a") == length
            continue
        cache.truncate("a", keep)
        got = feed(cache, numbers[keep : keep + 3])
        expected = [windowed_mean(at, window) for at in range(keep, keep + 3)]
        assert got == pytest.approx(expected), (window, length, keep, size)
        cache.check()
    assert refused > 5


def made(kind, window, size):
    one = KVShape(1, 1, 1)
    if kind == "ring":
        cache = RollingKVCache(one, 1, window)
    else:
        cache = PagedKVCache(one, 40, size, window=window, way="gather")
    cache.add("a")
    return cache


def windowed_mean(at, window):
    seen = range(max(0, at - window + 1), at + 1)
    return sum(seen) / len(seen)


def feed(cache, numbers):
    """Stores tokens with these values and equal scores; returns the mean that each of them sees."""
    v = numbers.reshape(-1, 1, 1)
    with cache.step({"a": [0] * len(v)}) as plan:
        if not len(v):
            return []
        cache.write(0, torch.zeros_like(v), v, plan)
        return cache.attend(0, torch.zeros_like(v), plan).flatten().tolist()


def test_a_ring_knows_which_positions_it_holds_after_any_steps():
    """Against a list: positions by slot, the oldest overwritten first, sinks never."""
    draw = Random(6)
    for _ in range(80):
        window, sinks = draw.randint(1, 6), draw.randint(0, 3)
        ledger, slots = RollingLedger(1, window, sinks), {}
        ledger.add("a")
        for _ in range(draw.randint(1, 6)):
            step = ledger.plan({"a": [0] * draw.randint(0, 9)})
            slots |= dict(zip(step.slot_mapping, step.positions, strict=True))
            ledger.commit(step)
            held = dict(zip(ledger.held_slots("a"), ledger.held("a"), strict=True))
            assert held == slots and len(held) <= window + sinks
            ledger.check()
