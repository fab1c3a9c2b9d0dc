"""Hits by tier: the same as one cache where they must be, and told apart where they differ."""

from dataclasses import replace

import pytest

from kvlib.conversations import conversations
from kvlib.prefix_replay import replay_prefix
from kvlib.request import Request
from kvlib.tier import Tier
from kvlib.tier_replay import TierReplay, replay_tiers
from kvlib.tiers import TierStack


def stack(*capacities, policy="write_through", **how):
    tiers = [Tier(f"tier {i}", n, 1) for i, n in enumerate(capacities)]
    return TierStack(tiers, 1, policy=policy, **how)


def prompts(*texts):
    return [Request(i, None, len(t), 1, token_ids=(*t, 0)) for i, t in enumerate(texts)]


def made(seed):
    return conversations(seed, 30, 4, 3, 100, user_tokens=60, output_tokens=60)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("capacity", [40, 200, 900])
def test_one_tier_finds_what_one_cache_finds(seed, capacity):
    requests = list(made(seed))
    one = replay_prefix(requests, capacity, block_size=16)
    for held in (stack(capacity), stack(10, capacity), stack(5, 20, capacity)):
        got = replay_tiers(requests, held, block_size=16)
        assert sum(map(sum, got.found)) == one.hit_tokens
        assert sum(got.hit_rates) == pytest.approx(one.prefix_hit_rate)
        held.check()


@pytest.mark.parametrize("seed", range(3))
def test_the_fastest_tier_finds_what_it_would_alone(seed):
    requests = list(made(seed))
    alone = replay_tiers(requests, stack(60), block_size=16)
    both = replay_tiers(requests, stack(60, 2000), block_size=16)
    assert both.hit_rates[0] == pytest.approx(alone.hit_rates[0], abs=0.02)
    assert both.hit_rates[1] > 0.1


def test_a_prefix_is_counted_in_the_tiers_it_lies_in():
    requests = prompts((1, 2, 3), (9, 8), (1, 2, 3))
    got = replay_tiers(requests, stack(3, 9, policy="write_back"), block_size=1)
    assert got.found == ((0, 0), (0, 0), (1, 2))
    assert got.hit_rates == (1 / 8, 2 / 8) and got.prompts == (3, 2, 3)


def test_the_last_block_counts_as_many_tokens_as_the_prompt_has_in_it():
    requests = [Request(i, None, 700, 1, block_ids=(1, 2)) for i in range(2)]
    got = replay_tiers(requests, stack(1, 9))
    assert got.found == ((0, 0), (512, 188)) and sum(got.hit_rates) == 0.5


@pytest.mark.parametrize(
    "warmup, read, written", [(0.0, (2, 1), (3, 2)), (0.34, (2, 1), (2, 2)), (0.7, (1, 1), (1, 1))]
)
def test_bytes_are_those_that_moved_after_the_warm_up(warmup, read, written):
    """1 is stored; 2 pushes it down; 1 comes up again and pushes 2 down."""
    held = stack(1, 2, policy="write_back")
    got = replay_tiers(iter(prompts((1,), (2,), (1,))), held, block_size=1, warmup_fraction=warmup)
    assert (got.bytes_read, got.bytes_written, got.num_dropped) == (read, written, 0)
    assert len({got, replace(got), replace(got, num_dropped=1)}) == 2


def test_blocks_in_a_row_are_counted_until_the_prompt_ends():
    """Five tokens in blocks of two; the first block alone has gone down."""
    held = stack(2, 9, policy="write_back")
    got = replay_tiers(prompts(*[(1, 2, 3, 4, 5, 6)] * 2), held, block_size=2)
    assert got.found == ((0, 0), (4, 2))


def test_what_follows_a_gap_is_not_found():
    requests = prompts((1, 2, 3), (7, 7, 7, 7))
    held = stack(20)
    replay_tiers(requests, held, block_size=1)
    first = next(key for key in held.keys(0)[::-1])  # stored last: the prompt's first block
    held.lost(held.keys(0)[2], 0)
    again = replay_tiers(prompts((1, 2, 3)), held, block_size=1)
    assert again.found == ((0,),) and held.find(first) == 0


def test_a_selective_stack_writes_less_and_finds_less_of_what_comes_twice():
    requests = prompts(*[(i, i + 1) for i in range(0, 40, 2)] * 2)
    all_, some = (
        replay_tiers(requests, stack(4, 99, policy=policy), block_size=1)
        for policy in ("write_through", "selective")
    )
    assert all_.bytes_written[1] == 40 > some.bytes_written[1]
    assert all_.hit_rates[1] == 0.5 > some.hit_rates[1] == 0 and some.num_dropped > 0


def test_the_warm_up_is_not_counted():
    requests = prompts((1, 2), (1, 2), (1, 2), (1, 2))
    whole = replay_tiers(requests, stack(1, 9), block_size=1)
    half = replay_tiers(requests, stack(1, 9), block_size=1, warmup_fraction=0.5)
    assert whole.found[2:] == half.found and len(half.prompts) == 2
    assert half.bytes_written[1] == 0 < whole.bytes_written[1]
    # One block of two is held: the first request drops one, every later one two.
    drops = [replay_tiers(requests, stack(1), block_size=1, warmup_fraction=w) for w in (0, 0.5)]
    assert [each.num_dropped for each in drops] == [7, 4]


@pytest.mark.parametrize("warmup", [1.0, -1.0])
def test_nothing_left_to_count_is_refused(warmup):
    with pytest.raises(ValueError, match="not counted"):
        replay_tiers(prompts((1,)), stack(1), warmup_fraction=warmup)


def test_hit_rates_want_every_request_counted_in_every_tier():
    even = TierReplay(((1, 0), (1, 2)), (3, 5), (0, 0), (0, 0), 0)
    assert even.hit_rates == (2 / 8, 2 / 8)
    uneven = replace(even, found=((1, 0), (1,)))
    with pytest.raises(ValueError, match="shorter"):
        _ = uneven.hit_rates


def test_a_stack_that_gets_another_tier_meanwhile_is_refused_rather_than_cut():
    class Growing(TierStack):
        def store(self, key):
            self.bytes_read.append(0)
            self.bytes_written.append(0)
            return super().store(key)

    with pytest.raises(ValueError, match="shorter"):
        replay_tiers(prompts((1,)), Growing([Tier("first", 1, 1)], 1), block_size=1)
