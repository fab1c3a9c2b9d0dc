"""An engine is a few policies: what a configuration builds, refuses, and is without being asked."""

from dataclasses import FrozenInstanceError

import pytest

from kvlib.admission import AdmitPrompt, AdmitReserved
from kvlib.buddy import BuddyArena
from kvlib.catalog import model
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.engine_configs import (
    CONFIGURATIONS,
    LLAMA_3_8B,
    Configuration,
    fastgen_block,
    pages_of_2_mib,
)
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.preemption import newest, oldest
from kvlib.radix import RadixTree
from kvlib.retention import RankedFIFO
from kvlib.scheduled_step import StepLimits
from kvlib.sizes import KVShape
from kvlib.slot_memory import SlotMemory


def shape_of(num_kv_heads, head_dim):
    return KVShape(num_layers=1, num_kv_heads=num_kv_heads, head_dim=head_dim)


def test_the_shape_that_stands_for_all_is_the_published_one():
    assert model("Llama-3-8B").kv == LLAMA_3_8B


def test_whoever_says_nothing_gets_blocks_of_16_no_index_and_no_margin():
    plain = Configuration()
    scheduler = plain.build(1000, 500)
    memory = scheduler.memory
    assert type(memory) is KVMemory and memory.prefixes is None
    assert (memory.block_size, memory.pool.num_blocks, scheduler.max_seq_len) == (16, 62, 500)
    assert scheduler.admission == AdmitPrompt() and scheduler.admission.watermark == 0
    assert scheduler.limits == StepLimits() and scheduler.victim is newest
    assert (plain.index, plain.retention, plain.other_memory) == (None, None, None)
    with pytest.raises(FrozenInstanceError):
        plain.block_size = 32


def test_every_policy_that_is_set_is_the_one_that_is_built():
    limits, longest = StepLimits(99, 9), []

    def admission(max_seq_len):
        longest.append(max_seq_len)
        return AdmitReserved()

    mine = Configuration(8, RadixTree, RankedFIFO, admission, oldest, limits)
    scheduler = mine.build(100, 64)
    assert (scheduler.victim, scheduler.limits, longest) == (oldest, limits, [64])
    assert scheduler.admission == AdmitReserved()
    assert type(scheduler.memory.prefixes) is RadixTree
    assert (scheduler.memory.block_size, scheduler.memory.pool.num_blocks) == (8, 12)
    others = StepLimits(77, 7)
    assert mine.build(100, 64, limits=others).limits == others
    assert type(Configuration(8, HashIndex).build(100, 64).memory.prefixes) is HashIndex


def test_an_order_of_retention_reaches_the_index_and_each_index_gets_its_own():
    given = []

    def index(pool, *policies):
        given.append((pool.num_blocks, *policies))
        return HashIndex(pool, *policies)

    for _ in range(2):
        Configuration(8, index, RankedFIFO).build(100, 64)
    Configuration(8, index).build(100, 64)
    (_, first), (_, second), last = given
    assert type(first) is type(second) is RankedFIFO and first is not second
    assert last == (12,), "none is asked for: the pool decides"


def test_a_memory_of_exactly_one_block_or_row_is_enough():
    assert Configuration(16).build(16, 16).memory.pool.num_blocks == 1
    assert CONFIGURATIONS["llama.cpp"].build(100, 100).memory.num_rows == 1
    with pytest.raises(ValueError, match="15 slots are less than one block of 16"):
        Configuration(16).build(15, 8)
    with pytest.raises(ValueError, match="99 slots are less than one row of 100"):
        CONFIGURATIONS["llama.cpp"].build(99, 100)


@pytest.mark.parametrize("sizes", [(0, 8), (8, 0), (8.0, 8), (8, 8.0)])
def test_sizes_are_whole_numbers_of_at_least_1_whatever_the_memory(sizes):
    name = "max_seq_len" if sizes[0] == 8 and isinstance(sizes[0], int) else "num_slots"
    for other in (None, lambda slots, longest: KVMemory(16, 1)):
        with pytest.raises((TypeError, ValueError), match=name):
            Configuration(1, other_memory=other).build(*sizes)


def test_an_index_needs_blocks_and_an_order_needs_an_index():
    rows = CONFIGURATIONS["llama.cpp"].other_memory
    with pytest.raises(ValueError, match="shares whole blocks, and this memory has none"):
        Configuration(index=HashIndex, other_memory=rows)
    with pytest.raises(ValueError, match="needs an index that knows it"):
        Configuration(retention=RankedFIFO)
    Configuration(index=HashIndex, retention=RankedFIFO)
    Configuration(index=HashIndex)
    Configuration(other_memory=rows)


def test_memories_without_blocks_take_what_there_is():
    rows = CONFIGURATIONS["llama.cpp"].build(1000, 300).memory
    assert type(rows) is SlotMemory and (rows.num_rows, rows.row_tokens) == (3, 300)
    for name in ("Orca Max", "Orca Pow2", "Orca Oracle"):
        pieces = CONFIGURATIONS[name].build(1000, 300).memory
        assert type(pieces) is ContiguousMemory and pieces.size == 1000
        assert type(pieces.allocator) is BuddyArena


@pytest.mark.parametrize(
    "heads, head_dim, pages, fastgen",
    [
        (8, 128, 1024, 64),
        (4, 128, 2048, 64),
        (1, 256, 4096, 64),
        (2, 32, 16_384, 128),
        (8, 63, 2080, 128),
        (8, 64, 2048, 128),
        (8, 65, 2016, 64),
    ],
)
def test_units_that_hang_on_the_shape(heads, head_dim, pages, fastgen):
    """2 MiB of keys of 2 bytes; a page is 1,048,576 elements, of which a token has few."""
    shape = shape_of(heads, head_dim)
    assert (pages_of_2_mib(shape), fastgen_block(shape)) == (pages, fastgen)
    for name, unit in (("vAttention", pages), ("DeepSpeed-FastGen", fastgen)):
        memory = CONFIGURATIONS[name].build(40_000, 1000, shape=shape).memory
        assert (memory.block_size, memory.pool.num_blocks) == (unit, 40_000 // unit)


def test_what_an_engine_publishes_of_its_steps():
    """Those of later engines are held to their facts, in test_atlas.py."""
    steps = {name: CONFIGURATIONS[name].limits for name in list(CONFIGURATIONS)[:17]}
    published = {
        "vLLM V1": StepLimits(2048, 256),
        "vLLM V0": StepLimits(chunked_prefill=False, prefill_first=True),
        "DeepSpeed-FastGen": StepLimits(768, 512),
    }
    assert steps == dict.fromkeys(steps, StepLimits()) | published
