"""Public cases about shared beginnings and what is given up first, tried on both indexes."""

import subprocess
import sys

from kvlib.blocks import BlockPool
from kvlib.content import TokenContent
from kvlib.eviction import LRUPolicy
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.retention import RankedLRU
from kvlib.served import ServedRequest
from kvlib.tier import Tier
from kvlib.tiers import TierStack
from public_cases import case

INDEXES = (HashIndex, RadixTree)


def begin(memory, tokens, **extras):
    """Starts a request for these tokens and computes them all; returns it."""
    content = TokenContent(tokens, memory.block_size, extras)
    request = Request(0, None, len(tokens), 1)
    job = ServedRequest(request, 0, 0.0, 2**30, 2**30, content, num_tokens=len(tokens))
    memory.start(job, len(tokens))
    job.num_computed = len(tokens)
    memory.index(job)
    memory.check()
    return job


def serve(memory, tokens, **extras):
    """Serves a request to its end; returns how many tokens it found."""
    job = begin(memory, tokens, **extras)
    memory.stop(job)
    return job.num_cached


@case("CA-3")
def shared_pages_are_counted_once():
    for index in INDEXES:
        memory = KVMemory(10, 1, index)
        x, y = [1, 2, 3, 4], [1, 2, 5, 6]
        first, second = begin(memory, x), begin(memory, y)
        memory.stop(first)
        memory.stop(second)
        pool = memory.pool
        assert (pool.num_free - pool.num_kept, pool.num_kept, pool.num_held) == (4, 6, 0)
        found = memory.prefixes.find(TokenContent(y, 1), 4)
        pool.share(found)
        assert (pool.num_free - pool.num_kept, pool.num_kept, pool.num_held) == (4, 2, 4)


@case("PH-1")
def only_full_blocks_are_shared_so_that_texts_part_freely():
    for index in INDEXES:
        memory = KVMemory(16, 2, index)
        begin(memory, [1, 2, 3, 4, 5])
        second, third = begin(memory, [1, 2, 3, 4, 5, 6]), begin(memory, [1, 2, 3, 4, 5, 9])
        assert (second.num_cached, third.num_cached) == (4, 4)
        assert len(set(second.block_ids) & set(third.block_ids)) == 2
        assert second.block_ids[2] != third.block_ids[2]


@case("PH-3")
def an_adapter_named_a_is_not_a_salt_named_a():
    for index in INDEXES:
        memory = KVMemory(16, 4, index)
        tokens = list(range(8))
        assert serve(memory, tokens, adapter="A") == 0
        assert serve(memory, tokens, salt="A") == 0
        assert serve(memory, tokens, adapter="A") == 4


@case("PH-4")
def a_key_is_the_same_in_every_process():
    code = (
        "from kvlib.content import TokenContent\n"
        "for extras in ({}, {'adapter': 'A'}):\n"
        "    print(TokenContent(range(1, 17), 16, extras).key(0).hex())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "012"
    }
    assert len(said) == 1 and len(set(said.pop().split())) == 2


@case("PH-6")
def a_block_of_one_token_is_found_by_itself():
    for index in INDEXES:
        memory = KVMemory(8, 1, index)
        serve(memory, [7])
        assert serve(memory, [7, 8]) == 1
        assert serve(memory, [8, 7]) == 0


@case("FH-1")
def a_prompt_keeps_a_token_to_compute():
    lengths = [1, 15, 16, 17, 31, 32, 33]
    for index in INDEXES:
        found = []
        for n in lengths:
            memory = KVMemory(16, 16, index)
            serve(memory, list(range(n)))
            found.append(serve(memory, list(range(n))))
        assert found == [0, 0, 0, 16, 16, 16, 32]


@case("FH-3")
def the_last_full_block_is_not_dropped_as_well():
    found = []
    for n in (512, 1024, 2048, 4096, 8192):
        memory = KVMemory(64, 448, HashIndex)
        serve(memory, list(range(n)))
        found.append(serve(memory, list(range(n))))
    assert found == [448, 896, 1792, 4032, 8064]


@case("EV-1")
def the_end_of_a_prefix_goes_before_its_beginning():
    for make in (HashIndex, RadixTree, lambda pool: RadixTree(pool, RankedLRU())):
        for _ in range(200):
            memory = KVMemory(3, 1, make)
            job = begin(memory, [1, 2, 3])
            third = job.block_ids[2]
            memory.stop(job)
            assert begin(memory, [9]).block_ids == [third]
            assert len(memory.prefixes.find(TokenContent([1, 2, 3, 4], 1), 3)) == 2


@case("EV-3")
def what_was_read_is_not_the_oldest():
    policy = LRUPolicy()
    policy.add("A")
    policy.add("B")
    policy.touch("A")
    assert policy.evict() == "B"
    policy.add("C")
    assert "A" in policy and "C" in policy


@case("EV-5")
def what_was_just_inserted_counts_as_just_used():
    stack = TierStack([Tier("host", 2, 10)], block_bytes=1)
    stack.store("A")
    stack.load("A")
    stack.store("B")
    stack.store("C")
    assert [stack.find(key) for key in "ABC"] == [None, 0, 0]


@case("EV-6")
def no_more_is_evicted_than_is_needed():
    for index in INDEXES:
        memory = KVMemory(12, 1, index)
        held = begin(memory, [100 + i for i in range(5)])
        for leaf in range(5):
            serve(memory, [leaf])
        assert memory.pool.num_free == 7 and memory.pool.num_kept == 5
        memory.pool.allocate(5)
        assert memory.pool.num_kept == 2, "2 empty ones first, then exactly 3 evicted"
        memory.stop(held)


@case("RX-1")
def what_a_locked_block_builds_on_is_locked_too():
    pool = BlockPool(2)
    tree = RadixTree(pool, RankedLRU())
    text = TokenContent([1, 2], 1)
    blocks = pool.allocate(2)
    tree.insert(text, blocks)
    tree.make_room(2)
    assert [pool.ref_count(b) for b in blocks] == [1, 1] and len(tree) == 2
    pool.free(blocks)
    tree.released(text, blocks)
    tree.make_room(2)
    assert [pool.ref_count(b) for b in blocks] == [0, 0] and len(tree) == 0
    assert pool.num_free - pool.num_kept == 2


@case("RX-3")
def whole_pages_only_are_matched_and_none_is_split():
    memory = KVMemory(4, 3, RadixTree)
    begin(memory, [1, 2, 3])
    other = begin(memory, [1, 2, 4])
    assert other.num_cached == 0 and memory.pool.num_held == 2
    assert sorted(len(node.blocks) for node in memory.prefixes.nodes) == [1, 1]
