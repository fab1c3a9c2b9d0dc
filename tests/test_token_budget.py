"""The rules that say which tokens stay, by hand."""

import pytest

from kvlib.token_budget import _pooled, heavy_hitters, kept, require_room, sinks_and_window, snap


def test_the_first_and_the_newest_stay_whatever_their_score():
    scores = dict(enumerate([0.0, 0.1, 0.9, 0.8, 0.2, 0.0]))
    assert kept(scores, 6, 4, sinks=1, recent=1) == [0, 2, 3, 5]
    assert kept(scores, 6, 4, sinks=2, recent=2) == [0, 1, 4, 5]
    assert kept(scores, 6, 4) == [2, 3, 4, 5]


def test_of_equals_the_newer_stays():
    assert kept(dict.fromkeys(range(6), 0.5), 6, 3) == [3, 4, 5]


@pytest.mark.parametrize("num_tokens", range(9))
def test_sinks_and_window_is_the_rule_with_the_age_as_score(num_tokens):
    for sinks, window in ((0, 3), (2, 3), (4, 1)):
        held = {}
        for at in range(num_tokens):
            held = {**held, at: float(at)}
            held = {at: held[at] for at in kept(held, at + 1, sinks + window, sinks=sinks)}
        assert list(held) == sinks_and_window(num_tokens, sinks, window)


def test_attention_on_what_is_gone_is_dealt_out_among_what_is_held():
    """Token 1 goes first; at token 3 its 0.2 is dealt out, most of it to 2, which then beats 0."""
    rows = [[1], [0.1, 0.9], [0.1, 0.2, 0.7], [0.05, 0.2, 0.55, 0.2], [0, 0, 0.1, 0.1, 0.8]]
    assert heavy_hitters(rows, 2, 1) == [[0], [0, 1], [0, 2], [2, 3], [2, 4]]


def test_sinks_stay_though_nobody_looks_at_them():
    rows = [[1], [0, 1], [0, 0.5, 0.5], [0, 0.1, 0.8, 0.1], [0, 0.1, 0.8, 0, 0.1]]
    assert heavy_hitters(rows, 3, 1)[-1] == [1, 2, 4]
    assert heavy_hitters(rows, 3, 1, sinks=1)[-1] == [0, 1, 4]
    assert snap(rows, 3, 1, kernel=1) == [1, 2, 4]
    assert snap(rows, 3, 1, kernel=1, sinks=1) == [0, 2, 4]


def test_what_nobody_has_looked_at_yet_goes():
    late = [[1], [0.9, 0.1], [0.9, 0.05, 0.05], [0.8, 0.1, 0.05, 0.05], [0.2, 0.0, 0.7, 0.05, 0.05]]
    # Nobody looks at 2 until 4 does; by then it has gone.
    assert heavy_hitters(late, 3, 2)[3:] == [[0, 2, 3], [0, 3, 4]]


def test_the_sum_favours_the_old():
    """Everybody looks at everybody alike, and the first tokens have been looked at longest."""
    rows = [[1 / n] * n for n in range(1, 10)]
    assert heavy_hitters(rows, 4, 1)[-1] == [0, 1, 2, 8]


def test_pooling_keeps_the_neighbours_of_a_find():
    assert _pooled([0, 0, 6, 0, 0], 3) == [0, 2, 2, 2, 0]
    assert _pooled([5, 0, 0], 5) == [1, 1, 1]
    rows = [[]] * 7 + [[0, 0, 0.9, 0, 0, 0.1, 0, 0]]
    assert snap(rows, 4, 1, kernel=1) == [2, 5, 6, 7]
    assert snap(rows, 4, 1, kernel=3) == [1, 2, 3, 7]


def test_only_the_end_of_the_prompt_chooses():
    rows = [[1], [1, 0], [0, 1, 0], [0, 0, 0.8, 0.2], [0, 0.7, 0, 0, 0.3]]
    assert snap(rows, 3, 1, kernel=1) == [1, 3, 4]
    assert snap(rows, 3, 2, kernel=1) == [2, 3, 4]
    assert snap(rows, 5, 2) == [0, 1, 2, 3, 4]
    assert snap(rows[:2], 4, 3) == [0, 1]


@pytest.mark.parametrize("kernel", [0, 2, -1, 1.0, True])
def test_a_kernel_has_a_middle(kernel):
    with pytest.raises((TypeError, ValueError), match="kernel"):
        _pooled([1.0], kernel)


@pytest.mark.parametrize("sizes", [(4, 2, 3), (0, 0, 1), (4, 0, 0), (4, -1, 1), (4.0, 1, 1)])
def test_no_room_is_an_error(sizes):
    with pytest.raises((TypeError, ValueError)):
        require_room(*sizes)
    require_room(4, 2, 2)
    budget, sinks, recent = sizes
    for call in (
        lambda: kept({}, 0, budget, sinks=sinks, recent=recent),
        lambda: heavy_hitters([], budget, recent, sinks=sinks),
        lambda: snap([], budget, recent, sinks=sinks),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()


def test_a_prompt_is_refused_before_it_is_looked_at():
    with pytest.raises(TypeError, match="must be a whole number"):
        snap([[1], [0, 1], [0, 0, 1]], 4, 1.5)
    assert snap([], 4, 3) == []
