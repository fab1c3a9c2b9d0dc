"""Who may begin: each rule by hand."""

import pytest

from kvlib.admission import (
    AdmitAboveMargin,
    AdmitDiscounted,
    AdmitPredictedPeak,
    AdmitPrompt,
    AdmitReserved,
)
from kvlib.kv_memory import KVMemory
from kvlib.plan import SequenceTooLong
from kvlib.request import Request
from kvlib.reservation import ReserveMaximum, ReserveOracle
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest


def job(num_tokens, limit, prompt=None, stop_at=None, room=0):
    request = Request(0, None, prompt or num_tokens, 1)
    return ServedRequest(request, 0, 0.0, limit, stop_at or limit, num_tokens=num_tokens, room=room)


def memory(num_free, size=100):
    """One-token blocks of which so many are free."""
    made = KVMemory(size, 1)
    if num_free < size:
        made.start(job(size - num_free, size), size - num_free)
    return made


@pytest.mark.parametrize(
    ("watermark", "num_free", "begins"),
    [(0, 30, True), (0, 29, False), (0.1, 40, True), (0.1, 39, False)],
)
def test_a_prompt_begins_when_it_leaves_the_watermark(watermark, num_free, begins):
    assert AdmitPrompt(watermark).admits(job(30, 90), memory(num_free), [job(1, 9)]) is begins


@pytest.mark.parametrize(("num_free", "begins"), [(31, True), (30, True), (29, False), (15, False)])
def test_a_margin_is_asked_for_before_the_prompt_and_not_behind_it(num_free, begins):
    rule, beside = AdmitAboveMargin(0.15), [job(1, 9)]
    assert rule.admits(job(30, 90), memory(num_free), beside) is begins  # where it must fit
    assert rule.admits(job(3, 90), memory(num_free), beside) is (num_free >= 15)
    assert not rule.admits(job(3, 90), memory(14), beside)
    assert not AdmitPrompt(0.15).admits(job(30, 90), memory(num_free), beside)


def test_the_watermark_is_not_for_the_only_one():
    """Ninety of 100 tokens, and 20 of them to stay free: alone it begins all the same."""
    served = Scheduler(KVMemory(100, 1), admission=AdmitPrompt(0.2))
    served.add(Request(0, None, 90, 1))
    assert len(served.schedule().work) == 1


def test_whole_blocks_are_what_a_prompt_takes():
    assert AdmitPrompt().admits(job(17, 90), KVMemory(2, 16), [job(1, 9)])
    assert not AdmitPrompt().admits(job(17, 90), KVMemory(1, 16), [job(1, 9)])


def test_a_reservation_holds_all_that_a_client_allows():
    rule = AdmitReserved()
    each = job(10, 60)
    assert (rule.room(each), AdmitPrompt().room(each)) == (60, 10)
    assert rule.admits(each, memory(60), [])
    assert not rule.admits(each, memory(59), [])
    assert AdmitReserved(ReserveMaximum(80)).room(each) == 80
    assert AdmitReserved(ReserveOracle()).room(each) == 11


def test_a_budget_below_the_memory():
    rule = AdmitReserved(max_total_tokens=50)
    assert rule.admits(job(10, 20), memory(100), [job(5, 30, room=30)])
    assert not rule.admits(job(10, 20), memory(100), [job(5, 31, room=31)])
    served = Scheduler(KVMemory(100, 1), admission=rule)
    with pytest.raises(SequenceTooLong, match="asked for 51 tokens, max_total_tokens is 50"):
        served.add(Request(0, None, 1, 1, max_new_tokens=50))
    assert not served.has_work
    served.add(Request(0, None, 1, 1, max_new_tokens=49))


def test_the_peak_is_at_the_end_of_one_of_them():
    """Holding 3, 10 and 4 with 8, 2 and 5 left: the ends are at 3 + 8, 7 + 10 and 17 + 6."""
    peak = AdmitPredictedPeak.peak
    assert peak([(10, 2), (4, 5)]) == 18
    assert peak([(3, 8), (10, 2), (4, 5)]) == max(3 + 8, 3 + 4 + 5 * 2, 3 + 4 + 10 + 2 * 3) == 23
    assert peak([(1, 50), (2, 1)]) == 51


def test_output_is_expected_by_what_was_made():
    """At least 20, else 1.5 times what was made, and never more than is allowed."""
    rule = AdmitPredictedPeak(least_outputs=20, growth=1.5)
    made = [(0, 200), (10, 200), (30, 200), (30, 40), (0, 5)]
    left = [rule._left(job(100 + n, 100 + most, prompt=100)) for n, most in made]
    assert left == [20, 10, 15, 10, 5]
    told = AdmitPredictedPeak(told=True)
    assert told._left(job(110, 300, prompt=100, stop_at=117)) == 7


@pytest.mark.parametrize(("size", "begins"), [(56, False), (57, True)])
def test_a_predicted_peak_stays_below_the_memory(size, begins):
    """One holds 10 and has 20 left, the next holds 6 and has 20 left: 56 in the end."""
    rule = AdmitPredictedPeak(least_outputs=20)
    assert rule.admits(job(6, 99), KVMemory(size, 1), [job(10, 99)]) is begins
    assert not rule.admits(job(6, 99), memory(5), [job(10, 11)])  # nor without room now


def test_the_discount_falls_in_600_steps_and_jumps_when_somebody_loses_memory():
    """From 0.7 to 0.14 of it. Source: SGLang 0.5.23, `new_token_ratio_tracker.py`."""
    rule = AdmitDiscounted()
    assert rule.share == 0.7
    for n in range(1, 601):
        rule.stepped([], 0)
        assert rule.share == pytest.approx(0.7 - n * (0.7 - 0.098) / 600)
    rule.stepped([], 0)
    assert rule.share == pytest.approx(0.098)
    # 30 and 10 outputs made, 20 more each, of 100 and 59 allowed: (40 + 40) / 160.
    running = [job(130, 200, prompt=100), job(15, 64, prompt=5)]
    rule.stepped(running, 1)
    assert rule.share == 0.5
    rule.stepped([job(4, 6, prompt=3)], 2)  # (1 + 20) of 3 + 1 is more than all
    assert rule.share == 1


def test_a_share_of_the_others_outputs_is_kept_for_them():
    """Own: 10 + 40. The other may make 90 more: 45 at a half. 4,096 count at most."""
    rule = AdmitDiscounted(initial=0.5)
    beside = [job(10, 100)]
    assert rule.admits(job(10, 50), memory(95), beside)
    assert not rule.admits(job(10, 50), memory(94), beside)
    few = AdmitDiscounted(initial=0.5, most_outputs=20)
    assert few.admits(job(10, 50), memory(40), beside)
    assert not few.admits(job(10, 50), memory(39), beside)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdmitPrompt(1.0), r"share of memory in \[0, 1\), got 1.0"),
        (lambda: AdmitPrompt(-0.1), "watermark"),
        (lambda: AdmitPrompt(float("nan")), "watermark"),
        (lambda: AdmitReserved(max_total_tokens=0), "max_total_tokens must be at least 1"),
        (lambda: AdmitPredictedPeak(least_outputs=0), "least_outputs must be at least 1"),
        (lambda: AdmitPredictedPeak(growth=0.9), "growth must be at least 1, got 0.9"),
        (lambda: AdmitDiscounted(initial=0), r"initial is in \(0, 1\]"),
        (lambda: AdmitDiscounted(initial=1.5), "initial is in .*, got 1.5, 0.14"),
        (lambda: AdmitDiscounted(floor=1.1), r"floor in \[0, 1\], got 0.7, 1.1"),
        (lambda: AdmitDiscounted(floor=-0.1), r"floor in \[0, 1\]"),
        (lambda: AdmitDiscounted(floor=float("nan")), r"floor in \[0, 1\]"),
        (lambda: AdmitDiscounted(steps=0), "steps must be at least 1"),
        (lambda: AdmitDiscounted(most_outputs=0), "most_outputs must be at least 1"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_the_rules_are_if_nobody_says():
    assert AdmitPrompt() == AdmitPrompt(0)
    assert AdmitAboveMargin() == AdmitAboveMargin(0)
    assert AdmitReserved() == AdmitReserved(reservation=None, max_total_tokens=None)
    assert AdmitPredictedPeak() == AdmitPredictedPeak(1024, 1.1, told=False)
    assert AdmitDiscounted() == AdmitDiscounted(0.7, 0.14, 600, 4096, 20)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdmitPredictedPeak(growth=1),
        lambda: AdmitDiscounted(initial=1, floor=0, steps=1, most_outputs=1),
        lambda: AdmitDiscounted(initial=0.01, floor=1),
        lambda: AdmitReserved(max_total_tokens=1),
        lambda: AdmitPrompt(0.99),
    ],
)
def test_a_rule_may_be_as_bold_or_as_careful_as_can_be(make):
    rule, each = make(), job(1, 1)
    assert rule.room(each) == 1
    assert rule.admits(each, memory(100), []) is True
    assert rule.admits(each, memory(0), []) is False
    rule.stepped([each], 0)
    assert rule.room(each) == 1


def test_who_needs_all_that_is_free_begins():
    """Six tokens and one to come, of 100 of which six are free."""
    rule = AdmitPredictedPeak()
    assert rule.admits(job(6, 7), memory(6), [])
    assert not rule.admits(job(6, 7), memory(5), [])


def test_no_share_falls_below_its_floor():
    rule = AdmitDiscounted(initial=0.5, floor=0.5, steps=2)
    shares = []
    for _ in range(4):
        rule.stepped([], 0)
        shares.append(rule.share)
    assert shares == [0.375, 0.25, 0.25, 0.25]
