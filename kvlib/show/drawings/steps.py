"""Which tokens go through the model at each step, with and without a cache."""

from __future__ import annotations

from kvlib.show.drawings.controls import Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

PROMPT, STEPS = 4, 8
_CELL, _LEFT, _TOP = 24, 74, 74


def forwarded(step: int, cached: bool) -> int:
    """Returns how many tokens go through the model at one step, counted from 1.

    Example:
        >>> [forwarded(step, cached=True) for step in (1, 2, 3)]
        [4, 1, 1]
        >>> [forwarded(step, cached=False) for step in (1, 2, 3)]
        [4, 5, 6]
    """
    return 1 if cached and step > 1 else PROMPT + step - 1


def total(steps: int, cached: bool) -> int:
    """Returns how many tokens have gone through the model after so many steps."""
    return sum(forwarded(step, cached) for step in range(1, steps + 1))


def _row(canvas: Canvas, step: int, cached: bool, done: bool) -> None:
    y = _TOP + (step - 1) * _CELL
    canvas.text(MARGIN, y + 16, f"step {step}", role="ink" if done else "faint")
    tokens = PROMPT + step - 1
    old = "prefill" if step == 1 else "cached" if cached else "wasted"
    for token in range(tokens):
        role = "decode" if step > 1 and token == tokens - 1 else old
        fill, frame = (role, "faint") if done else ("paper", "rule")
        canvas.rect(_LEFT + token * _CELL, y + 2, _CELL - 4, _CELL - 4, fill, frame)
    if done:
        canvas.text(WIDTH - MARGIN, y + 16, f"{forwarded(step, cached)} forwarded", "end")


@drawing(
    step=Slider(range(1, STEPS + 1), 3, "steps done"),
    cached=Toggle(True, "KV cache", off="without", on="with"),
)
def decode_steps(step: int, cached: bool) -> str:
    """Draws which tokens are forwarded at each step so far, and the sums of both ways."""
    way = "with a cache" if cached else "without a cache"
    canvas = Canvas(
        "decode_steps",
        410,
        f"Tokens through the model, {way}",
        f"A prompt of {PROMPT} tokens, then one new token a step. After step {step}, "
        f"{total(step, True)} tokens have gone through the model with a cache and "
        f"{total(step, False)} without: the cache forwards each token once, its absence forwards "
        "every token again at every step.",
    )
    canvas.key(MARGIN, 52, "prefill", "prompt")
    canvas.key(MARGIN + 82, 52, "decode", "new token")
    again = ("cached", "read from the cache") if cached else ("wasted", "computed again")
    canvas.key(MARGIN + 190, 52, *again)
    for each in range(1, STEPS + 1):
        _row(canvas, each, cached, each <= step)
    canvas.text(MARGIN, 292, f"Forwarded up to step {step}", bold=True)
    ways = ((304, "with a cache", True, "used"), (328, "without", False, "wasted"))
    for y, words, has, role in ways:
        length = (ROOM - 190) * total(step, has) / total(STEPS, False)
        canvas.text(MARGIN, y + 12, words)
        canvas.rect(MARGIN + 98, y, length, 15, role)
        canvas.text(MARGIN + 104 + length, y + 12, f"{total(step, has)} tokens", bold=True)
    canvas.paragraph(
        376, "From a single token, n steps forward n tokens with a cache, n(n+1)/2 without."
    )
    return canvas.svg()
