"""Who owns which slot when a sequence lives in a ring: new tokens take the slots of the oldest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvlib.ledger import ContiguousLedger
from kvlib.plan import BlockCopy, SeqId
from kvlib.sizes import whole_number


class RollingLedger(ContiguousLedger):
    """Owns rings of `window` slots, one for each sequence; position `p` is in slot `p % window`.

    A sequence may become as long as it likes: what it holds are its last tokens. Its length counts
    all that went through, as positions do.

    Args:
        num_seqs: rings, that is sequences that can live at once.
        window: slots per ring. A query sees this many tokens, itself included.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1.

    Example:
        >>> ledger = RollingLedger(num_seqs=1, window=4)
        >>> ledger.add("a")
        >>> step = ledger.plan({"a": [0] * 6}); step.slot_mapping
        (0, 1, 2, 3, 0, 1)
        >>> ledger.commit(step); ledger.length("a"), ledger.held("a"), ledger.used_tokens
        (6, range(2, 6), 4)
        >>> ledger.truncate("a", 5); ledger.held("a")
        range(2, 5)
    """

    def __init__(self, num_seqs: int, window: int) -> None:
        whole_number("window", window)
        super().__init__(num_seqs, window)
        self.window = window
        self.max_seq_len: int | None = None
        self._first: dict[SeqId, int] = {}

    @property
    def used_tokens(self) -> int:
        """Slots that hold a stored token; one that was overwritten is none."""
        return sum(len(self.held(seq_id)) for seq_id in self._rows)

    def held(self, seq_id: SeqId) -> range:
        """Returns the positions of a live sequence that are still in its ring.

        Raises:
            KeyError: no such sequence.
        """
        length = self.length(seq_id)
        return range(self._first[seq_id], length)

    def row_len_for(self, new: Mapping[SeqId, Sequence[int]]) -> int:
        """Returns the window: a ring never grows.

        Raises:
            KeyError, ValueError: as `plan`. Nothing changes.
        """
        for seq_id in new:
            self._open.refuse(seq_id)
            self._require_live(seq_id)
        return self.window

    def _slots(self, seq_id: SeqId, positions: range) -> Iterable[int]:
        first_slot = self._rows[seq_id] * self.window
        return (first_slot + position % self.window for position in positions)

    def _take(self, seq_id: SeqId) -> None:
        super()._take(seq_id)
        self._first[seq_id] = 0

    def _share(self, parent: SeqId, child: SeqId) -> list[BlockCopy]:
        copies = super()._share(parent, child)
        self._first[child] = self._first[parent]
        return copies

    def _exchange(self, sources: Mapping[SeqId, SeqId]) -> list[BlockCopy]:
        self._first.update({s: self._first[source] for s, source in sources.items()})
        return super()._exchange(sources)

    def _settle(self, seq_id: SeqId) -> None:
        self._first[seq_id] = max(self._first[seq_id], self._lengths[seq_id] - self.window)

    def _cut(self, seq_id: SeqId, num_tokens: int) -> None:
        """The next query, at position `num_tokens`, must find the tokens of its window."""
        held = self.held(seq_id)
        needed = max(0, num_tokens - self.window + 1)
        if needed < min(held.start, num_tokens):
            raise ValueError(
                f"{held.stop} tokens went through a ring of {self.window}: those before position "
                f"{held.start} are gone, so it cannot go back to {num_tokens}"
            )
        self._first[seq_id] = min(held.start, num_tokens)

    def _give_back(self, seq_id: SeqId) -> None:
        super()._give_back(seq_id)
        del self._first[seq_id]

    def _check_lengths(self) -> None:
        assert self._first.keys() == self._lengths.keys(), "a length without a first position"
        for seq_id, length in self._lengths.items():
            held = length - self._first[seq_id]
            assert 0 <= held <= self.window, f"{held} tokens of {seq_id!r} in a ring"
            assert held == length or held >= min(length, self.window - 1), "a gap in a window"
