"""Which blocks a copy still reads or writes: what a step must wait for before it touches them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvlib.tensors.copy_lane import Copy


class PendingCopies:
    """Remembers, block by block, the copies under way between a device and what lies below it.

    A block that *leaves* is being read by its copy: nobody may write into it before the copy has
    ended, not even the next owner of the block. One that *arrives* is being written: nobody may
    read it or write into it. Copies that arrive come layer by layer, and a step waits for the layer
    that it is about to use.

    Args:
        num_layers: copies of each block that arrives.

    Source: the two waits whose absence garbled texts in vLLM (issues 45704 and 47282).

    Example:
        >>> from kvlib.tensors.copy_lane import CopyLane
        >>> pending = PendingCopies(num_layers=1)
        >>> with CopyLane() as lane:
        ...     pending.leave(7, lane.submit(lambda: None))
        ...     pending.before_write({7, 8}, layer=0)
        >>> len(pending)
        0
    """

    def __init__(self, num_layers: int) -> None:
        self._last = num_layers - 1
        self._arriving: dict[int, Sequence[Copy]] = {}
        self._leaving: dict[int, Copy] = {}

    def __len__(self) -> int:
        """Blocks with a copy that somebody may still have to wait for."""
        return len(self._arriving.keys() | self._leaving.keys())

    def leave(self, block_id: int, copy: Copy) -> None:
        """Notes a copy that reads a block; of several, handed in one after the other, the last."""
        self._leaving[block_id] = copy

    def arrive(self, block_ids: Iterable[int], copies: Sequence[Copy]) -> None:
        """Notes copies that write blocks, one for each layer."""
        self._arriving.update(dict.fromkeys(block_ids, copies))

    def before_read(self, block_ids: Iterable[int], layer: int) -> None:
        """Waits until one layer of these blocks has arrived; raises what a copy raised."""
        for block_id in self._arriving.keys() & block_ids:
            copies = self._arriving[block_id]
            copies[layer].wait()
            if layer == self._last:  # the lane keeps order: the layers before are there, or failed
                for copy in copies:
                    copy.result()
                del self._arriving[block_id]

    def before_write(self, block_ids: Iterable[int], layer: int) -> None:
        """Waits until no copy needs one layer of these blocks any more."""
        self.before_read(block_ids, layer)
        for block_id in self._leaving.keys() & block_ids:
            # However it ended, it reads no more. What could not go down is missing there.
            self._leaving[block_id].ended()  # whoever is interrupted here waits again
            del self._leaving[block_id]

    @property
    def arriving(self) -> frozenset[int]:
        """Blocks that arrive, or did not and are still waited for."""
        return frozenset(self._arriving)

    def unarrived(self, block_ids: Iterable[int]) -> set[int]:
        """Returns those of some blocks that did not arrive whole; waits for their copies."""
        blocks = self._arriving.keys() & block_ids
        return {b for b in blocks if not all([copy.ended() for copy in self._arriving[b]])}

    def forget(self, block_ids: Iterable[int]) -> None:
        """Nobody reads these blocks any more, and their next owner writes them anew."""
        for block_id in block_ids:
            self._arriving.pop(block_id, None)

    def before_copy(self, src: int, dst: int) -> None:
        """Waits until all of one block may be copied over another."""
        self.before_read({src}, self._last)
        self.before_write({dst}, self._last)

    def check(self) -> None:
        """Proves that what arrives comes in every layer.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        for block_id, copies in self._arriving.items():
            layers = len(copies)
            assert layers == self._last + 1, f"block {block_id} arrives in {layers} layers"

    def forget_done(self) -> None:
        """Nobody need wait for what has ended well; a copy that failed stays and raises again."""
        self._arriving = {
            block_id: copies
            for block_id, copies in self._arriving.items()
            if not all(copy.done for copy in copies)
        }
        self._leaving = {b: copy for b, copy in self._leaving.items() if not copy.done}
