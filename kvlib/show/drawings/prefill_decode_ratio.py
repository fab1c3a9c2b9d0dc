"""Four cards that do both, or some for prompts and the others for answers: who keeps the target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.disaggregated_run import DisaggregatedRun
from kvlib.disaggregation import decode_instance, prefill_instance, serve_disaggregated
from kvlib.handover import Link
from kvlib.kv_memory import KVMemory
from kvlib.request import Request
from kvlib.router import LeastLoaded
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serial_clock import SerialClock
from kvlib.serving import serve
from kvlib.serving_run import ServingRun, Target
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

CARD, SHAPE, CARDS, CHUNK, REQUESTS = gpu("A10"), model("Llama-3-8B"), 4, 512, 64
TOKEN_BYTES = SHAPE.kv.bytes_per_token("bfloat16")
BLOCK_TOKENS = 64
# What nine tenths of the card leave beside the weights.
NUM_BLOCKS = (int(0.9 * CARD.memory_bytes) - SHAPE.weight_bytes("bfloat16")) // (
    BLOCK_TOKENS * TOKEN_BYTES
)
TARGET = Target(ttft_s=1.0, tpot_s=0.05)
# Mean tokens of prompt and answer.
MIXES = {"chat": (1000, 100), "long prompts": (3000, 80), "long answers": (150, 160)}
CLOCKS = {"overlap": RooflineClock(CARD, SHAPE), "take turns": SerialClock(CARD, SHAPE)}
LINK_GB_S = 12.5
WAYS = ("together", "1:3", "2:2", "3:1")
_ROW = 62


@cache
def requests_of(mix: str, rate: float, seed: int = 0, n: int = REQUESTS) -> tuple[Request, ...]:
    """Returns made-up requests: gaps at random, lengths from half to one and a half of the mean."""
    random, now, made = Random(f"prefill and decode/{seed}"), 0.0, []
    for i in range(n):
        prompt, answer = (max(2, round(n * (0.5 + random.random()))) for n in MIXES[mix])
        made.append(Request(i, now, prompt, answer))
        now += random.expovariate(1.0) / rate
    return tuple(made)


def together(
    requests: Sequence[Request],
    step: str = "take turns",
    *,
    cards: int = CARDS,
    chunk: int = CHUNK,
) -> ServingRun:
    """Serves requests on cards that do both, prompts in chunks, each where the load is least."""
    limits = StepLimits(max_tokens=chunk)
    pool = [Scheduler(KVMemory(NUM_BLOCKS, BLOCK_TOKENS), limits=limits) for _ in range(cards)]
    return serve(requests, pool, CLOCKS[step], router=LeastLoaded(), target=TARGET)


def apart(
    requests: Sequence[Request],
    way: str,
    step: str = "take turns",
    *,
    gb_s: float = LINK_GB_S,
    losses: Sequence[tuple[float, int]] = (),
) -> DisaggregatedRun:
    """Serves requests on two pools: "1:3" is one card for prompts, three for answers."""
    prefill, decode = map(int, way.split(":"))
    return serve_disaggregated(
        requests,
        [prefill_instance(NUM_BLOCKS, BLOCK_TOKENS) for _ in range(prefill)],
        [decode_instance(NUM_BLOCKS, BLOCK_TOKENS) for _ in range(decode)],
        CLOCKS[step],
        Link(gb_s),
        TOKEN_BYTES,
        target=TARGET,
        losses=losses,
    )


def good_percent(run: ServingRun) -> int:
    """Returns the percentage of the requests that kept the target."""
    return round(100 * run.good / run.num_requests)


@cache
def served(
    way: str, mix: str, rate: float, gb_s: float, step: str, seed: int = 0
) -> ServingRun | DisaggregatedRun:
    """Serves the drawing's requests in one of the ways."""
    requests = requests_of(mix, rate, seed)
    if way == "together":
        return together(requests, step)
    return apart(requests, way, step, gb_s=gb_s)


def tails(run: ServingRun) -> tuple[float, float]:
    """Returns the 99th percentiles in milliseconds: first token, each token after it."""
    return 1000 * run.ttft_s.percentile(99), 1000 * run.tpot_s.percentile(99)


def _cards(canvas: Canvas, y: float, way: str) -> None:
    """Draws the four cards as boxes: what each does."""
    for card in range(CARDS):
        x = MARGIN + 88 + 24 * card
        if way == "together":
            canvas.rect(x, y - 11, 10, 14, "prefill", "faint")
            canvas.rect(x + 10, y - 11, 10, 14, "decode", "faint")
        else:
            canvas.rect(x, y - 11, 20, 14, "prefill" if card < int(way[0]) else "decode", "faint")


def _row(canvas: Canvas, y: float, way: str, run: ServingRun) -> None:
    canvas.text(MARGIN, y, way, bold=True)
    _cards(canvas, y, way)
    canvas.text(WIDTH - MARGIN, y, f"{good_percent(run)} % keep the target", "end")
    canvas.rect(MARGIN, y + 9, ROOM, 14, "paper", "faint")
    canvas.rect(MARGIN, y + 9, ROOM * run.good / REQUESTS, 14, "used", "faint")
    ttft, tpot = tails(run)
    canvas.text(MARGIN, y + 40, f"p99: first token {ttft:,.0f} ms, then {tpot:,.0f} ms a token")


def _told(way: str, run: ServingRun) -> str:
    ttft, tpot = tails(run)
    return f"{way} {good_percent(run)} %, {ttft:.0f} ms, then {tpot:.0f} ms a token"


@drawing(
    mix=Choice(list(MIXES), "chat", "requests"),
    rate=Slider([1, 2, 4, 8, 12, 16, 24, 48], 12, "rate (requests a second)"),
    gb_s=Slider([0.25, 1, 3, 12.5, 50], 12.5, "link (GB/s)"),
    step=Choice(list(CLOCKS), "take turns", "bytes and arithmetic of a step"),
)
def prefill_decode_ratio(mix: str, rate: float, gb_s: float, step: str) -> str:
    """Draws for four cards, together and split three ways, how many requests keep the target."""
    runs = {way: served(way, mix, rate, gb_s if ":" in way else 0, step) for way in WAYS}
    best = max(run.good for run in runs.values())
    names = [way for way, run in runs.items() if run.good == best]
    verdict = f"Most keep it: {', '.join(names)}." if len(names) < len(WAYS) else "All do as well."
    apart = runs["2:2"]
    slowest = 1000 * apart.handover_s.percentile(99)
    sent = f"2:2 sends {apart.bytes_sent / 1e9:.1f} GB; the slowest prompts take {slowest:,.0f} ms."
    prompt, answer = MIXES[mix]
    canvas = Canvas(
        "prefill_decode_ratio",
        146 + _ROW * len(WAYS),
        f"Four cards: {mix}, {rate:g} requests a second",
        f"Requests that keep the target, and 99th percentiles: "
        f"{'; '.join(_told(*row) for row in runs.items())}. {verdict} {sent}",
        under=f"an A10 each; target: first token in {TARGET.ttft_s:g} s,"
        f" then {1000 * TARGET.tpot_s:g} ms a token",
    )
    canvas.key(MARGIN, 72, "prefill", f"prompts of {prompt:,} tokens")
    canvas.key(MARGIN + 200, 72, "decode", f"answers of {answer} tokens")
    for i, (way, run) in enumerate(runs.items()):
        _row(canvas, 104 + _ROW * i, way, run)
    y = canvas.paragraph(108 + _ROW * len(WAYS), verdict, bold=True)
    canvas.paragraph(y, sent)
    return canvas.svg()
