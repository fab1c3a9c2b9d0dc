"""Load over time, as a log says it: who runs and waits, how much is used, and what that means."""

from __future__ import annotations

from typing import NamedTuple

FULL = 0.9  # from here on SGLang's tuning guide calls a pool well used

STATES = ("idle", "room for more", "memory full", "held back")


class Sample(NamedTuple):
    """Load at one time, or over a stretch of it when a long log was thinned.

    Attributes:
        start_s: seconds since the log's first load line.
        end_s: of the last line in it.
        running: requests that run, the most in the stretch.
        waiting: requests that wait, the most in the stretch.
        used_share: of the pool that running requests hold, the most in the stretch.
        preempted: requests that lost their memory since the sample before.
    """

    start_s: float
    end_s: float
    running: int
    waiting: int
    used_share: float
    preempted: int

    @property
    def state(self) -> str:
        """What this says, one of `STATES`.

        Memory is what requests wait for only where it is full or was just taken back. Where some
        wait beside free memory, something else holds them back: a limit on requests or tokens of a
        step, an admission rule that expects longer answers than come, or what they wait for is not
        memory at all (keys and values on their way from elsewhere, an adapter, a grammar).

        Example:
            >>> [Sample(0, 0, 8, waiting, used, 0).state for waiting, used in ((5, 0.97), (5, 0.4))]
            ['memory full', 'held back']
        """
        if self.preempted or (self.waiting and self.used_share >= FULL):
            return "memory full"
        if self.waiting:
            return "held back"
        return "room for more" if self.running else "idle"

    def joined(self, later: Sample) -> Sample:
        """Returns both stretches as one: peaks stay, preemptions add up."""
        return Sample(
            self.start_s,
            later.end_s,
            max(self.running, later.running),
            max(self.waiting, later.waiting),
            max(self.used_share, later.used_share),
            self.preempted + later.preempted,
        )


class Thinned:
    """Samples of any length of time, in bounded memory: neighbours are joined, two and two.

    Args:
        most: samples kept at most, at least 2.

    Example:
        >>> load = Thinned(most=2)
        >>> for second, used in enumerate((0.1, 0.4, 0.2)):
        ...     load.add(Sample(second, second, 1, 0, used, 0))
        >>> [(each.start_s, each.end_s, each.used_share) for each in load.whole()]
        [(0, 1, 0.4), (2, 2, 0.2)]
    """

    def __init__(self, most: int) -> None:
        self._most, self._stride, self._joined = most, 1, 0
        self._samples: list[Sample] = []
        self._open: Sample | None = None

    def __bool__(self) -> bool:
        """Whether there was a sample."""
        return bool(self._joined or self._samples)

    def add(self, sample: Sample) -> None:
        """Takes the next sample; where there are too many, every two become one."""
        self._open = sample if self._open is None else self._open.joined(sample)
        self._joined += 1
        if self._joined < self._stride:
            return
        samples = self._samples
        samples.append(self._open)
        self._open, self._joined = None, 0
        if len(samples) > self._most:
            if len(samples) % 2:  # half of a wider stretch, which goes on
                self._open, self._joined = samples.pop(), self._stride
            pairs = zip(samples[::2], samples[1::2], strict=True)
            self._samples = [earlier.joined(later) for earlier, later in pairs]
            self._stride *= 2

    def whole(self) -> list[Sample]:
        """Returns the samples, with what is left of an unfinished stretch."""
        return [*self._samples] if self._open is None else [*self._samples, self._open]
