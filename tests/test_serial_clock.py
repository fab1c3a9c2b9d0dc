"""Bytes and arithmetic in turn: never faster than a roofline, at most twice as slow, a sum."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.request import Request
from kvlib.scheduled_step import Step
from kvlib.serial_clock import SerialClock
from kvlib.served import ServedRequest

CARD, SHAPE = gpu("H100 SXM5"), model("Llama-3-8B")


def step(*work):
    """A step of (tokens computed before, tokens computed in it)."""
    return Step(
        [
            (ServedRequest(Request(i, None, 10, 1), i, 0.0, 0, 0, num_computed=before), n)
            for i, (before, n) in enumerate(work)
        ]
    )


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 4000)), min_size=1, max_size=30))
def test_it_lies_between_a_roofline_and_twice_that(work):
    least = RooflineClock(CARD, SHAPE).seconds(step(*work))
    assert least < SerialClock(CARD, SHAPE).seconds(step(*work)) <= 2 * least


def test_a_step_is_the_sum_of_its_bytes_and_its_operations():
    """Two answers at 1,000 and 3,000 tokens, and 500 tokens of a prompt after its first 100."""
    work = step((1000, 1), (3000, 1), (100, 500))
    keys, pairs = 1001 + 3001 + 600, 1001 + 3001 + 500 * 100 + 500 * 501 // 2
    num_bytes = SHAPE.weight_bytes("bfloat16") + keys * SHAPE.kv.bytes_per_token("bfloat16")
    flops = 502 * 2 * SHAPE.params + pairs * 4 * 32 * 128 * 32
    seconds = num_bytes / 3350e9 + flops / 989.4e12
    assert SerialClock(CARD, SHAPE).seconds(work) == pytest.approx(seconds, rel=1e-9)
    slower = SerialClock(CARD, SHAPE, overhead_s=0.5).seconds(work)
    assert slower == pytest.approx(seconds + 0.5)


def test_where_nothing_is_computed_nothing_is_read():
    assert SerialClock(CARD, SHAPE).seconds(Step()) == 0
    moved = SerialClock(CARD, SHAPE, swap_gb_s=1).seconds(Step(num_swapped=10))
    assert moved == pytest.approx(10 * SHAPE.kv.bytes_per_token("bfloat16") / 1e9)


@pytest.mark.parametrize(("before", "n"), [(0, 4000), (9000, 1), (0, 280)])
@pytest.mark.parametrize("absent", ["bf16_dense_tflops", "fp16_dense_tflops"])
def test_a_card_needs_one_peak_alone(before, n, absent):
    """Bound by operations, by bytes, and by bytes just so; both peaks are the same on this card."""
    card = replace(CARD, **{absent: None})
    pairs = n * before + n * (n + 1) // 2
    flops = n * 2 * SHAPE.params + pairs * 4 * 32 * 128 * 32
    num_bytes = SHAPE.weight_bytes("bfloat16") + (before + n) * SHAPE.kv.bytes_per_token("bfloat16")
    parts = flops / 989.4e12, num_bytes / 3350e9
    work = step((before, n))
    found = [clock(card, SHAPE).seconds(work) for clock in (RooflineClock, SerialClock)]
    assert found == pytest.approx([max(parts), sum(parts)], rel=1e-14, abs=0)
