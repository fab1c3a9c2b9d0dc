"""What is known of a request's tokens: their ids, the ids of its blocks in a trace, or nothing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from kvlib.content import NO_EXTRAS, Content, TokenContent, namespace_of
from kvlib.request import Request
from kvlib.sizes import whole_number


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
        self.namespace = namespace_of(extras)
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
