"""Which blocks already hold a sequence's beginning, as a tree of prefixes with compressed edges."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from kvlib.blocks import BlockPool
from kvlib.content import Content
from kvlib.prefix import require_blocks, require_held
from kvlib.radix_nodes import Match, Node, descend
from kvlib.retention import RankedPolicy


class _Path(NamedTuple):
    end: Node
    last: int  # the tree's block at its end
    num_blocks: int
    guarded: list[int]
    made: bool  # whether its own sequence made the end


class RadixTree:
    """Knows blocks by the way from a root to them; one tree for each namespace.

    A block is evicted only when nothing is built on it: the end of a leaf. Without a policy the
    pool's own order decides, and comes to the same: of a sequence the last block is freed first.
    With one, the leaf that the policy names gives up blocks from its end.

    Whoever holds a block also holds all before it. So when a sequence has computed a second copy of
    a block, the tree holds the known one for it until the sequence is released.

    Args:
        pool: whose blocks are known; the tree listens to its evictions.
        policy: ranks nodes; None leaves the order to the pool.

    Source: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs",
    NeurIPS 2024, section 3; SGLang frees a second copy and rewrites the table instead.

    Example:
        >>> from kvlib.content import TokenContent
        >>> pool = BlockPool(9); tree = RadixTree(pool)
        >>> blocks = pool.allocate(4)
        >>> tree.insert(TokenContent([5, 6, 7, 8], block_size=1), blocks)
        4
        >>> tree.find(TokenContent([5, 6, 9], block_size=1), max_blocks=2) == blocks[:2]
        True
    """

    def __init__(self, pool: BlockPool, policy: RankedPolicy | None = None) -> None:
        self._pool, self._policy = pool, policy
        self._roots: dict[Hashable, Node] = {}
        self._nodes: dict[int, Node] = {}
        self._paths: dict[Content, _Path] = {}
        pool.on_evict = self._forget

    def __len__(self) -> int:
        """Blocks known, held or idle."""
        return len(self._nodes)

    @property
    def nodes(self) -> list[Node]:
        """All nodes with blocks."""
        return [node for root in self._roots.values() for node in root.down() if node.blocks]

    @property
    def held(self) -> tuple[int, ...]:
        """Blocks that the tree holds for sequences with a second copy of them."""
        return tuple(block for path in self._paths.values() for block in path.guarded)

    def find(self, content: Content, max_blocks: int) -> list[int]:
        """Returns the blocks of the longest known beginning; see `PrefixIndex.find`."""
        root = self._roots.get(content.namespace)
        limit = min(max_blocks, content.num_blocks)
        return [] if root is None else descend(root, content, 0, limit).blocks

    def insert(self, content: Content, block_ids: Sequence[int], start: int = 0) -> int:
        """Makes held blocks known and returns how many are new; see `PrefixIndex.insert`."""
        require_blocks(content, block_ids)
        path = self._path(content, start)
        first, mine = path.num_blocks, block_ids[path.num_blocks :]
        match = descend(path.end, content, first, len(block_ids))
        self._require_new(mine, match.blocks)
        twice = [known for own, known in zip(mine, match.blocks, strict=False) if own != known]
        fresh = list(mine[len(match.blocks) :])
        index = first + len(match.blocks)
        contents = [content.block(i) for i in range(index, index + len(fresh))]
        end = self._end(match)
        if fresh:
            end = self._grow(path, end, content, index, contents, fresh)
        self._pool.share(twice)  # only now that nothing can fail any more
        if mine:
            before = self._paths.get(content, path)
            if before is not path:  # went from the root again, and guards all of it again
                self._pool.free(before.guarded)
            guarded, made = path.guarded + twice, bool(fresh)
            self._paths[content] = _Path(end, end.blocks[-1], len(block_ids), guarded, made)
        return len(fresh)

    def make_room(self, num_blocks: int) -> None:
        """Takes blocks from the ends of leaves, as the policy says; see `PrefixIndex.make_room`."""
        if self._policy is None:
            return
        for leaf in self._policy.victims(self._pool, num_blocks):
            if leaf.children or self._pool.ref_count(leaf.blocks[-1]):
                self._policy.hide(leaf)
            else:
                self._pool.unmark(leaf.blocks[-1])

    def released(self, content: Content, block_ids: Sequence[int]) -> None:
        """Notes a use of every node on the way, the last first; see `PrefixIndex.released`."""
        path = self._paths.pop(content, None)
        if path is not None and path.guarded:
            self._unguard(path)
        if self._policy is not None and (root := self._roots.get(content.namespace)):
            known = min(len(block_ids), content.num_blocks)
            nodes = [*self._end(descend(root, content, 0, known)).up()]
            try:
                for node in nodes:
                    self._policy.use(node)
            finally:  # whatever a policy's clock does, idle leaves can be given up
                for node in nodes:
                    self._offer(node)

    def check(self) -> None:
        """Proves the shape of the tree and that no block outlives one before it."""
        self._pool.check()
        refs, found = self._pool.ref_count, {}
        for node in (n for root in self._roots.values() for n in root.down()):
            assert len(node.contents) == len(node.blocks), "a block without content"
            found.update(dict.fromkeys(node.blocks, node))
            for first, child in node.children.items():
                assert child.blocks, "a node without blocks"
                assert child.parent is node and child.contents[0] == first, (
                    "a child under a wrong name"
                )
                run = [*node.blocks[-1:], *child.blocks]
                counts = [refs(block) for block in run]
                assert counts == sorted(counts, reverse=True), (
                    "a block is held, one before it is not"
                )
        assert found == self._nodes, (
            f"a block is in no node, or in two: {len(found)} in nodes, {len(self._nodes)} known"
        )
        idle = [block for block in found if not refs(block)]
        assert len(idle) == self._pool.num_kept, (
            f"idle content that is not known: {self._pool.num_kept} kept, {len(idle)} known"
        )
        if self._policy is not None:
            self._policy.check()
            assert set(self._policy) == set(found.values()), "the policy knows other nodes"
            leaves = {n for n in found.values() if not n.children and not refs(n.blocks[-1])}
            stuck = [leaf.blocks for leaf in leaves - self._policy.shown]
            assert not stuck, f"an idle leaf that cannot be evicted: {stuck}"

    def _path(self, content: Content, start: int) -> _Path:
        path = self._paths.get(content)
        if path is not None and path.num_blocks == start:
            node = self._nodes.get(path.last)
            if node is path.end and node.blocks[-1] == path.last:
                return path
        root = self._roots.get(content.namespace) or Node(None, [], [])
        return _Path(root, -1, 0, [], made=False)

    def _require_new(self, mine: Sequence[int], known: Sequence[int]) -> None:
        require_held(self._pool, mine)
        for i, block_id in enumerate(mine):
            if block_id in self._nodes and block_id not in known[i : i + 1]:
                raise ValueError(f"block {block_id} is known as something else")

    def _end(self, match: Match) -> Node:
        """The node that ends where the match does; splits one if need be."""
        node, inside, _ = match
        if inside == len(node.blocks):
            return node
        upper = node.split(inside)
        self._nodes.update(dict.fromkeys(upper.blocks, upper))
        if self._policy is not None:
            self._policy.copy(upper, node)
        return upper

    def _grow(
        self,
        path: _Path,
        end: Node,
        content: Content,
        index: int,
        contents: list[Hashable],
        fresh: list[int],
    ) -> Node:
        # A decoding sequence lengthens the leaf it has made: no node a block.
        if path.made and end is path.end and not end.children:
            end.contents += contents
            end.blocks += fresh
        else:
            node = Node(end, contents, [*fresh])
            try:
                if self._policy is not None:
                    self._policy.add(node, content, index)
            except BaseException:
                node.cut(0)
                raise
            if not end.blocks:
                self._roots[content.namespace] = end
            end = node
        self._nodes.update(dict.fromkeys(fresh, end))
        for block_id in fresh:
            self._pool.mark(block_id)
        return end

    def _unguard(self, path: _Path) -> None:
        # The whole way joins the pool's line again, so that no block stands before one behind it.
        way = [block for node in path.end.up() for block in reversed(node.blocks)][::-1]
        self._pool.share(way)
        self._pool.free(path.guarded)
        self._pool.free(way)

    def _offer(self, node: Node) -> None:
        if self._policy is None or not node.blocks or node.children:
            return
        if not self._pool.ref_count(node.blocks[-1]):
            self._policy.show(node)

    def _forget(self, block_id: int) -> None:
        node = self._nodes.get(block_id)
        if node is None:
            return  # lost already, with a block before it
        at = len(node.blocks) - 1
        if node.blocks[at] != block_id:
            at = node.blocks.index(block_id)
        above = node.parent if not at else node
        lost, gone = node.cut(at)
        for each in lost:
            del self._nodes[each]
        if self._policy is not None:
            for each in gone:
                self._policy.forget(each)
        for each in lost:
            if each != block_id:
                self._pool.unmark(each)
        if above.blocks or above.children:
            self._offer(above)
        else:  # an empty root: a namespace that nobody uses any more
            self._roots = {name: root for name, root in self._roots.items() if root is not above}
