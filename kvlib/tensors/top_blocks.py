"""A cache that keeps every block and reads few of them."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlib.blocks import BlockPool
from kvlib.plan import StepPlan
from kvlib.sizes import KVShape, whole_number
from kvlib.step_parts import is_decode, last_in_block, part_of, single_lens
from kvlib.tensors.block_bounds import block_bounds, block_extremes, top_blocks
from kvlib.tensors.chosen_blocks import attend_chosen, tokens_read
from kvlib.tensors.paged import PagedKVCache, PagedPlan
from kvlib.tensors.paged_attention import paged_attention
from kvlib.tensors.paged_context import PagedContext


class TopBlocksKVCache(PagedKVCache):
    """Blocks as in `PagedKVCache`, of which a decode query reads the `top_k` most promising.

    **Lossy.** A query that comes alone in its step, as in decoding, reads for each layer and KV
    head only the `top_k` blocks with the highest bound (`block_bounds`), the last one always among
    them. Nothing is given up: another query may read what this one did not. No unread key scores
    above the lowest bound of the chosen blocks, but for the last and the first ones; how far the
    output can be off is bounded by `unread_share`. Exact are: steps that bring a sequence several
    tokens (prefill), sequences of at most `top_k` blocks, and the first `dense_layers` layers.

    It saves reading, not memory: beside its keys and values each block keeps its keys' extremes,
    1 / block_size of their bytes. They are taken anew from the block whenever it is written, so
    that nothing is left in them of an aborted step, a shared block or a shortened sequence. A query
    reads the extremes of all blocks, and all of this is counted.

    Args:
        shape: as for `PagedKVCache`, as are `num_blocks`, `block_size`, `way`, `pool`, `dtype` and
            `device`.
        num_blocks: usable blocks.
        block_size: tokens per block.
        top_k: blocks that a decode query reads.
        first_blocks: how many of the first blocks are always among them.
        dense_layers: layers, from the first on, in which queries read everything.
        way: how to attend to the chosen blocks.
        pool: a pool to share.
        dtype: of the stored keys and values.
        device: where the bytes live.

    Raises:
        TypeError, ValueError: as `PagedKVCache`, or `top_k` leaves no room for the first blocks and
            the last, or there are not so many layers. Nothing is allocated.

    Source: Tang et al., "Quest", ICML 2024. Theirs chooses for each query head; here query heads
    that share a KV head share its blocks, since a block is read for all of them at once.

    Example:
        >>> cache = TopBlocksKVCache(KVShape(1, 1, 2), 4, block_size=2, top_k=2, way="gather")
        >>> cache.add("a")
        >>> for token in range(6):
        ...     with cache.step({"a": [token]}) as plan:
        ...         k = torch.tensor([[[float(token == 1), 0.0]]])
        ...         cache.write(0, k, k, plan)
        ...         out = cache.attend(0, torch.tensor([[[99.0, 0.0]]]), plan)
        >>> [round(number) for number in out.flatten().tolist()]  # token 1 is found, block 1 is not
        [1, 0]
    """

    lossy = True

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        block_size: int = 16,
        *,
        top_k: int,
        first_blocks: int = 0,
        dense_layers: int = 0,
        way: str | None = None,
        pool: BlockPool | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        whole_number("top_k", top_k)
        whole_number("first_blocks", first_blocks, least=0)
        whole_number("dense_layers", dense_layers, least=0)
        if first_blocks >= top_k:
            raise ValueError(
                f"the last block is always read, and the first {first_blocks}: asked for top_k "
                f"{top_k}, at least {first_blocks + 1} are needed"
            )
        if dense_layers > shape.num_layers:
            raise ValueError(f"{dense_layers} dense layers of {shape.num_layers}")
        place = {"dtype": dtype, "device": device}
        super().__init__(shape, num_blocks, block_size, way=way, pool=pool, **place)
        self.top_k, self.first_blocks, self.dense_layers = top_k, first_blocks, dense_layers
        num_layers, blocks, num_kv_heads, _, head_dim = self.store.keys.shape
        self.extremes = torch.zeros(2, num_layers, blocks, num_kv_heads, head_dim, **place)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, used or not, the extremes included."""
        return super().nbytes + self.extremes.nbytes

    def write(self, layer: int, k: Tensor, v: Tensor, plan: PagedPlan) -> None:
        """Stores new keys and values, and takes the extremes of the blocks they went to.

        Raises:
            ValueError: as `PagedKVCache.write`. Nothing changes.
        """
        super().write(layer, k, v, plan)
        size = self.store.block_size
        blocks, filled = plan.slot_mapping // size, plan.positions % size + 1
        if not is_decode(plan.host):
            last = torch.tensor(last_in_block(plan.host), device=self.device, dtype=torch.int64)
            blocks, filled = blocks[last], filled[last]
        keys = self.store.keys[layer]
        self.extremes[:, layer, blocks] = block_extremes(keys[blocks], filled)
        self.counters.bytes_written += self._extremes_bytes(len(last_in_block(plan.host)))
        self.counters.bytes_read += self._refresh_bytes(plan.host)

    def attend(self, layer: int, q: Tensor, plan: PagedPlan) -> Tensor:
        """Attends each sequence's new queries: a single one to few blocks, several to all.

        Args:
            layer: which layer; its new keys and values were written before.
            q: [T, Hq, D], packed as the plan says.
            plan: the open plan.

        Returns:
            [T, Hq, D].
        """
        if not self._chooses(layer, plan):
            return super().attend(layer, q, plan)
        self._require_written(layer, plan)
        if layer == 0:
            self._count_pairs(plan.host)
        self._count_chosen(plan, num_layers=1)
        if is_decode(plan.host):
            return self._attend_few(layer, q, plan.context)
        out = torch.empty_like(q)
        for single in (False, True):
            host, rows = part_of(plan.host, single)
            index = torch.tensor(rows, device=self.device, dtype=torch.int64)
            attend = self._attend_few if single else self._attend_all
            out[index] = attend(layer, q[index], PagedContext.of(host, self.device))
        return out

    def chosen(self, layer: int, q: Tensor, context: PagedContext) -> tuple[Tensor, Tensor]:
        """Returns which blocks single queries read, and what every block could score at most.

        Args:
            layer: which layer.
            q: [T, Hq, D], each the only new token of its sequence.
            context: of their plan.

        Returns:
            Places in the sequence's table [T, Hkv, top_k], rising; bounds [T, Hkv, G, M].
        """
        owner, _, end = context.rows_of(None)
        table = context.block_table[owner].long()
        bounds = block_bounds(q, self.extremes[:, layer, table])
        num_blocks = -(-end // self.store.block_size)
        return top_blocks(bounds, num_blocks, self.top_k, self.first_blocks), bounds

    def count_step(self, plan: PagedPlan) -> None:
        """Counts the work of a whole step that ran where Python could not see it, in a graph."""
        num_layers = len(self.store.keys)
        super().count_step(plan)
        choosing = sum(self._chooses(layer, plan) for layer in range(num_layers))
        if choosing:
            super()._count_read(plan, -choosing)
            self._count_chosen(plan, choosing)
        extremes = self._extremes_bytes(len(last_in_block(plan.host)))
        self.counters.bytes_written += num_layers * extremes
        self.counters.bytes_read += num_layers * self._refresh_bytes(plan.host)

    def check(self) -> None:
        """Proves what `PagedKVCache.check` does, and that extremes enclose every committed key."""
        super().check()
        size = self.store.block_size
        for seq_id in self.ledger.seq_ids:
            for place, block in enumerate(self.ledger.table(seq_id)):
                filled = min(size, self.length(seq_id) - place * size)
                if filled <= 0:
                    continue
                keys = self.store.keys[:, block]
                lows, highs = block_extremes(keys, torch.full((len(keys),), filled).to(keys.device))
                held = self.extremes[:, :, block]
                enclosed = (held[0] <= lows) & (held[1] >= highs)
                tight = filled < size or torch.equal(held, torch.stack((lows, highs)))
                assert enclosed.all() and tight, f"extremes of block {block} of {seq_id!r}"

    def _chooses(self, layer: int, plan: PagedPlan) -> bool:
        more = plan.context.block_table.shape[1] > self.top_k
        return layer >= self.dense_layers and more and bool(single_lens(plan.host))

    def _attend_all(self, layer: int, q: Tensor, context: PagedContext) -> Tensor:
        keys, values = self.store.keys[layer], self.store.values[layer]
        return paged_attention(q, keys, values, context, way=self.way)[0]

    def _attend_few(self, layer: int, q: Tensor, context: PagedContext) -> Tensor:
        if not len(q):
            return torch.empty_like(q)
        places, _ = self.chosen(layer, q, context)
        keys, values = self.store.keys[layer], self.store.values[layer]
        return attend_chosen(q, keys, values, context, places, self.way)

    def _unread(self, host: StepPlan) -> int:
        """Tokens that the single queries of a step leave out when they choose."""
        size = self.store.block_size
        return sum(n - tokens_read(n, size, self.top_k) for n in single_lens(host))

    def _count_pairs(self, host: StepPlan, window: int | None = None) -> None:
        super()._count_pairs(host, window)
        if self.dense_layers < len(self.store.keys):
            self.counters.attention_pairs -= self._unread(host)

    def _count_chosen(self, plan: PagedPlan, num_layers: int) -> None:
        """Counts keys and values of what is read, and the extremes that were looked at."""
        size, singles = self.store.block_size, single_lens(plan.host)
        num_tokens = plan.context.num_seen(None) - self._unread(plan.host)
        per_token = self.store.bytes_per_token // len(self.store.keys)
        looked_at = self._extremes_bytes(sum(-(-n // size) for n in singles))
        self.counters.bytes_read += num_layers * (per_token * num_tokens + looked_at)
        self.counters.kernels[self.way] += num_layers
        self.counters.kernels["block_bounds"] += num_layers

    def _extremes_bytes(self, num_blocks: int) -> int:
        """Bytes of one layer's extremes; as many as one token's keys and values."""
        return self.store.bytes_per_token // len(self.store.keys) * num_blocks

    def _refresh_bytes(self, host: StepPlan) -> int:
        """Bytes of the keys that one layer's extremes are taken from after a step's writes."""
        filled = sum(host.positions[t] % host.block_size + 1 for t in last_in_block(host))
        return self.store.bytes_per_token // len(self.store.keys) // 2 * filled
