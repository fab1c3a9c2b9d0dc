"""Made-up lengths: the stated means, the same draw everywhere, never too long."""

import pytest

from kvlib.workloads import Spread, lognormal

PROMPT, OUTPUT = Spread(161.31, 1.2), Spread(337.99, 0.9)


def test_the_means_are_the_stated_ones():
    rows = lognormal(20_000, 0, PROMPT, OUTPUT)
    assert sum(r.prompt_tokens for r in rows) / 20_000 == pytest.approx(161.31, rel=0.03)
    assert sum(r.output_tokens for r in rows) / 20_000 == pytest.approx(337.99, rel=0.03)


def test_what_is_too_long_is_drawn_again_and_makes_the_means_smaller():
    rows = lognormal(3000, 0, PROMPT, OUTPUT, max_seq_len=2048)
    assert max(r.prompt_tokens + r.output_tokens for r in rows) <= 2048
    assert 135 < sum(r.prompt_tokens for r in rows) / 3000 < 161
    assert [r.request_id for r in rows] == list(range(3000))


def test_a_pair_as_long_as_the_maximum_is_kept():
    (exact,) = lognormal(1, 0, Spread(100, 0.0), Spread(20, 0.0), max_seq_len=120)
    assert (exact.prompt_tokens, exact.output_tokens) == (100, 20)


def test_a_seed_draws_the_same_lengths_everywhere():
    rows = lognormal(3, 0, PROMPT, OUTPUT)
    assert rows == lognormal(3, 0, PROMPT, OUTPUT)
    assert rows.requests != lognormal(3, 1, PROMPT, OUTPUT).requests
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == PINNED


PINNED = [(27, 194), (92, 436), (35, 291)]


def test_no_length_is_below_one_token_even_at_the_end_of_the_curve(monkeypatch):
    """A draw of 0 would be minus infinity on the normal curve; it counts as the median."""
    (shortest,) = lognormal(1, 0, Spread(0.01, 0.0), OUTPUT)
    assert shortest.prompt_tokens == 1

    class Zero:
        def __init__(self, seed):
            pass

        def random(self):
            return 0.0

    monkeypatch.setattr("kvlib.lognormal.Random", Zero)
    (median,) = lognormal(1, 0, Spread(100, 0.9), Spread(20, 0.0))
    assert (median.prompt_tokens, median.output_tokens) == (67, 20)  # 100 exp(-0.9² / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"max_seq_len": 1}, "max_seq_len must be at least 2"),
        ({"prompt": Spread(0, 1)}, "a mean is above 0"),
        ({"output": Spread(5, -1)}, "a sigma at least 0"),
        ({"output": Spread(float("nan"), 1)}, "a mean is above 0"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        lognormal(**{"n": 1, "seed": 0, "prompt": PROMPT, "output": OUTPUT} | change)
