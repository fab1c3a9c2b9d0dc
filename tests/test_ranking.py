"""Rankings and choices of a few scores, each with the answer written down."""

from dataclasses import FrozenInstanceError

import pytest

from kvlib.ranking import Effect, choose, gains, pareto_front, ranking
from kvlib.tuning import Setting

SMALL, LARGE = Setting(8), Setting(64)


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
