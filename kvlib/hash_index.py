"""Which blocks already hold a sequence's beginning, by the hashed key of each block."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from kvlib.blocks import BlockPool
from kvlib.content import Content
from kvlib.prefix import require_blocks, require_held
from kvlib.retention import RankedPolicy


class HashIndex:
    """Knows each block by its key: one look-up a block, and no tree.

    Without a policy the pool's own order decides what is evicted: the block freed longest ago, and
    of a sequence its last block first. So a block goes before those it builds on, with one
    exception: a sequence that computed a second copy of a block may outlive the copy that is known.
    What it inserted behind can then be found again only when the block before has come back. It is
    never found wrongly, since its key names everything before it.

    Args:
        pool: whose blocks are known; the index listens to its evictions.
        policy: chooses what `make_room` gives up; None leaves it to the pool.

    Source: vLLM's `BlockPool`, version 1 (`vllm/v1/core/block_pool.py`).

    Example:
        >>> from kvlib.content import TokenContent
        >>> pool = BlockPool(4); index = HashIndex(pool)
        >>> blocks = pool.allocate(2); text = TokenContent([5, 6, 7, 8], block_size=2)
        >>> index.insert(text, blocks)
        2
        >>> index.find(TokenContent([5, 6, 7, 9], block_size=2), max_blocks=2) == blocks[:1]
        True
    """

    def __init__(self, pool: BlockPool, policy: RankedPolicy | None = None) -> None:
        self._pool, self._policy = pool, policy
        self._blocks: dict[Hashable, int] = {}
        self._keys: dict[int, Hashable] = {}
        pool.on_evict = self._forget

    def __len__(self) -> int:
        """Blocks known, held or idle."""
        return len(self._blocks)

    def find(self, content: Content, max_blocks: int) -> list[int]:
        """Returns the blocks of the longest known beginning; see `PrefixIndex.find`."""
        found, known, key = [], self._blocks, content.key
        for i in range(min(max_blocks, content.num_blocks)):
            block_id = known.get(key(i))
            if block_id is None:
                break
            found.append(block_id)
        return found

    def insert(self, content: Content, block_ids: Sequence[int], start: int = 0) -> int:
        """Makes held blocks known and returns how many are new; see `PrefixIndex.insert`."""
        require_blocks(content, block_ids)
        keys = [content.key(i) for i in range(start, len(block_ids))]
        self._require_new(keys, block_ids[start:])
        blocks, mark = self._blocks, self._pool.mark
        new: dict[Hashable, int] = {}
        for i, key in enumerate(keys, start):
            if key not in blocks:
                new.setdefault(key, i)
        if self._policy is not None:
            self._rank(content, block_ids, reversed(new.values()))
        for key, i in new.items():
            block_id = block_ids[i]
            blocks[key], self._keys[block_id] = block_id, key
            mark(block_id)
        return len(new)

    def make_room(self, num_blocks: int) -> None:
        """Lets the policy choose what to give up; without one there is nothing to do."""
        pool, policy = self._pool, self._policy
        if policy is None:
            return
        for block_id in policy.victims(pool, num_blocks):
            if pool.ref_count(block_id):
                policy.hide(block_id)  # shared since it was shown; `released` shows it again
            else:
                pool.unmark(block_id)

    def released(self, content: Content, block_ids: Sequence[int]) -> None:
        """Notes a use of each block, the last first; see `PrefixIndex.released`."""
        policy = self._policy
        if policy is None:
            return
        known = [block_id for block_id in reversed(block_ids) if block_id in self._keys]
        try:
            for block_id in known:
                policy.use(block_id)
        finally:  # whatever a policy's clock does, idle blocks can be given up
            for block_id in known:
                if not self._pool.ref_count(block_id):
                    policy.show(block_id)

    @property
    def held(self) -> tuple[int, ...]:
        """None: this index holds no block."""
        return ()

    def check(self) -> None:
        """Proves that keys and blocks name each other, and that every idle content is known."""
        self._pool.check()
        assert {b: k for k, b in self._blocks.items()} == self._keys, (
            f"a key without its block: {len(self._blocks)} keys, {len(self._keys)} blocks"
        )
        idle = {b for b in self._keys if not self._pool.ref_count(b)}
        assert len(idle) == self._pool.num_kept, (
            f"idle content that is not known: {self._pool.num_kept} kept, {len(idle)} known"
        )
        if self._policy is not None:
            self._policy.check()
            assert set(self._policy) == set(self._keys), (
                f"the policy knows other blocks: {len(self._policy)}, known are {len(self._keys)}"
            )
            stuck = idle - self._policy.shown
            assert not stuck, f"an idle block that cannot be evicted: {stuck}"

    def _require_new(self, keys: Sequence[Hashable], block_ids: Sequence[int]) -> None:
        require_held(self._pool, block_ids)
        if self._keys.keys().isdisjoint(block_ids):
            return
        for key, block_id in zip(keys, block_ids, strict=True):
            if self._keys.get(block_id, key) != key:
                raise ValueError(f"block {block_id} is known as something else")

    def _rank(self, content: Content, block_ids: Sequence[int], new: Iterable[int]) -> None:
        """Tells the policy of new blocks: of all, or of none where it refuses one."""
        added = []
        try:
            for i in new:
                self._policy.add(block_ids[i], content, i)
                added.append(block_ids[i])
        except BaseException:
            for block_id in added:
                self._policy.forget(block_id)
            raise

    def _forget(self, block_id: int) -> None:
        del self._blocks[self._keys.pop(block_id)]
        if self._policy is not None:
            self._policy.forget(block_id)
