"""Hit rates of prefixes: counted by hand, on whole traces, and beside a published simulator."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib import measured
from kvlib.belady import FarthestNextUse
from kvlib.hash_index import HashIndex
from kvlib.prefix_replay import replay_prefix
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.retention import RankedFIFO, RankedLFU, RankedLRU, SLRUPolicy
from test_traces import whole

PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=5)
PROMPTS = st.lists(PROMPT, min_size=1, max_size=20)


def requests(prompts):
    return [Request(i, None, len(p), 1, token_ids=(*p, 9)) for i, p in enumerate(prompts)]


def traced(prompts):
    """The same as a trace of blocks of 512 would have it: an id for each prefix."""
    ids = {}
    named = [
        tuple(ids.setdefault(tuple(p[: i + 1]), len(ids)) for i in range(len(p))) for p in prompts
    ]
    return [Request(i, None, 512 * len(each), 1, block_ids=each) for i, each in enumerate(named)]


def test_a_full_hit_counts_whole_and_a_part_of_a_block_as_found():
    twice = [Request(i, None, 700, 1, block_ids=(7, 8)) for i in range(2)]
    found = replay_prefix(twice, 2)
    assert (found.hit_tokens, found.prompt_tokens, found.hit_blocks, found.num_blocks) == (
        (700, 1400, 2, 4)
    )
    assert found.prefix_hit_rate == 0.5
    with pytest.raises(AttributeError):
        found.hit_tokens = 0
    assert replay_prefix(iter(twice), 2) == found
    assert replay_prefix(twice, 3, block_size=256).hit_tokens == 700
    assert replay_prefix(twice, 1).hit_tokens == 512


def test_the_warm_up_fills_the_cache_and_is_not_counted():
    found = replay_prefix(requests([[1, 2], [1, 3], [1, 2]]), 9, block_size=1, warmup_fraction=0.5)
    assert (found.num_requests, found.hit_tokens, found.prompt_tokens) == (2, 3, 4)


def test_which_end_of_a_prompt_stays_is_the_one_used_last():
    """Three blocks through two places: of what is used first the first goes."""
    twice = requests([[1, 2, 3], [1, 2, 3]])
    found = [
        replay_prefix(twice, 2, block_size=1, order=order).hit_blocks
        for order in ("tail-first", "head-first")
    ]
    assert found == [2, 0]
    assert replay_prefix(twice, 3, block_size=1, order="head-first").hit_blocks == 3


def test_knowing_the_future_gives_up_what_is_never_wanted_and_of_one_request_the_end():
    """In place of 1 after 2 comes 1; of [3, 4] one block is too many, and 4 is the end."""
    prompts = requests([[1], [2], [1], [3, 4], [3]])
    known = FarthestNextUse(prompts, block_size=1)
    found = replay_prefix(prompts, 1, policy=known, block_size=1)
    assert (found.hit_blocks, found.num_blocks, found.prefix_hit_rate) == (2, 6, 2 / 6)
    known = FarthestNextUse(traced([[1], [2], [1]]))
    assert replay_prefix(traced([[1], [2], [1]]), 1, policy=known).hit_tokens == 512


@pytest.mark.parametrize("index", [HashIndex, RadixTree])
def test_an_index_gives_up_what_its_policy_says(index):
    """What was used twice outlives, by use, what came later; by recency it does not."""
    prompts = requests([[1], [1], [2], [3], [1]])
    found = [
        replay_prefix(prompts, 2, block_size=1, index=lambda pool, by=by: index(pool, by()))
        for by in (RankedLFU, RankedLRU)
    ]
    assert [each.hit_blocks for each in found] == [2, 1]


def test_an_index_keeps_the_beginning_of_a_prompt_that_is_too_long():
    long = requests([[1, 2, 3, 4], [1, 2, 3, 4]])
    for index in (HashIndex, RadixTree):
        found = replay_prefix(long, 2, block_size=1, index=index)
        assert (found.hit_blocks, found.num_blocks) == (2, 8)


@given(prompts=PROMPTS, capacity=st.integers(1, 9))
def test_the_index_as_an_engine_uses_it_finds_what_the_rule_finds(prompts, capacity):
    """Least recently used, the end of a request first: keys, hashed blocks and a tree agree."""
    count = partial(replay_prefix, requests(prompts), capacity, block_size=1)
    expected = count()
    for index in (HashIndex, RadixTree):
        assert count(index=index) == expected
        assert count(index=lambda pool, make=index: make(pool, RankedLRU())) == expected
    assert replay_prefix(traced(prompts), capacity).hit_blocks == expected.hit_blocks


@given(prompts=PROMPTS, capacity=st.integers(1, 9))
def test_more_memory_never_finds_less_by_least_recent_use(prompts, capacity):
    less, more, most = (
        replay_prefix(requests(prompts), n, block_size=1).hit_tokens
        for n in (capacity, capacity + 1, 999)
    )
    assert less <= more <= most
    known = FarthestNextUse(requests(prompts), block_size=1)
    best = replay_prefix(requests(prompts), capacity, policy=known, block_size=1).hit_tokens
    assert less <= best <= most


@given(prompts=st.lists(PROMPT, min_size=8, max_size=30))
def test_the_published_simulator_finds_the_same(prompts):
    """kvcache-simulator counts the second half, and only if the first has filled the cache.

    No prompt is longer than the cache: there it would evict what it has just put in.
    """
    capacity = max(map(len, prompts))
    theirs = simulated(traced(prompts), capacity)
    if theirs.measurementMode == "fixed_window":
        ours = replay_prefix(traced(prompts), capacity, warmup_fraction=0.5)
        assert (ours.hit_tokens, ours.prompt_tokens) == (theirs.hitTokens, theirs.totalTokens)


def simulated(trace, capacity):
    """kvcache-simulator's LRU at its defaults."""
    from kvcache_sim.plan import build_execution_plan
    from kvcache_sim.policies import simulate_policy
    from kvcache_sim.trace import parse_trace_lines

    lines = (json.dumps({"hash_ids": r.block_ids, "input_length": r.prompt_tokens}) for r in trace)
    data = parse_trace_lines(lines, block_size=512)
    return simulate_policy(build_execution_plan(data, warmup_fraction=0.5), "lru", capacity)


def test_the_published_simulator_finds_the_same_on_a_whole_trace():
    trace = whole("mooncake-conv").requests
    theirs = simulated(trace, 5859)
    ours = replay_prefix(trace, 5859, warmup_fraction=0.5)
    assert (theirs.hitTokens, theirs.totalTokens) == (9_286_131, 67_915_607)
    assert (ours.hit_tokens, ours.prompt_tokens) == (9_286_131, 67_915_607)


# Shares of all prompt tokens, by the cache's size in blocks of 512; None is a cache without end.
SIZES = (200, 1_000, 3_000, 5_859, 10_000, 30_000, 50_000, 97_656, None)
GOLDEN = {
    ("mooncake-conv", "LRU, tail first"): (
        *(0.0427, 0.0454, 0.0666, 0.1387, 0.2157, 0.3322, 0.3615, 0.3707, 0.3736),
    ),
    ("mooncake-conv", "FIFO, tail first"): (
        *(0.0389, 0.0444, 0.0645, 0.1274, 0.1848, 0.2995, 0.3401, 0.3629, 0.3736),
    ),
    ("mooncake-synthetic", "LRU, tail first"): (
        *(0.0178, 0.0857, 0.1942, 0.3151, 0.4318, 0.6356, 0.6512, 0.6512, 0.6512),
    ),
    ("mooncake-synthetic", "FIFO, tail first"): (
        *(0.0181, 0.0858, 0.1892, 0.3065, 0.4059, 0.6050, 0.6512, 0.6512, 0.6512),
    ),
}


@pytest.mark.parametrize("name, order", GOLDEN)
def test_the_record_holds_the_known_hit_rates_at_every_size(name, order):
    data = measured.load("trace_prefix.cpu")["data"]
    assert tuple(data["capacities"]) == SIZES
    assert tuple(data["hit_rate"][name][order]) == GOLDEN[name, order]


@pytest.mark.parametrize(
    "name, order, size",
    [
        ("mooncake-conv", "LRU, tail first", 5_859),
        ("mooncake-conv", "FIFO, tail first", 200),
        ("mooncake-synthetic", "LRU, tail first", 200),
        ("mooncake-synthetic", "LRU, tail first", 10_000),
        ("mooncake-synthetic", "FIFO, tail first", 1_000),
        ("mooncake-synthetic", "FIFO, tail first", None),
    ],
)
def test_the_traces_give_the_known_hit_rates(name, order, size):
    trace = whole(name).requests
    policy = RankedFIFO() if order.startswith("FIFO") else None
    blocks = size or len({block for request in trace for block in request.block_ids})
    found = replay_prefix(trace, blocks, policy=policy).prefix_hit_rate
    assert round(found, 4) == GOLDEN[name, order][SIZES.index(size)]


@pytest.mark.parametrize("index", [HashIndex, RadixTree])
def test_both_indexes_find_the_known_hit_rate(index):
    trace = whole("mooncake-synthetic").requests
    assert round(replay_prefix(trace, 5859, index=index).prefix_hit_rate, 4) == 0.3151


def test_which_end_goes_first_matters_where_a_request_nearly_fills_the_cache():
    trace = whole("mooncake-synthetic").requests
    rates = [
        replay_prefix(trace, 200, order=o).prefix_hit_rate for o in ("tail-first", "head-first")
    ]
    assert [round(rate, 4) for rate in rates] == [0.0178, 0.0116]
    for name in ("mooncake-conv", "mooncake-synthetic"):
        found = measured.load("trace_prefix.cpu")["data"]["hit_rate"][name]
        both = zip(found["LRU, tail first"][1:], found["LRU, head first"][1:], strict=True)
        assert max(abs(tail - head) for tail, head in both) < 0.003


def test_no_policy_is_best_on_both_traces_and_none_comes_near_knowing_the_future():
    found = measured.load("trace_prefix.cpu")["data"]["policies"]
    at_10_million = {name: {k: v[1] for k, v in rates.items()} for name, rates in found.items()}
    for rates in at_10_million.values():
        known = rates.pop("farthest next use")
        assert known > max(rates.values()) + 0.05
    conv, synthetic = at_10_million["mooncake-conv"], at_10_million["mooncake-synthetic"]
    assert max(conv, key=conv.get) == "LRU" and max(synthetic, key=synthetic.get) != "LRU"
    assert (conv["LFU"], synthetic["LFU"]) == (0.2107, 0.5989)


@pytest.mark.parametrize("name", ["mooncake-conv", "mooncake-synthetic"])
def test_at_every_size_knowing_the_future_finds_most_and_never_more_than_there_is(name):
    found = dict(measured.load("trace_prefix.cpu")["data"]["hit_rate"][name])
    known = found.pop("farthest next use")
    assert known == sorted(known) and known[-1] == GOLDEN[name, "LRU, tail first"][-1]
    for at, rates in enumerate(zip(*found.values(), strict=True)):
        assert max(rates) <= known[at], SIZES[at]


@pytest.mark.parametrize("policy", [RankedFIFO, RankedLFU, SLRUPolicy])
@given(prompts=PROMPTS)
def test_without_pressure_every_policy_finds_the_same(policy, prompts):
    found = replay_prefix(requests(prompts), 999, policy=policy(), block_size=1)
    assert found == replay_prefix(requests(prompts), 999, block_size=1)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"capacity_blocks": 0}, "capacity_blocks must be at least 1"),
        ({"order": "middle-first"}, "orders are"),
        ({"index": HashIndex, "policy": RankedLRU()}, "an index has its own policy"),
        ({"index": HashIndex, "order": "head-first"}, "an index has its own policy"),
        ({"warmup_fraction": 1.0}, "1 requests, the first 1 of them not counted"),
        ({"warmup_fraction": -1.0}, "not counted"),
        ({"requests": []}, "0 requests"),
        ({"requests": [Request(3, None, 5, 1)]}, "request 3 has neither token ids nor block ids"),
    ],
)
def test_what_cannot_be_replayed_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        replay_prefix(**{"requests": requests([[1]]), "capacity_blocks": 1, **changes})
