"""Which blocks already hold a sequence's beginning: what a prefix index is asked, and refuses.

An index knows which content is in which block of a `BlockPool`. The pool says who holds a block;
the index never hands one out. `kvlib.hash_index` knows blocks by hashed keys, `kvlib.radix` by the
way to them through a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvlib.blocks import BlockPool
from kvlib.content import Content


class PrefixIndex(Protocol):
    """What starts and stops sequences asks an index, in this order.

    `find`; the pool shares what was found; `make_room`; the pool allocates the rest; once the
    content of blocks is final, `insert`; the pool frees them; `released`.

    A prompt must keep a token to compute, or nothing would say which comes next: the caller asks
    `find` for at most `(prompt_tokens - 1) // block_size` blocks. Each sequence brings a content
    object of its own, the same in every call: that is how an index knows it again.
    """

    def find(self, content: Content, max_blocks: int) -> list[int]:
        """Returns the blocks of the longest known beginning, at most so many; changes nothing.

        Idle blocks among them count as free in the pool too: share them before asking it for room.
        """
        ...

    def insert(self, content: Content, block_ids: Sequence[int], start: int = 0) -> int:
        """Makes blocks that the caller holds known, and returns how many are known by it.

        A block whose content is known already stays the caller's own, a second copy: tables are
        append-only and are not rewritten.

        Args:
            content: of the sequence.
            block_ids: its blocks from the first on, whole ones only.
            start: how many of them an earlier call has inserted.

        Raises:
            ValueError: more blocks than the content has, or one that nobody holds, or one that is
                known as something else. Nothing changes, nor where a policy raises.
        """
        ...

    def make_room(self, num_blocks: int) -> None:
        """Gives up content until the pool has so many free blocks without any, or none is idle."""
        ...

    def released(self, content: Content, block_ids: Sequence[int]) -> None:
        """Notes that a sequence has given up these blocks, its beginning, after it did."""
        ...

    @property
    def held(self) -> tuple[int, ...]:
        """Blocks that the index holds itself, each as often as it does; most hold none."""
        ...

    def check(self) -> None:
        """Proves the index's invariants; raises `AssertionError` with the broken one's name."""
        ...


def require_blocks(content: Content, block_ids: Sequence[int]) -> None:
    """Refuses more blocks than the content has whole ones.

    Raises:
        ValueError: there are more.
    """
    if len(block_ids) > content.num_blocks:
        raise ValueError(f"{len(block_ids)} blocks for {content.num_blocks} whole ones of content")


def require_held(pool: BlockPool, block_ids: Sequence[int]) -> None:
    """Refuses blocks that nobody holds, or that are named twice.

    Raises:
        ValueError: there is one.
    """
    if pool.held_once(block_ids):
        return
    if len(set(block_ids)) != len(block_ids):
        raise ValueError(f"a block is named twice among {list(block_ids)}")
    for block_id in block_ids:
        if not pool.ref_count(block_id):
            raise ValueError(f"block {block_id} is held by nobody")
