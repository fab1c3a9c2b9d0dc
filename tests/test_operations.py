"""Random operations with faults between them leave every structure of the memory half sound."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvlib import measured
from kvlib.block_table import BlockTable
from kvlib.blocks import BlockPool
from kvlib.eviction import FIFOPolicy
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.radix import RadixTree
from kvlib.retention import RankedPolicy
from kvlib.running_batch import RunningBatch
from kvlib.scheduled_memory import EngineMemory
from kvlib.sequences import SequenceLedger
from kvlib.tier import TierBooks

MEASURE = Path(__file__).resolve().parents[1] / "measure"
sys.path.insert(0, str(MEASURE))
operations = importlib.import_module("operations")
sys.path.remove(str(MEASURE))


def loaded(halves="memory"):
    sys.path.insert(0, str(MEASURE))
    try:
        return operations.subjects(halves)
    finally:
        sys.path.remove(str(MEASURE))


KINDS = loaded()


class AnyStructure(RuleBasedStateMachine):
    """Any structure, any of its operations, a fault wherever it may strike: made small if found."""

    @initialize(name=st.sampled_from(sorted(KINDS)), random=st.randoms(use_true_random=False))
    def build(self, name, random):
        self.subject = KINDS[name](random)

    @rule(data=st.data(), faulty=st.booleans())
    def operate(self, data, faulty):
        self.subject.do(data.draw(st.sampled_from(self.subject.rules)), faulty=faulty)

    def teardown(self):
        if hasattr(self, "subject"):
            self.subject.finish()


AnyStructure.TestCase.settings = settings(
    max_examples=100, stateful_step_count=25, suppress_health_check=list(HealthCheck)
)
TestAnyStructure = AnyStructure.TestCase


def test_a_hundred_thousand_operations_leave_everything_sound():
    state = operations.fresh(2026, KINDS)
    operations.run(state, KINDS, 100_000)
    found = operations.data(state)
    assert found["operations"] == 100_000
    assert found["faults"] > 2_000
    few = [
        name for name, kind in KINDS.items() if found["of"][name]["operations"] < 1_000 * kind.share
    ]
    assert not few


def one(name, seed=5, num_operations=3_000):
    """Drives one kind of structure alone."""
    kinds = {name: KINDS[name]}
    operations.run(operations.fresh(seed, kinds), kinds, num_operations)


def twice_freed(self, block_ids):
    for block_id in block_ids:
        if self._refs[block_id] == 1:
            self._empty[block_id] = None
        self._refs[block_id] -= 1


def never(self, *args, **options):
    return None


MUTANTS = {
    "content is not kept": ("block pool", BlockPool, "free", twice_freed),
    "no copy on write": ("ledger: blocks", BlockTable, "must_copy", lambda *a: False),
    "an open plan stops nobody": ("ledger: rows", SequenceLedger, "require_open", None),
    "pins are forgotten": ("policy: LRU", FIFOPolicy, "pin", lambda self, key: self._num_pins(key)),
    "nothing is evicted": ("hash index: LRU", HashIndex, "_forget", never),
    "a tree forgets nothing": ("radix tree: LRU", RadixTree, "_forget", never),
    "hidden for ever": ("hash index: LFU", RankedPolicy, "show", never),
    "nothing is given back": ("scheduler in blocks", KVMemory, "stop", never),
    "a victim stays": ("scheduler in blocks", RunningBatch, "stop", never),
    "moves are forgotten": ("engine desk", EngineMemory, "_note", never),
    "a copy let go is still in the books": (
        *("tiers: write_back", TierBooks, "evict"),
        lambda self: self.order.evict(),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_a_spoilt_structure_is_found_out(mutant, monkeypatch):
    name, owner, method, spoilt = mutant
    if spoilt is None:
        monkeypatch.setattr("kvlib.open_plans.OpenPlans.refuse", never)
    else:
        monkeypatch.setattr(owner, method, spoilt)
    with pytest.raises((AssertionError, KeyError, ValueError, AttributeError, IndexError)) as found:
        one(name)
    assert any(name in note for note in found.value.__notes__)


def command(path):
    options = ["--operations", "1000000000", "--seed", "7", "--save-every", "0.1"]
    script = str(MEASURE / "operations.py")
    return [sys.executable, script, *options, "--halves", "memory", "--state", str(path)]


def test_who_is_killed_goes_on_and_comes_to_the_same_counts(tmp_path):
    path = tmp_path / "killed.json"
    environment = os.environ | {"PYTHONPATH": str(MEASURE.parent)}
    child = subprocess.Popen(command(path), env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not path.exists():
        assert child.poll() is None and time.monotonic() < deadline, "nothing was saved"
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    killed = json.loads(path.read_text())
    had = sum(killed["operations"].values())
    assert had > 0
    state = operations.load(path, 7, KINDS)
    operations.run(state, KINDS, had + 5_000)
    straight = operations.fresh(7, KINDS)
    operations.run(straight, KINDS, had + 5_000)
    for name in ("operations", "faults", "episodes"):
        assert state[name] == straight[name]


def test_counts_of_other_code_or_another_seed_are_not_gone_on_with(tmp_path):
    path, state = tmp_path / "state.json", operations.fresh(3, KINDS)
    operations.save(path, state)
    assert operations.load(path, 3, KINDS) == state
    with pytest.raises(ValueError, match=r"state\.json counts operations of another seed"):
        operations.load(path, 4, KINDS)
    operations.save(path, state | {"code": "0" * 64})
    with pytest.raises(ValueError, match="another code: begin a new file"):
        operations.load(path, 3, KINDS)
    assert [*tmp_path.iterdir()] == [path], "a half-written file is left"


def test_every_kind_of_structure_of_the_memory_half_is_driven():
    """What has a `check` of its own is in a subject; whoever adds one adds it here too."""
    source = "".join(path.read_text() for path in MEASURE.glob("operation_*.py"))
    for path in sorted((MEASURE.parent / "kvlib").glob("*.py")):
        text = path.read_text()
        if "    def check(self" in text:
            assert f"kvlib.{path.stem} " in source or path.stem in DRIVEN_THROUGH, path.stem


DRIVEN_THROUGH = {
    "allocator": "arena, buddy, slab",
    "block_table": "paged_ledger",
    "engine_desk": "its own subject",
    "frequency": "the LFU policy",
    "handover": "two pools",
    "open_plans": "every ledger",
    "prefix": "what hash_index and radix keep to",
    "running_batch": "the scheduler",
    "scheduled_memory": "the desk",
    "turns": "fair_line",
}


def test_the_record_holds_ten_million_operations_on_every_structure():
    record = measured.load("operations.cpu")["data"]
    assert record["operations"] >= 10**7
    assert set(record["of"]) == set(loaded("all"))
    for counts in record["of"].values():
        assert counts["operations"] > 1000 and counts["episodes"] > 1
    assert record["faults"] == sum(counts["faults"] for counts in record["of"].values()) > 10**5
    assert record["operations"] == sum(counts["operations"] for counts in record["of"].values())
