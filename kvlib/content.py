"""What a sequence's tokens are, block by block, so that equal prefixes can be recognised.

A block alone does not say what is cached in it: keys and values depend on every token before. So a
block has a *content*, its own tokens, and a *key* that also names all that stands before it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Protocol

from kvlib.request import Request
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
        self.namespace = _namespace(extras)
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


def _namespace(extras: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    texts = [text for pair in extras.items() for text in pair]
    if others := {type(text).__name__ for text in texts if not isinstance(text, str)}:
        raise TypeError(f"extras are texts, label and value; got {', '.join(sorted(others))}")
    return tuple(sorted(extras.items()))


def _root(namespace: Iterable[tuple[str, str]]) -> bytes:
    texts = [text.encode() for pair in namespace for text in pair]
    known = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    # Every link's input is a multiple of 8 bytes long; no root's input is.
    return sha256(known + bytes(1 + -len(known) % 8)).digest()


class TraceContent:
    """The content of a prompt of a trace that names blocks and not tokens.

    An id of such a trace names a block and all before it: equal ids, equal tokens from the start.
    A block of the trace may be cut into smaller ones. The last block of the trace may be partly
    filled; only whole blocks of the prompt count.

    Args:
        block_ids: one for each block of the trace, the last perhaps partly filled.
        block_size: tokens per block; it divides `trace_block_tokens`.
        prompt_tokens: of the whole prompt.
        trace_block_tokens: tokens per block of the trace.
        extras: as those of `TokenContent`.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1, the block size does not
            divide the trace's, there are not as many ids as the prompt has blocks, or an extra is
            not a text.

    Example:
        Two ids for 700 tokens; the second stands for 188 of them, less than a block of 256.

        >>> content = TraceContent([7, 8], block_size=256, prompt_tokens=700)
        >>> [content.key(i) for i in range(content.num_blocks)]
        [(7, 0), (7, 1)]
    """

    def __init__(
        self,
        block_ids: Sequence[int],
        block_size: int,
        prompt_tokens: int,
        trace_block_tokens: int = 512,
        extras: Mapping[str, str] = NO_EXTRAS,
    ) -> None:
        whole_number("block_size", block_size)
        whole_number("prompt_tokens", prompt_tokens)
        whole_number("trace_block_tokens", trace_block_tokens)
        self._parts, rest = divmod(trace_block_tokens, block_size)
        if rest:
            raise ValueError(
                f"blocks of {block_size} do not divide the trace's {trace_block_tokens} tokens"
            )
        if len(block_ids) != -(-prompt_tokens // trace_block_tokens):
            raise ValueError(f"{len(block_ids)} block ids for a prompt of {prompt_tokens} tokens")
        self.block_size = block_size
        self.num_blocks = prompt_tokens // block_size
        self.namespace = _namespace(extras)
        self._ids = block_ids

    def key(self, i: int) -> Hashable:
        """Returns the trace's id and the place within its block, and the extras if there are any.

        Raises:
            IndexError: the block is not known, or not whole.
        """
        if not 0 <= i < self.num_blocks:
            raise IndexError(f"whole blocks are 0 to {self.num_blocks - 1}, asked for {i}")
        place = (self._ids[i // self._parts], i % self._parts)
        return (self.namespace, place) if self.namespace else place

    def block(self, i: int) -> Hashable:
        """Returns the key: a trace does not tell a block from what stands before it."""
        return self.key(i)


def content_of(
    request: Request, block_size: int, extras: Mapping[str, str] = NO_EXTRAS
) -> Content | None:
    """Returns what is known of a request's tokens: of prompt and output, or of the prompt's blocks.

    Args:
        request: with token ids, or with the block ids of a trace, or with neither.
        block_size: tokens per block.
        extras: as those of `TokenContent`.

    Returns:
        Its content; None where nothing is known, so that nothing can be shared.

    Raises:
        TypeError, ValueError: as `TokenContent` and `TraceContent`.
    """
    if request.token_ids:
        return TokenContent(request.token_ids, block_size, extras)
    if request.block_ids:
        tokens = request.prompt_tokens
        return TraceContent(request.block_ids, block_size, tokens, extras=extras)
    return None
