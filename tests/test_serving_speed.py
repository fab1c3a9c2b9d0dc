"""Serving counts what a plain loop counts, and takes not many times as long."""

from pathlib import Path

import pytest

from kvlib import workloads
from kvlib.lognormal import Spread, lognormal


@pytest.fixture
def serving_speed(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "measure")
    import serving_speed

    return serving_speed


@pytest.mark.parametrize("blocks", [128, 300, 981, 10**5])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_plain_loop_over_a_dictionary_counts_the_same(serving_speed, blocks, seed):
    """Steps, preemptions and tokens, from memory for one request to memory for all."""
    rows = list(lognormal(150, seed, Spread(161.31, 1.2), Spread(337.99, 0.9), max_seq_len=2000))
    counts = serving_speed.serve_at_once(rows, blocks)
    assert counts == serving_speed.plain_loop(rows, blocks)
    assert counts[2] == sum(r.output_tokens for r in rows)
    assert (counts[1] > 0) == (blocks < 10**5)


def test_bookkeeping_takes_few_times_as_long_as_the_plain_loop(serving_speed):
    """Four times when this was written; a line or a pool that grows with its content shows here."""
    rows = workloads.sample("azure-conv", n=600, seed=0).requests
    assert serving_speed.ratio(rows, blocks=2641) < 12


def test_memory_is_what_the_weights_leave_of_nine_tenths_of_a_card(serving_speed):
    """16.06 GB of weights, 2 MiB a block: (72 - 16.06) GB and (21.6 - 16.06) GB."""
    found = [serving_speed.num_blocks(serving_speed.gpu(name)) for name in ("H100 SXM5", "A10")]
    assert found == [26_674, 2_641]
