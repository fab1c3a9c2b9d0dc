"""The sequences that wait below a device: their tokens, and the blocks that are pinned for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_bytes

from kvlib.content import TokenContent
from kvlib.plan import SeqId
from kvlib.tensors.lower_tiers import LowerTiers


def block_keys(content: TokenContent) -> list[bytes]:
    """Returns the keys of all blocks; that of a partly filled one is drawn, for nobody shares it.

    Example:
        >>> content = TokenContent([7, 8, 9], 2)
        >>> [key == content.key(0) for key in block_keys(content)]
        [True, False]
    """
    keys = [content.key(i) for i in range(content.num_blocks)]
    whole = content.num_tokens == content.num_blocks * content.block_size
    return keys if whole else [*keys, token_bytes(32)]


class SwappedSequences:
    """Remembers sequences that left the device and will come back, and keeps their blocks below.

    Their blocks are pinned in the fastest tier: a tier lets go of what others send down, never of
    what somebody waits for.

    Args:
        lower: the tiers in which the blocks are.
        block_size: tokens per block.
    """

    def __init__(self, lower: LowerTiers, block_size: int) -> None:
        self._lower, self._block_size = lower, block_size
        self._waiting: dict[SeqId, tuple[Sequence[int], Sequence[bytes]]] = {}

    def __contains__(self, seq_id: SeqId) -> bool:
        """Answers whether the sequence waits here."""
        return seq_id in self._waiting

    @property
    def lengths(self) -> dict[SeqId, int]:
        """Tokens of each sequence."""
        return {seq_id: len(tokens) for seq_id, (tokens, _) in self._waiting.items()}

    @property
    def num_pinned(self) -> int:
        """Blocks that are pinned for all of them."""
        return sum(len(keys) for _, keys in self._waiting.values())

    def require_new(self, seq_id: SeqId) -> None:
        """Refuses the name of a sequence that waits here for a new one.

        Raises:
            ValueError: it waits here.
        """
        if seq_id in self._waiting:
            raise ValueError(f"a new sequence needs a new id, {seq_id!r} is swapped out")

    def of(self, seq_id: SeqId) -> tuple[Sequence[int], Sequence[bytes]]:
        """Returns the tokens of a sequence and the keys of its blocks.

        Raises:
            KeyError: it does not wait here.
        """
        if seq_id not in self._waiting:
            raise KeyError(f"no sequence {seq_id!r}; {len(self._waiting)} are swapped out")
        return self._waiting[seq_id]

    def pin(self, keys: Sequence[bytes], send_down: Callable[[int], None]) -> None:
        """Sends blocks down one after the other and pins each, or pins none.

        Args:
            keys: names of the blocks.
            send_down: gets the place of one among the keys and hands it to the fastest tier.

        Raises:
            What `send_down` raises; then no pin is left.
        """
        pinned: list[bytes] = []
        try:
            for i, key in enumerate(keys):
                send_down(i)
                self._lower.pin(key)
                pinned.append(key)
        except BaseException:
            for key in reversed(pinned):
                self._lower.unpin(key)
            raise

    def take(self, seq_id: SeqId, tokens: Sequence[int], keys: Sequence[bytes]) -> None:
        """Notes a sequence whose blocks are all pinned."""
        self._waiting[seq_id] = tokens, keys

    def forget(self, seq_id: SeqId) -> None:
        """Lets a sequence go, and its blocks, of which a partly filled one is nobody else's."""
        tokens, keys = self._waiting.pop(seq_id)
        for key in reversed(keys):  # the end of a chain is to be evicted first
            self._lower.unpin(key)
        if len(tokens) % self._block_size:
            self._lower.forget(keys[-1])
