"""Two tenants of one server: one guesses the other's prompt and looks at the clock."""

from __future__ import annotations

from functools import cache

from kvlib.catalog import gpu
from kvlib.catalog import model as published
from kvlib.clock import RooflineClock
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.request import Request
from kvlib.scheduler import Scheduler
from kvlib.show.drawings.controls import Choice, Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas

BLOCK, GUESSES, SECRET = 16, 10, 7
CARD, MODEL = "A10", "Llama-3-8B"
_TEMPLATE = list(range(1000, 1064))
_LEFT, _ROOM = 92, 240


class Server:
    """One server for all, idle but for what it is asked; it knows no tenant but by their salts."""

    def __init__(self, salted: bool) -> None:
        self._salted, self._now_s = salted, 0.0
        self._scheduler = Scheduler(KVMemory(4096, BLOCK, HashIndex))
        self._clock = RooflineClock(gpu(CARD), published(MODEL))

    def ask(self, tenant: str, tokens: list[int]) -> float:
        """Returns the milliseconds until the first token of an answer of one token."""
        content = TokenContent(tokens, BLOCK, {"tenant": tenant} if self._salted else {})
        request = Request(0, None, len(tokens), 1, tenant=tenant)
        job = self._scheduler.add(request, self._now_s, content)
        while self._scheduler.has_work:
            step = self._scheduler.schedule()
            self._now_s += self._clock.seconds(step)
            self._scheduler.report(step, self._now_s)
        return 1000 * (job.first_token_s - job.arrived_s)


@cache
def probes(salted: bool, behind: int, suffix: int) -> tuple[float, ...]:
    """Returns the milliseconds that each of ten guesses takes, after A has asked once.

    A's prompt is a template that all know, one secret token out of ten, and `behind` known tokens.
    B sends the template with each guess, and `suffix` tokens of its own behind everything.
    """
    server, known = Server(salted), list(range(2000, 2000 + behind))
    server.ask("A", [*_TEMPLATE, SECRET, *known])
    own = list(range(5000, 5000 + suffix))
    server.ask("B", [*_TEMPLATE, GUESSES, *known, *own])  # no candidate: B's own template is cached
    return tuple(server.ask("B", [*_TEMPLATE, g, *known, *own]) for g in range(GUESSES))


def found(times: tuple[float, ...]) -> int | None:
    """Returns the guess that is faster than all others by a tenth of a millisecond, if one is.

    >>> found((5.0, 3.0, 5.0)), found((5.0, 5.0)), found((5.0,))
    (1, None, None)
    """
    first, *others = sorted(times)
    return times.index(first) if others and others[0] - first > 0.1 else None


def _verdict(times: tuple[float, ...]) -> str:
    guess = found(times)
    if guess is None:
        return "All times are equal: no guess stands out."
    gain = max(times) - min(times)
    return f"Guess {guess} is faster by {gain:.1f} ms: B knows A's secret."


@drawing(
    sent=Slider(list(range(1, GUESSES + 1)), GUESSES, "guesses sent"),
    salted=Toggle(False, "a salt for each tenant"),
    behind=Slider([15, 79, 319], 15, "known tokens behind the secret"),
    suffix=Choice([0, 512], 512, "B's own tokens at the end"),
)
def two_tenants(sent: int, salted: bool, behind: int, suffix: int) -> str:
    """Draws the time to the first token of each guess that B has sent."""
    times = probes(salted, behind, suffix)[:sent]
    guess, verdict = found(times), _verdict(times)
    seen = ", ".join(f"{g}: {ms:.1f}" for g, ms in enumerate(times))
    canvas = Canvas(
        "two_tenants",
        146 + 22 * GUESSES,
        f"B sends {sent} of {GUESSES} guesses",
        f"A bar for each guess: the time to its first token in milliseconds. {seen}. {verdict}",
        f"B asks {sent} time{'s' * (sent > 1)}, salts {'on' if salted else 'off'}",
        "A asked once: 64 known tokens, 1 secret, known ones",
    )
    canvas.key(MARGIN, 74, "prefill", "computed")
    canvas.key(MARGIN + 100, 74, "cached", "faster than the others")
    longest = max(probes(salted, behind, suffix))
    for g, ms in enumerate(times):
        y = 88 + 22 * g
        canvas.text(MARGIN, y + 13, f"guess {g}")
        role = "cached" if g == guess else "prefill"
        canvas.rect(_LEFT, y, _ROOM * ms / longest, 16, role, "faint")
        canvas.text(WIDTH - MARGIN, y + 13, f"{ms:.1f} ms", "end", bold=g == guess)
    canvas.text(MARGIN, 108 + 22 * GUESSES, verdict, bold=True)
    clock = f"Roofline clock, {MODEL} on {CARD}: no server's times."
    canvas.text(MARGIN, 130 + 22 * GUESSES, clock, role="faint")
    return canvas.svg()
