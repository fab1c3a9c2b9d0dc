"""Settings, scores and sweeps of a few numbers, each with the answer written down."""

from dataclasses import FrozenInstanceError

import pytest

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.request import Request
from kvlib.serving import serve
from kvlib.serving_run import ServingRun, Target
from kvlib.tuning import Score, Server, Setting, grid, one_at_a_time, sweep

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
