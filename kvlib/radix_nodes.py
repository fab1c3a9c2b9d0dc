"""The nodes of a radix tree: runs of blocks, and how far a sequence follows them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from kvlib.content import Content


class Node:
    """A run of blocks between two places where sequences part.

    Attributes:
        contents: of each block, its own tokens alone; the way to the node says what is before.
        blocks: the pool's id of each.
        children: by the content of their first block.
        parent: None for a root, which has no blocks, and for a node that has left the tree.
    """

    __slots__ = ("blocks", "children", "contents", "parent")

    def __init__(self, parent: Node | None, contents: list[Hashable], blocks: list[int]) -> None:
        self.parent, self.contents, self.blocks = parent, contents, blocks
        self.children: dict[Hashable, Node] = {}
        if parent is not None:
            parent.children[contents[0]] = self

    def up(self) -> Iterator[Node]:
        """Yields the node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def down(self) -> Iterator[Node]:
        """Yields the node and all below it."""
        todo = [self]
        while todo:
            yield (node := todo.pop())
            todo.extend(node.children.values())

    def split(self, inside: int) -> Node:
        """Moves the first blocks into a new node above this one, and returns it.

        Whoever knows this node as the end of a way still does.
        """
        upper = Node(self.parent, self.contents[:inside], self.blocks[:inside])
        del self.contents[:inside], self.blocks[:inside]
        self.parent = upper
        upper.children[self.contents[0]] = self
        return upper

    def cut(self, at: int) -> tuple[list[int], list[Node]]:
        """Takes away the blocks from `at` on and all below them.

        Returns:
            The blocks that are lost, and the nodes that have left the tree with them.
        """
        gone = [node for node in self.down() if node is not self]
        lost = self.blocks[at:] + [block for node in gone for block in node.blocks]
        self.children.clear()
        if not at and self.parent is not None:
            del self.parent.children[self.contents[0]]
            gone.append(self)
        del self.contents[at:], self.blocks[at:]
        for node in gone:
            node.parent = None
        return lost, gone


class Match(NamedTuple):
    """How far a sequence is known below a node.

    Attributes:
        node: the last one on the way.
        inside: how many of its blocks match; of those before it, all do.
        blocks: the tree's blocks of the whole match.
    """

    node: Node
    inside: int
    blocks: list[int]


def descend(node: Node, content: Content, first: int, end: int) -> Match:
    """Follows the blocks `[first, end)` of a sequence as far as the tree knows them.

    Args:
        node: reached by the blocks before `first`; the way goes on behind its last block.
        content: of the sequence.
        first: the first block to follow.
        end: one behind the last.
    """
    found: list[int] = []
    inside, block = len(node.blocks), content.block
    for i in range(first, end):
        own = block(i)
        if inside == len(node.blocks):
            child = node.children.get(own)
            if child is None:
                break
            node, inside = child, 0
        elif node.contents[inside] != own:
            break
        found.append(node.blocks[inside])
        inside += 1
    return Match(node, inside, found)
