"""A paged cache with memories below it: what leaves the device can come back, verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from kvlib.content import NO_EXTRAS, TokenContent
from kvlib.plan import BlockCopy, OutOfBlocks, SeqId
from kvlib.sizes import KVShape
from kvlib.tensors.block_bytes import BlockBytes
from kvlib.tensors.copy_lane import Copy, CopyLane
from kvlib.tensors.known_tokens import KnownTokensKVCache
from kvlib.tensors.lower_tiers import Block, LowerTiers
from kvlib.tensors.paged import PagedPlan
from kvlib.tensors.pending_copies import PendingCopies
from kvlib.tensors.swapped import SwappedSequences, block_keys
from kvlib.tier import Tier


class TieredKVCache(KnownTokensKVCache):
    """Live sequences on the device; below it, by key, the blocks of those that ended or wait.

    - `free` sends a sequence's whole blocks down; `add` with a prompt brings up the leading blocks
      that any tier has. `length` then says how many tokens need not be forwarded.
    - `swap_out` sends a live sequence down, its last, partly filled block included; `swap_in`
      brings it back.

    Nothing that comes up is used before it was verified. What was lost on the way, or never written
    because a disk was full, is missing from `length`: forward it again.

    Copies run in a lane beside the computation. `write` waits for copies of the blocks it writes
    into, `attend` for what arrives in the blocks it reads, and both for their layer only: while one
    layer computes, the next ones arrive. Whoever looks into `store` by another way calls `drain`
    first.

    Args:
        shape: as for `PagedKVCache`, as are `num_blocks`, `block_size`, `way`, `dtype`, `device`.
        num_blocks: usable blocks of the device.
        block_size: tokens per block.
        tiers: below the device, fastest first, each with what holds its bytes. A file is about 200
            bytes longer than its block; a tier's capacity counts blocks.
        extras: what keys and values depend on besides tokens and shape: name the model's weights
            where tiers outlive this object or are shared. See `TokenContent`.
        lane: who copies; one of its own by default. The cache closes it.
        options: `policy`, `min_uses`, `eviction` of `kvlib.tiers.TierStack`.

    Raises:
        TypeError, ValueError: as `PagedKVCache` or `TierStack`.

    Attributes:
        moved: what went up and down, in counts.

    Example:
        >>> from kvlib.tensors.host_blocks import HostBlocks
        >>> shape, host = KVShape(num_layers=1, num_kv_heads=1, head_dim=2), Tier("host", 4096, 10)
        >>> cache = TieredKVCache(shape, num_blocks=4, block_size=2, tiers=[(host, HostBlocks())])
        >>> cache.add("a")
        >>> with cache.step({"a": [7, 8, 9]}) as plan:
        ...     cache.write(0, torch.ones(3, 1, 2), torch.ones(3, 1, 2), plan)
        >>> cache.free("a"); cache.add("b", [7, 8, 9]); cache.length("b")
        2
        >>> cache.close()
    """

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        block_size: int = 16,
        *,
        tiers: Sequence[tuple[Tier, BlockBytes]],
        extras: Mapping[str, str] = NO_EXTRAS,
        lane: CopyLane | None = None,
        way: str | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        **options: object,
    ) -> None:
        super().__init__(shape, num_blocks, block_size, way=way, dtype=dtype, device=device)
        self.lane = CopyLane(device) if lane is None else lane
        block_shape = (shape.num_layers, shape.num_kv_heads, block_size, shape.head_dim)
        self.lower = LowerTiers(tiers, block_shape, dtype, self.lane, **options)
        self.moved = self.lower.moved
        self.extras = {**extras, "block": f"{block_shape} {dtype}"}
        self._swapped = SwappedSequences(self.lower, block_size)
        self.pending = PendingCopies(shape.num_layers)

    @property
    def swapped(self) -> dict[SeqId, int]:
        """The sequences that wait below, each with its number of tokens."""
        return self._swapped.lengths

    def content(self, tokens: Sequence[int]) -> TokenContent:
        """Returns what names the blocks of a sequence in the tiers: tokens, shape and extras."""
        return TokenContent(tokens, self.ledger.block_size, self.extras)

    def add(self, seq_id: SeqId, prompt: Sequence[int] = ()) -> None:
        """Takes a new sequence, and brings up what a tier has of its prompt's beginning.

        Whole blocks come up, as many as the device has room for, and never the whole prompt: its
        last token is to be computed.

        Args:
            seq_id: a new one.
            prompt: the tokens that it will begin with.

        Raises:
            ValueError: the id is live, swapped out or `None`. Nothing changes.
        """
        self._swapped.require_new(seq_id)
        content = self.content(prompt)
        super().add(seq_id)
        most = min(max(len(prompt) - 1, 0) // self.ledger.block_size, self.ledger.num_free)
        self._bring_up(seq_id, prompt, [content.key(i) for i in range(most)])

    def free(self, seq_id: SeqId) -> None:
        """Ends a sequence, live or swapped out; a live one's whole blocks go down.

        Raises:
            KeyError: no such sequence.
            ValueError: it is in an open plan. Nothing changes.
        """
        if seq_id in self._swapped:
            self._swapped.forget(seq_id)
            return
        table, content = self.ledger.table(seq_id), self.content(self.tokens(seq_id))
        super().free(seq_id)
        lost = self.pending.unarrived(table)  # shared ones too
        self._forget_unowned()
        whole = range(content.num_blocks)
        sound = next((i for i in whole if table[i] in lost), len(whole))  # the rest builds on it
        keys = [content.key(i) for i in whole[:sound]]
        kept = self._swapped.num_pinned
        self.lower.store_chain(keys, lambda i: self._send_down(keys[i], table[i]), kept)

    def swap_out(self, seq_id: SeqId) -> None:
        """Sends a live sequence down and gives its blocks to others; it is no longer live.

        Raises:
            KeyError: no such sequence.
            ValueError: it is in an open plan.
            OutOfBlocks: the fastest tier has no room that others do not keep.
            Also what a copy raised that was to bring the sequence up. In each case nothing changes
                for any sequence.
        """
        table = self.ledger.table(seq_id)
        self.ledger.truncate(seq_id, self.length(seq_id))  # refuses a sequence in an open plan
        self.pending.before_read(set(table), len(self.store.keys) - 1)
        tokens, size = self.tokens(seq_id), self.ledger.block_size
        keys = block_keys(self.content(tokens))
        blocks = [(table[i], len(tokens) - i * size) for i in range(len(keys))]
        self._swapped.pin(keys, lambda i: self._send_down(keys[i], *blocks[i]))
        super().free(seq_id)
        self._swapped.take(seq_id, tokens, keys)

    def swap_in(self, seq_id: SeqId) -> int:
        """Brings a sequence back; returns its length, shorter than it was if a block was lost.

        Raises:
            KeyError: no such sequence is swapped out.
            OutOfBlocks: the device has too few free blocks. Nothing changes.
        """
        tokens, keys = self._swapped.of(seq_id)
        if len(keys) > self.ledger.num_free:
            raise OutOfBlocks(f"asked for {len(keys)} blocks, {self.ledger.num_free} free")
        super().add(seq_id)
        self._bring_up(seq_id, tokens, keys)
        self._swapped.forget(seq_id)
        return self.length(seq_id)

    def plan(self, new: Mapping[SeqId, Sequence[int]]) -> PagedPlan:
        """Plans one step; raises as `PagedKVCache.plan`, and then nothing has changed."""
        self._settle()
        return super().plan(new)

    def truncate(self, seq_id: SeqId, num_tokens: int) -> None:
        """Keeps the first tokens; raises as the ledger's `truncate`."""
        super().truncate(seq_id, num_tokens)
        self._forget_unowned()

    def fork(self, parent: SeqId, child: SeqId) -> None:
        """Gives `child` the parent's tokens; raises as the ledger's `fork`."""
        self._swapped.require_new(child)
        super().fork(parent, child)

    def reorder(self, sources: Mapping[SeqId, SeqId]) -> None:
        """Lets each sequence continue another's tokens; raises as the ledger's `reorder`."""
        super().reorder(sources)
        self._forget_unowned()

    def write(self, layer: int, k: Tensor, v: Tensor, plan: PagedPlan) -> None:
        """Stores one layer's new keys and values, once no copy of the layer needs their slots."""
        if self.pending:
            size = self.ledger.block_size
            self.pending.before_write({slot // size for slot in plan.host.slot_mapping}, layer)
        super().write(layer, k, v, plan)

    def attend(self, layer: int, q: Tensor, plan: PagedPlan) -> Tensor:
        """Attends the new queries, once what they read has arrived in this layer."""
        if self.pending:
            self.pending.before_read({b for row in plan.host.block_table for b in row}, layer)
        return super().attend(layer, q, plan)

    def drain(self) -> None:
        """Waits for all copies that are under way."""
        self.lane.drain()
        self._settle()

    def close(self) -> None:
        """Finishes all copies and ends the lane; a second time does nothing."""
        self.lane.close()

    def check(self) -> None:
        """Proves the invariants of the ledger, of the tiers and of what this cache notes itself.

        Waits for the lane.
        """
        super().check()
        self.lower.check()
        self.pending.check()
        assert not self.swapped.keys() & self._tokens.keys(), "a sequence is live and swapped out"

    def _send_down(self, key: bytes, block_id: int, filled: int | None = None) -> None:
        copy = self.lower.store(key, lambda: self._read(block_id, filled))
        if copy is not None:
            self.pending.leave(block_id, copy)

    def _read(self, block_id: int, filled: int | None) -> Block:
        """Runs in the lane."""
        k, v = self.store.keys[:, block_id], self.store.values[:, block_id]
        if filled is not None and filled < self.ledger.block_size:
            # Behind its tokens a block may hold anything, another sequence's past included.
            k, v = k.clone(), v.clone()
            k[:, :, filled:] = v[:, :, filled:] = 0
        return k, v

    def _bring_up(self, seq_id: SeqId, tokens: Sequence[int], keys: Sequence[bytes]) -> None:
        """Fetches blocks up to the first that is lost, and sends them up layer by layer.

        What is raised on the way, and is no loss, ends the sequence that was just added.
        """
        blocks: list[Block] = []
        try:
            with suppress(LookupError):
                for key in keys:
                    blocks.append(self.lower.fetch(key))
            if blocks:
                self.lower.renew(keys[: len(blocks)])
                self._arrive(seq_id, list(tokens[: len(blocks) * self.ledger.block_size]), blocks)
        except BaseException:
            super().free(seq_id)
            raise

    def _arrive(self, seq_id: SeqId, tokens: list[int], blocks: Sequence[Block]) -> None:
        step, copies = self.ledger.plan({seq_id: tokens}), []
        into = step.block_table[0]
        try:
            for layer in range(len(self.store.keys)):
                copies.append(self._send_up(layer, into, blocks))
        except BaseException:
            for copy in copies:  # they write still: nobody else may have these blocks before
                copy.ended()
            self.ledger.abort(step)
            raise
        self.pending.arrive(into, copies)
        self.ledger.commit(step)
        self._tokens[seq_id] = tokens
        self.counters.blocks_allocated += len(blocks)
        self.moved.blocks_up += len(blocks)
        self.moved.tokens_restored += len(tokens)

    def _send_up(self, layer: int, into: Sequence[int], blocks: Sequence[Block]) -> Copy:
        keys, values = self.store.keys[layer], self.store.values[layer]

        def copy() -> None:
            for block_id, (k, v) in zip(into, blocks, strict=True):
                keys[block_id].copy_(k[layer], non_blocking=True)
                values[block_id].copy_(v[layer], non_blocking=True)

        num_bytes = self.lower.block_bytes * len(blocks) // len(self.store.keys)
        return self.lane.submit(copy, num_bytes)

    def _copy(self, copies: Iterable[BlockCopy]) -> None:
        for copy in copies:
            self.pending.before_copy(copy.src, copy.dst)
        super()._copy(copies)

    def _settle(self) -> None:
        self.lower.settle()
        self.pending.forget_done()

    def _forget_unowned(self) -> None:
        """What did not arrive, and is nobody's any more, is no error of the block's next owner."""
        nobodys = {b for b in self.pending.arriving if not self.ledger.pool.ref_count(b)}
        self.pending.forget(self.pending.unarrived(nobodys))
