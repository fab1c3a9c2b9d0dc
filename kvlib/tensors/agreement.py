"""What ranks compare before they touch a cache together: the cache, the step, the queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TypeVar

import torch
from torch import Tensor

from kvlib.plan import SeqId
from kvlib.sizes import KVShape
from kvlib.tensors.distributed import Ranks

Plan = TypeVar("Plan")


def same_cache(
    ranks: Ranks,
    kind: type,
    shape: KVShape,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
) -> None:
    """Agrees on the cache that every rank is about to make its part of, before it allocates.

    Args:
        ranks: the group.
        kind: class of the cache.
        shape: of the whole model.
        num_blocks: usable blocks of each rank.
        block_size: tokens per block.
        dtype: of the stored keys and values.

    Raises:
        RanksDisagree, PeerLost: as `Ranks.agree`.
    """
    ranks.agree("a cache", f"{kind.__name__} {shape} {num_blocks}x{block_size} {dtype}")


def plan_together(
    ranks: Ranks,
    plan: Callable[[Mapping[SeqId, Sequence[int]]], Plan],
    abort: Callable[[Plan], None],
    length: Callable[[SeqId], int],
    new: Mapping[SeqId, Sequence[int]],
) -> Plan:
    """Plans a step on every rank or on none.

    The ranks compare lengths and tokens, so that a rank that chose another token is found before
    its keys are mixed with the others'. They do so by a hash under the group's salt, which tells
    nobody what was said. Names of sequences may differ from rank to rank.

    Raises:
        RanksDisagree: another step, or a rank refused it alone. Every rank takes its plan back.
        PeerLost: likewise.
        Also what `plan` raises, if it does on every rank.
    """
    made, refusal = None, None
    try:
        made = plan(new)
        step = [(length(seq_id), list(tokens)) for seq_id, tokens in new.items()]
        digest = sha256(ranks.salt + repr(step).encode()).hexdigest()[:16]
        said = f"{sum(len(t) for _, t in step)} new tokens of {len(step)} sequences, {digest}"
    except Exception as error:
        refusal, said = error, f"{type(error).__name__}: {error}"
    try:
        ranks.agree("a step", said)
    except BaseException:
        if made is not None:
            abort(made)
        raise
    if refusal is not None:
        raise refusal
    return made


def same_queries(ranks: Ranks, q: Tensor, agreed: str | None) -> str:
    """Agrees on the queries [T, Hq, D] of a first step; later ones are compared with it here.

    Returns:
        What was agreed on, to be passed the next time.

    Raises:
        RanksDisagree, PeerLost: as `Ranks.agree`.
        ValueError: these queries are not the agreed ones. Nothing was sent.
    """
    mine = f"{q.shape[1]} heads of {q.shape[2]}, {q.dtype}"
    if agreed is None:
        ranks.agree("queries", mine)
    elif mine != agreed:
        raise ValueError(f"the ranks agreed on queries of {agreed}, got {mine}")
    return mine
