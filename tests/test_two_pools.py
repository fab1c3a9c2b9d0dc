"""The loop behind two pools: its books hold at every step, and what is wrong in them is told."""

import pytest

from kvlib.disaggregated_run import DisaggregatedRun
from kvlib.disaggregation import decode_instance, prefill_instance
from kvlib.pulling import Instance
from kvlib.request import Request
from kvlib.router import LeastLoaded
from kvlib.two_pools import TwoPools


class Checked:
    """Two pools, a second a step; everything is checked before a step, then `wrong` is done."""

    def __init__(self, prefill=1, decode=1, *, room=6, a_token=1.0, wrong=None, at=2):
        def instances(made, size, num, pool):
            return [Instance(made(size, 1), self, lambda request: None, pool) for _ in range(num)]

        self.pools = TwoPools(
            instances(prefill_instance, 40, prefill, "prefill"),
            instances(decode_instance, room, decode, "decode"),
            (LeastLoaded(), LeastLoaded()),
            lambda tokens: (3 * tokens, a_token * tokens),
            DisaggregatedRun(None, timed=True, num_prefill=prefill, num_decode=decode),
        )
        self.wrong, self.at, self.steps = wrong, at, 0

    def seconds(self, step):
        self.steps += 1
        self.pools.check()
        if self.wrong and self.steps == self.at:
            self.wrong(self.pools.prefill[0], self.pools.decode[0])
            self.pools.check()
        return 1.0

    def serve(self, *wanted, losses=()):
        rows = (Request(i, *each) for i, each in enumerate(wanted))  # read once, as a trace is
        self.pools.run(rows, losses)
        self.pools.check()
        return self.pools.result


# A and B are computed 0-1. A has its place and is under way until 5, B has none; C begins at 2.
UNDER_WAY = ((0.0, 4, 2), (0.0, 4, 2), (2.0, 4, 2))


@pytest.mark.parametrize("losses", [[], [(2.5, 0)], [(5.5, 1)], [(1.0, 0), (3.0, 1)]])
def test_books_hold_at_every_step(losses):
    done = Checked(2, 1).serve(*UNDER_WAY, (3.0, 2, 4), losses=losses)
    assert (done.num_requests, done.finished, done.unfinished) == (4, 4, 0)
    assert done.output_tokens == 2 + 2 + 2 + 4


def at_two(sender, receiver):
    job = sender.scheduler.running[0]
    receiver.scheduler.waiting.push(job)
    receiver.scheduler.waiting_tokens += job.num_tokens


WRONG = [
    (at_two, "a request is at two instances"),
    (lambda s, r: s.scheduler.add(Request(9, 2.0, 1, 1)), "4 at instances, 3 live"),
    (lambda s, r: s.scheduler.drop(s.scheduler.running[0]), "2 at instances, 3 live"),
    (lambda s, r: s.scheduler.memory.sent(s.scheduler.memory.ended[0]), "1 prompts are kept, 2"),
    (lambda s, r: r.placeless.append(*r.scheduler.memory.coming), "has a place and waits for one"),
    (lambda s, r: r.placeless.append(s.scheduler.running[0]), "a place for nobody"),
    (lambda s, r: setattr(r.scheduler, "waiting_tokens", 0), "waiting"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_what_is_wrong_in_the_books_is_told(wrong, words):
    with pytest.raises(AssertionError, match=words):
        Checked(wrong=wrong).serve(*UNDER_WAY)


def test_a_run_by_hand_in_every_count():
    """Six slots at the receiver: A (4 + 2) is sent 1-5 and decoded 5-6; B is sent 6-10, C 11-15."""
    done = Checked().serve(*UNDER_WAY)
    assert (done.num_requests, done.refused, done.finished, done.steps) == (3, 0, 3, 5)
    assert (done.now_s, done.busy_s, done.prefill_busy_s, done.decode_busy_s) == (16, 5, 2, 3)
    assert (done.sent, done.bytes_sent, done.link_s, done.lost) == (3, 36, 12.0, 0)
    assert [done.handover_s.percentile(p) for p in (0, 100)] == pytest.approx([4, 12], rel=0.02)
    assert (done.ttft_s.mean, done.tpot_s.mean) == (1.0, (5 + 10 + 13) / 3)
    assert (done.prompt_tokens, done.output_tokens, done.computed_tokens) == (12, 6, 12 + 3)


def test_a_loss_by_hand_in_every_count():
    """A (4 + 2) is under way and C (4 + 2) half computed when their instance is lost, at 2.5.

    The other computes both 2.5-3.5. A's first turn at the receiver passes unused: it is sent 5-9,
    and C when A's last token has made room, 10-14.
    """
    done = Checked(2).serve((0.0, 4, 2), (2.0, 4, 2), losses=[(2.5, 0)])
    assert (done.finished, done.lost, done.recomputed_tokens) == (2, 2, 4)
    assert (done.steps, done.computed_tokens, done.sent, done.bytes_sent) == (5, 18, 2, 24)
    assert (done.prefill_busy_s, done.decode_busy_s, done.now_s) == (1 + 0.5 + 1, 2, 15.0)
    assert done.ttft_s.mean == (1.0 + 1.5) / 2  # A's first token was there at 1, C's at 3.5
    assert done.tpot_s.mean == (9.0 + 11.5) / 2
