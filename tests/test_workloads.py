"""Samples keep a trace's means, and conversations share prefixes."""

from __future__ import annotations

import hashlib
import json
import random
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib import traces, workloads
from kvlib.workloads import conversations, sample

NAMES = traces.traces()
TIMED = ["azure-conv", "azure-code"]


def lengths(workload: workloads.Workload) -> list[tuple[int, int]]:
    return [(each.prompt_tokens, each.output_tokens) for each in workload]


def gaps_s(workload: workloads.Workload) -> list[float]:
    return [after.arrival_s - before.arrival_s for before, after in pairwise(workload)]


# Samples


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1000, 1501, 4000])
def test_means_are_within_two_percent_for_every_seed(name: str, n: int) -> None:
    known = traces.trace(name)
    for seed in range(12):
        drawn = sample(name, n, seed)
        assert fmean(each.prompt_tokens for each in drawn) == pytest.approx(
            known.mean_prompt_tokens, rel=0.02
        )
        assert fmean(each.output_tokens for each in drawn) == pytest.approx(
            known.mean_output_tokens, rel=0.02
        )


@given(name=st.sampled_from(NAMES), n=st.integers(1, 60), seed=st.integers())
def test_any_sample_is_reproducible_positive_and_within_the_traces_range(
    name: str, n: int, seed: int
) -> None:
    known, drawn = traces.trace(name), sample(name, n, seed)
    assert drawn == sample(name, n, seed)
    assert [each.request_id for each in drawn] == list(range(n))
    prompts, outputs = zip(*lengths(drawn), strict=True)
    assert known.prompt_tokens_permille[0] <= min(prompts)
    assert max(prompts) <= known.prompt_tokens_permille[-1]
    assert 1 <= known.output_tokens_permille[0] <= min(outputs)
    assert max(outputs) <= known.output_tokens_permille[-1]


def test_prompt_and_output_are_drawn_apart() -> None:
    drawn = lengths(sample("azure-conv", 2000, seed=5))
    prompts, outputs = zip(*drawn, strict=True)
    spread = pstdev(prompts) * pstdev(outputs)
    product = fmean(p * o for p, o in drawn)
    assert abs(product - fmean(prompts) * fmean(outputs)) / spread < 0.08
    assert lengths(sample("azure-conv", 2000, seed=6)) != drawn


def test_a_seed_draws_the_same_sample_on_every_host() -> None:
    drawn = sample("azure-code", 1000, seed=0)
    text = json.dumps([[each.arrival_s, each.prompt_tokens, each.output_tokens] for each in drawn])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "22859b4f46154e58"


@pytest.mark.parametrize(
    ("arguments", "times"),
    [
        ({"gaps": "trace"}, [0, 0.005738, 0.193191, 0.193191]),
        ({"gaps": "trace", "rate": 0.5}, [0, 0.029454, 0.99161, 0.99161]),
        ({"rate": 0.5}, [0, 3.800762, 3.838404, 4.71759]),
        ({"gaps": "trace", "n": 1}, [0]),
    ],
)
def test_a_few_requests_are_these(arguments: dict, times: list[float]) -> None:
    drawn = sample(**{"name": "azure-code", "n": 4, "seed": 0, **arguments})
    assert [each.arrival_s for each in drawn] == times
    if len(drawn) == 4:
        assert lengths(drawn) == [(106, 9), (4434, 16), (2345, 9), (784, 46)]


@pytest.mark.parametrize("name", [name for name in NAMES if traces.trace(name).mean_gap_ms])
def test_poisson_arrivals_have_the_traces_rate_and_no_bursts(name: str) -> None:
    gaps = gaps_s(sample(name, 5000, seed=1))
    assert min(gaps) >= 0
    assert fmean(gaps) * 1000 == pytest.approx(traces.trace(name).mean_gap_ms, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("name", "cv"), [("azure-conv", 1.094), ("azure-code", 13.151)])
def test_gaps_from_the_trace_keep_rate_and_spread_and_say_so(name: str, cv: float) -> None:
    drawn = sample(name, 5000, seed=1, gaps="trace")
    gaps = gaps_s(drawn)
    assert fmean(gaps) * 1000 == pytest.approx(traces.trace(name).mean_gap_ms, rel=0.01)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.06)
    assert "gaps from the trace's own quantiles" in drawn.description
    assert "Poisson" in sample(name, 9, seed=1).description


@pytest.mark.parametrize("gaps", ["poisson", "trace"])
def test_rate_changes_the_pace_and_nothing_else(gaps: str) -> None:
    slow = sample("azure-code", 2000, seed=2, gaps=gaps)
    fast = sample("azure-code", 2000, seed=2, gaps=gaps, rate=100)
    assert lengths(slow) == lengths(fast) == lengths(sample("azure-code", 2000, seed=2))
    scale = 100 * traces.trace("azure-code").mean_gap_ms / 1000
    assert slow.requests[-1].arrival_s == pytest.approx(
        fast.requests[-1].arrival_s * scale, rel=1e-3
    )


@pytest.mark.parametrize("name", ["arxiv", "ragpulse"])
def test_a_trace_without_a_rate_has_no_arrivals_unless_one_is_given(name: str) -> None:
    assert {each.arrival_s for each in sample(name, 5, seed=0)} == {None}
    assert "no arrival times" in sample(name, 5, seed=0).description
    timed = sample(name, 2000, seed=0, rate=2)
    assert fmean(gaps_s(timed)) == pytest.approx(0.5, rel=0.06)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_says_that_it_is_one_and_whom_to_thank(name: str) -> None:
    drawn = sample(name, 10, seed=3)
    assert drawn.name == f"{name} sample (n=10, seed=3)"
    assert drawn.description.startswith("a seeded sample, not the trace: 10 requests")
    read = ("CC BY 4.0", "Apache-2.0", "MIT")
    assert any(licence in drawn.source for licence in read), "read what it asks for, then add it"
    assert drawn.source.endswith("reduced to 1001 quantiles per column")


def test_the_mit_notices_travel_with_the_quantiles() -> None:
    facts = json.loads(traces._FACTS.read_text(encoding="utf-8"))
    for text, holder in (("MIT", "Microsoft Corporation"), ("MIT-RAGPulse", "zhengchao wang")):
        notice = facts["licence_texts"][text]
        assert "Permission is hereby granted" in notice
        assert holder in notice.splitlines()[2]
        assert any(
            f"licence_texts.{text} of" in each["licence"] for each in facts["traces"].values()
        )
    for known in facts["traces"].values():
        for column in ("prompt_tokens_permille", "output_tokens_permille", "gap_ms_permille"):
            permille = known[column]
            assert permille is None or (len(permille) == 1001 and permille == sorted(permille))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "azure_conv"}, "no trace 'azure_conv'; known: azure-conv, azure-code, arxiv"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"gaps": "uniform"}, "gaps are 'poisson' or 'trace', got 'uniform'"),
        ({"name": "arxiv", "gaps": "trace"}, "arxiv has no gap quantiles; azure-conv and azure"),
        ({"rate": 0}, "rate must be a positive number of requests per second, got 0"),
        ({"rate": float("nan")}, "got nan"),
    ],
)
def test_a_sample_that_cannot_be_drawn_says_why(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(**{"name": "azure-conv", "n": 3, "seed": 0, **arguments})


# Conversations


def test_every_turn_extends_the_turn_before_and_starts_with_a_shared_system_prompt() -> None:
    made = conversations(3, num_conversations=40, num_system_prompts=2, system_tokens=9)
    last: dict[int | None, tuple[int, ...]] = {}
    for each in made:
        assert len(each.token_ids) == each.prompt_tokens + each.output_tokens
        before = last.get(each.conversation_id, ())
        assert each.token_ids[: len(before)] == before
        last[each.conversation_id] = each.token_ids
    assert len(last) == 40
    assert len({each.token_ids[:9] for each in made}) == 2


def test_a_branch_goes_on_from_an_answer_that_was_gone_on_from() -> None:
    made = conversations(3, num_conversations=40, num_turns=4, branch_share=0.5)
    firsts = [
        each
        for each in made
        if each.turn
        and not any(
            other.conversation_id == each.conversation_id and other.turn < each.turn
            for other in made
        )
    ]
    assert 10 < len(firsts) < 30
    for first in firsts:
        parents = [
            other
            for other in made
            if other.turn == first.turn - 1
            and first.token_ids[: len(other.token_ids)] == other.token_ids
            and len(other.token_ids) < first.prompt_tokens
        ]
        assert len(parents) == 1
        assert parents[0].arrival_s < first.arrival_s
        assert [other.turn for other in made if other.conversation_id == first.conversation_id] == [
            *range(first.turn, 4)
        ]


@given(
    seed=st.integers(0, 2**32),
    num_conversations=st.integers(1, 6),
    num_turns=st.integers(1, 4),
    share=st.sampled_from([0, 0.5, 1]),
    vocab_size=st.integers(1, 50),
)
def test_any_conversations_are_in_order_of_arrival_and_within_the_vocabulary(
    seed: int, num_conversations: int, num_turns: int, share: float, vocab_size: int
) -> None:
    made = conversations(
        seed, num_conversations, num_turns, branch_share=share, vocab_size=vocab_size
    )
    arrivals = [each.arrival_s for each in made]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0
    assert [each.request_id for each in made] == list(range(len(made)))
    assert len(made) <= num_conversations * num_turns
    assert all(0 <= token < vocab_size for each in made for token in each.token_ids)
    if not share:
        assert len(made) == num_conversations * num_turns


def test_a_seed_makes_up_the_same_conversations_on_every_host() -> None:
    made = conversations(seed=0)
    text = json.dumps([[each.arrival_s, each.prompt_tokens, *each.token_ids] for each in made])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "d0f994f8d7f5ab7e"
    assert made.description.startswith("made up, not a trace")
    assert len(repr(made)) < 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_turns": 0}, "num_turns must be at least 1, got 0"),
        ({"branch_share": 1.5}, r"branch_share must be within \[0, 1\], got 1.5"),
        ({"branch_share": -0.5}, "got -0.5"),
    ],
)
def test_conversations_that_cannot_be_made_say_why(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conversations(0, **arguments)


def test_nothing_here_touches_the_callers_random_numbers() -> None:
    random.seed(1)
    state = random.getstate()
    sample("azure-conv", 10, seed=0)
    conversations(0)
    assert random.getstate() == state
