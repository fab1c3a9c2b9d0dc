"""One cache over several ranks: by heads or by tokens, at rest and on the wire."""

from __future__ import annotations

from dataclasses import dataclass

from kvlib import catalog
from kvlib.sharding import (
    head_shares,
    owner,
    tokens_held,
    wire_bytes_by_heads,
    wire_bytes_by_tokens,
)
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas
from kvlib.sizes import DTYPE_BYTES

MODELS = ("SmolLM2-135M", "Qwen2.5-7B", "Llama-3.2-3B", "Llama-3.1-405B")
BLOCK_SIZE, COLUMNS = 16, 8
_TOP, _ROW = 86, 30


@dataclass(frozen=True)
class Split:
    """What each rank holds of one sequence, and sends in one decode step.

    Attributes:
        nbytes: bytes of keys and values on each rank.
        whole: bytes of one unsplit cache.
        holds: in words, what each rank holds.
        sent: bytes that one rank sends in a decode step, all layers.
    """

    nbytes: list[int]
    whole: int
    holds: list[str]
    sent: int


def split(model: str, cut: str, num_ranks: int, num_tokens: int) -> Split:
    """Shares out one sequence's cache of a model.

    >>> split("SmolLM2-135M", "heads", 2, 1000).nbytes
    [15360000, 7680000]
    """
    shape = catalog.model(model)
    kv, itemsize = shape.kv, int(DTYPE_BYTES[shape.dtype])
    per_head = 2 * kv.num_layers * kv.head_dim * itemsize
    if cut == "heads":
        shares = head_shares(kv.num_kv_heads, num_ranks)
        nbytes = [num_tokens * per_head * len(share.kv_heads) for share in shares]
        holds = [_heads(share.kv_heads, share.copies) for share in shares]
        sizes = (shape.num_q_heads, kv.num_kv_heads, kv.head_dim, num_ranks, itemsize)
        sent = wire_bytes_by_heads(1, *sizes)
    else:
        held = [tokens_held(num_tokens, r, num_ranks, BLOCK_SIZE) for r in range(num_ranks)]
        nbytes = [n * per_head * kv.num_kv_heads for n in held]
        holds = [f"{n:,} tokens" for n in held]
        sent = wire_bytes_by_tokens(1, shape.num_q_heads, kv.head_dim, num_ranks)
    whole = num_tokens * per_head * kv.num_kv_heads
    return Split(nbytes, whole, holds, sent * kv.num_layers)


def sized(num_bytes: int) -> str:
    """Returns a byte count in KB, MB or GB, whichever reads best.

    >>> sized(7_680_000), sized(780), sized(34_359_738_368)
    ('7.68 MB', '0.78 KB', '34.4 GB')
    """
    power = next((p for p in (3, 6) if num_bytes < 999.5 * 10**p), 9)
    return f"{num_bytes / 10**power:.3g} {'KMG'[power // 3 - 1]}B"


def _heads(heads: range, copies: int) -> str:
    first, last = heads.start, heads.stop - 1
    words = f"KV head {first}" if first == last else f"KV heads {first} to {last}"
    return words + (f", kept by {copies} ranks" if copies > 1 else "")


def cells(cut: str, num_kv_heads: int, num_ranks: int) -> list[list[str]]:
    """Returns for each KV head and block which ranks hold it, in words.

    >>> cells("heads", 2, 3)[0][:2], cells("tokens", 2, 3)[1][:4]
    (['0-1', '0-1'], ['0', '1', '2', '0'])
    """
    rows = []
    for head in range(num_kv_heads):
        if cut == "heads":
            shares = enumerate(head_shares(num_kv_heads, num_ranks))
            holders = [rank for rank, share in shares if head in share.kv_heads]
            names = [str(r) for r in (holders[0], holders[-1])]
            rows.append(["-".join(names if len(holders) > 1 else names[:1])] * COLUMNS)
        else:
            rows.append([str(owner(j * 16, num_ranks, 16)) for j in range(COLUMNS)])
    return rows


def _grid(canvas: Canvas, rows: list[list[str]]) -> float:
    """Draws heads down and blocks across, each cell with its rank; rank 0's are filled."""
    left, width = MARGIN + 52, (ROOM - 52) / COLUMNS
    for head, names in enumerate(rows):
        y = _TOP + 18 * head
        canvas.text(MARGIN, y + 13, f"head {head}", size=12, role="faint")
        for column, name in enumerate(names):
            first = name.split("-")[0] == "0"
            canvas.rect(
                left + column * width, y, width - 2, 16, "cached" if first else "paper", "rule"
            )
            if not first:
                canvas.text(left + (column + 0.5) * width - 1, y + 12, name, "middle", size=11)
    return _TOP + 18 * len(rows)


@drawing(
    model=Choice(list(MODELS), "SmolLM2-135M", "model"),
    cut=Choice(["heads", "tokens"], "heads", "cut by"),
    ranks=Slider([1, 2, 3, 4, 8, 16], 2, "ranks"),
    tokens=Slider([40, 1000, 8000, 32000, 128000], 1000, "tokens of the sequence"),
)
def sharded_cache(model: str, cut: str, ranks: int, tokens: int) -> str:
    """Draws who holds which head of which block, bytes per rank and bytes per step."""
    made, shape = split(model, cut, ranks, tokens), catalog.model(model)
    most, total = max(made.nbytes), sum(made.nbytes)
    beyond = "; beyond its context" if tokens > shape.context_length else ""
    rows = cells(cut, shape.kv.num_kv_heads, ranks)
    shown = min(ranks, 4)
    low = _TOP + 18 * len(rows) + 36 + _ROW * shown + 18 * (ranks > shown)
    figures = (
        f"The fullest rank holds {100 * most / made.whole:.3g} % of {sized(made.whole)}.",
        f"All ranks together: {total / made.whole:.2f} times one cache.",
        f"A decode step: each rank sends {sized(made.sent)}, whatever the length.",
    )
    canvas = Canvas(
        "sharded_cache",
        low + 58,
        f"{model}: one cache cut by {cut} over {ranks} rank{'s' * (ranks > 1)}",
        f"KV heads as rows, the first {COLUMNS} blocks as columns, each cell with the rank"
        f" that holds it; then each rank's bytes for {tokens:,} tokens. {' '.join(figures)}",
        heading=f"{model}, cut by {cut} over {ranks} rank{'s' * (ranks > 1)}",
        under=f"First {COLUMNS} blocks of {BLOCK_SIZE}, by rank{beyond}",
    )
    canvas.key(MARGIN, 72, "cached", "rank 0, alone or with others")
    y = _grid(canvas, rows) + 24
    for rank in range(shown):
        canvas.text(MARGIN, y, f"rank {rank}: {made.holds[rank]}")
        canvas.text(WIDTH - MARGIN, y, sized(made.nbytes[rank]), "end")
        canvas.rect(MARGIN, y + 5, ROOM, 8, "paper", "rule")
        canvas.rect(MARGIN, y + 5, ROOM * made.nbytes[rank] / made.whole, 8, "cached")
        y += _ROW
    if ranks > shown:
        canvas.text(
            MARGIN, y, f"and {ranks - shown} more, the last with {made.holds[-1]}", role="faint"
        )
    for i, words in enumerate(figures):
        canvas.text(MARGIN, low + 8 + 19 * i, words, bold=i == 0)
    return canvas.svg()
