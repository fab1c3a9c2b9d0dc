"""The picture shows the library's own runs, and what the page says of it holds."""

import re

import pytest

from kvlib.show.drawings.prefill_decode_ratio import (
    CLOCKS,
    MIXES,
    NUM_BLOCKS,
    REQUESTS,
    WAYS,
    prefill_decode_ratio,
    requests_of,
    served,
    tails,
)


def good(way, mix, rate, gb_s=12.5, step="take turns", seed=0):
    run = served(way, mix, rate, gb_s if ":" in way else 0, step, seed)
    return run.good / REQUESTS


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("way", WAYS)
def test_everybody_is_served_and_every_prompt_sent(way, mix):
    run, requests = served(way, mix, 8, 12.5, "overlap"), requests_of(mix, 8)
    assert (run.finished, run.refused, run.cut_short) == (REQUESTS, 0, 0)
    assert run.output_tokens == sum(r.output_tokens for r in requests)
    if way != "together":
        assert run.bytes_sent == 131_072 * sum(r.prompt_tokens for r in requests)
    assert max(r.prompt_tokens + r.output_tokens for r in requests) < 64 * NUM_BLOCKS


def test_bars_and_words_are_the_runs():
    svg = prefill_decode_ratio("chat", 12, 12.5, "take turns")
    shares = [good(way, "chat", 12) for way in WAYS]
    bars = [float(w) for w in re.findall(r'<rect[^>]*width="([\d.]+)" height="14"', svg)]
    wide = [width for width in bars if width > 25]
    assert len(wide) == 8  # a frame and a bar each
    for frame, bar, share in zip(wide[::2], wide[1::2], shares, strict=True):
        assert bar / frame == pytest.approx(share, abs=0.005)
    for way, share in zip(WAYS, shares, strict=True):
        run = served(way, "chat", 12, 12.5 if ":" in way else 0, "take turns")
        ttft, tpot = tails(run)
        assert f">{100 * share:.0f} % keep the target<" in svg
        assert f"first token {ttft:,.0f} ms, then {tpot:,.0f} ms a token" in svg


@pytest.mark.parametrize("seed", range(3))
def test_one_card_for_prompts_is_too_few_for_chat(seed):
    shares = [good(way, "chat", 12, seed=seed) for way in WAYS]
    assert shares[1] < 0.3 and min(shares[0], *shares[2:]) > 2 * shares[1]


@pytest.mark.parametrize("seed", range(3))
def test_long_prompts_want_more_cards_for_prompts(seed):
    shares = [good(way, "long prompts", 4, seed=seed) for way in WAYS[1:]]
    assert shares == sorted(shares) and shares[-1] > shares[0] + 0.4


@pytest.mark.parametrize("seed", range(3))
def test_together_is_best_at_high_rates_where_a_step_overlaps(seed):
    others = [good(way, "chat", 24, step="overlap", seed=seed) for way in WAYS[1:]]
    assert good("together", "chat", 24, step="overlap", seed=seed) > max(others)


def test_a_slow_link_ruins_a_split_and_nothing_else():
    assert good("2:2", "chat", 8) == 1 > good("2:2", "chat", 8, gb_s=0.25)
    slow, fast = (served("2:2", "chat", 8, gb_s, "take turns") for gb_s in (0.25, 50))
    assert slow.ttft_s.max == fast.ttft_s.max
    pictures = {prefill_decode_ratio("chat", 8, gb_s, "take turns") for gb_s in (0.25, 50)}
    assert len(pictures) == 2


def test_a_slower_clock_never_serves_more():
    for mix in MIXES:
        for way in WAYS:
            fast, slow = (served(way, mix, 8, 12.5, step) for step in CLOCKS)
            assert slow.busy_s > fast.busy_s
