"""Rates, where the answers are known beforehand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvlib import catalog, fleet
from kvlib.clock import RooflineClock
from kvlib.fleet import EFFICIENCY, rate_within
from kvlib.memory_plan import plan_capacity
from kvlib.request import Request
from kvlib.scheduled_step import Step, StepLimits
from kvlib.served import ServedRequest
from kvlib.serving_run import Target
from kvlib.workloads import sample

LLAMA, H100, A10 = catalog.model("Llama-3-8B"), catalog.gpu("H100 SXM5"), catalog.gpu("A10")
PLAN = plan_capacity(LLAMA, A10, max_batched_tokens=2048)
SOON = Target(ttft_s=0.5, tpot_s=0.01)


@pytest.fixture
def served(monkeypatch):
    """Serves nothing: 95 % of the requests keep the target up to a rate of `most`, else one less.

    What was asked for is in `drawn` and in `runs`.
    """
    asked = SimpleNamespace(most=1.0, drawn=[], runs=[])

    def draws(workload, n, seed, rate=None):
        asked.drawn.append((workload, n, seed, rate))
        return sample(workload, n if rate is None else 1, seed, rate=rate)

    def serves(requests, scheduler, clock, *, target):
        asked.runs.append((scheduler, clock, target))
        _, number, _, rate = asked.drawn[-1]
        return SimpleNamespace(good=-(-95 * number // 100) - (rate > asked.most))

    monkeypatch.setattr(fleet, "sample", draws)
    monkeypatch.setattr(fleet, "serve", serves)
    return asked


@pytest.mark.parametrize("most", [0.02, 0.3, 0.9999, 1.0, 1.0001, 7.7, 100.0])
@pytest.mark.parametrize("guess", [0.05, 1.0, 60.0])
def test_a_rate_is_found_to_a_part_in_23_from_wherever_one_begins(served, most, guess):
    served.most = most
    found = rate_within(PLAN, LLAMA, A10, SOON, guess=guess)
    assert found <= most < found * (1 + 1 / 22)


def test_the_last_of_three_halvings_leaves_a_sixteenth_of_a_doubling(served):
    served.most = 0.9999
    assert rate_within(PLAN, LLAMA, A10, SOON) == pytest.approx(2 ** (-1 / 16))


def test_less_than_a_request_in_100_seconds_is_none(served):
    served.most = 0.009
    assert rate_within(PLAN, LLAMA, A10, SOON) == 0.0
    assert min(rate for *_, rate in served.drawn[1:]) >= 0.01


def test_a_sample_lasts_four_times_as_long_as_a_request_in_time_and_has_200_at_least(served):
    served.most = 40.0
    rate_within(PLAN, LLAMA, A10, SOON, guess=40.0)
    rate_within(PLAN, LLAMA, A10, SOON, workload="azure-code", seed=7, num_requests=90, guess=30)
    lengths, second = served.drawn[0], served.drawn.index(("azure-code", 1000, 7, None))
    assert lengths == ("azure-conv", 1000, 0, None)
    for at, name, seed, least in ((0, "azure-conv", 0, 200), (second, "azure-code", 7, 90)):
        outputs = [each.output_tokens for each in sample(name, 1000, seed)]
        span_s = 4 * (0.5 + 0.01 * sum(outputs) / 1000)
        for workload, number, drawn, rate in served.drawn[at + 1 : at + 4]:
            assert (workload, drawn) == (name, seed)
            assert number == least or number - 1 < rate * span_s
            assert number >= least and number >= rate * span_s
    assert max(number for _, number, *_ in served.drawn[1:second]) > 400


def test_what_is_served_on_has_the_plans_memory_and_the_cards_speed(served):
    for plan in (PLAN, replace(PLAN, num_gpus=2)):
        rate_within(plan, LLAMA, A10, SOON, limits=StepLimits(100, 7))
    rate_within(PLAN, LLAMA, A10, SOON, efficiency=1, weight_dtype="int4")
    scheduler, clock, target = served.runs[0]
    assert (scheduler.memory.size, scheduler.memory.block_size) == (PLAN.num_tokens, 16)
    assert scheduler.limits == StepLimits(100, 7) and target == SOON
    assert served.runs[-1][0].limits == StepLimits(8192, 256)
    job = ServedRequest(Request(0, None, 900, 9), 0, 0.0, 999, 999, num_tokens=901)
    decode, prompt = Step([(job, 1)]), Step([(job, 900)])
    twice = next(clock for _, clock, _ in served.runs if clock.seconds(decode) < 0.04)
    for step in (decode, prompt):
        alone = RooflineClock(A10, LLAMA).seconds(step)
        assert clock.seconds(step) == pytest.approx(alone / 0.6)
        assert twice.seconds(step) == pytest.approx(alone / 0.6 / 2)
    quarter = RooflineClock(A10, LLAMA, weight_dtype="int4").seconds(decode)
    assert served.runs[-1][1].seconds(decode) == quarter


def test_a_number_at_the_end_of_its_range_is_in_it(served):
    served.most = 50.0
    instant = Target(1e-6, 1e-6)
    assert rate_within(PLAN, LLAMA, A10, instant, guess=1e6, share=0.95) == pytest.approx(50, 0.05)
    assert rate_within(PLAN, LLAMA, A10, instant, efficiency=1, share=1) == 0.0
    for name, most in (("guess", 1e6), ("share", 1), ("efficiency", 1)):
        for value in (0, -1, 1.0000001 * most, 2 * most, float("nan")):
            with pytest.raises(ValueError, match=f"^{name} must be above 0 and at most 1.*, got"):
                rate_within(PLAN, LLAMA, A10, instant, **{name: value})


def test_a_sample_has_20_000_requests_at_most(served):
    assert rate_within(PLAN, LLAMA, A10, SOON, num_requests=20_000) == pytest.approx(1, 0.05)
    with pytest.raises(ValueError, match=r"it takes 20,001 requests to tell, 20,000 at most"):
        rate_within(PLAN, LLAMA, A10, SOON, num_requests=20_001)


def test_what_is_assumed_of_the_speed_is_a_guess_of_three():
    assert EFFICIENCY[:3] == (0.4, 0.6, 0.8) and EFFICIENCY.source.startswith("a guess")
