"""What measure/writes.py compares: four ways that write the same, and count their questions."""

import importlib
from pathlib import Path

import pytest
import torch

from kvlib.tensors.store import KVStore

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
ASKS = {"ask": 2 * 3 * 4, "loop": 0, "slice": 0, "index": 0}


@pytest.fixture
def writes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    return importlib.import_module("writes")


@pytest.mark.parametrize("way", ASKS)
def test_every_way_writes_the_same_and_only_one_asks(writes, way):
    step = writes.Step(3, 4, CPU)
    counts = writes.counted(step, getattr(step, way), CPU)
    assert counts == {"asks": ASKS[way], "synchronisations": None}


def test_the_index_write_is_the_one_of_the_store(writes):
    step = writes.Step(3, 4, CPU)
    step.index()
    store = KVStore(1, 3, writes.ROW_LEN, writes.NUM_KV_HEADS, writes.HEAD_DIM)
    store.keys.zero_()
    k = step.new.flatten(0, 1)
    store.write(0, (step.rows * writes.ROW_LEN + step.positions).flatten(), k, k)
    assert torch.equal(store.keys[0], step.keys)


def test_a_way_that_writes_nothing_or_elsewhere_is_not_timed(writes):
    step = writes.Step(3, 4, CPU)
    step.positions += 1
    for way in (step.index, nothing):
        with pytest.raises(AssertionError, match=way.__name__):
            writes.counted(step, way, CPU)


def nothing():
    """Writes nothing."""
