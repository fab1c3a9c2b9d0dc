"""What a text costs when each query reads few blocks: the choice of every query in one pass.

One pass over the text with a mask for each query head stands for decoding it token by token: a
query chooses among the full blocks before its own, and reads its own besides. Rules other than the
bound of `kvlib.tensors.block_bounds` are here to be compared with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import kvlib
from kvlib.tensors.block_bounds import block_bounds, block_extremes, top_blocks, unread_share
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import DevicePlan


def _bound(q: Tensor, blocks: Tensor, scores: Tensor) -> Tensor:
    filled = torch.full((len(blocks),), blocks.shape[2], device=q.device)
    extremes = block_extremes(blocks, filled)[:, None]
    return block_bounds(q, extremes.expand(-1, len(q), -1, -1, -1))


def _average(q: Tensor, blocks: Tensor, scores: Tensor) -> Tensor:
    grouped = q.reshape(len(q), blocks.shape[1], -1, q.shape[2])
    return torch.einsum("thgd,mhd->thgm", grouped, blocks.mean(2))


def _best_key(q: Tensor, blocks: Tensor, scores: Tensor) -> Tensor:
    """Looks at every key, which is what reading few blocks wants to avoid."""
    return scores.unflatten(3, (len(blocks), -1)).amax(4)


def _newest(q: Tensor, blocks: Tensor, scores: Tensor) -> Tensor:
    number = torch.arange(len(blocks), dtype=torch.float32, device=q.device)
    return number.expand(*scores.shape[:3], -1)


RULES = {"bound": _bound, "average": _average, "best key": _best_key, "newest": _newest}


class FewBlocks(kvlib.NoCache):
    """A cache of nothing, for one text read in one step, that hides the blocks not chosen.

    Args:
        block_size: tokens per block.
        top_k: blocks a query reads, its own among them.
        rule: one of `RULES`.
        exact_until: queries before this position read everything, as those of a prompt do.
        first_blocks: how many of the first blocks are always read.
        dense_layers: layers that read everything.
        device: where to work.

    Attributes:
        found: sums over queries, heads and layers that choose: `queries`; `read`, the attention
            that lies in what is read; `best`, whether the key with the highest score is among it;
            and for the bound `sure`, whether the bounds alone prove that, and `promised`, the
            attention that `unread_share` promises to be in what is read.
    """

    def __init__(
        self,
        block_size: int,
        top_k: int,
        rule: str = "bound",
        *,
        exact_until: int = 0,
        first_blocks: int = 0,
        dense_layers: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device)
        self.block_size, self.top_k, self.rule = block_size, top_k, rule
        self.exact_until, self.first_blocks = exact_until, first_blocks
        self.dense_layers = dense_layers
        self.found: dict[str, float] = defaultdict(float)

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends the queries [T, Hq, D] to the chosen blocks of the keys just written."""
        if layer < self.dense_layers:
            return super().attend(layer, q, plan)
        k, v = self._fresh
        size, num_tokens = self.block_size, len(q)
        num_blocks = -(-num_tokens // size)
        padded = torch.zeros(num_blocks * size, *k.shape[1:], device=k.device)
        padded[:num_tokens] = k
        blocks = padded.unflatten(0, (num_blocks, size)).transpose(1, 2)
        grouped = q.reshape(num_tokens, k.shape[1], -1, q.shape[2])
        scores = torch.einsum("thgd,khd->thgk", grouped, padded)
        position = torch.arange(num_tokens, device=q.device)
        future = torch.arange(len(padded), device=q.device) > position[:, None]
        scores = scores.masked_fill(future[:, None, None], -torch.inf)
        ranks = RULES[self.rule](q, blocks, scores)
        places = top_blocks(
            ranks, position // size + 1, min(self.top_k, num_blocks), self.first_blocks
        )
        read = torch.zeros(num_tokens, k.shape[1], num_blocks, dtype=torch.bool, device=q.device)
        read.scatter_(2, places, True)
        read[: self.exact_until] = True
        self._note(ranks, scores, read, position)
        seen = read.repeat_interleave(size, 2)[:, :, None]
        weights = (scores * q.shape[2] ** -0.5).masked_fill(~seen, -torch.inf).softmax(3)
        return torch.einsum("thgk,khd->thgd", weights[..., :num_tokens], v).reshape(q.shape)

    def _note(self, ranks: Tensor, scores: Tensor, read: Tensor, position: Tensor) -> None:
        late = slice(self.exact_until, None)
        ranks, scores, read = ranks[late], scores[late], read[late, :, None]
        size, scale = self.block_size, self._fresh[0].shape[2] ** -0.5
        per_block = (scale * scores).softmax(3).unflatten(3, (-1, size)).sum(4)
        best = scores.unflatten(3, (-1, size)).amax(4)
        top_read = best.masked_fill(~read, -torch.inf).amax(3)
        found = self.found
        found["queries"] += top_read.numel()
        found["read"] += per_block.masked_fill(~read, 0).sum().item()
        found["best"] += (top_read == best.amax(3)).sum().item()
        if self.rule != "bound":
            return
        number = torch.arange(read.shape[3], device=read.device)
        full = number < (position[late] // size)[:, None]
        unread = full[:, None, None] & ~read
        highest = ranks.masked_fill(~unread, -torch.inf).amax(3)
        found["sure"] += (top_read >= highest).sum().item()
        tokens = read.repeat_interleave(size, 3)
        lse = (scale * scores).masked_fill(~tokens, -torch.inf).logsumexp(3)
        filled = (full * size)[:, None, None].expand_as(ranks)
        share = unread_share(ranks, filled, read.expand_as(ranks), lse, scale)
        found["promised"] += (1 - share).sum().item()


def read_text(model: Llama, tokens: Sequence[int], cache: object) -> Tensor:
    """Returns the logits of a text read in one step, [T, vocab_size]."""
    cache.add("text")
    with torch.no_grad(), cache.step({"text": tokens}) as plan:
        return model(torch.tensor(tokens, device=model.device), cache, plan, all_logits=True)


def compared(
    model: Llama, tokens: Sequence[int], cache: FewBlocks, exact: Tensor
) -> dict[str, float]:
    """Returns perplexity, largest logit error and what `FewBlocks.found` says, per query.

    Args:
        model: reads the text once.
        tokens: the text.
        cache: says which queries choose; those predictions are scored.
        exact: the logits that the model gives with all blocks.
    """
    logits = read_text(model, tokens, cache)
    scored = slice(cache.exact_until, -1)
    ids = torch.tensor(tokens, device=model.device)[cache.exact_until + 1 :]
    loss = cross_entropy(logits[scored], ids)
    error = (logits[scored] - exact[scored]).abs().max()
    queries = cache.found.pop("queries", 1)
    shares = {name: value / queries for name, value in cache.found.items()}
    numbers = {"perplexity": loss.exp().item(), "error": error.item(), **shares}
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}
