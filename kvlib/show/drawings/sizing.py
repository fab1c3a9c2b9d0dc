"""Weights and KV cache of a model against the memory of one card."""

from __future__ import annotations

from kvlib import catalog
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.sizes import format_bytes

_BITS = {"float32": "32 bits", "bfloat16": "16 bits", "fp8": "8 bits", "int4": "4 bits"}
_TOP, _LOW = 82, 122


def _gb(size_bytes: int) -> str:
    digits = 0 if size_bytes >= 10**11 else 1 if size_bytes >= 10**10 else 2
    return format_bytes(size_bytes, digits=digits)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _verdict(weights: int, need: int, capacity: int, most: int) -> str:
    if weights > capacity:
        return f"Does not fit: the weights alone are {_gb(weights - capacity)} too large."
    if need > capacity:
        beside = f"only {_requests(most)} of this length" if most else "not even one such request"
        return f"Does not fit: {_gb(need - capacity)} too much. Beside the weights, {beside} would."
    return f"Fits. Beside the weights there is room for {_requests(most)} of this length."


def _bar(canvas: Canvas, weights: int, need: int, capacity: int) -> None:
    scale = ROOM / max(need, capacity)
    seam, end, edge = (MARGIN + size * scale for size in (weights, need, capacity))
    canvas.rect(MARGIN, _TOP, seam - MARGIN, _LOW - _TOP, "weights")
    canvas.rect(seam, _TOP, end - seam, _LOW - _TOP, "used")
    if need > capacity:
        canvas.rect(edge, _LOW + 3, end - edge, 9, "wasted")
    canvas.line([(seam, _TOP), (seam, _LOW)], "ink")
    frame = [(MARGIN, _TOP), (edge, _TOP), (edge, _LOW), (MARGIN, _LOW), (MARGIN, _TOP)]
    canvas.line(frame, "ink")
    canvas.line([(edge, _TOP - 8), (edge, _LOW + 14)], "ink", 3)
    anchor = "end" if edge > WIDTH / 2 else "start"
    canvas.text(edge, _TOP - 13, f"card: {_gb(capacity)}", anchor, bold=True)


def _table(canvas: Canvas, weights: int, need: int, capacity: int) -> None:
    sizes = (
        ("weights", "weights", weights),
        ("used", "KV cache", need - weights),
        ("paper", "free", capacity - need)
        if need <= capacity
        else ("wasted", "too much", need - capacity),
    )
    canvas.table(
        _LOW + 38,
        WIDTH - 170,
        [(*row, _gb(size), _share(100 * size / capacity)) for *row, size in sizes],
    )


def _share(percent: float) -> str:
    return f"{percent:,.{0 if percent >= 1000 else 1}f} % of the card"


def _notes(shape: catalog.ModelShape, context: int, one: int) -> list[str]:
    notes = [f"One request keeps {_gb(one)} of keys and values."]
    kv = shape.kv
    if kv.num_local_layers and context > kv.window:
        notes.append(
            f"{kv.num_local_layers} of {kv.num_layers} layers stop at {kv.window:,} tokens."
        )
    if context > shape.context_length:
        notes.append(f"Beyond the model: published for {shape.context_length:,} tokens.")
    return notes


@drawing(
    model=Choice(catalog.models(), "Llama-3-8B", "model"),
    context=Slider([2**i for i in range(10, 21)], 8192, "tokens a request", "{:,}"),
    batch=Slider([2**i for i in range(9)], 16, "requests at once"),
    dtype=Choice(list(_BITS), "bfloat16", "weights and KV in", _BITS),
    gpu=Choice(catalog.gpus(), "A100 80GB SXM", "card"),
)
def kv_size_explorer(model: str, context: int, batch: int, dtype: str, gpu: str) -> str:
    """Draws what a model and its requests need against what one card has."""
    shape, card = catalog.model(model), catalog.gpu(gpu)
    weights, capacity = shape.weight_bytes(dtype), card.memory_bytes
    one = shape.kv_bytes(context, dtype, beyond_context=True)
    need, most = weights + batch * one, max(0, capacity - weights) // one
    verdict = _verdict(weights, need, capacity, most)
    canvas = Canvas(
        "kv_size_explorer",
        318,
        f"{model} on one {gpu}",
        f"A bar of weights and KV cache, {_gb(need)} together, against a line at the card's "
        f"{_gb(capacity)}. {verdict} Nothing is set aside for activations.",
        under=f"{_requests(batch)} of {context:,} tokens, in {_BITS[dtype]}",
    )
    _bar(canvas, weights, need, capacity)
    _table(canvas, weights, need, capacity)
    y = canvas.paragraph(_LOW + 112, verdict, bold=True)
    for note in _notes(shape, context, one):
        y = canvas.paragraph(y, note, role="faint")
    return canvas.svg()
