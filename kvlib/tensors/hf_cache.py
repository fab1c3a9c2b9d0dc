"""The cache interface of transformers over caches of kvlib: one forward pass is one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvlib.plan import SeqId
from kvlib.tensors.hf_attention import NAME, keys_lost
from kvlib.tensors.hf_groups import Make, groups
from kvlib.tensors.hf_layer import CacheLayer
from kvlib.tensors.hf_rows import BatchRows, real_columns
from kvlib.tensors.hf_step import ForwardStep
from kvlib.tensors.hf_support import require_transformers
from kvlib.tensors.known_tokens import KnownTokensKVCache

require_transformers()

from transformers.cache_utils import Cache, get_layer_types_and_kwargs  # noqa: E402


class SteppedCache(Cache):
    """Caches of kvlib, one for each kind of layer, in the shape that transformers calls.

    A forward pass is one step: blocks are reserved at its first layer for all layers or not at all,
    lengths advance behind its last. One that raises in between has left no trace once the next
    begins, or `reset` is called; the same tokens can then be forwarded again.

    After `generate` the cache still holds the text, so that it can be continued. `reset` gives
    everything back.

    Args:
        model: a decoder-only model of transformers, on one device.
        make: gets the shape of some layers, their window or None, and their indices; returns the
            cache of kvlib that holds them.

    Raises:
        UnsupportedTransformers: the interface is not the one that is known.
        ValueError: the model has layers that these caches cannot hold. Nothing is allocated.

    Attributes:
        groups: layers that see the same tokens, with their caches.
    """

    def __init__(self, model: torch.nn.Module, make: Make) -> None:
        require_transformers()
        self.config = model.config.get_text_config(decoder=True)
        kinds, _ = get_layer_types_and_kwargs(self.config)
        self.groups = groups(self.config, kinds, make)
        # Tiers name blocks by their tokens, which no cache is shown: see `HFCache`.
        self._named = any(isinstance(group.cache, KnownTokensKVCache) for group in self.groups)
        owner = {layer: group for group in self.groups for layer in group.layers}
        self._order = sorted(owner)
        super().__init__(layers=[CacheLayer(self, i, owner[i]) for i in self._order])
        self._rows = BatchRows(self.groups)
        self._columns = 0
        self._attention: str | None = None  # under which the columns were stored
        self._way = ""  # of the forward that runs
        self._step: ForwardStep | None = None
        self._awaited: int | None = None
        self._ids: Tensor | None = None  # of the forward that comes, where blocks are named

    @property
    def rows(self) -> tuple[SeqId, ...]:
        """The sequences of the batch; by these names the groups' caches know them."""
        return self._rows.ids

    @property
    def batch_size(self) -> int:
        """Rows of the batch that is held, -1 before the first."""
        return len(self.rows) or -1

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by every layer with its new keys and values, [B, Hkv, T, D].

        Returns:
            All keys and values that the layer sees, [B, Hkv, Tk, D]; under "kvlib" the new ones,
            which are stored when the attention function asks.

        Raises:
            OutOfBlocks, SequenceTooLong: no room; no cache has changed.
            ValueError: another batch than the one that is held, a change of attention, or keys that
                ask for gradients.
            RuntimeError: layers come in another order, or the model does not hand on what this
                returns.
        """
        if key_states.requires_grad:
            raise ValueError(
                "a cache of kvlib keeps no gradients, and these keys ask for them: call the model"
                " under torch.no_grad()"
            )
        if layer_idx == self._order[0]:
            self._way = self.config._attn_implementation
        if self._way == NAME:
            self._hand_over(layer_idx, kwargs.get("kwargs"))
            key_states.kvlib_layer = layer_idx  # by which `attention` knows keys that were lost
            return key_states, value_states
        step = self._turn(layer_idx, key_states, None)
        whole = step.read(layer_idx, key_states, value_states)
        self._settle()
        return whole

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        *,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """Called by the attention function: stores and attends, as `ForwardStep.attend`.

        Args:
            layer: the model's.
            q: [B, Hq, T, D].
            k: [B, Hkv, T, D].
            v: [B, Hkv, T, D].
            padding: [B, columns] bool, False for pads, all columns so far; None without pads.
            scale: factor on the scores.
            softcap: as for `attend_explicitly`.

        Raises:
            As `update`.
        """
        self._awaited = None
        out = self._turn(layer, k, padding).attend(layer, q, k, v, scale, softcap)
        self._settle()
        return out

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the columns seen, pads included: it is how `generate` counts."""
        return self._columns

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Returns how many columns a layer's keys have, and which is the first."""
        return self.layers[layer_idx].get_mask_sizes(query_length)

    def reset(self) -> None:
        """Gives every block back, and what a step that raised had taken."""
        self._forget_step()
        self._rows.free()
        self._rows.stop_recording()
        self._columns, self._attention, self._awaited, self._ids = 0, None, None, None

    def check(self) -> None:
        """Proves the invariants of every group's cache, and that all hold the same tokens.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        for group in self.groups:
            group.cache.check()
            lengths = [group.cache.length(row) for row in self.rows]
            assert lengths == self._rows.lengths, f"one group holds {lengths}, {self._rows.lengths}"
        most = max(self._rows.lengths, default=0)
        assert most <= self._columns, f"a row of {most} tokens in {self._columns} columns"
        open_ids = [group.cache.ledger.open_plan_ids for group in self.groups]
        assert self._step is not None or not any(open_ids), "a plan is open, and no forward runs"

    def crop(self, tokens_to_remove: int) -> None:
        """Takes the last columns away, a negative number of them, as assisted decoding does.

        Raises:
            ValueError: a positive number, or more columns than there are.
            RuntimeError: as `BatchRows.crop`. In each case nothing changes.
        """
        if not -self._columns <= tokens_to_remove <= 0:
            raise ValueError(
                f"crop takes 0 to {self._columns} columns away, as a negative number, asked for"
                f" {tokens_to_remove}"
            )
        self._forget_step()
        self._rows.crop(-tokens_to_remove)
        self._columns += tokens_to_remove

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Lets each row continue another's text, as beam search does; no key is copied."""
        self._forget_step()
        self._rows.reorder(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row; the copies share its blocks."""
        self._forget_step()
        self._rows.select([i for i in range(len(self.rows)) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps some rows."""
        self._forget_step()
        self._rows.select(torch.arange(len(self.rows))[indices.cpu()].tolist())

    def activate_past_recording(self) -> None:
        """Makes windows keep what is new until `crop`: assisted decoding takes tokens back."""
        self._rows.record()

    def _hand_over(self, layer: int, options: dict[str, Any] | None) -> None:
        """Gives the attention function this cache; what it does not take is not stored."""
        lost = self._awaited is not None and layer != self._order[0]
        if options is None or lost:
            raise keys_lost(layer if options is None else self._awaited)
        options[NAME] = (self, layer)
        self._awaited = layer

    def _turn(self, layer: int, k: Tensor, padding: Tensor | None) -> ForwardStep:
        """Returns the step, a new one at the first layer."""
        if layer == self._order[0]:
            self._forget_step()
            self._step = self._begin(k.shape[0], k.shape[2], padding)
        step = self._step
        if step is None or not step.expects(layer):
            raise RuntimeError(f"layer {layer} is not the next of this forward pass")
        return step

    def _begin(self, num_rows: int, num_columns: int, padding: Tensor | None) -> ForwardStep:
        way, held = self._way, self._rows.lengths
        if held and len(held) != num_rows:
            raise ValueError(
                f"a batch of {num_rows} rows came, {len(held)} are held: reset() before a new batch"
            )
        if self._columns and (self._attention == NAME) != (way == NAME):
            raise ValueError(
                f"{self._columns} columns were stored under {self._attention!r}, a forward under"
                f" {way!r} would not see the same: reset() before the attention is changed"
            )
        windows = any(group.window is not None for group in self.groups)
        lengths = held or [0] * num_rows
        real = real_columns(padding, lengths, self._columns, num_columns, windows)
        tokens = self._tokens(num_rows, num_columns, real)
        new = not held
        if new:
            self._rows.add(num_rows)
        try:
            step = ForwardStep(self.groups, self.rows, tokens, real, num_columns)
        except BaseException:
            if new:
                self._rows.free()
            raise
        self._attention = way
        return step

    def _tokens(
        self, num_rows: int, num_columns: int, real: Tensor | None
    ) -> Sequence[Sequence[int]]:
        """By row, the ids of the new tokens where they are known, placeholders where not."""
        ids, self._ids = self._ids, None
        if not self._named:
            counts = [num_columns] * num_rows if real is None else real.sum(1).tolist()
            return [(0,) * n for n in counts]
        if ids is None or tuple(ids.shape) != (num_rows, num_columns):
            raise ValueError(
                "blocks of a two-tier cache are named by tokens: call the model itself, with"
                f" input_ids for {num_rows} rows of {num_columns} columns"
            )
        keep = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        return [row[kept].tolist() for row, kept in zip(ids, keep, strict=True)]

    def _settle(self) -> None:
        """Ends the step behind its last layer."""
        if self._step is None or not self._step.done:
            return
        step, self._step = self._step, None
        try:
            step.commit()
        except BaseException:
            self.reset()
            raise
        self._columns += step.num_columns
        self.groups[0].cache.counters.tokens_forwarded += step.num_tokens

    def _forget_step(self) -> None:
        if self._step is None:
            return
        self._step.abort()
        self._step = None
        if not any(self._rows.lengths):  # rows that came with it
            self._rows.free()
