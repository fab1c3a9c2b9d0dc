"""Siblings of public faults in shared beginnings: names, full hits, what goes first, tiers."""

from contextlib import ExitStack
from itertools import product
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.blocks import BlockPool
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.priority import PriorityPolicy, Retain
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.request_content import TraceContent
from kvlib.retention import RankedFIFO, RankedLFU, RankedLRU, SLRUPolicy
from kvlib.scheduled_memory import EngineMemory
from kvlib.served import ServedRequest
from kvlib.sizes import KVShape
from kvlib.slot_memory import SlotMemory
from kvlib.tensors.block_files import BlockFiles
from kvlib.tensors.block_server import BlockServer
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.remote_blocks import RemoteBlocks
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tier import Tier

INDEXES = {
    "hash": HashIndex,
    "radix": RadixTree,
    **{
        f"{index.__name__} {policy.__name__}": lambda pool, i=index, p=policy: i(pool, p())
        for index, policy in product((HashIndex, RadixTree), (RankedLRU, RankedLFU, SLRUPolicy))
    },
    "radix FIFO": lambda pool: RadixTree(pool, RankedFIFO()),
}
MEMORIES = {
    **{name: lambda n, size, i=index: KVMemory(n, size, i) for name, index in INDEXES.items()},
    "engine": EngineMemory,
}


def job_of(tokens, block_size, order=0, extras=None):
    n = len(tokens)
    content = TokenContent(tokens, block_size, extras or {})
    return ServedRequest(Request(order, None, n, 1), order, 0.0, n + 1, n + 1, content, n)


def serve(memory, tokens, **extras):
    """Serves a request to its end; returns how many tokens it found."""
    job = job_of(tokens, getattr(memory, "block_size", 1), extras=extras)
    memory.start(job, len(tokens))
    assert memory.num_held and job.num_cached < len(tokens), "nothing is left to compute"
    job.num_computed = len(tokens)
    memory.index(job)
    memory.stop(job)
    memory.check()
    return job.num_cached


TEXTS = ["", "a", "b", "ab", "1", "tenant", "\0", "a\0", "é"]
EXTRAS = st.dictionaries(st.sampled_from(TEXTS), st.sampled_from(TEXTS), max_size=2)
IDS = st.lists(st.sampled_from([0, 1, 2, -1, -2, 255, 256, 2**31, 2**62]), min_size=1, max_size=4)


@settings(max_examples=200)
@given(
    one=st.tuples(IDS, EXTRAS, st.sampled_from([1, 2])),
    other=st.tuples(IDS, EXTRAS, st.sampled_from([1, 2])),
)
def test_two_texts_have_a_key_in_common_just_where_they_begin_alike(one, other):
    """Tokens that Python hashes alike (-1 and -2), labels that run into each other, block sizes."""
    keys = []
    for tokens, extras, size in (one, other):
        content = TokenContent(tokens, size, extras)
        named = {
            (size, tuple(tokens[: size * (i + 1)]), tuple(sorted(extras.items()))): content.key(i)
            for i in range(content.num_blocks)
        }
        keys.append(named)
    for (what, key), (what_else, other_key) in product(keys[0].items(), keys[1].items()):
        same_size = what[0] == what_else[0] or 1 == len(what[1]) == len(what_else[1])
        assert (key == other_key) == (what[1:] == what_else[1:] and same_size)


@pytest.mark.parametrize("extras", [{"tenant": 1}, {"tenant": b"a"}, {"tenant": None}, {1: "a"}])
def test_an_extra_that_is_no_text_is_refused(extras):
    """1 and "1", b"a" and "a" would else be one tenant, or two, by accident of their type."""
    with pytest.raises(TypeError, match="extras are texts, label and value"):
        TokenContent([1, 2], 2, extras)
    with pytest.raises(TypeError, match="extras are texts, label and value"):
        TraceContent([1], 512, 512, extras=extras)


def test_an_image_is_an_extra_of_the_whole_prompt():
    """Placeholder tokens are equal for all images. What is named as an extra is never shared."""
    memory, prompt = KVMemory(16, 4, HashIndex), [1, 2, 3, 4, *[9] * 8, 5]
    assert serve(memory, prompt, image="a") == 0
    assert serve(memory, prompt, image="b") == 0
    assert [serve(memory, prompt, image=name) for name in "ab"] == [12, 12]


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
def test_a_prompt_seen_before_leaves_its_last_token_to_compute(name, block_size):
    for n in range(1, 3 * block_size + 2):
        memory = MEMORIES[name](8, block_size)
        assert serve(memory, list(range(n))) == 0
        rule = (n - 1) // block_size * block_size
        assert [serve(memory, list(range(n))) for _ in range(2)] == [rule, rule]
        assert serve(memory, [*range(n), 77]) == n // block_size * block_size
        assert serve(memory, [77, *range(n)]) == 0


def test_a_row_and_a_tier_leave_the_last_token_too():
    for n in range(1, 9):
        row = SlotMemory(1, 10)
        assert [serve_row(row, list(range(n))) for _ in range(2)] == [0, n - 1]
        cache = tiered(8)
        run(cache, "first", list(range(n)))
        cache.add("again", list(range(n)))
        assert cache.length("again") == (n - 1) // SIZE * SIZE
        cache.close()


def serve_row(memory, tokens):
    job = job_of(tokens, 1)
    memory.start(job, len(tokens))
    job.num_computed = len(tokens)
    memory.stop(job)
    return job.num_cached


@pytest.mark.parametrize("name", INDEXES)
def test_what_is_left_of_a_beginning_is_always_found_and_goes_end_first(name):
    """Of a text that was served last, as much is found as there was no need to give up."""
    for seed in range(30):
        random = Random(f"chain/{seed}")
        num_blocks, size = random.randint(4, 9), random.choice([1, 3])
        memory = KVMemory(num_blocks, size, INDEXES[name])
        length = random.randint(1, num_blocks)
        chain = list(range(1000, 1000 + length * size))
        for _ in range(random.randint(1, 2)):
            serve(memory, chain)
        needed = random.randint(1, num_blocks)
        serve(memory, [*range(2000, 2000 + needed * size)])
        left = min(length, num_blocks - needed)
        probe = job_of([*chain, 5], size)
        assert memory.cached_tokens(probe) == left * size, (length, needed, num_blocks)


SIZE = 2
SHAPE = KVShape(num_layers=1, num_kv_heads=1, head_dim=2)
BLOCK_BYTES = 2 * SIZE * 2 * 4


def tiered(host_blocks, disk=None, disk_blocks=99, **options):
    tiers = [(Tier("host", host_blocks * BLOCK_BYTES, 10), HostBlocks())]
    if disk is not None:
        tiers.append((Tier("disk", disk_blocks * BLOCK_BYTES, 1), BlockFiles(disk)))
    return TieredKVCache(SHAPE, 16, SIZE, tiers=tiers, **options)


def run(cache, seq_id, tokens):
    """Serves a text; returns how many of its tokens came up. A token is its own key and value."""
    cache.add(seq_id, tokens)
    found = cache.length(seq_id)
    rest = tokens[found:]
    with cache.step({seq_id: rest}) as plan:
        k = torch.tensor(rest, dtype=torch.float32)[:, None, None].expand(-1, 1, 2)
        cache.write(0, k, k, plan)
        seen = cache.attend(0, torch.zeros(len(rest), 1, 2), plan)[-1, 0, 0].item()
    assert seen == pytest.approx(sum(tokens) / len(tokens), rel=1e-5)
    cache.free(seq_id)
    return found


def text(name, num_blocks):
    """Whole blocks, and the token that is never found."""
    return [100 * name + i for i in range(SIZE * num_blocks + 1)]


@pytest.mark.parametrize(("length", "other"), [(3, 1), (3, 2), (3, 3), (5, 1), (2, 1)])
def test_of_a_text_below_the_device_the_end_is_given_up_first(length, other):
    """A host of three blocks: the beginning of the first text stays, what is behind it goes."""
    cache = tiered(3)
    run(cache, "a", text(1, length))
    run(cache, "b", text(2, other))
    cache.add("again", text(1, length))
    assert cache.length("again") == SIZE * min(length, 3 - other)
    cache.check()
    cache.close()


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize("others", [(2,), (2, 3), (2, 3, 4)])
def test_a_text_that_came_up_again_still_ends_first(policy, others, tmp_path):
    """Fetched from its first block on, and so each block later than those it builds on."""
    cache = tiered(4, tmp_path, 5, policy=policy)
    run(cache, "a", text(1, 3))
    cache.add("live", text(1, 3))
    assert cache.length("live") == 6
    for name in others:
        run(cache, "b", text(name, 2))
    cache.check()
    held = [any(key in place for place in cache.lower.places) for key in keys(cache, text(1, 3))]
    assert held == sorted(held, reverse=True), "a block is kept whose beginning is gone"
    cache.close()


def keys(cache, tokens):
    content = cache.content(tokens)
    return [content.key(i) for i in range(content.num_blocks)]


def test_what_lies_behind_a_lost_block_is_not_sent_down(monkeypatch):
    """The first block on the device never arrived; what was computed from it goes nowhere."""
    cache = tiered(8)
    run(cache, "a", text(1, 3))
    cache.add("again", text(1, 3))
    table = cache.ledger.table("again")
    monkeypatch.setattr(cache.pending, "unarrived", lambda blocks: {table[1]})
    monkeypatch.setattr(type(cache.pending), "__bool__", lambda self: True, raising=False)
    for key in keys(cache, text(1, 3)):
        cache.lower.forget(key)
    cache.free("again")
    assert [cache.lower.stack.find(key) for key in keys(cache, text(1, 3))] == [0, None, None]
    monkeypatch.undo()
    cache.close()


def test_what_a_policy_remembers_does_not_grow_with_uses():
    """A prompt that everybody shares is used a million times before its hour is over."""
    policy = PriorityPolicy(lambda _, i: Retain(80, 3600.0), lambda: 0.0)
    for key in range(3):
        policy.add(key)
        for _ in range(2000):
            policy.use(key)
        policy.show(key)
    assert policy.lowest() == 0 and len(policy._ends) < 200
    policy.check()


def test_a_priority_still_ends_after_what_was_remembered_was_sorted_out():
    now = [0.0]
    policy = PriorityPolicy(lambda _, i: Retain(80 - i, 10.0), lambda: now[0])
    for key in range(3):
        policy.add(key, None, key)
        policy.show(key)
    for i in range(3000):
        now[0] = i / 1000
        policy.use(i % 3)
    first_given_up = []
    for now[0] in (12.9969, 12.9979):  # the priority of the first ends in between
        first_given_up.append(policy.lowest())
    assert first_given_up == [2, 0] and len(policy._ends) < 200


def test_pool_order_survives_a_look():
    """To ask what would be found is no use: it makes nothing younger."""
    for make in INDEXES.values():
        memory = KVMemory(3, 1, make)
        for token in (1, 2, 3):
            serve(memory, [token])
        before = list(memory.pool._kept)
        for token in (1, 1, 1):
            memory.cached_tokens(job_of([token, 9], 1))
            memory.cost(job_of([token, 9], 1), 2)
        assert list(memory.pool._kept) == before
        assert isinstance(memory.pool, BlockPool)


@pytest.mark.parametrize("reads", [0, 1, 2])
def test_a_server_that_several_share_gives_up_ends_first_too(reads):
    """It keeps its own order of use: reading a text from its beginning on must not age that."""
    with BlockServer(2**20) as server, ExitStack() as closing:

        def instance():
            remote = closing.enter_context(RemoteBlocks(server.address))
            tier = Tier("server", 99 * BLOCK_BYTES, 1)
            cache = TieredKVCache(SHAPE, 16, SIZE, tiers=[(tier, remote)])
            closing.callback(cache.close)
            return cache

        caches = [instance() for _ in range(4)]
        for cache in (*caches[:1], *caches[:reads]):
            run(cache, "a", text(1, 3))
            cache.drain()
        server.capacity_bytes = server.nbytes  # full, from now on
        run(caches[2], "b", text(2, 1))
        caches[2].drain()
        caches[3].add("again", text(1, 3))
        assert caches[3].length("again") == 4


@pytest.mark.parametrize("back", [True, False])
def test_what_was_swapped_out_ends_first_when_nobody_keeps_it_any_more(back):
    cache = tiered(3)
    run(cache, "other", text(9, 1))
    cache.add("a")
    with cache.step({"a": text(1, 3)[:6]}) as plan:
        k = torch.ones(6, 1, 2)
        cache.write(0, k, k, plan)
    cache.swap_out("a")
    if back:
        cache.swap_in("a")
    else:
        cache.free("a")
    run(cache, "b", text(2, 1))
    chain = keys(cache, text(1, 3))
    assert [cache.lower.stack.find(key) for key in chain] == [0, 0, None]
    cache.check()
    cache.close()


def test_beside_what_is_pinned_the_beginning_finds_room_first():
    """A host of four blocks, two of them a swapped sequence's; three more come down."""
    cache = tiered(4)
    cache.add("waits")
    with cache.step({"waits": text(9, 2)[:4]}) as plan:
        cache.write(0, torch.ones(4, 1, 2), torch.ones(4, 1, 2), plan)
    cache.swap_out("waits")
    run(cache, "a", text(1, 3))
    assert [cache.lower.stack.find(key) for key in keys(cache, text(1, 3))] == [0, 0, None]
    cache.check()
    cache.close()
