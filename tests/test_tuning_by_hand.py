"""Settings, scores, rankings and choices of a few numbers, each with the answer written down."""

from dataclasses import FrozenInstanceError

import pytest

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.request import Request
from kvlib.serving import serve
from kvlib.serving_run import ServingRun, Target
from kvlib.tuning import (
    Effect,
    Score,
    Server,
    Setting,
    choose,
    gains,
    grid,
    one_at_a_time,
    pareto_front,
    ranking,
    sweep,
)

TARGET = Target(5.0, 0.1)
SMALL, LARGE = Setting(8), Setting(64)


def test_a_setting_is_a_value_with_the_defaults_of_vllm_v1():
    assert Setting() == Setting(16, 2048, 256, 0.0) and len({Setting(), Setting(16)}) == 1
    with pytest.raises(FrozenInstanceError):
        Setting().block_size = 8
    built = Setting(32, 100, 7, 0.25).configuration.build(1000, 500)
    assert (built.memory.block_size, built.memory.size) == (32, 992)
    assert (built.limits.max_tokens, built.limits.max_running) == (100, 7)
    assert built.admission.watermark == 0.25


def test_what_was_turned_is_named():
    assert Setting().changed(Setting()) == ()
    turned = Setting(8, 2048, 9, 0.5)
    assert turned.changed(Setting()) == ("block_size", "max_running", "watermark")


def test_settings_are_combined_or_turned_one_at_a_time():
    asked = {"block_size": (8, 16), "max_running": (4, 256)}
    assert grid(Setting(watermark=0.5), **asked) == [
        Setting(8, 2048, 4, 0.5),
        Setting(8, 2048, 256, 0.5),
        Setting(16, 2048, 4, 0.5),
        Setting(16, 2048, 256, 0.5),
    ]
    few = one_at_a_time(Setting(), **asked)
    assert few == [Setting(), Setting(8), Setting(max_running=4)]
    assert one_at_a_time(Setting()) == [Setting()]


def test_a_score_has_shares_a_pace_and_slow_times():
    """Of two hundred times, each a twentieth above the one before, two are slower."""
    run = ServingRun(TARGET, timed=True, num_requests=8, finished=6, good=2, now_s=3.0, preempted=5)
    for n in range(200):
        run.ttft_s.add(1.05**n)
        run.tpot_s.add(7 * 1.05**n)
    score = Score.of(run)
    assert (score.good_share, score.per_s, score.preempted) == (0.25, 2.0, 5)
    assert score.ttft_p99_s == pytest.approx(1.05**197, rel=0.0101)
    assert score.tpot_p99_s == pytest.approx(7 * 1.05**197, rel=0.0101)
    assert score == Score(0.25, 2.0, score.ttft_p99_s, score.tpot_p99_s, 5)
    with pytest.raises(FrozenInstanceError):
        score.per_s = 1.0


def test_a_server_serves_with_a_setting_on_its_card():
    server = Server(gpu("A10"), model("Llama-3-8B"), TARGET)
    assert server == Server(gpu("A10"), model("Llama-3-8B"), TARGET, 0.0, 16_384, RooflineClock)
    with pytest.raises(FrozenInstanceError):
        server.overhead_s = 1.0
    requests = [Request(0, 0.0, 100, 3), Request(1, 0.0, 16_000, 384), Request(2, 9.0, 50, 2)]
    setting = Setting(max_tokens=512)
    found = server.score(setting, requests)
    scheduler = setting.configuration.build(20_000, 16_384)
    run = serve(requests, scheduler, RooflineClock(server.gpu, server.model), target=TARGET)
    assert found == Score.of(run) and found.good_share == 1.0
    assert server.score(setting, [*requests, Request(3, 9.0, 16_384, 1)]).good_share == 0.75
    slower = Server(gpu("A10"), model("Llama-3-8B"), TARGET, overhead_s=0.5)
    assert slower.score(setting, requests).tpot_p99_s > found.tpot_p99_s + 0.4


def test_a_sweep_scores_every_setting_on_every_workload():
    scores = sweep([SMALL, LARGE], (1, 10), lambda setting, each: setting.block_size * each)
    assert scores == {SMALL: [8, 80], LARGE: [64, 640]}


def test_an_effect_is_its_mean_gain_and_clear_if_it_is_above_0_everywhere():
    effect = Effect("block_size", 8, 64, (1.0, 2.0, 6.0))
    assert (effect.mean, effect.clear) == (3.0, True)
    assert not Effect("block_size", 8, 64, (1.0, 0.0)).clear
    with pytest.raises(FrozenInstanceError):
        effect.knob = "watermark"


def test_knobs_are_ranked_by_what_they_move():
    """More requests at a time give 1 and 3, small blocks 10 and 20; the rest is not turned."""
    scores = {
        Setting(8, max_running=4): [10.0, 20.0],
        Setting(8, max_running=9): [11.0, 23.0],
        Setting(64, max_running=4): [0.0, 0.0],
        Setting(64, max_running=9): [1.0, 3.0],
    }
    first, second, third, fourth = ranking(scores)
    assert first == Effect("block_size", 8, 64, (10.0, 20.0))
    assert second == Effect("max_running", 9, 4, (1.0, 3.0))
    assert (third.knob, third.gains, fourth.knob) == ("max_tokens", (0.0, 0.0), "watermark")
    scores.pop(SMALL, None)
    del scores[Setting(64, max_running=9)]
    with pytest.raises(ValueError, match="all 4 combinations of the values, got 3"):
        ranking(scores)


def test_scores_on_other_workloads_are_not_compared():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        ranking({SMALL: [1.0, 2.0], LARGE: [1.0]})
    with pytest.raises(ValueError, match=r"shorter|longer"):
        gains({SMALL: [1.0, 2.0], LARGE: [1.0]}, SMALL, LARGE)


def test_a_choice_is_the_best_or_near_it_with_few_knobs_turned():
    both, one = Setting(8, max_running=4), Setting(max_running=4)
    scores = {both: [4.0, 6.0], SMALL: [4.0, 5.0], one: [4.0, 4.8], Setting(): [1.0, 1.0]}
    assert choose(scores, Setting()) == both  # without slack, the best
    assert choose(scores, Setting(), slack=0.5) == SMALL  # 4.5 is near enough, and so is no other
    assert choose(scores, Setting(), slack=0.6) == SMALL  # of two with one knob, the better
    assert choose(scores, Setting(), slack=4.0) == Setting()
    assert choose(scores, one, slack=0.6) == one
    assert choose({SMALL: [1.0], LARGE: [1.0]}, Setting()) == SMALL  # the earlier


def test_gains_are_over_the_default_on_each_workload():
    scores = {SMALL: [1.0, 5.0], Setting(): [3.0, 2.0]}
    assert gains(scores, SMALL, Setting()) == [-2.0, 3.0]
    with pytest.raises(KeyError):
        gains(scores, LARGE, Setting())


def test_a_front_falls_in_both_figures():
    points = {"a": (5, 9), "b": (4, 2), "c": (4, 3), "d": (1, 2), "e": (3, 1), "f": (5, 10)}
    assert pareto_front(points) == ["a", "b", "e"]
    assert pareto_front({"x": (1, 1), "y": (1, 1), "z": (2, 5), "w": (2, 4)}) == ["w", "x"]
    assert pareto_front({}) == []
