"""The loss of a text when each token sees only what an eviction policy has kept for it.

One pass over the whole text with a mask stands for a pass token by token with evictions between:
row i of the mask says what is still held when token i is read. What is kept keeps the rotary
position it was written with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import kvlib
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import DevicePlan
from window_loss import losses, perplexity


class Kept(kvlib.NoCache):
    """A cache of nothing, for one text read in one step, that hides what was not kept.

    Args:
        mask: bool [T, T], True where the token of the row sees that of the column.
    """

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask.device)
        self.mask = mask

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends the queries [T, Hq, D] to the keys and values just written, where kept."""
        sides = (side.transpose(0, 1)[None] for side in (q, *self._fresh))
        out = scaled_dot_product_attention(*sides, attn_mask=self.mask, enable_gqa=True)
        return out[0].transpose(0, 1)


def keep(num_tokens: int, budget: int, always: Iterable[int] = ()) -> Tensor:
    """Returns what each token sees when `budget` tokens are held, bool [num_tokens, num_tokens].

    The tokens of `always` are never given up; of the others the most recent stay. A token counts
    itself. Nothing that was given up comes back.

    Raises:
        ValueError: so many are kept always that some token has no room for itself.

    Example:
        >>> keep(5, budget=3, always=[0]).int().tolist()[3:]
        [[1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]
    """
    fixed = torch.zeros(num_tokens, dtype=torch.bool)
    fixed[list(always)] = True
    room = budget - fixed.cumsum(0)
    if (room < (~fixed).int()).any():
        raise ValueError(f"{int(fixed.sum())} tokens kept always leave no room in {budget}")
    num_others = (~fixed).cumsum(0)
    # Of the others, how many came after the one of the column, up to the one of the row.
    later = num_others[:, None] - num_others[None]
    causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    return causal & (fixed | (later < room[:, None]))


def perplexity_with(
    model: Llama, tokens: Sequence[int], kept_mask: Tensor, scored: slice = slice(None)
) -> float:
    """Returns the perplexity of a text read under a mask, to four digits.

    Args:
        model: reads the text once.
        tokens: the text.
        kept_mask: bool [T, T] as `keep` makes it, True where the row's token sees the column's.
        scored: which predictions count; number i is that of token i + 1 from tokens 0 ... i.
    """
    return perplexity(losses(model, tokens, Kept(kept_mask.to(model.device)))[scored])
