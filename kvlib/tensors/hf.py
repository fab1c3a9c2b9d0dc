"""kvlib's caches under a decoder-only model of Hugging Face transformers, for `model.generate`.

Three lines put one there::

    model.set_attn_implementation("kvlib")
    cache = HFCache.paged(model, num_blocks=64)
    model.generate(ids, cache=cache)

With "kvlib" as the model's attention the new keys and values are stored where they belong and
attended to where they lie; with any other ("sdpa", "eager") the cache gathers what it holds into
the rectangle that transformers asks for. `B` counts rows of a batch, `T` new columns.

One layer of one forward pass under "kvlib", file by file: the model calls `update` (`hf_cache`),
which leaves word where the cache is, then the attention function (`hf_attention`); that calls
`attend` of the cache, which opens a step at the first layer (`hf_step`), for the sequences that the
rows are, without their pads (`hf_rows`), in the cache of the layer's kind (`hf_groups`). The step
stores, and calls the kernel of that cache, for a few tokens on the CPU directly (`hf_decode`).
Questions about single layers come through `hf_layer`; `hf_support` looks at the version first.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from kvlib.metrics import WorkCounters
from kvlib.precision import Precision
from kvlib.sizes import KVShape
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.hf_attention import NAME
from kvlib.tensors.hf_cache import SteppedCache
from kvlib.tensors.hf_groups import Make
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.quantized import QuantizedKVCache
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tier import Tier


class HFCache(SteppedCache):
    """A cache of kvlib that `model.generate(cache=...)` takes, by the kind of cache.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
        >>> config = LlamaConfig(**sizes, num_attention_heads=2, eos_token_id=None)
        >>> model = LlamaForCausalLM(config).eval()
        >>> model.set_attn_implementation("kvlib")
        >>> cache = HFCache.paged(model, num_blocks=8, block_size=4)
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> _ = model.generate(ids, cache=cache, max_new_tokens=3, pad_token_id=0)
        >>> cache.counters.tokens_forwarded, [g.cache.ledger.num_free for g in cache.groups]
        (5, [6])
        >>> cache.reset(); cache.groups[0].cache.ledger.num_free
        8
    """

    def __init__(self, model: torch.nn.Module, make: Make) -> None:
        """Makes the caches; a hook on the model notes the tokens by which tiers name blocks."""
        super().__init__(model, make)
        self._hook: Any = None
        if self._named:
            self._hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    @classmethod
    def contiguous(cls, model: torch.nn.Module, num_seqs: int, max_seq_len: int) -> HFCache:
        """Returns a cache with one row of slots a sequence; as `ContiguousKVCache`."""
        on = _where(model)
        return cls(model, lambda shape, *_: ContiguousKVCache(shape, num_seqs, max_seq_len, **on))

    @classmethod
    def paged(
        cls,
        model: torch.nn.Module,
        num_blocks: int,
        block_size: int = 16,
        *,
        way: str | None = None,
    ) -> HFCache:
        """Returns a paged cache, `num_blocks` for each kind of layer; as `PagedKVCache`."""
        on = {**_where(model), "way": way}
        return cls(
            model,
            lambda shape, window, _: PagedKVCache(
                shape, num_blocks, block_size, window=window, **on
            ),
        )

    @classmethod
    def quantized(
        cls,
        model: torch.nn.Module,
        num_blocks: int,
        block_size: int = 16,
        *,
        num_seqs: int = 8,
        **formats: Precision,
    ) -> HFCache:
        """Returns a cache of codes, **lossy**; as `QuantizedKVCache`, formats included."""
        on = {**_where(model), "num_seqs": num_seqs, **formats}
        return cls(model, lambda shape, *_: QuantizedKVCache(shape, num_blocks, block_size, **on))

    @classmethod
    def tiered(
        cls,
        model: torch.nn.Module,
        num_blocks: int,
        block_size: int = 16,
        *,
        host_bytes: int = 2**30,
        way: str | None = None,
    ) -> HFCache:
        """Returns a paged cache above host memory, which keeps what was reset; `close` ends it.

        Blocks are named by their tokens, which no cache is shown: a hook on the model notes them.
        """
        on = {**_where(model), "way": way}

        def make(shape: KVShape, *_: Any) -> TieredKVCache:
            tiers = [(Tier("host", host_bytes, 10), HostBlocks())]
            return TieredKVCache(shape, num_blocks, block_size, tiers=tiers, **on)

        return cls(model, make)

    @property
    def nbytes(self) -> int:
        """Bytes allocated by all groups, used or not."""
        return sum(group.cache.nbytes for group in self.groups)

    @property
    def counters(self) -> WorkCounters:
        """The work of all groups; attention pairs are counted once for each group."""
        each = [group.cache.counters for group in self.groups]
        total = each[0].snapshot()
        for more in each[1:]:
            for name in (f.name for f in fields(WorkCounters)):
                setattr(total, name, getattr(total, name) + getattr(more, name))
        return total

    def restore(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> int:
        """Takes a new batch and brings up what the tiers have of its prompts.

        Args:
            input_ids: [B, T], as `generate` will get them.
            attention_mask: [B, T], 0 for pads on the left.

        Returns:
            How many columns need not be forwarded, as many as every row has.

        Raises:
            ValueError: a batch is held already. Nothing changes.
        """
        if self.rows:
            raise ValueError(f"{len(self.rows)} rows are held: reset() before a new batch")
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        prompts = [ids[keep].tolist() for ids, keep in zip(input_ids, real.bool(), strict=True)]
        self._rows.add(len(prompts), prompts if self._named else None)
        pads = [input_ids.shape[1] - len(prompt) for prompt in prompts]
        for group in self.groups:
            have = [group.cache.length(row) for row in self.rows]
            common = min(p + n for p, n in zip(pads, have, strict=True))
            self._columns = min(common, self._columns) if group is not self.groups[0] else common
        for group in self.groups:
            for row, pad in zip(self.rows, pads, strict=True):
                group.cache.truncate(row, max(0, self._columns - pad))
        self._columns = self._columns if any(self._rows.lengths) else 0
        self._attention = NAME if self._columns else None
        return self._columns

    def close(self) -> None:
        """Resets, and ends what a two-tier cache has running."""
        self.reset()
        for group in self.groups:
            if isinstance(group.cache, TieredKVCache):
                group.cache.close()
        if self._hook is not None:
            self._hook.remove()

    def _note(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Before a forward: its token ids, by which tiers name blocks."""
        if kwargs.get("cache", kwargs.get("past_key_values")) is not self:
            return
        self._ids = kwargs.get("input_ids", args[0] if args else None)
        padding = kwargs.get("attention_mask")
        pads = padding is not None and padding.dim() == 2 and not bool(padding.all())
        if pads and self.config._attn_implementation != NAME:
            raise ValueError(
                "a two-tier cache would name pads like tokens: give padded batches to a model"
                f" whose attention is {NAME!r}"
            )


def _where(model: torch.nn.Module) -> dict[str, Any]:
    return {"dtype": model.dtype, "device": model.device}
