"""What a sequence's tokens are, block by block, so that equal prefixes can be recognised.

A block alone does not say what is cached in it: keys and values depend on every token before. So a
block has a *content*, its own tokens, and a *key* that also names all that stands before it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable, Iterable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Protocol

from kvlib.sizes import whole_number

NO_EXTRAS: Mapping[str, str] = MappingProxyType({})


class Content(Protocol):
    """What a prefix index asks of a sequence; only whole blocks are asked for."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        ...

    @property
    def num_blocks(self) -> int:
        """Whole blocks whose tokens are known."""
        ...

    @property
    def namespace(self) -> Hashable:
        """Sequences in different namespaces share nothing, whatever their tokens."""
        ...

    def block(self, i: int) -> Hashable:
        """Returns the `i`-th block's own content; what stands before it does not matter."""
        ...

    def key(self, i: int) -> Hashable:
        """Returns a name of the `i`-th block, of all blocks before it and of the namespace."""
        ...


class TokenContent:
    """The content of a sequence whose token ids are known; it may grow.

    A key is the SHA-256 of the key before it and the block's token ids, 8 bytes each. The chain
    starts with the SHA-256 of the extras, every label and value behind its length: a tenant's salt
    "a" and an adapter "a" differ. Equal keys are taken for equal tokens without a comparison, for
    nobody knows two inputs with the same SHA-256. Python's `hash` would neither be safe nor, for
    texts, the same in two processes.

    Args:
        token_ids: from the first token on.
        block_size: tokens per block.
        extras: what else keys and values depend on, label to value: `tenant`, `adapter`, ...

    Raises:
        TypeError, ValueError: the block size is not a whole number of at least 1, a token id is not
            a whole number, or an extra is not a text.
        OverflowError: a token id does not fit into 64 bits.

    Source: the chain is vLLM's, "Automatic Prefix Caching" (design documents).

    Example:
        >>> a, b = TokenContent([1, 2, 3, 4, 5], 2), TokenContent([9, 9, 3, 4], 2)
        >>> a.num_blocks, a.block(1), a.block(1) == b.block(1), a.key(1) == b.key(1)
        (2, (3, 4), True, False)
        >>> a.append([6]); a.num_blocks
        3
    """

    def __init__(
        self, token_ids: Iterable[int], block_size: int, extras: Mapping[str, str] = NO_EXTRAS
    ) -> None:
        whole_number("block_size", block_size)
        self.block_size = block_size
        self.namespace = namespace_of(extras)
        self._tokens = array("q")
        self.append(token_ids)
        self._keys = [_root(self.namespace)]  # of everything before block i

    @property
    def num_tokens(self) -> int:
        """Tokens known, those of a block that is not full yet included."""
        return len(self._tokens)

    @property
    def num_blocks(self) -> int:
        """Whole blocks whose tokens are known."""
        return len(self._tokens) // self.block_size

    def append(self, token_ids: Iterable[int]) -> None:
        """Adds tokens at the end; raises as the class does, and then changes nothing."""
        self._tokens.fromlist(list(token_ids))  # all of them or none

    def block(self, i: int) -> Hashable:
        """Returns a block's token ids; of blocks of 1 the token id itself.

        Raises:
            IndexError: the block is not known, or not whole yet.
        """
        self._require(i)
        if self.block_size == 1:
            return self._tokens[i]
        return tuple(self._tokens[i * self.block_size : (i + 1) * self.block_size])

    def key(self, i: int) -> bytes:
        """Returns a block's key, 32 bytes; each is computed once.

        Raises:
            IndexError: the block is not known, or not whole yet.
        """
        keys = self._keys
        if not 0 <= i < len(keys) - 1:
            self._require(i)
            self._chain()
        return keys[i + 1]

    def _chain(self) -> None:
        keys, size = self._keys, self.block_size
        first = (len(keys) - 1) * size
        parts = self._tokens[first : self.num_blocks * size]
        if sys.byteorder == "big":  # a key means the same on every host
            parts.byteswap()
        parent, packed = keys[-1], parts.tobytes()
        for at in range(0, len(packed), 8 * size):
            parent = sha256(parent + packed[at : at + 8 * size]).digest()
            keys.append(parent)

    def _require(self, i: int) -> None:
        if not 0 <= i < self.num_blocks:
            raise IndexError(f"whole blocks are 0 to {self.num_blocks - 1}, asked for {i}")


def namespace_of(extras: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns the extras in a fixed order: sequences with other ones share nothing.

    Raises:
        TypeError: a label or a value is not a text.
    """
    texts = [text for pair in extras.items() for text in pair]
    if others := {type(text).__name__ for text in texts if not isinstance(text, str)}:
        raise TypeError(f"extras are texts, label and value; got {', '.join(sorted(others))}")
    return tuple(sorted(extras.items()))


def _root(namespace: Iterable[tuple[str, str]]) -> bytes:
    texts = [text.encode() for pair in namespace for text in pair]
    known = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    # Every link's input is a multiple of 8 bytes long; no root's input is.
    return sha256(known + bytes(1 + -len(known) % 8)).digest()
