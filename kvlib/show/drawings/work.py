"""The work of one generation, counted with a cache and without, as bars."""

from __future__ import annotations

from kvlib.catalog import model
from kvlib.metrics import WorkCounters
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.sizes import format_bytes

MODEL = "SmolLM2-135M"
BYTES_PER_TOKEN = model(MODEL).kv.bytes_per_token("float32")
_LEFT, _BAR, _TOP, _GROUP = MARGIN + 62, ROOM - 178, 90, 74


def _pairs(num_tokens: int) -> int:
    """Causal pairs of the first `num_tokens` positions: 1 + 2 + ... + num_tokens."""
    return num_tokens * (num_tokens + 1) // 2


def _sum_of_pairs(num_tokens: int) -> int:
    """The sum of `_pairs` over 1 .. num_tokens."""
    return num_tokens * (num_tokens + 1) * (num_tokens + 2) // 6


def counted(
    prompt: int, new: int, cached: bool, bytes_per_token: int = BYTES_PER_TOKEN
) -> WorkCounters:
    """Returns what generating `new` tokens after a prompt costs, as the caches count it.

    The first step forwards the prompt and yields the first new token; the last new token is
    returned, never forwarded. Pairs are causal, of one layer and one head. Without a cache nothing
    is stored, and attention still reads the keys and values of the whole text at every step.

    Args:
        prompt: tokens of the prompt, at least 1.
        new: tokens generated, at least 1.
        cached: with a cache or without.
        bytes_per_token: keys and values of one token, all layers.

    Example:
        A prompt of 2 and 3 new tokens are steps over 2, 3 and 4 tokens:

        >>> with_cache, without = (counted(2, 3, cached, 1) for cached in (True, False))
        >>> with_cache.tokens_forwarded, without.tokens_forwarded
        (4, 9)
        >>> with_cache.attention_pairs, without.attention_pairs == 3 + 6 + 10
        (10, True)
        >>> with_cache.bytes_written, with_cache.bytes_read, without.bytes_read
        (4, 9, 9)
    """
    last = prompt + new - 1
    every_step = _pairs(last) - _pairs(prompt - 1)
    return WorkCounters(
        tokens_forwarded=last if cached else every_step,
        attention_pairs=_pairs(last) if cached else _sum_of_pairs(last) - _sum_of_pairs(prompt - 1),
        bytes_written=last * bytes_per_token if cached else 0,
        bytes_read=every_step * bytes_per_token,
    )


def _size(size_bytes: int) -> str:
    unit = "GB" if size_bytes >= 10**9 else "MB" if size_bytes >= 10**6 else "KB"
    return format_bytes(size_bytes, unit, digits=0 if size_bytes >= 10**11 else 1)


def _bar(canvas: Canvas, y: float, words: str, parts: tuple[tuple[str, int], ...], most: int):
    canvas.text(MARGIN, y + 12, words)
    x = _LEFT
    for role, amount in parts:
        # A part too thin to see is still there.
        width = max(_BAR * amount / most, 1) if amount else 0
        canvas.rect(x, y, width, 15, role)
        x += width


def _group(canvas: Canvas, y: float, name: str, kept: tuple[int, int], spent: int, text) -> None:
    """Draws one quantity: both ways side by side, `kept` = prompt and decode, `spent` without."""
    prefill, decode = kept
    once = prefill + decode
    ratio = f"{spent / once:,.1f} x" if spent else "only with"
    canvas.text(MARGIN, y, name, bold=True)
    canvas.text(WIDTH - MARGIN, y, ratio, "end", bold=True)
    parts = (("prefill", prefill), ("decode", decode))
    again = (*parts, ("wasted", spent - once)) if spent else ()
    most = max(once, spent)
    for row, words, bar, total in ((0, "with", parts, once), (22, "without", again, spent)):
        _bar(canvas, y + 8 + row, words, bar, most)
        canvas.text(WIDTH - MARGIN, y + 20 + row, text(total) if total else "nothing kept", "end")


@drawing(
    prompt=Slider([1, 16, 128, 512, 2048, 8192], 128, "prompt (tokens)", "{:,}"),
    new=Slider([1, 4, 16, 64, 256, 1024], 64, "answer (tokens)", "{:,}"),
)
def work_bars(prompt: int, new: int) -> str:
    """Draws four counts of one generation, with and without a cache; each pair on its own scale."""
    has, not_, first = counted(prompt, new, True), counted(prompt, new, False), _first(prompt)
    ratio = not_.tokens_forwarded / has.tokens_forwarded
    canvas = Canvas(
        "work_bars",
        398,
        f"Work for {new:,} token{'s' * (new > 1)} after a prompt of {prompt:,}",
        f"Four pairs of bars. With a cache {has.tokens_forwarded:,} tokens are forwarded, without "
        f"one {not_.tokens_forwarded:,}, {ratio:,.1f} times as many; attention pairs "
        f"{has.attention_pairs:,} and {not_.attention_pairs:,}. Only the cache keeps bytes, "
        f"{_size(has.bytes_written)}; attention reads {_size(has.bytes_read)} both ways.",
        under=f"{MODEL} in 32 bits; each pair on its own linear scale",
    )
    canvas.key(MARGIN, 68, "prefill", "prompt, once")
    canvas.key(MARGIN + 124, 68, "decode", "new tokens, once")
    canvas.key(MARGIN + 274, 68, "wasted", "done again")
    rows = (
        ("Tokens through the model", "tokens_forwarded", "{:,}".format),
        ("Attention pairs, a layer and head", "attention_pairs", "{:,}".format),
        ("Bytes of keys and values kept", "bytes_written", _size),
        ("Bytes that attention reads back", "bytes_read", _size),
    )
    for index, (name, field, text) in enumerate(rows):
        before, after, again = (getattr(way, field) for way in (first, has, not_))
        y = _TOP + 10 + index * _GROUP
        _group(canvas, y, name, (before, after - before), again, text)
    return canvas.svg()


def _first(prompt: int) -> WorkCounters:
    """What the first step costs: the same both ways, but for what is kept."""
    return counted(prompt, 1, cached=True)
