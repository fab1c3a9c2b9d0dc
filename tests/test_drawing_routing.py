"""The routing drawn is the library's own run, and what the page says of it holds."""

import re

import pytest

from kvlib.show.drawings.routing import (
    INSTANCES,
    NUM_BLOCKS,
    ROUTERS,
    Tally,
    requests_of,
    routed,
    routing,
)

ASK, CAP = "prefix, whatever the load", "prefix, with a cap"


def tail(name, systems, pace, cap=1.0):
    return routed(name, systems, pace, cap)[0].ttft_s.percentile(99)


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("systems", (1, 8))
def test_every_token_is_sent_to_one_instance_and_served(name, systems):
    run, sent = routed(name, systems, 60, 1.5)
    requests = requests_of(systems, 60)
    assert sum(sent) == sum(r.prompt_tokens for r in requests) == run.prompt_tokens
    assert (len(sent), run.finished, run.refused) == (INSTANCES, len(requests), 0)
    needed = run.prompt_tokens - run.cached_tokens + run.output_tokens - run.finished
    assert run.computed_tokens - run.recomputed_tokens == needed


def test_the_figures_are_the_runs():
    run, sent = routed("round robin", 1, 60, 1.0)
    svg = routing("round robin", 1, 60, 1.5)
    assert all(f">{tokens:,} tokens<" in svg for tokens in sent)
    assert f"{100 * run.prefix_hit_rate:.0f} % of the prompt tokens" in svg
    p50, p99 = (run.ttft_s.percentile(p) for p in (50, 99))
    assert f"{p50:.2f} s in the median, {p99:.2f} s at" in svg
    bars = [float(w) for w in re.findall(r'<rect[^>]*width="([\d.]+)"[^>]*height="14"', svg)]
    assert len(bars) == 2 * INSTANCES
    frames, filled = bars[::2], bars[1::2]
    for frame, bar, tokens in zip(frames, filled, sent, strict=True):
        assert bar / frame == pytest.approx(tokens / sum(sent), abs=0.005)


def test_a_cap_is_named_where_there_is_one_and_counts_only_there():
    assert "; cap 1.25" in routing(CAP, 1, 60, 1.25)
    assert "; cap" not in routing(ASK, 1, 60, 1.25)
    for name in set(ROUTERS) - {CAP}:
        assert routing(name, 1, 60, 1.0) == routing(name, 1, 60, 4.0)
    assert routing(CAP, 1, 60, 1.0) != routing(CAP, 1, 60, 4.0)
    # Of four instances none holds more than four times the mean.
    (none, anywhere), (loose, same) = routed(ASK, 1, 60, 1.0), routed(CAP, 1, 60, 4.0)
    assert (none.cached_tokens, anywhere) == (loose.cached_tokens, same)


def test_one_popular_prompt_pulls_all_to_one_instance_until_a_cap_spreads_it():
    for pace in (20, 60):
        run, sent = routed(ASK, 1, pace, 1.0)
        assert sorted(sent)[:3] == [0, 0, 0]
    assert run.preempted > 0
    assert tail(ASK, 1, 60) > 4 * tail("least loaded", 1, 60)
    assert tail(ASK, 1, 20) < tail("least loaded", 1, 20)
    spread, even = routed(CAP, 1, 60, 2.0)
    assert tail(CAP, 1, 60, 2.0) < tail("least loaded", 1, 60)
    assert spread.prefix_hit_rate > run.prefix_hit_rate - 0.02
    assert max(even) < 1.25 * sum(even) / INSTANCES


def test_those_that_come_before_anything_is_cached_spread_the_prompt():
    _, sent = routed(ASK, 1, 150, 1.0)
    assert sum(tokens > 0 for tokens in sent) > 1


def test_several_prompts_have_several_owners_and_need_no_cap():
    assert tail(ASK, 8, 60) < tail(CAP, 8, 60, 1.5)
    run, other = (routed(name, 8, 60, 1.5)[0] for name in (ASK, CAP))
    assert run.prefix_hit_rate > other.prefix_hit_rate
    for name in list(ROUTERS)[:3]:
        assert routed(name, 8, 60, 1.5)[0].prefix_hit_rate < run.prefix_hit_rate - 0.2


def test_a_tally_adds_nothing_of_its_own():
    class First:
        def choose(self, request, instances):
            return len(instances) - 1

    tally = Tally(First(), [0, 0])
    request = requests_of(1, 20)[0]
    assert [tally.choose(request, [None] * 2) for _ in range(2)] == [1, 1]
    assert tally.sent == [0, 2 * request.prompt_tokens]


def test_every_request_fits():
    longest = max(r.prompt_tokens + r.output_tokens for r in requests_of(8, 20))
    assert longest < NUM_BLOCKS * 16
