"""Decode steps of one fixed shape: on CUDA captured once and replayed, so that launching is cheap.

A captured graph remembers addresses. So everything a step reads lies in buffers that stay where
they are, and each step copies its tokens and tables into them first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kvlib.plan import SeqId, StepPlan
from kvlib.sizes import whole_number
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache, PagedPlan
from kvlib.tensors.tiered import TieredKVCache


class DecodeGraph:
    """Decodes one token for each of at most `num_seqs` sequences, always with the same shapes.

    Shorter batches are padded; padding writes into the null block and reads nothing. On a CPU the
    same buffers are used without a capture.

    Args:
        model: on the cache's device.
        cache: a paged cache; its way to attend must not make the host wait (`triton` on CUDA).
        num_seqs: sequences of the largest batch.
        max_blocks: blocks of the longest sequence.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1, or the cache attends in
            a way that cannot be captured.
    """

    def __init__(self, model: Llama, cache: PagedKVCache, num_seqs: int, max_blocks: int) -> None:
        whole_number("num_seqs", num_seqs)
        whole_number("max_blocks", max_blocks)
        if cache.device.type == "cuda" and cache.way != "triton":
            raise ValueError(
                f"only the way 'triton' can be captured, this cache uses {cache.way!r}"
            )
        self.model, self.cache = model, cache
        self.num_seqs, self.max_blocks = num_seqs, max_blocks
        self._null = cache.ledger.pool.null_block_id
        self._tokens = torch.zeros(num_seqs, dtype=torch.int64, device=cache.device)
        self._static: PagedPlan | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None

    def step(self, new: Mapping[SeqId, int]) -> Tensor:
        """Decodes one token of each sequence and commits the step.

        Args:
            new: the token that each sequence goes on with.

        Returns:
            Logits [len(new), vocab_size], a view that the next step overwrites.

        Raises:
            ValueError: more sequences, or more blocks in one of them, than the graph has room for.
            KeyError, OutOfBlocks, SequenceTooLong: as `PagedKVCache.plan`. In each case nothing
                changes.
        """
        if len(new) > self.num_seqs:
            raise ValueError(f"this graph has room for {self.num_seqs} sequences, got {len(new)}")
        plan = self.cache.plan({seq_id: [token] for seq_id, token in new.items()})
        before = self.cache.counters.snapshot()
        try:
            if isinstance(self.cache, TieredKVCache):
                self.cache.drain()  # what is replayed waits for no copy
            self._fill(plan, list(new.values()))
            logits = self._run()
        except BaseException:
            self.cache.abort(plan)
            raise
        self.cache.note_written(plan)  # what is replayed writes without asking Python
        self.cache.commit(plan)
        self.cache.counters = before
        self.cache.count_step(plan)
        return logits[: len(new)]

    def _fill(self, plan: PagedPlan, tokens: list[int]) -> None:
        host = self._padded(plan.host)
        fresh = PagedPlan.of(host, self.cache.device)
        window = self.cache.ledger.window
        rows = fresh.context.rows_of(window)
        padding = [0] * (self.num_seqs - len(tokens))
        self._tokens.copy_(torch.tensor([*tokens, *padding]))
        if self._static is None:
            self._static = fresh
            return
        kept = self._static
        for name in ("positions", "slot_mapping", "last_token"):
            getattr(kept, name).copy_(getattr(fresh, name))
        for name in ("block_table", "context_lens", "query_start"):
            getattr(kept.context, name).copy_(getattr(fresh.context, name))
        kept.context.rows_of(window).copy_(rows)
        context = replace(kept.context, host=host, _spans={})  # those of this step
        self._static = replace(kept, host=host, context=context)

    def _padded(self, host: StepPlan) -> StepPlan:
        width = max(map(len, host.block_table), default=0)
        if width > self.max_blocks:
            raise ValueError(
                f"this graph has room for {self.max_blocks} blocks a sequence, got {width}"
            )
        more = (self._null,) * (self.max_blocks - width)
        wide = replace(host, block_table=tuple(table + more for table in host.block_table))
        return wide.pad(self.num_seqs, self.num_seqs, self._null)

    def _run(self) -> Tensor:
        if self.cache.device.type != "cuda":
            return self.model(self._tokens, self.cache, self._static)
        if self._graph is None:
            self._capture()
        else:
            self._graph.replay()
        return self._logits

    def _capture(self) -> None:
        """Runs the step once as it is, which compiles the kernels, and captures it after that."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.model(self._tokens, self.cache, self._static)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self.model(self._tokens, self.cache, self._static)
        self._graph.replay()
