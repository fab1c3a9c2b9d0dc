"""A whole log in bounded memory: what was said at the start, and how load went over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvlib.block_table import num_blocks_for
from kvlib.engine_logs import LONGEST, Entry, LogError, parse
from kvlib.load_samples import Sample, Thinned
from kvlib.sizes import whole_number

_YEAR, _DAY = 366 * 86_400.0, 86_400.0
_NAMED = 8  # of those who speak in a log, in an error
MOST_NAMES, OTHERS = 256, "(others)"  # of values that have no name here


@dataclass
class Log:
    """What a log says.

    Attributes:
        engine: "vLLM" or "SGLang"; "" while no line was known.
        pool: facts of the lines about the pool, the last one said; sizes as printed.
        weights: facts of the line about the weights.
        samples: load over time; see `read` for how many.
        kinds: known lines, by kind.
        unknown: lines that are not about the cache.
        blank: empty lines.
        unread: values on known lines that have no name here, by name; of more than `MOST_NAMES`
            names the later ones are counted together.
        prompt_tokens: of SGLang's prefill lines, computed and found, in tokens.
        cached_tokens: of these, found.
        hit_rate: vLLM's, as printed last; it is a mean over recent requests.
        preempted: requests that lost their memory, as far as the engine prints it.
    """

    engine: str = ""
    pool: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    blank: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    hit_rate: float | None = None
    preempted: int = 0

    def pool_tokens(self, block_size: int = 16) -> int | None:
        """Returns the tokens that the pool holds; `block_size` where only blocks were printed."""
        whole_number("block_size", block_size)
        if "tokens" in self.pool:
            return self.pool["tokens"]
        return self.pool["blocks"] * block_size if "blocks" in self.pool else None


def one_request_share(num_tokens: int, pool_tokens: int, block_size: int = 16) -> float:
    """Returns the share of the pool that one request of so many tokens holds.

    Example:
        2,000 of 46,080 tokens, in 125 blocks of 2,880:

        >>> round(100 * one_request_share(2000, 46_080), 1)
        4.3
    """
    whole_number("pool_tokens", pool_tokens)
    return num_blocks_for(num_tokens, block_size) * block_size / pool_tokens


def read(lines: Iterable[str], *, who: str | None = None, most: int = 1024) -> Log:
    """Reads a log, however long, and returns what it says.

    Args:
        lines: of one engine's log, one by one; a file opened with `errors="replace"` will do, even
            one whose line has no end.
        who: reads the load of this engine or rank only; needed where several speak.
        most: the most samples kept, at least 2. When there are more, neighbours are joined, two and
            two, and the highest use, the longest line and all preemptions of both are kept.

    Raises:
        LogError: a known line cannot be read, load lines come from several engines, or from vLLM
            and SGLang both: the message has the number of the line. Or nobody called `who` speaks.
        TypeError, ValueError: `most` is not a whole number of at least 2.
        TypeError: a line is not text.

    A clock that is set back stands still here until it is passed again. A stamp without a year that
    lies more than half a year or half a day back is taken for the next one.

    Example:
        >>> log = read(["hello", "#running-req: 5, #token: 1938, token usage: 0.24, #queue-req: 0"])
        >>> log.unknown, log.engine, log.samples[0].used_share, log.samples[0].state
        (1, 'SGLang', 0.24, 'room for more')
    """
    whole_number("most", most, least=2)
    reader = _Reader(who, most)
    for number, line in enumerate(_cut(lines), 1):
        try:
            reader.take(line)
        except LogError as error:
            raise LogError(f"line {number}: {error}") from error
    reader.finish()
    return reader.log


def _cut(lines: Iterable[str]) -> Iterator[str]:
    """Yields lines; of a file only as much of each as is looked at."""
    readline = getattr(lines, "readline", None)
    if readline is None:
        yield from lines
        return
    while line := readline(LONGEST):
        part = line
        while isinstance(part, str) and part and not part.endswith("\n"):
            part = readline(LONGEST)
        yield line


class _Reader:
    """The state of reading: which line came last, and what was lost since."""

    def __init__(self, who: str | None, most: int) -> None:
        self.log = Log()
        self._who, self._samples = who, Thinned(most)
        self._speaker: str | None = None
        self._others: set[str] = set()
        self._first_s = self._last_s = self._wrapped_s = 0.0
        self._since = self._told = 0

    def take(self, line: str) -> None:
        log = self.log
        if not isinstance(line, str):
            raise TypeError(f"a line of a log is text, got {type(line).__name__}")
        if not line.strip():
            log.blank += 1
            return
        entry = parse(line)
        if entry is None:
            log.unknown += 1
            return
        if log.engine and entry.engine != log.engine:
            raise LogError(f"a line of {entry.engine} in a log of {log.engine}")
        log.engine = entry.engine
        log.kinds[entry.kind] += 1
        for name in entry.unread:
            known = name in log.unread or len(log.unread) < MOST_NAMES
            log.unread[name if known else OTHERS] += 1
        getattr(self, f"_{entry.kind}")(entry)

    def finish(self) -> None:
        """Adds what is left of an unfinished stretch, and preemptions behind the last sample."""
        if self._others and self._speaker is None:
            raise LogError(f"nobody called {self._who!r} speaks, but {sorted(self._others)} do")
        samples = self.log.samples = self._samples.whole()
        if self._since and samples:
            samples[-1] = samples[-1]._replace(preempted=samples[-1].preempted + self._since)

    def _pool(self, entry: Entry) -> None:
        self.log.pool |= entry.facts

    def _weights(self, entry: Entry) -> None:
        self.log.weights |= entry.facts

    def _hits(self, entry: Entry) -> None:
        self.log.hit_rate = entry.facts["hit_rate"]

    def _prefill(self, entry: Entry) -> None:
        new, cached = entry.facts["new_tokens"], entry.facts["cached_tokens"]
        self.log.prompt_tokens += new + cached
        self.log.cached_tokens += cached

    def _preempted(self, entry: Entry) -> None:
        # vLLM V0 warns at every fiftieth and prints the sum so far; SGLang prints each.
        more = entry.facts.get("count", 0)
        if "total" in entry.facts:
            total = entry.facts["total"]
            # A sum that fell is that of an engine which began anew.
            more = total - self._told if total >= self._told else total
            self._told = total
        self.log.preempted += more
        self._since += more

    def _load(self, entry: Entry) -> None:
        if self._who not in (None, entry.who):
            if len(self._others) < _NAMED:
                self._others.add(entry.who[:60])
            return
        if self._speaker not in (None, entry.who):
            both = f"{self._speaker!r:.60} and {entry.who!r:.60}"
            raise LogError(f"load of {both} in one log; read them one by one with who=")
        self._speaker = entry.who
        facts = entry.facts
        self.log.hit_rate = facts.get("hit_rate", self.log.hit_rate)
        counted = facts.get("preempted", 0)  # vLLM V1 counts those since the line before
        self.log.preempted += counted
        lost, self._since = self._since + counted, 0
        now = self._clock(entry)
        shown = (facts[name] for name in ("running", "waiting", "used_share"))
        self._samples.add(Sample(now, now, *shown, lost))

    def _clock(self, entry: Entry) -> float:
        seconds = entry.seconds
        if seconds is None:
            seconds = self._last_s + 1 if self._samples else 0.0
        else:
            seconds += self._wrapped_s
            # A step far back is a new day or a new year, unless the stamp has the year.
            period = _YEAR if "-" in entry.stamp else _DAY
            if entry.stamp[4:5] != "-" and seconds < self._last_s - period / 2:
                self._wrapped_s += period
                seconds += period
        if not self._samples:
            self._first_s = seconds
        self._last_s = max(self._last_s, seconds)
        return max(0.0, self._last_s - self._first_s)
