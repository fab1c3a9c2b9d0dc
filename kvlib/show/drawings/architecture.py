"""The bytes of a cache you design by its architecture, beside those of published models."""

from __future__ import annotations

from fractions import Fraction

from kvlib import catalog
from kvlib.show.drawings.controls import Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, WIDTH, Canvas
from kvlib.sizes import KVShape, format_bytes

WINDOW, ROTARY = 1024, 64
PUBLISHED = {
    "Llama-2-7B": "a head each",
    "Llama-3-8B": "8 KV heads",
    "DeepSeek-67B": "8 KV heads",
    "Gemma-3-27B": "5 of 6 windowed",
    "gpt-oss-120b": "half windowed",
    "DeepSeek-V2": "latent",
}
_LOCAL = {"0": "none", "1/2": "1 of 2", "3/4": "3 of 4", "5/6": "5 of 6", "1": "all"}
_LATENT = {0: "none: keys and values", 256: "256 + 64 rotary", 512: "512 + 64 rotary"}
_LEFT, _ROW = 124, 34


def designed(
    layers: int, kv_heads: int, head_dim: int, latent: int, local: str, sharing: int
) -> KVShape:
    """Returns the shape of a design; its layers are those that keep keys and values of their own.

    Of these the windowed share is rounded down to whole layers.

    >>> shape = designed(32, 8, 128, 0, "5/6", 2)
    >>> shape.num_layers, shape.num_full_layers
    (16, 3)
    """
    owners = -(-layers // sharing)
    windowed = {"window": WINDOW, "num_local_layers": int(owners * Fraction(local))}
    if latent:
        return KVShape(owners, kv_lora_rank=latent, qk_rope_head_dim=ROTARY, **windowed)
    return KVShape(owners, kv_heads, head_dim, **windowed)


def _size(num_bytes: int) -> str:
    unit, scale = ("GiB", 2**30) if num_bytes >= 2**30 else ("MiB", 2**20)
    digits = 0 if num_bytes >= 100 * scale else 1 if num_bytes >= 10 * scale else 2
    return format_bytes(num_bytes, unit, digits)


def _per_token(shape: KVShape) -> str:
    kib = shape.bytes_per_token("bfloat16") / 1024
    return f"{kib:,.{kib < 1000:d}f} KiB"


def _notes(shape: KVShape, layers: int) -> list[str]:
    notes = []
    if shape.num_layers < layers:
        notes.append(f"{shape.num_layers} of {layers} layers keep keys and values of their own.")
    if shape.num_local_layers:
        every = shape.num_full_layers == 0
        which = "All" if every else f"{shape.num_local_layers} of these"
        beyond = shape.bytes_per_token("bfloat16", beyond_window=True) / 1024
        more = "nothing" if every else f"{beyond:,.1f} KiB"
        notes.append(
            f"{which} {shape.num_layers} stop at {WINDOW:,} tokens; from there on a token adds "
            f"{more}."
        )
    return notes or ["Every layer keeps every token."]


def _longer(name: str, context: int) -> str:
    return "*" if context > catalog.model(name).context_length else ""


@drawing(
    layers=Slider([16, 24, 32, 48, 60, 80, 96], 32, "layers"),
    kv_heads=Slider([1, 2, 4, 8, 16, 32, 64], 8, "KV heads"),
    head_dim=Slider([64, 128, 256], 128, "head size"),
    latent=Slider(list(_LATENT), 0, "latent instead of heads", _LATENT),
    local=Slider(list(_LOCAL), "0", f"layers with a window of {WINDOW:,}", _LOCAL),
    sharing=Slider([1, 2, 3, 4], 1, "layers that share one cache"),
    context=Slider([2**i for i in range(10, 18)], 8192, "tokens", "{:,}"),
)
def architecture_bytes(
    layers: int, kv_heads: int, head_dim: int, latent: int, local: str, sharing: int, context: int
) -> str:
    """Draws what one sequence of a designed model keeps, beside published models at its length."""
    mine = designed(layers, kv_heads, head_dim, latent, local, sharing)
    shapes = {"yours": mine} | {name: catalog.model(name).kv for name in PUBLISHED}
    sizes = {name: kv.bytes_per_sequence(context, "bfloat16") for name, kv in shapes.items()}
    heads = f"{kv_heads} head{'s' * (kv_heads > 1)} of {head_dim}"
    row = f"latent of {latent} + {ROTARY}" if latent else heads
    words = "; ".join(f"{name} {_size(size)}" for name, size in sizes.items())
    smaller = sum(size < sizes["yours"] for size in sizes.values())
    canvas = Canvas(
        "architecture_bytes",
        400,
        f"Keys and values of one sequence of {context:,} tokens, by architecture",
        f"One bar for your design and one for each of {len(PUBLISHED)} published models, 16 bits "
        f"an element: {words}. Smaller than yours: {smaller}.",
        f"Yours: {_per_token(mine)} a token, {_size(sizes['yours'])} at {context:,}",
        f"{layers} layers, {row}; 16 bits an element",
    )
    canvas.text(330, 74, "a token", "end", role="faint")
    canvas.text(WIDTH - MARGIN, 74, "a sequence", "end", role="faint")
    room = 330 - 82 - _LEFT
    for index, (name, shape) in enumerate(shapes.items()):
        y, own = 84 + _ROW * index, name == "yours"
        length = room * sizes[name] / max(sizes.values())
        canvas.rect(_LEFT, y, length, 16, "used", "ink" if own else "")
        canvas.text(MARGIN, y + 13, name, bold=own)
        if not own:
            words = PUBLISHED[name] + _longer(name, context)
            canvas.text(MARGIN, y + 26, words, size=10, role="faint")
        canvas.text(330, y + 13, _per_token(shape), "end", bold=own)
        canvas.text(WIDTH - MARGIN, y + 13, _size(sizes[name]), "end", bold=own)
    y = 84 + _ROW * len(shapes) + 14
    for note in _notes(mine, layers):
        y = canvas.paragraph(y, note)
    if any(_longer(name, context) for name in PUBLISHED):
        canvas.paragraph(y, "* longer than the model was published for", role="faint")
    return canvas.svg()
