"""What a load test found: when each request was due, sent and answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, inf

from kvlib.percentiles import percentile
from kvlib.serving_run import Target


@dataclass(frozen=True, slots=True)
class Timing:
    """One request of a load test, in seconds of the server's clock.

    Attributes:
        request_id: the request's.
        due_s: when the schedule wanted it sent; where there is no schedule, when it was sent.
        sent_s: when it was sent.
        first_token_s: when its first token was there; infinity if that never happened.
        finished_s: when it had all its tokens; infinity if that never happened.
        output_tokens: it got.
        num_preempted: how often it lost its memory.
        refused: the server did not take it.
    """

    request_id: int
    due_s: float
    sent_s: float
    first_token_s: float = inf
    finished_s: float = inf
    output_tokens: int = 0
    num_preempted: int = 0
    refused: bool = False

    @property
    def ttft_s(self) -> float:
        """Time to first token, from the moment at which the request was due."""
        return self.first_token_s - self.due_s

    @property
    def tpot_s(self) -> float:
        """Time for each token after the first, on average; 0 for an answer of one token."""
        if not self.answered:
            return inf
        return (self.finished_s - self.first_token_s) / max(self.output_tokens - 1, 1)

    @property
    def answered(self) -> bool:
        """Whether it ended with a token at least: a success without any is no answer."""
        return self.finished_s < inf and self.output_tokens > 0

    @property
    def stay_s(self) -> float:
        """Time in the system, from due to finished."""
        return self.finished_s - self.due_s

    def keeps(self, target: Target) -> bool:
        """Answers whether it got its tokens in time; one that was refused did not."""
        return self.ttft_s <= target.ttft_s and self.tpot_s <= target.tpot_s

    def as_if_due_when_sent(self) -> Timing:
        """Returns what a load generator reports that starts its watch when it sends."""
        return replace(self, due_s=self.sent_s)


@dataclass(frozen=True)
class LoadRun:
    """The requests of one load test.

    What was never answered counts as infinitely late, so that a server cannot better its
    percentiles by refusing.

    Attributes:
        timings: one for each request, in order of the schedule.
        began_s: when the test began.
        ended_s: when the last request had ended.
        in_system: how many requests were due and not ended, counted after every step of the
            server: pairs of a time and a number.
    """

    timings: tuple[Timing, ...]
    began_s: float
    ended_s: float
    in_system: tuple[tuple[float, int], ...] = ()

    @property
    def duration_s(self) -> float:
        """From the beginning to the end of the last request."""
        return self.ended_s - self.began_s

    @property
    def refused(self) -> int:
        """Requests that the server did not take."""
        return sum(each.refused for each in self.timings)

    @property
    def preempted(self) -> int:
        """How often requests lost their memory."""
        return sum(each.num_preempted for each in self.timings)

    @property
    def ttfts_s(self) -> list[float]:
        """All times to first token."""
        return [each.ttft_s for each in self.timings]

    @property
    def tpots_s(self) -> list[float]:
        """Times for each later token, of the answers that had one, and of those that never came."""
        return [t.tpot_s for t in self.timings if t.output_tokens > 1 or not t.answered]

    @property
    def requests_per_s(self) -> float:
        """Requests answered, a second; 0 where all were refused at once."""
        return self._per_s(sum(each.answered for each in self.timings))

    def ttft_s(self, p: float) -> float:
        """Returns a percentile of the times to first token."""
        return percentile(self.ttfts_s, p)

    def tpot_s(self, p: float) -> float:
        """Returns a percentile of the times for each later token.

        Raises:
            ValueError: `p` is out of its range, or every answer was one token long.
        """
        return percentile(self.tpots_s, p)

    def good_share(self, target: Target) -> float:
        """Returns the share of all requests that kept the target."""
        return sum(each.keeps(target) for each in self.timings) / len(self.timings)

    def goodput(self, target: Target) -> float:
        """Returns the requests a second that kept the target."""
        return self._per_s(sum(each.keeps(target) for each in self.timings))

    def _per_s(self, number: int) -> float:
        return number / self.duration_s if number else 0.0

    @property
    def mean_in_system(self) -> float:
        """Requests due and not ended, on average over time, as they were counted."""
        return _mean_of_steps(self.in_system, self.began_s)

    def as_if_due_when_sent(self) -> LoadRun:
        """Returns the report of a load generator that starts its watch when it sends."""
        return replace(self, timings=tuple(t.as_if_due_when_sent() for t in self.timings))

    def after(self, seconds: float) -> LoadRun:
        """Returns the run without its first seconds, in which the server was not yet full.

        Raises:
            ValueError: no request was due later.
        """
        start = self.began_s + seconds
        kept = tuple(each for each in self.timings if each.due_s >= start)
        if not kept:
            raise ValueError(f"no request was due after {seconds} s of {self.duration_s:g}")
        counts = tuple(each for each in self.in_system if each[0] > start)
        return replace(self, timings=kept, began_s=start, in_system=counts)


def _mean_of_steps(counts: Sequence[tuple[float, int]], began_s: float) -> float:
    """A count holds from the last one's time to its own: it was taken at the end of a step."""
    times = [began_s, *(time for time, _ in counts)]
    total = fsum(n * (end - start) for (_, n), start, end in zip(counts, times, times[1:]))  # noqa: B905
    return total / (times[-1] - began_s) if times[-1] > began_s else 0.0
