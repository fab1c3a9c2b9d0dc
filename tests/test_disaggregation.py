"""Two pools: nobody lost or served twice, all bytes sent, none too early; by hand and at random."""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.admission import AdmitPrompt, AdmitReserved
from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.disaggregated_run import DisaggregatedRun
from kvlib.disaggregation import decode_instance, prefill_instance, serve_disaggregated
from kvlib.handover import Link, ReceivingMemory, SendingMemory
from kvlib.handover_line import HandoverLine
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.plan import OutOfBlocks
from kvlib.preemption import SwapSpace
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.reservation import ReserveOracle
from kvlib.router import LeastLoaded, PrefixAffinity
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.served import ServedRequest
from kvlib.serving import serve
from kvlib.serving_run import Target
from kvlib.sizes import KVShape

FREE = Link(inf)


class Second:
    """Every step takes a second; remembers which requests each step held."""

    def __init__(self):
        self.steps = []

    def seconds(self, step):
        self.steps.append([(job.request.request_id, n, job.num_computed) for job, n in step.work])
        return 1.0


def slow(seconds_a_token):
    """A link with which a token of one byte takes so long."""
    return Link(1e-9 / seconds_a_token)


def rows(*wanted):
    return [Request(i, *each) for i, each in enumerate(wanted)]


def run(requests, link=FREE, prefill=1, decode=1, *, blocks=100, room=100, clock=None, **options):
    limits = options.pop("limits", None)
    senders = [prefill_instance(blocks, 1, limits=limits) for _ in range(prefill)]
    receivers = [decode_instance(room, 1) for _ in range(decode)]
    result = serve_disaggregated(
        requests, senders, receivers, clock or Second(), link, token_bytes=1, **options
    )
    for each in (*senders, *receivers):
        each.scheduler_is_idle = not each.has_work
        assert each.scheduler_is_idle and each.memory.num_held == 0
        each.check()
    return result


def test_an_infinite_link_and_one_instance_each_by_hand():
    """A (4 + 3) at 0, B (2 + 2) at 0.5, C (3 + 1) at 2.5; a second a step.

    Prefill: A 0-1, B 1-2, C 2.5-3.5. Decode: A 1-2 alone, A and B 2-3. C needs none.
    """
    clock = Second()
    done = run(rows((0.0, 4, 3), (0.5, 2, 2), (2.5, 3, 1)), clock=clock, target=Target(1.2, 1.0))
    assert (done.finished, done.steps, done.now_s) == (3, 5, 3.5)
    assert clock.steps == [
        [(0, 4, 0)],
        [(1, 2, 0)],
        [(0, 1, 4)],
        [(0, 1, 5), (1, 1, 2)],
        [(2, 3, 0)],
    ]
    assert done.ttft_s.mean == pytest.approx((1 + 1.5 + 1) / 3)
    assert (done.tpot_s.count, done.tpot_s.mean, done.good) == (2, 1.0, 2)
    assert (done.prefill_busy_s, done.decode_busy_s, done.busy_s) == (3.0, 2.0, 5.0)
    assert done.idle_shares == (1 - 3 / 3.5, 1 - 2 / 3.5)
    assert (done.sent, done.bytes_sent, done.link_s, done.handover_s.max) == (2, 6, 0.0, 0)
    assert (done.computed_tokens, done.prompt_tokens, done.output_tokens) == (9 + 3, 9, 6)


def test_a_slow_link_by_hand():
    """Half a second a token: A (4 + 2) is under way 1-3; B (2 + 2) is ready at 2, goes 3-4."""
    done = run(rows((0.0, 4, 2), (0.0, 2, 2)), slow(0.5), limits=StepLimits(4))
    assert (done.finished, done.now_s, done.link_s) == (2, 5.0, 3.0)
    assert (done.handover_s.mean, done.handover_s.max) == (2.0, 2.0)
    assert done.ttft_s.max == 2.0
    assert done.tpot_s.max == 3.0  # B: its first token at 2, its second at 5


def test_latency_is_paid_once_a_prompt():
    done = run(rows((0.0, 4, 2)), Link(1e-9, latency_s=0.25))
    assert (done.link_s, done.now_s) == (4.25, 1 + 4.25 + 1)


def test_a_link_carries_the_bytes_of_tokens_not_tokens():
    """A second a byte, four bytes a token: two tokens are under way for eight seconds."""
    pools = [prefill_instance(9, 1)], [decode_instance(9, 1)]
    done = serve_disaggregated(rows((0.0, 2, 2)), *pools, Second(), slow(1), token_bytes=4)
    assert (done.bytes_sent, done.link_s, done.now_s) == (8, 8.0, 1 + 8 + 1)


def test_a_receiver_without_memory_makes_the_transfer_wait_and_the_sender_full():
    """Eight slots at the receiver: A (4 + 3) decodes 1-3 and leaves B (4 + 2) too few until 3.

    The sender has five: C's prompt of 2 begins once B has gone.
    """
    requests = rows((0.0, 4, 3), (0.0, 4, 2), (0.0, 2, 1))
    done = run(requests, room=8, blocks=5)
    assert (done.handover_s.max, done.ttft_s.max, done.now_s) == (1.0, 4.0, 4.0)
    wide = run(requests, room=12, blocks=5)
    assert (wide.handover_s.max, wide.ttft_s.max, wide.now_s) == (0.0, 3.0, 3.0)


def test_two_senders_share_the_receivers_link():
    """Both prompts are ready at 1; a second a prompt, one after the other."""
    done = run(rows((0.0, 2, 2), (0.0, 2, 2)), slow(0.5), prefill=2)
    assert (done.handover_s.max, done.now_s) == (2.0, 4.0)
    apart = run(rows((0.0, 2, 2), (0.0, 2, 2)), slow(0.5), prefill=2, decode=2)
    assert (apart.handover_s.max, apart.now_s) == (1.0, 3.0)


def test_one_sender_sends_one_prompt_at_a_time():
    done = run(rows((0.0, 2, 2), (0.0, 2, 2)), slow(0.5), decode=2)
    assert (done.handover_s.max, done.now_s) == (2.0, 4.0)


def test_a_router_chooses_the_receiver_of_each_answer():
    """Always the second: both prompts, ready at 1, come one after the other, a second each."""
    asked, second = [], type("Second", (), {})()
    second.choose = lambda request, all_: asked.append((request, [*all_])) or 1
    requests = rows((0.0, 2, 2), (0.0, 2, 2))
    done = run(requests, slow(0.5), prefill=2, decode=2, decode_router=second)
    assert (done.handover_s.max, done.now_s, done.idle_shares) == (2.0, 4.0, (0.75, 0.75))
    assert [request for request, _ in asked] == requests
    assert {(len(all_), *(each.pool for each in all_)) for _, all_ in asked} == {
        (2, "decode", "decode")
    }
    clock = Second()
    run(requests, decode=2, clock=clock, decode_router=second, losses=[(0.0, 0)])
    assert clock.steps == [[(0, 2, 0), (1, 2, 0)], [(0, 1, 2), (1, 1, 2)]]


def test_a_run_begins_with_nothing_counted():
    new = DisaggregatedRun(None, timed=True)
    assert (new.num_prefill, new.num_decode, new.sent, new.bytes_sent, new.lost) == (0, 0, 0, 0, 0)
    assert (new.prefill_busy_s, new.decode_busy_s, new.link_s, new.handover_s.count) == (0, 0, 0, 0)


def test_before_the_first_step_all_are_idle():
    done = run([], prefill=2, decode=3)
    assert (done.num_prefill, done.num_decode, done.idle_shares) == (2, 3, (1.0, 1.0))


def test_bytes_are_those_of_the_prompts_in_the_model():
    shape = KVShape(num_layers=2, num_kv_heads=3, head_dim=8)
    token_bytes = shape.bytes_per_token("bfloat16")
    done = serve_disaggregated(
        rows((0.0, 5, 2), (0.0, 7, 1), (0.0, 11, 9)),
        [prefill_instance(9, 16)],
        [decode_instance(9, 16)],
        Second(),
        FREE,
        token_bytes,
    )
    assert done.bytes_sent == shape.bytes_per_sequence(5, "bfloat16") + 11 * token_bytes
    assert done.sent == 2


def test_a_lost_instance_loses_what_it_had_not_handed_over():
    """A (4 + 3) is under way 1-5, lost at 3; the other instance computes it 3-4, sends it 5-9.

    B (2 + 2) was computed by the other, 0-1, and its turn at the receiver is 5-7.
    """
    requests = rows((0.0, 4, 3), (0.0, 2, 2))
    kept = run(requests, slow(1), prefill=2)
    lost = run(requests, slow(1), prefill=2, losses=[(3.0, 0)])
    assert (kept.lost, kept.recomputed_tokens, kept.bytes_sent) == (0, 0, 6)
    assert (lost.lost, lost.recomputed_tokens, lost.bytes_sent) == (1, 4, 6)
    assert lost.finished == 2 and lost.computed_tokens == kept.computed_tokens + 4
    # Its first token was out before the loss, and counts from then.
    assert lost.ttft_s.max == kept.ttft_s.max == 1.0
    assert lost.now_s > kept.now_s


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0, 1.5, 2.5, 5.0, 40.0])
def test_without_any_prefill_instance_the_others_compute_the_prompts(at):
    requests = rows((0.0, 4, 3), (0.0, 2, 2), (1.0, 3, 1), (6.0, 3, 3))
    done = run(requests, slow(0.5), prefill=1, losses=[(at, 0)])
    assert (done.finished, done.output_tokens) == (4, 9)
    assert done.bytes_sent == {0.0: 0, 0.5: 0, 1.0: 0, 1.5: 0, 2.5: 0, 5.0: 6, 40.0: 9}[at]
    assert done.lost == {0.0: 0, 0.5: 2, 1.0: 2, 1.5: 3, 2.5: 2, 5.0: 0, 40.0: 0}[at]


def test_what_is_preempted_is_computed_again_before_anything_new_is_pulled():
    """Eight slots: A and B (2 + 4 each) grow to need nine; B, the newer, gives way.

    C (2 + 2) is ready long before, and waits until B has begun again.
    """
    clock = Second()
    done = run(
        rows((0.0, 2, 4), (0.0, 2, 4), (1.5, 2, 2)), room=8, clock=clock, limits=StepLimits(4)
    )
    assert (done.finished, done.preempted, done.output_tokens) == (3, 1, 10)
    assert done.recomputed_tokens == 4
    again = next(i for i, step in enumerate(clock.steps) if (1, 5, 0) in step)
    first = next(i for i, step in enumerate(clock.steps) if (2, 1, 2) in step)
    assert again < first
    assert done.handover_s.max >= 1.0


def test_the_receivers_rule_decides_who_is_pulled():
    """Half of 20 slots stay free: A (4 + 3) is let in at once, B (4 + 2) when A has left, at 3."""
    requests = rows((0.0, 4, 3), (0.0, 4, 2))
    done = serve_disaggregated(
        requests,
        [prefill_instance(20, 1, limits=StepLimits(4))],
        [decode_instance(20, 1, admission=AdmitPrompt(0.6))],
        Second(),
        FREE,
        1,
    )
    assert (done.handover_s.max, done.now_s) == (1.0, 4.0)


def test_no_more_are_pulled_than_may_run():
    """One at a time: A (4 + 3) decodes 1-3, and B (4 + 2) stays with its sender until 3."""
    done = serve_disaggregated(
        rows((0.0, 4, 3), (0.0, 4, 2)),
        [prefill_instance(20, 1)],
        [decode_instance(20, 1, limits=StepLimits(max_running=1))],
        Second(),
        FREE,
        1,
    )
    assert (done.finished, done.handover_s.max, done.now_s) == (2, 2.0, 4.0)


def test_what_was_lost_is_computed_again_in_order_of_arrival():
    """A (4 + 2) is under way, B (4 + 2) and C (4 + 2) wait or run when their instance is lost."""
    clock = Second()
    requests = rows((0.0, 4, 2), (0.25, 4, 2), (0.5, 4, 2))
    senders = [prefill_instance(20, 1, limits=StepLimits(4)) for _ in range(2)]
    first = type("First", (), {"choose": lambda self, request, instances: 0})()
    done = serve_disaggregated(
        requests,
        senders,
        [decode_instance(40, 1)],
        clock,
        slow(1),
        1,
        prefill_router=first,
        losses=[(1.5, 0)],
    )
    assert (done.lost, done.recomputed_tokens, done.finished) == (3, 4, 3)
    begun = [which for step in clock.steps for which, n, _ in step if n == 4]
    assert begun == [0, 1, 0, 1, 2]


def test_who_came_first_is_computed_again_first_even_if_it_was_moved_once():
    """A moves from the first instance, lost at 0.5, behind B on the second, lost at 0.75."""
    clock, requests = Second(), rows((0.0, 4, 2), (0.25, 4, 2))
    turn = type("Turn", (), {})()
    turn.choose = lambda request, all_: request.request_id if len(all_) == 3 else 0
    senders = [prefill_instance(20, 1, limits=StepLimits(4)) for _ in range(3)]
    done = serve_disaggregated(
        requests,
        senders,
        [decode_instance(40, 1)],
        clock,
        FREE,
        1,
        prefill_router=turn,
        losses=[(0.5, 0), (0.75, 1)],
    )
    assert (done.lost, done.finished) == (3, 2)
    begun = [which for step in clock.steps for which, n, _ in step if n == 4]
    assert begun == [0, 1, 0, 1]


def test_chunks_of_a_lost_prompt_count_as_computed_twice():
    """Four tokens a second of A's twelve: eight are there when its instance is lost, at 2.5."""
    lost = run(rows((0.0, 12, 1)), prefill=2, limits=StepLimits(4), losses=[(2.5, 0)])
    assert (lost.lost, lost.recomputed_tokens, lost.now_s) == (1, 8, 5.5)


class Token(Second):
    """Every token takes a second."""

    def seconds(self, step):
        super().seconds(step)
        return float(step.num_tokens)


def test_a_step_that_was_lost_ends_nothing_and_nobody_was_busy_after_it():
    """A and B (4 + 1 each) would be one step of 8 s; lost at 1, each takes another instance 4 s."""
    least, first = LeastLoaded(), type("First", (), {})()
    first.choose = lambda request, all_: 0 if len(all_) == 3 else least.choose(request, all_)
    senders = [prefill_instance(20, 1) for _ in range(3)]
    done = serve_disaggregated(
        rows((0.0, 4, 1), (0.0, 4, 1)),
        senders,
        [decode_instance(20, 1)],
        Token(),
        FREE,
        1,
        prefill_router=first,
        losses=[(1.0, 0), (3.0, 0)],
    )
    assert (done.finished, done.lost, done.now_s, done.ttft_s.max) == (2, 2, 5.0, 5.0)
    assert done.prefill_busy_s == 1 + 4 + 4
    assert done.idle_shares == (1 - 9 / 3 / 5, 1.0)


def test_decode_instances_may_have_a_clock_of_their_own():
    class Minute(Second):
        def seconds(self, step):
            return 60 * super().seconds(step)

    done = run(rows((0.0, 4, 3)), decode_clock=Minute())
    assert (done.now_s, done.prefill_busy_s, done.decode_busy_s) == (121.0, 1.0, 120.0)


def test_a_prefix_is_found_where_prompts_are_computed_and_sent_all_the_same():
    words = tuple(range(50))
    requests = [Request(i, 3.0 * i, 8, 2, token_ids=words[:10]) for i in range(3)]
    done = serve_disaggregated(
        requests,
        [prefill_instance(20, 4, HashIndex) for _ in range(2)],
        [decode_instance(20, 4)],
        Second(),
        FREE,
        1,
        content=lambda request: content_of(request, 4),
        prefill_router=PrefixAffinity(inf),
    )
    assert (done.cached_tokens, done.prefix_hit_rate) == (8, 8 / 24)
    assert done.bytes_sent == 24


def test_who_never_fits_on_either_side_is_told_on_arrival():
    done = run(rows((0.0, 30, 2), (0.0, 60, 2), (0.0, 3, 2)), blocks=100, room=50)
    assert (done.num_requests, done.refused, done.finished) == (3, 1, 2)
    done = run(rows((0.0, 30, 2), (0.0, 3, 2)), blocks=20, room=50)
    assert (done.refused, done.finished) == (1, 1)


def test_limits_cut_an_answer_as_on_one_instance():
    wanted = rows((0.0, 8, 5), (0.0, 9, 5), (0.0, 4, 9))
    wanted[2] = replace(wanted[2], max_new_tokens=2)
    here = serve(wanted, Scheduler(KVMemory(10, 1)), Second())
    done = run(wanted, room=10)
    assert done.output_tokens == here.output_tokens == 2 + 1 + 2
    assert done.cut_short == here.cut_short == 3 and done.sent == 2


def test_the_first_token_counts_among_the_new_ones():
    """Two at most: one where the prompt is computed, 0-1, one where it is decoded, 1-2."""
    clock = Second()
    done = run([Request(0, 0.0, 4, 9, max_new_tokens=2)], clock=clock)
    assert clock.steps == [[(0, 4, 0)], [(0, 1, 4)]]
    assert (done.now_s, done.tpot_s.max, done.computed_tokens) == (2.0, 1.0, 5)


def test_a_prompt_that_only_fits_without_its_first_token_is_refused_on_arrival():
    """A decode instance that cuts no prompts, four tokens a step: of 4 + 2 it would get five."""
    whole = StepLimits(4, chunked_prefill=False)
    done = serve_disaggregated(
        rows((0.0, 4, 2), (0.0, 3, 2), (0.0, 4, 1)),
        [prefill_instance(20, 1)],
        [decode_instance(20, 1, limits=whole)],
        Second(),
        FREE,
        1,
    )
    assert (done.refused, done.finished, done.unfinished) == (1, 2, 0)


def budgets(*most, by=None):
    return [AdmitReserved(by, max_total_tokens=each) for each in most]


@pytest.mark.parametrize("most", [(20, 7), (7, 20)])
def test_whom_one_decode_instance_could_never_serve_is_refused_on_arrival(most):
    """Of 4 + 4 the smaller refuses eight tokens, whichever it is; it takes 4 + 3."""
    requests = [Request(i, 0.0, 4, 4, max_new_tokens=n) for i, n in enumerate((4, 3, 4, 3))]
    done = serve_disaggregated(
        requests,
        [prefill_instance(20, 1)],
        [decode_instance(20, 1, admission=each) for each in budgets(*most)],
        Second(),
        FREE,
        1,
    )
    assert (done.num_requests, done.refused, done.finished, done.output_tokens) == (4, 2, 2, 6)


@pytest.mark.parametrize("reservation", [None, ReserveOracle()])
def test_a_lost_prompt_that_those_left_refuse_is_computed_by_the_decode_instances(reservation):
    """A (4 + 2) is under way from the first, lost at 2; the second takes no prompt of four.

    With its first token a prompt of four takes five, and the first may hold no more than that.
    """
    clock, first = Second(), type("First", (), {"choose": lambda self, request, all_: 0})()
    done = serve_disaggregated(
        rows((0.0, 4, 2), (2.5, 2, 2)),
        [prefill_instance(20, 1, admission=each) for each in budgets(5, 4, by=reservation)],
        [decode_instance(20, 1)],
        clock,
        slow(1),
        1,
        prefill_router=first,
        losses=[(2.0, 0)],
    )
    assert (done.finished, done.refused, done.lost, done.recomputed_tokens) == (2, 0, 1, 4)
    assert clock.steps == [[(0, 4, 0)], [(0, 4, 0)], [(1, 2, 0)], [(0, 1, 4)], [(1, 1, 2)]]
    assert (done.sent, done.bytes_sent) == (1, 2)


BAD = [
    (lambda: Link(0), ValueError, "a bandwidth above 0 GB/s, got 0"),
    (lambda: Link(-1.0), ValueError, "above 0 GB/s, got -1.0"),
    (lambda: Link(nan), ValueError, "above 0 GB/s, got nan"),
    (lambda: Link(1, latency_s=-1), ValueError, "at least 0 s and finite, got -1"),
    (lambda: Link(1, latency_s=inf), ValueError, "at least 0 s and finite, got inf"),
    (lambda: run([], prefill=0), ValueError, "the prefill pool needs idle instances, one at"),
    (lambda: run([], decode=0), ValueError, "the decode pool needs idle instances, one at"),
    (lambda: run([], losses=[(1.0, 1)]), ValueError, "instance 1 of 1 is lost at 1.0 s"),
    (lambda: run([], losses=[(1.0, -1)]), ValueError, "instance -1 of 1 is lost at 1.0 s"),
    (lambda: run([], losses=[(-1.0, 0)]), ValueError, "instance 0 of 1 is lost at -1.0 s"),
    (lambda: run([], losses=[(inf, 0)]), ValueError, "instance 0 of 1 is lost at inf s"),
    (lambda: run([], losses=[(nan, 0)]), ValueError, "instance 0 of 1 is lost at nan s"),
    (lambda: run(rows((None, 2, 2))), ValueError, "request 0 arrives at None s"),
    (lambda: run(rows((-0.5, 2, 2))), ValueError, "0 arrives at -0.5 s, the one before it at 0.0"),
    (lambda: run(rows((inf, 2, 2))), ValueError, "request 0 arrives at inf s"),
    (lambda: run(rows((2.0, 2, 2), (1.0, 2, 2))), ValueError, "1 arrives at 1.0 s, the one before"),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD)
def test_refusals_say_what_was_asked(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("size", "error", "words"),
    [(0, ValueError, "must be at least 1, got 0"), (0.5, TypeError, "must be a whole number")],
)
def test_a_token_has_a_whole_number_of_bytes(size, error, words):
    with pytest.raises(error, match=f"token_bytes {words}"):
        serve_disaggregated([], [prefill_instance(9, 1)], [decode_instance(9, 1)], None, FREE, size)


def test_instances_of_another_kind_are_refused():
    plain, sender, receiver = (
        Scheduler(KVMemory(9, 1)),
        prefill_instance(9, 1),
        decode_instance(9, 1),
    )
    no_line = Scheduler(ReceivingMemory(9, 1))
    no_place = Scheduler(KVMemory(9, 1), waiting=HandoverLine())
    for pools in (
        *(([plain], [receiver]), ([sender], [plain]), ([receiver], [sender])),
        *(([sender], [no_line]), ([sender], [no_place]), ([sender], [receiver, no_line])),
    ):
        with pytest.raises(TypeError, match=r"pool needs instances made by \w+_instance"):
            serve_disaggregated([], *pools, Second(), FREE, 1)
    shorter, four = prefill_instance(8, 1), prefill_instance(9, 1, limits=StepLimits(4))
    for other, told in ((shorter, "got 8, .*; 9, "), (four, "got 9, .*max_tokens=4,.*; 9, ")):
        with pytest.raises(ValueError, match=f"one max_seq_len and the same limits, {told}"):
            serve_disaggregated([], [sender, other], [receiver], Second(), FREE, 1)
    sender.add(Request(0, None, 2, 1))
    with pytest.raises(ValueError, match="the prefill pool needs idle instances"):
        serve_disaggregated([], [sender], [receiver], Second(), FREE, 1)
    clock = RooflineClock(gpu("A10"), model("Llama-3-8B"))
    swapping = decode_instance(9, 1, swap=SwapSpace(9))
    with pytest.raises(ValueError, match="no swap_gb_s"):
        serve_disaggregated([], [prefill_instance(9, 1)], [swapping], clock, FREE, 1)


def job(prompt_tokens=3):
    return ServedRequest(Request(0, None, prompt_tokens, 2), 0, 0.0, 9, 9, num_tokens=prompt_tokens)


def test_memories_refuse_what_did_not_happen():
    sending, receiving, one = SendingMemory(4, 1), ReceivingMemory(4, 1), job()
    sending.start(one, 3)
    with pytest.raises(ValueError, match="has not ended, nothing was sent"):
        sending.sent(one)
    assert sending.num_free == 1
    with pytest.raises(KeyError, match="no place reserved"):
        receiving.arrived(job())
    with pytest.raises(ValueError, match="does not run"):
        receiving.stop(job())
    other = job()
    receiving.reserve(other, 3)
    with pytest.raises(OutOfBlocks):
        receiving.reserve(job(), 3)
    assert receiving.coming == (other,) and receiving.num_free == 1
    receiving.stop(other)
    assert receiving.num_free == 4
    receiving.reserve(other, 3)
    receiving.arrived(other)
    receiving.start(other, 4)
    assert (other.room, other.num_computed, receiving.coming) == (4, 2, ())
    receiving.check()


def test_a_line_lets_those_that_arrived_begin_first():
    line, jobs = HandoverLine(), [job() for _ in range(4)]
    for each in jobs:
        line.push(each)
    line.expect(jobs[1])
    line.expect(jobs[3])
    assert (line.head(), len(line), line.num_to_compute) == (jobs[0], 4, 2)
    line.ready(jobs[3])
    assert [line.pop(), line.pop(), line.pop()] == [jobs[3], jobs[0], jobs[2]]
    assert line.head() is None and list(line) == [jobs[1]]
    with pytest.raises(ValueError, match="does not wait"):
        line.expect(jobs[1])
    with pytest.raises(KeyError):
        line.ready(jobs[0])
    line.remove(jobs[1])
    with pytest.raises(ValueError, match="does not wait here, among 0"):
        line.remove(jobs[1])
    with pytest.raises(IndexError):
        line.pop()


class Watching(Second):
    """Proves at every step that nobody runs before what it needs has arrived."""

    def __init__(self, schedulers):
        super().__init__()
        self.schedulers = schedulers

    def seconds(self, step):
        for each in self.schedulers:
            each.check()
            assert not set(each.running) & set(getattr(each.memory, "coming", ()))
        return super().seconds(step) * (1 + step.num_tokens / 8)


REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.integers(1, 12),
        st.integers(1, 9),
        st.sampled_from([None, 1, 4]),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(
    wanted=REQUESTS,
    pools=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.tuples(st.sampled_from([12, 16, 40]), st.sampled_from([14, 20, 60])),
    block_size=st.sampled_from([1, 4]),
    link=st.sampled_from([FREE, slow(0.1), slow(1), Link(1e-9, 0.5)]),
    losses=st.lists(st.tuples(st.floats(0, 12), st.integers(0, 2)), max_size=3),
    admission=st.sampled_from([AdmitPrompt, AdmitReserved, lambda: AdmitPrompt(0.2)]),
    swap=st.sampled_from([None, 30]),
    chunked=st.booleans(),
)
def test_every_request_ends_once_and_all_is_given_back(
    wanted, pools, sizes, block_size, link, losses, admission, swap, chunked
):
    arrivals, clock = sorted(wanted, key=lambda each: each[0]), Watching([])
    requests = [
        Request(i, at, prompt, outputs, max_new_tokens=most)
        for i, (at, prompt, outputs, most) in enumerate(arrivals)
    ]
    senders = [
        prefill_instance(sizes[0] // block_size, block_size, limits=StepLimits(12, 3, chunked))
        for _ in range(pools[0])
    ]
    receivers = [
        decode_instance(
            sizes[1] // block_size,
            block_size,
            admission=admission(),
            swap=swap and SwapSpace(swap),
            limits=StepLimits(16, 4),
        )
        for _ in range(pools[1])
    ]
    clock.schedulers = senders + receivers
    losses = [(at, which) for at, which in losses if which < pools[0]]
    done = serve_disaggregated(requests, senders, receivers, clock, link, 3, losses=losses)
    assert done.num_requests == len(requests) == done.finished + done.refused
    assert done.unfinished == 0
    for each in (*senders, *receivers):
        assert not each.has_work and each.memory.num_held == 0
        each.check()
    if not done.refused:
        assert_sums(done, requests, sizes[1] // block_size * block_size, bool(losses))


def assert_sums(done, requests, most, lost):
    """Tokens and bytes are those of the requests: sent once, and computed once unless lost."""
    outputs = [
        min(r.output_tokens, r.max_new_tokens or inf, most - r.prompt_tokens) for r in requests
    ]
    assert done.output_tokens == sum(outputs)
    apart = [r for r, n in zip(requests, outputs, strict=True) if n > 1]
    if not lost:
        assert done.sent == len(apart) and done.lost == 0
        assert done.bytes_sent == 3 * sum(r.prompt_tokens for r in apart)
        assert done.handover_s.count == len(apart)
    assert done.bytes_sent <= 3 * sum(r.prompt_tokens for r in apart)
    needed = sum(r.prompt_tokens for r in requests) + sum(outputs) - len(requests)
    assert done.computed_tokens >= needed
    if not (lost or done.preempted):
        assert done.computed_tokens == needed


def test_no_answer_goes_on_before_its_prompt_has_arrived():
    """From the outside: the second token is never there before prompt, transfer and a step."""
    requests = rows(*((0.1 * i, 2 + i % 5, 2) for i in range(20)))
    done = run(requests, slow(0.3), prefill=2, decode=2)
    least = min(0.3 * (2 + i % 5) + 1 for i in range(20))
    assert done.tpot_s.percentile(0) >= least * 0.99
    assert done.handover_s.percentile(0) >= 0.6 * 0.99
    assert done.link_s == pytest.approx(0.3 * sum(2 + i % 5 for i in range(20)))
