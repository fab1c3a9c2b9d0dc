"""Reserving the longest possible request for every request: what that costs."""

from __future__ import annotations

from kvlib.catalog import model
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.waste import Allocation, MemorySplit, split

# The setting of the PagedAttention paper, Table 1: OPT-13B in 16 bits, 12 GiB for its cache.
BUDGET_TOKENS = 12 * 2**30 // model("OPT-13B").kv.bytes_per_token("float16")
_TOP, _HIGH = 60, 48


def admitted(max_seq_len: int, final: int) -> int:
    """Returns how many requests of `final` tokens get in when each reserves `max_seq_len` slots.

    Example:
        >>> admitted(2048, 500), admitted(256, 500)
        (7, 0)
    """
    return BUDGET_TOKENS // max_seq_len if final <= max_seq_len else 0


def _strip(canvas: Canvas, each: Allocation, requests: int) -> None:
    slot = ROOM / BUDGET_TOKENS
    parts = (
        ("used", 0, each.used),
        ("reserved", each.used, each.final),
        ("wasted", each.final, each.reserved),
    )
    for request in range(requests):
        left = MARGIN + request * each.reserved * slot
        for role, start, end in parts:
            canvas.rect(left + start * slot, _TOP, (end - start) * slot, _HIGH, role)
        canvas.line([(left, _TOP), (left, _TOP + _HIGH)], "ink", min(1.5, 12 / requests))
    right, low = MARGIN + ROOM, _TOP + _HIGH
    corners = [(MARGIN, _TOP), (right, _TOP), (right, low), (MARGIN, low), (MARGIN, _TOP)]
    canvas.line(corners, "ink", 1.5)


def _table(canvas: Canvas, now: MemorySplit) -> None:
    outside = "free, yet no request fits" if now.free else "external: too small for a request"
    rows = (
        ("used", "used: a token is in the slot", now.used),
        ("reserved", "reservation: its token is still to come", now.reservation),
        ("wasted", "internal fragmentation: never filled", now.internal_fragmentation),
        ("paper", outside, now.external_fragmentation + now.free),
    )
    canvas.table(
        136,
        WIDTH - 84,
        [(*row, f"{slots:,}", f"{100 * slots / now.total:.1f} %") for *row, slots in rows],
    )


@drawing(
    max_seq_len=Slider([256, 512, 1024, 2048, 4096], 2048, "reserved for each (tokens)", "{:,}"),
    prompt_tokens=Slider([16, 64, 128, 256, 512, 1024], 128, "prompt (tokens)", "{:,}"),
    output_tokens=Slider([16, 64, 128, 256, 512, 1024], 256, "answer (tokens)", "{:,}"),
)
def reservation_strip(max_seq_len: int, prompt_tokens: int, output_tokens: int) -> str:
    """Draws a budget of KV slots cut into equal reservations, halfway through the answers."""
    final = prompt_tokens + output_tokens
    requests = admitted(max_seq_len, final)
    each = Allocation(max_seq_len, prompt_tokens + output_tokens // 2, final)
    now = split(BUDGET_TOKENS, [each] * requests, usable_free=0 if requests else None)
    verdict = (
        f"{requests} requests fit. By what they really need, {BUDGET_TOKENS // final} would."
        if requests
        else f"Refused: {final:,} tokens never fit a reservation of {max_seq_len:,}."
    )
    canvas = Canvas(
        "reservation_strip",
        266,
        f"{BUDGET_TOKENS:,} KV slots: OPT-13B in 12 GiB",
        f"A strip of {BUDGET_TOKENS:,} slots cut into reservations of {max_seq_len:,}. {verdict} "
        f"Halfway through the answers {100 * now.utilization:.1f} % of the slots hold a token.",
        under=f"Each request reserves {max_seq_len:,}; all are halfway through",
    )
    _strip(canvas, each, requests)
    _table(canvas, now)
    canvas.paragraph(234, verdict, bold=True)
    return canvas.svg()
