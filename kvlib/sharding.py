"""Which rank holds which part of a cache: some of the KV heads, or some of the tokens.

A *rank* is one of `R` processes that serve the same sequences. By heads, each rank holds its heads
of every token. By tokens, block `j` of every sequence belongs to rank `j % R`, with all its heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from kvlib.sizes import whole_number


def _even_spans(total: int, parts: int) -> list[range]:
    """Cuts `total` things into consecutive spans whose sizes differ by one at most.

    Args:
        total: how many things; may be less than `parts`, then the last spans are empty.
        parts: how many spans.

    Raises:
        TypeError, ValueError: not whole numbers, or no part.

    Example:
        >>> _even_spans(3, 2)
        [range(0, 2), range(2, 3)]
    """
    whole_number("total", total, least=0)
    whole_number("parts", parts)
    size, longer = divmod(total, parts)
    starts = [i * size + min(i, longer) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


@dataclass(frozen=True)
class HeadShare:
    """The KV heads of one rank.

    Attributes:
        kv_heads: the heads it stores.
        copy: which of the ranks that store these same heads it is, from 0.
        copies: how many ranks store these heads; 1 unless there are more ranks than heads.
    """

    kv_heads: range
    copy: int = 0
    copies: int = 1

    def q_heads(self, num_q_heads: int, num_kv_heads: int) -> range:
        """Returns the query heads that this rank answers; the ranks' ranges cover all, in order.

        Ranks that store copies of one head share out its query heads; there may be none left.

        Raises:
            ValueError: the query heads are no multiple of the KV heads.

        Example:
            >>> [share.q_heads(6, 2) for share in head_shares(2, 4)]
            [range(0, 2), range(2, 3), range(3, 5), range(5, 6)]
        """
        if num_q_heads % num_kv_heads:
            raise ValueError(
                f"query heads must be a multiple of KV heads: {num_q_heads} and {num_kv_heads}"
            )
        group = num_q_heads // num_kv_heads
        first = self.kv_heads.start * group
        mine = _even_spans(len(self.kv_heads) * group, self.copies)[self.copy]
        return range(first + mine.start, first + mine.stop)


def head_shares(num_kv_heads: int, num_ranks: int) -> list[HeadShare]:
    """Shares KV heads out: whole heads, uneven if need be, and copies where ranks are more.

    A head cannot be cut without a sum over ranks inside every score. So with more ranks than heads
    a head is stored several times: the ranks then hold more bytes together than one process would.

    Args:
        num_kv_heads: Hkv.
        num_ranks: the ranks, R.

    Raises:
        TypeError, ValueError: not whole numbers of at least 1.

    Source: vLLM's `get_num_kv_heads` in its configuration, `max(1, heads // ranks)`; there the
    ranks must divide the heads, or the heads the ranks.

    Example:
        >>> [list(share.kv_heads) for share in head_shares(3, 2)]
        [[0, 1], [2]]
        >>> [list(share.kv_heads) for share in head_shares(2, 3)]
        [[0], [0], [1]]
    """
    whole_number("num_kv_heads", num_kv_heads)
    if num_ranks <= num_kv_heads:
        return [HeadShare(span) for span in _even_spans(num_kv_heads, num_ranks)]
    return [
        HeadShare(range(head, head + 1), copy, len(copies))
        for head, copies in enumerate(_even_spans(num_ranks, num_kv_heads))
        for copy in range(len(copies))
    ]


def owner(position: int, num_ranks: int, block_size: int) -> int:
    """Returns the rank that holds a token: blocks go round.

    Example:
        >>> [owner(p, num_ranks=2, block_size=4) for p in (0, 3, 4, 8)]
        [0, 0, 1, 0]
    """
    return position // block_size % num_ranks


def tokens_held(num_tokens: int, rank: int, num_ranks: int, block_size: int) -> int:
    """Returns how many of a sequence's first tokens lie on a rank.

    It is also how many of its own keys a rank shows to the query at position `num_tokens - 1`: what
    a rank holds of a sequence lies in order, so what a query sees of it is always a first part.

    Args:
        num_tokens: tokens from the start of the sequence.
        rank: `[0, num_ranks)`.
        num_ranks: the ranks, R.
        block_size: tokens per block.

    Example:
        Ten tokens in blocks of 4 over two ranks: 0-3 and 8-9 here, 4-7 there.

        >>> [tokens_held(10, rank, 2, 4) for rank in (0, 1)]
        [6, 4]
    """
    rounds, rest = divmod(num_tokens, block_size * num_ranks)
    return rounds * block_size + min(max(rest - rank * block_size, 0), block_size)


def wire_bytes_by_heads(
    num_tokens: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_ranks: int,
    itemsize: int,
) -> int:
    """Returns the bytes one rank sends for one layer of a step, split by heads.

    Each rank sends the outputs of its query heads to all others, padded to the largest share
    because a gather takes equal parts: `T * max(heads) * D * itemsize * (R - 1)`.

    Example:
        Three heads on two ranks travel as two and two:

        >>> wire_bytes_by_heads(1, 3, 3, 64, 2, itemsize=4)
        512
    """
    shares = head_shares(num_kv_heads, num_ranks)
    most = max(len(share.q_heads(num_q_heads, num_kv_heads)) for share in shares)
    return num_tokens * most * head_dim * itemsize * (num_ranks - 1)


def wire_bytes_by_tokens(num_tokens: int, num_q_heads: int, head_dim: int, num_ranks: int) -> int:
    """Returns the bytes one rank sends for one layer of a step, split by tokens.

    Each rank sends a partial output of every query head, with its log-sum-exp, in float32:
    `T * Hq * (D + 1) * 4 * (R - 1)`. It does not depend on how long the sequences are.

    Example:
        >>> wire_bytes_by_tokens(1, 3, 64, 2)
        780
    """
    return num_tokens * num_q_heads * (head_dim + 1) * 4 * (num_ranks - 1)
