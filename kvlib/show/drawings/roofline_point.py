"""A decode step and a prefill under the roof of one card: which of the two bounds holds each."""

from __future__ import annotations

from math import log10

from kvlib import catalog
from kvlib.roofline import StepCost, attainable_tflops, decode_cost, prefill_cost, step_seconds
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas
from kvlib.sizes import format_bytes

# The attention of an MLA model works on a latent; the roofline here counts heads.
MODELS = [name for name in catalog.models() if catalog.model(name).attention != "mla"]
DTYPE = "bfloat16"  # any 16 bits: a card without bfloat16 has float16, of the same size
_LEFT, _RIGHT, _TOP, _LOW = MARGIN + 46, WIDTH - MARGIN - 6, 62, 226
_X_DECADES, _Y_DECADES = (-0.4, 6.0), (-1.0, 4.0)


def bound(card: catalog.GPU, cost: StepCost) -> str:
    """Returns which takes longer on the card: 'bandwidth' for the bytes, 'compute' for the rest."""
    return "bandwidth" if cost.intensity < card.ridge_flop_per_byte else "compute"


def _x(intensity: float) -> float:
    low, high = _X_DECADES
    return _LEFT + (_RIGHT - _LEFT) * (log10(intensity) - low) / (high - low)


def _y(tflops: float) -> float:
    low, high = _Y_DECADES
    return _LOW - (_LOW - _TOP) * (log10(tflops) - low) / (high - low)


def _axes(canvas: Canvas) -> None:
    for decade in range(-1, 4):
        y = _y(10.0**decade)
        canvas.line([(_LEFT, y), (_RIGHT, y)], "rule")
        canvas.text(_LEFT - 6, y + 4, f"{10.0**decade:,g}", "end", size=12)
    for decade in range(6):
        x = _x(10.0**decade)
        canvas.line([(x, _TOP), (x, _LOW)], "rule")
        canvas.text(x, _LOW + 16, f"{10**decade:,}", "middle", size=12)
    canvas.text(_RIGHT, _LOW + 34, "FLOP per byte", "end", role="faint")


def _roof(canvas: Canvas, card: catalog.GPU) -> None:
    ridge = _x(card.ridge_flop_per_byte)
    ends = [10.0 ** _X_DECADES[0], card.ridge_flop_per_byte, 10.0 ** _X_DECADES[1]]
    canvas.line([(_x(i), _y(attainable_tflops(card, i))) for i in ends], "ink", 2.5)
    canvas.line([(ridge, _TOP), (ridge, _LOW)], "ink", dash="4 4")
    canvas.text(ridge - 8, _TOP + 8, "bandwidth bounds", "end", role="faint")
    canvas.text(ridge + 8, _TOP + 8, "compute bounds", role="faint")
    canvas.text(ridge + 8, _LOW - 10, f"ridge {card.ridge_flop_per_byte:.0f}")


def _point(canvas: Canvas, card: catalog.GPU, cost: StepCost, role: str) -> None:
    x, y = _x(cost.intensity), _y(attainable_tflops(card, cost.intensity))
    canvas.line([(x, y), (x, _LOW)], role, 2)
    canvas.rect(x - 7, y - 7, 14, 14, role, "ink")


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(value: float) -> str:
    return f"{_amount(value)} s" if value >= 1 else f"{_amount(1000 * value)} ms"


def _notes(shape: catalog.ModelShape, need: int, card: catalog.GPU, context: int) -> list[str]:
    notes = []
    if need > card.memory_bytes:
        size = format_bytes(need, digits=0)
        notes.append(f"Does not fit: it takes {size}, the card has {card.memory_gb} GB.")
    if context > shape.context_length:
        notes.append(f"Beyond the model: published for {shape.context_length:,} tokens.")
    if shape.active_params:
        notes.append("Decode reads the experts of one token; a batch reads more.")
    return notes


@drawing(
    model=Choice(MODELS, "Llama-3-8B", "model"),
    batch=Slider([2**i for i in range(11)], 1, "sequences in the decode step", "{:,}"),
    context=Slider([2**i for i in range(7, 18)], 8192, "tokens each", "{:,}"),
    gpu=Choice(catalog.gpus(), "H100 SXM5", "card"),
)
def roofline_point(model: str, batch: int, context: int, gpu: str) -> str:
    """Draws where a decode step and a prefill lie under the roof of a card, in 16 bits."""
    shape, card = catalog.model(model), catalog.gpu(gpu)
    decode = decode_cost(shape, batch, context, weight_dtype=DTYPE, kv_dtype=DTYPE)
    prefill = prefill_cost(shape, context, weight_dtype=DTYPE, kv_dtype=DTYPE)
    rate = _amount(batch / step_seconds(card, decode))
    verdict = f"All weights read, the batch decodes at most {rate} tokens a second."
    costs = (("decode", "a decode step", decode), ("prefill", "prefill, one prompt", prefill))
    sides = "; ".join(f"{words}: {bound(card, cost)}" for _, words, cost in costs)
    canvas = Canvas(
        "roofline_point",
        436,
        f"{model} on one {gpu}",
        f"Attainable TFLOP/s against FLOP per byte, both logarithmic: a slope up to the "
        f"ridge at {card.ridge_flop_per_byte:.0f}, then flat. What bounds {sides}. {verdict}",
        under="Attainable TFLOP/s; weights and cache in 16 bits",
    )
    _axes(canvas)
    _roof(canvas, card)
    for role, _, cost in reversed(costs):
        _point(canvas, card, cost, role)
    rows = [
        (role, words, f"{_amount(cost.intensity)} FLOP/byte", f"{bound(card, cost)}-bound")
        for role, words, cost in costs
    ]
    canvas.table(286, WIDTH - 136, rows)
    y = canvas.paragraph(334, verdict, bold=True)
    times = [_seconds(step_seconds(card, cost)) for _, _, cost in costs]
    y = canvas.paragraph(y, f"At least {times[0]} a step, and {times[1]} for the prompt.")
    need = shape.weight_bytes(DTYPE) + decode.kv_bytes
    for note in _notes(shape, need, card, context):
        y = canvas.paragraph(y, note, role="faint")
    return canvas.svg()
