"""The script behind the page on measuring: it waits, it takes turns, and it keeps every run."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvlib import measured

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    return importlib.import_module("protocols")


class Card:
    """A made-up card with a clock: a call takes 1 to ask for and 10 to do, in a queue."""

    def __init__(self):
        self.now = self.done = 0.0

    def sum(self):
        self.now += 1
        self.done = max(self.now, self.done) + 10

    def synchronize(self):
        self.now = max(self.now, self.done)


def test_nothing_is_running_at_either_reading_of_the_clock(script, monkeypatch):
    card = Card()
    cuda = SimpleNamespace(synchronize=card.synchronize)
    fake = SimpleNamespace(cuda=cuda, ones=lambda num, device: card)
    monkeypatch.setattr(script, "torch", fake)
    monkeypatch.setattr(script, "perf_counter", lambda: card.now)
    timed = script.reader(64, torch.device("cuda"))
    card.sum()  # still in the queue when the clock is read first
    assert [timed() for _ in range(3)] == [11, 11, 11]


def test_a_read_is_timed_on_the_cpu(script):
    assert script.reader(4096, torch.device("cpu"))() > 0


@pytest.mark.parametrize("in_turns", [False, True])
def test_the_neighbours_come_when_half_of_all_runs_are_done(script, in_turns):
    clock = iter(range(1000))
    came = []
    row = script.two_equal_ways(lambda: next(clock), lambda: came.append(next(clock)), in_turns)
    assert came == [script.TURNS]
    assert len(row["a_s"]) == len(row["b_s"]) == script.TURNS
    if in_turns:
        assert all(0 < b - a <= 2 for a, b in zip(row["a_s"], row["b_s"], strict=True))
    else:
        assert max(row["a_s"]) < came[0] < min(row["b_s"])


def test_on_a_cpu_there_is_nothing_to_wait_for(script):
    waiting = script.without_waiting(torch.device("cpu"))
    assert set(waiting.values()) == {"not applicable"}


@pytest.mark.parametrize("name", ["protocols.cpu", "protocols.cuda"])
def test_a_record_holds_raw_times(script, name):
    if (record := measured.load(name)) is None:
        pytest.skip(f"no record {name} yet")
    rows = record["data"]["processes"]
    assert len(rows) == len(script.SIZES) * script.PROCESSES
    for row in rows:
        assert row["bytes"] in script.SIZES
        assert len(row["run_s"]) == script.RUNS and min(row["run_s"]) > 0
    assert [row["order"] for row in record["data"]["under_drift"]] == [
        "A first, then B",
        "in turns",
    ]
