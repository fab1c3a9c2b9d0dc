"""Sequences over a prefix index, for its tests: start, grow and stop as an engine would."""

from kvlib.blocks import BlockPool
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.plan import OutOfBlocks
from kvlib.priority import PriorityPolicy, Retain
from kvlib.radix import RadixTree
from kvlib.retention import DropAll, RankedFIFO, RankedLFU, RankedLRU, SLRUPolicy


def by_priority():
    """Blocks at even places stay longer."""
    return PriorityPolicy(lambda _, i: Retain(35 + 5 * (i % 2 == 0)), lambda: 0.0)


POLICIES = {
    "pool": lambda: None,
    "LRU": RankedLRU,
    "FIFO": RankedFIFO,
    "LFU": RankedLFU,
    "SLRU": SLRUPolicy,
    "drop-all": DropAll,
    "priority": by_priority,
}
KINDS = [(index, policy) for index in (HashIndex, RadixTree) for policy in POLICIES]
# Where a block may go before one that builds on it, copies or not: a parent is older than its
# child, or of lower priority. A tree gives up ends alone, whatever the policy.
PARENTS_FIRST = {(HashIndex, "FIFO"), (HashIndex, "priority")}


def made(kind, num_blocks):
    """A pool and an index over it."""
    index, policy = kind
    pool = BlockPool(num_blocks)
    return pool, index(pool, POLICIES[policy]())


class Sequence:
    """One sequence and its blocks; whole blocks are inserted as soon as they are full."""

    def __init__(self, pool, index, tokens, block_size=1, extras=()):
        self.pool, self.index, self.size = pool, index, block_size
        self.content = TokenContent(tokens, block_size, dict(extras))
        found = index.find(self.content, (len(tokens) - 1) // block_size)
        need = -(-len(tokens) // block_size) - len(found)
        idle = sum(not pool.ref_count(block) for block in found)
        if not pool.can_allocate(need + idle):
            raise OutOfBlocks(f"{need} needed, {pool.num_free - idle} free")
        pool.share(found)
        index.make_room(need)
        self.blocks, self.num_found = found + pool.allocate(need), len(found)
        self.num_inserted = 0
        self.insert()

    @property
    def cached(self):
        """Prompt tokens found."""
        return self.num_found * self.size

    def insert(self):
        """Makes its whole blocks known."""
        whole = self.content.num_blocks
        new = self.index.insert(self.content, self.blocks[:whole], self.num_inserted)
        self.num_inserted = whole
        return new

    def grow(self, *tokens):
        """Appends tokens; raises `OutOfBlocks` before it changes anything."""
        need = -(-(self.content.num_tokens + len(tokens)) // self.size) - len(self.blocks)
        if not self.pool.can_allocate(need):
            raise OutOfBlocks(f"{need} needed, {self.pool.num_free} free")
        self.index.make_room(need)
        self.blocks += self.pool.allocate(need)
        self.content.append(tokens)
        return self.insert()

    def stop(self):
        """Gives all blocks back."""
        self.pool.free(self.blocks)
        self.index.released(self.content, self.blocks)
