"""What a model of transformers asks of a cache: its layers in groups, and how each group is kept.

Layers that see the same tokens share one cache of kvlib. A model whose layers are all alike has one
group; one that alternates between a window and the whole context has two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvlib.sizes import KVShape
from kvlib.tensors.attention import causal_mask, contiguous_attention
from kvlib.tensors.caches import LedgerCache
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.step import DevicePlan
from kvlib.tensors.tiered import TieredKVCache

Make = Callable[[KVShape, "int | None", tuple[int, ...]], LedgerCache]
KEPT = {"full_attention": False, "sliding_attention": True}


class Group(NamedTuple):
    """Layers that see the same tokens.

    Attributes:
        layers: their indices in the model.
        window: how many tokens a query sees, itself included; None for all.
        cache: a cache of kvlib with as many layers.
    """

    layers: tuple[int, ...]
    window: int | None
    cache: LedgerCache

    @property
    def drops(self) -> bool:
        """Whether the cache gives back what the window has passed."""
        rolls = isinstance(self.cache, PagedKVCache) and not isinstance(self.cache, TieredKVCache)
        return self.window is not None and rolls

    def seen_from(self, end: int, num_queries: int) -> int:
        """Returns the first position that any of the last queries before `end` sees."""
        return 0 if self.window is None else max(0, end - num_queries - self.window + 1)


def groups(config: Any, layer_types: Sequence[str], make: Make) -> list[Group]:
    """Makes a cache for each kind of layer.

    Args:
        config: of the decoder.
        layer_types: the kind of each layer, in transformers' words.
        make: gets a shape, a window or None, and the layers; returns a cache.

    Raises:
        ValueError: layers that keep something else than keys and values of their own tokens. Their
            kinds are named; nothing is allocated.
    """
    if strange := sorted(set(layer_types) - KEPT.keys()):
        raise ValueError(
            f"kvlib's caches hold keys and values of {' and '.join(KEPT)} layers, this model has"
            f" layers of {', '.join(strange)}"
        )
    if getattr(config, "kv_lora_rank", None):
        raise ValueError("these caches hold keys and values, an MLA model has one latent")
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    found = []
    for kind in dict.fromkeys(layer_types):
        layers = tuple(i for i, each in enumerate(layer_types) if each == kind)
        window = config.sliding_window if KEPT[kind] else None
        shape = KVShape(len(layers), kv_heads, head_dim)
        found.append(Group(layers, window, make(shape, window, layers)))
    return found


def gathered(
    group: Group, layer: int, plan: DevicePlan, rows: Sequence[int], first: int, new: Sequence
) -> tuple[Tensor, Tensor]:
    """Returns keys and values of sequences that are equally long, [S, Hkv, end - first, D].

    Rows of a contiguous cache that lie side by side are a view; everything else is a copy.

    Args:
        group: the layers' cache.
        layer: which of its layers; new keys and values were written before.
        plan: the open plan.
        rows: which of the plan's sequences.
        first: the first position wanted; the last is that of the last new token.
        new: by sequence, its new keys and values, each [Hkv, T, D].
    """
    cache, end = group.cache, plan.host.context_lens[rows[0]]
    if isinstance(cache, QuantizedKVCache):
        held = [cache.read(plan.host.seq_ids[s], layer) for s in rows]
        pairs = [(old, new[s]) for s, old in zip(rows, held, strict=True)]
        return tuple(
            torch.stack([torch.cat([old[side], fresh[side]], 1)[:, first:] for old, fresh in pairs])
            for side in range(2)
        )
    sides = (cache.store.keys[layer], cache.store.values[layer])
    if not isinstance(cache, PagedKVCache):
        at = [plan.host.block_table[s][0] for s in rows]
        near = at == list(range(at[0], at[0] + len(at)))
        place = slice(at[0], at[0] + len(at)) if near else torch.tensor(at, device=cache.device)
        return tuple(side[place][:, :, first:end] for side in sides)
    if isinstance(cache, TieredKVCache) and cache.pending:
        cache.pending.before_read({b for s in rows for b in plan.host.block_table[s]}, layer)
    size = cache.ledger.block_size
    low, skip = first // size, first % size
    table = plan.context.block_table[list(rows), low : -(-end // size)].long()
    runs = (side[table].transpose(1, 2).flatten(2, 3) for side in sides)
    return tuple(run[:, :, skip : skip + end - first] for run in runs)


def attend_explicitly(
    q: Tensor, k: Tensor, v: Tensor, window: int | None, scale: float, softcap: float | None
) -> Tensor:
    """Attends the last tokens' queries to contiguous keys, with what no kernel here knows.

    Args:
        q: [Tq, Hq, D].
        k: [Hkv, Tk, D], up to the last query's own.
        v: [Hkv, Tk, D].
        window: as for `causal_mask`.
        scale: factor on the scores.
        softcap: scores become `softcap * tanh(scores / softcap)`; None leaves them.

    Returns:
        [Tq, Hq, D].
    """
    if softcap is None:
        return contiguous_attention(q * (scale * q.shape[2] ** 0.5), k, v, window=window)
    group = q.shape[1] // len(k)
    grouped = q.unflatten(1, (len(k), group))
    # In float32: half precision has no number for the scores of large keys.
    products = torch.einsum("qhgd,hkd->hgqk", grouped.float(), k.float())
    scores = softcap * torch.tanh(products * (scale / softcap))
    seen = causal_mask(len(q), k.shape[1], window=window, device=q.device)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).to(v.dtype)
    return torch.einsum("hgqk,hkd->qhgd", weights, v).flatten(1, 2)
