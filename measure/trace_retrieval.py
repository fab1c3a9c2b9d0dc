"""What retrieval leaves to a cache, on RAGPulse: python measure/trace_retrieval.py.

A prompt with retrieved passages repeats much and begins alike seldom. A prefix cache of any size
finds only equal beginnings; keys and values of a passage that stood behind other words are others.
The order of the pieces in a prompt is our assumption: the publisher states none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvlib.request import ContentPiece
from resample import ratio_interval
from whole_traces import load, record_figures

Pieces = tuple[ContentPiece, ...]
KINDS = ("sys", "passage", "history", "web", "user")


def tokens(pieces: Iterable[ContentPiece]) -> int:
    """Returns the tokens of pieces."""
    return sum(piece.num_tokens for piece in pieces)


def by_prefix(prompts: Iterable[Pieces]) -> list[Pieces]:
    """Returns of each prompt the leading pieces with which an earlier prompt began."""
    seen: set[Pieces] = set()
    found = []
    for pieces in prompts:
        begins = [pieces[:n] for n in range(1, len(pieces) + 1)]
        found.append(max((each for each in begins if each in seen), key=len, default=()))
        seen.update(begins)
    return found


def anywhere(prompts: Iterable[Pieces]) -> list[Pieces]:
    """Returns of each prompt the pieces that an earlier prompt had, wherever."""
    seen: set[ContentPiece] = set()
    found = []
    for pieces in prompts:
        found.append(tuple(piece for piece in pieces if piece in seen))
        seen.update(pieces)
    return found


def share(found: Sequence[Pieces], prompts: Sequence[Pieces]) -> float:
    """Returns the percentage of the pieces' tokens that were found."""
    return round(100 * sum(map(tokens, found)) / sum(map(tokens, prompts)), 1)


def of_kinds(found: Sequence[Pieces], prompts: Sequence[Pieces]) -> dict[str, float]:
    """Returns the same for each kind of piece, of all pieces' tokens."""
    return {
        kind: share([tuple(p for p in pieces if p.kind == kind) for pieces in found], prompts)
        for kind in KINDS
    }


def sorted_passages(pieces: Pieces) -> Pieces:
    """Returns a prompt with its passages in the order of their numbers, all else where it was."""
    passages = iter(sorted(piece for piece in pieces if piece.kind == "passage"))
    return tuple(next(passages) if piece.kind == "passage" else piece for piece in pieces)


def changing_later(pieces: Pieces) -> Pieces:
    """Returns a prompt with the last piece of its system prompt behind its passages."""
    kinds = [piece.kind for piece in pieces]
    last, behind = kinds.index("passage") - 1 if "passage" in kinds else -1, kinds.count("passage")
    if last < 0:
        return pieces
    rest = pieces[:last] + pieces[last + 1 :]
    return rest[: last + behind] + pieces[last : last + 1] + rest[last + behind :]


def figures() -> dict[str, Any]:
    """Returns what is found by prefix and anywhere, by kind, and with pieces in other orders."""
    rag = load("ragpulse")
    prompts = [request.pieces for request in rag.requests]
    prefix, free = by_prefix(prompts), anywhere(prompts)
    lengths, half = list(map(tokens, prompts)), len(prompts) // 2
    last_system = [[p for p in pieces if p.kind == "sys"][-1] for pieces in prompts]
    later = [changing_later(pieces) for pieces in prompts]
    orders = {
        "as traced": prompts,
        "passages sorted": [sorted_passages(pieces) for pieces in prompts],
        "changing piece later": later,
        "both": [sorted_passages(pieces) for pieces in later],
    }
    return {
        "source": rag.source,
        "num_requests": len(prompts),
        "num_sessions": len({request.session_id for request in rag.requests}),
        "with_passages": sum(any(p.kind == "passage" for p in pieces) for pieces in prompts),
        "prefix": ratio_interval(list(zip(map(tokens, prefix), lengths, strict=True)), 3),
        "anywhere": ratio_interval(list(zip(map(tokens, free), lengths, strict=True)), 3),
        "halves_percent": [
            [share(way[part], prompts[part]) for part in (slice(half), slice(half, None))]
            for way in (prefix, free)
        ],
        "prompt_by_kind": of_kinds(prompts, prompts),
        "prefix_by_kind": of_kinds(prefix, prompts),
        "anywhere_by_kind": of_kinds(free, prompts),
        "system_pieces": sorted({sum(p.kind == "sys" for p in pieces) for pieces in prompts}),
        "last_system_pieces": len(set(last_system)),
        "by_prefix_percent": {name: share(by_prefix(way), way) for name, way in orders.items()},
    }


if __name__ == "__main__":
    code = ("kvlib/trace_ragpulse.py", "measure/trace_retrieval.py", "measure/resample.py")
    record_figures("trace_retrieval", figures, ["ragpulse"], code)
