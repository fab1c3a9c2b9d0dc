"""A prefill or a decode step as three lanes of time: bytes, operations, and calls."""

from __future__ import annotations

from typing import NamedTuple

from kvlib import catalog
from kvlib.roofline import decode_cost, prefill_cost
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, Canvas

MODELS = ("SmolLM2-135M", "Llama-3.2-1B", "Llama-3-8B", "Qwen2.5-7B", "Llama-3-70B")
DTYPE = "bfloat16"
_BAR, _STEP = 18, 46


class Lanes(NamedTuple):
    """Seconds of one step: moving its bytes, doing its operations, making its calls."""

    moving_s: float
    computing_s: float
    calling_s: float

    @property
    def step_s(self) -> float:
        """The longest lane: at best all three go on at once."""
        return max(self)

    @property
    def name(self) -> str:
        """What the longest lane is called."""
        return ("bandwidth", "compute", "overhead")[self.index(self.step_s)]


def lanes(
    model: str, gpu: str, phase: str, batch: int, context: int, calls: int, call_us: float
) -> Lanes:
    """Returns the three lanes of a step.

    Args:
        model: name of a published model, in 16 bits.
        gpu: name of a card.
        phase: "decode" (one token of each sequence) or "prefill" (one prompt of `context` tokens).
        batch: sequences of a decode step.
        context: tokens of each.
        calls: kernels started a layer.
        call_us: microseconds until the next one can be started.

    Example:
        >>> found = lanes("Llama-3-8B", "H100 SXM5", "decode", 1, 8192, 12, 5)
        >>> round(1000 * found.moving_s, 2), round(1000 * found.calling_s, 2), found.name
        (5.11, 1.92, 'bandwidth')
    """
    shape, card = catalog.model(model), catalog.gpu(gpu)
    dtypes = {"weight_dtype": DTYPE, "kv_dtype": DTYPE}
    if phase == "decode":
        cost = decode_cost(shape, batch, context, **dtypes)
    else:
        cost = prefill_cost(shape, context, **dtypes)
    peak = (card.bf16_dense_tflops or card.fp16_dense_tflops) * 1e12
    return Lanes(
        cost.num_bytes / (card.memory_bandwidth_gb_s * 1e9),
        cost.flops / peak,
        shape.kv.num_layers * calls * call_us * 1e-6,
    )


def _time(seconds: float) -> str:
    ms = 1000 * seconds
    if ms >= 9999.5:
        return f"{seconds:,.0f} s"
    return f"{ms:,.0f} ms" if ms >= 99.5 else f"{ms:.3g} ms"


def _advice(found: Lanes, phase: str) -> str:
    if found.name == "overhead":
        return "Start fewer, larger kernels, or replay a captured graph: faster ones gain nothing."
    if found.name == "compute":
        less = "Compute less: reuse a prefix." if phase == "prefill" else "The card is full."
        return f"{less} More tokens in the same step gain nothing."
    if phase == "prefill":
        return "The prompt is too short to use the card: put other tokens into the same step."
    return "Read less for each token: batch more, quantise, share heads."


@drawing(
    phase=Choice(("decode", "prefill"), "decode", "phase"),
    model=Choice(MODELS, "Llama-3-8B", "model"),
    gpu=Choice(catalog.gpus(), "H100 SXM5", "card"),
    batch=Slider([2**i for i in range(10)], 1, "sequences in the decode step", "{:,}"),
    context=Slider([2**i for i in range(5, 16)], 1024, "tokens each", "{:,}"),
    calls=Slider([1, 2, 5, 12, 25, 40], 12, "kernels a layer"),
    call_us=Slider([0, 0.5, 1, 2, 5, 10, 20, 40], 5, "time to start one (µs)"),
)
def phase_explorer(
    phase: str, model: str, gpu: str, batch: int, context: int, calls: int, call_us: float
) -> str:
    """Draws the least time of a step's bytes, its operations and its calls, one below the other."""
    found = lanes(model, gpu, phase, batch, context, calls, call_us)
    what = f"{batch:,} x {context:,} tokens" if phase == "decode" else f"{context:,} tokens"
    rows = (
        ("moving the bytes", found.moving_s, "decode"),
        ("doing the operations", found.computing_s, "prefill"),
        ("starting the kernels", found.calling_s, "wasted"),
    )
    words = "; ".join(f"{name} {_time(seconds)}" for name, seconds, _ in rows)
    shares = [100 * seconds / found.step_s for seconds in found[:2]]
    canvas = Canvas(
        "phase_explorer",
        296,
        f"{phase}, {model}, one {gpu}",
        f"{phase} of {what}, at best: {words}. The longest is {found.name}.",
        under=f"{what}, in 16 bits: the least time of each lane",
    )
    y = 86
    for name, seconds, role in rows:
        longest = " (the longest)" if seconds == found.step_s else ""
        canvas.text(MARGIN, y - 6, f"{name}: {_time(seconds)}{longest}")
        canvas.rect(MARGIN, y, max(1.0, ROOM * seconds / found.step_s), _BAR, role, "ink")
        y += _STEP
    y = canvas.paragraph(y, f"Bound by {found.name}: at least {_time(found.step_s)}.", bold=True)
    y = canvas.paragraph(
        y, f"Bandwidth used at most {shares[0]:.0f} %, peak at most {shares[1]:.0f} %."
    )
    canvas.paragraph(y, _advice(found, phase), role="faint")
    return canvas.svg()
