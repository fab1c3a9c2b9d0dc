"""One card's memory as a bar: who takes what, and how many sequences the rest holds."""

from __future__ import annotations

from kvlib.catalog import gpu, model
from kvlib.memory_plan import CapacityPlan, DoesNotFit, plan_capacity
from kvlib.overheads import GIB, card_bytes
from kvlib.plan_interval import plan_range
from kvlib.show.drawings.controls import Choice, Slider, Toggle
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

# Part, role, words.
PARTS = (
    ("weight", "weights", "weights"),
    ("activation", "prefill", "activations"),
    ("graph", "reserved", "graphs"),
    ("runtime", "decode", "runtime"),
    ("kv", "used", "KV blocks"),
    ("free", "", "not given out"),
)
_BAR = 34
_CELLS = 100


def _bar(canvas: Canvas, y: float, plan: CapacityPlan, share: float) -> None:
    x, parts = float(MARGIN), plan.parts()
    for name, role, _ in PARTS:
        width = ROOM * parts[name] / plan.total_bytes
        canvas.rect(x, y, width, _BAR, role or "paper", "faint")
        x += width
    edge = MARGIN + ROOM * share
    canvas.line([(edge, y - 7), (edge, y + _BAR + 7)], "ink", 3)
    canvas.text(min(edge, WIDTH - MARGIN), y - 11, f"share {share:.0%}", "end", bold=True)


def _sequences(canvas: Canvas, y: float, plan: CapacityPlan, context: int) -> None:
    held = plan.concurrency(context)
    canvas.text(MARGIN, y - 7, f"the KV blocks, cut into sequences of {context:,} tokens")
    if not 1 <= held <= _CELLS:
        canvas.rect(MARGIN, y, ROOM, 18, "used" if held > _CELLS else "wasted", "faint")
        return
    width = ROOM / held
    for i in range(int(held)):
        canvas.rect(MARGIN + i * width, y, width, 18, "used", "paper")
    canvas.rect(MARGIN + int(held) * width, y, ROOM - int(held) * width, 18, "wasted", "faint")


def _row(
    part: str, role: str, words: str, parts: dict[str, int], total_gib: float
) -> tuple[str, str, str, str]:
    gib = parts[part] / GIB
    return role or "paper", words, f"{gib:,.2f} GiB", f"{parts[part] / total_gib / GIB:.1%}"


def _between(ends: list[str], published: int, context: int, plan: CapacityPlan) -> str:
    words = f"With all that is assumed at its worst: {ends[0]}; at its best: {ends[2]}."
    if context > published:
        words += f" The model was published for {published:,} tokens."
    if plan.concurrency(context) < 1:
        words += " Below 1 not even one can be served."
    return words


@drawing(
    name=Choice(
        ["Llama-3-8B", "Llama-2-13B", "Qwen3-8B", "Llama-3-70B", "gpt-oss-120b", "DeepSeek-V3"],
        "Llama-3-8B",
        "model",
    ),
    card=Choice(["L4", "RTX 4090", "A100 40GB", "H100 SXM5", "H200 SXM"], "RTX 4090", "card"),
    num_gpus=Slider([1, 2, 4, 8], 1, "cards that share the model"),
    share=Slider([50, 60, 70, 80, 85, 90, 92, 95, 98, 99, 100], 92, "share of the card, %"),
    step=Slider([512, 2048, 8192, 16384, 32768, 65536], 8192, "largest step, tokens", "{:,}"),
    context=Slider([1024, 4096, 8192, 16384, 32768, 131072], 4096, "a sequence, tokens", "{:,}"),
    inside=Toggle(True, "graphs", "outside the share", "inside the share"),
    small=Toggle(False, "cache", "16 bits", "8 bits"),
)
def memory_budget(
    name: str,
    card: str,
    num_gpus: int,
    share: int,
    step: int,
    context: int,
    inside: bool,
    small: bool,
) -> str:
    """Draws what a share of a card goes to, and the sequences that fit into what is left."""
    arguments = {
        "utilization": share / 100,
        "num_gpus": num_gpus,
        "max_batched_tokens": step,
        "outside": () if inside else ("graphs",),
        "kv_dtype": "fp8" if small else None,
        "weight_dtype": "fp8" if name == "DeepSeek-V3" else "bfloat16",
    }
    total = card_bytes(gpu(card)) / GIB
    under = f"{name} on {num_gpus} x {card}, {total:.1f} GiB each"
    try:
        plan = plan_capacity(model(name), gpu(card), **arguments)
    except DoesNotFit as error:
        reason = f"{error}"[:1].upper() + f"{error}"[1:] + " (all in GiB)."
        canvas = Canvas("memory_budget", 190, "It does not start", reason, under=under)
        canvas.paragraph(78, reason)
        return canvas.svg()
    plans = plan_range(model(name), gpu(card), **arguments)
    ends = [f"{p.concurrency(context):,.1f}" if p else "none" for p in plans.values()]
    heading = f"{ends[1]} sequences of {context:,} tokens at once"
    between = _between(ends, model(name).context_length, context, plan)
    parts = plan.parts()
    listed = ", ".join(f"{words} {parts[part] / GIB:.1f}" for part, _, words in PARTS)
    canvas = Canvas("memory_budget", 390, heading, f"{under}. GiB: {listed}. {between}", "", under)
    _bar(canvas, 84, plan, share / 100)
    canvas.table(150, 300, [_row(*each, parts, total) for each in PARTS])
    _sequences(canvas, 304, plan, context)
    canvas.paragraph(344, between)
    return canvas.svg()
