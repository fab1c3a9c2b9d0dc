"""Which slot when a sequence lives in a ring: new tokens take the slots of the oldest."""

from __future__ import annotations

from collections.abc import Iterable

from kvlib.partial_rows import PartialRowLedger
from kvlib.plan import SeqId
from kvlib.sizes import whole_number
from kvlib.token_budget import sinks_and_window


class RollingLedger(PartialRowLedger):
    """Owns a ring of `window` slots for each sequence, behind `sinks` slots that never roll.

    Position `p` is in slot `p` if it is a sink, else in slot `sinks + (p - sinks) % window`. A
    sequence may become as long as it likes: what it holds are its first and its last tokens. Its
    length counts all that went through, as positions do.

    Args:
        num_seqs: rows, that is sequences that can live at once.
        window: slots of a ring. A query sees this many tokens, itself included, and the sinks.
        sinks: how many of the first tokens stay for good.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1 (`sinks`: 0).

    Example:
        >>> ledger = RollingLedger(num_seqs=1, window=4)
        >>> ledger.add("a")
        >>> step = ledger.plan({"a": [0] * 6}); step.slot_mapping
        (0, 1, 2, 3, 0, 1)
        >>> ledger.commit(step); ledger.length("a"), ledger.held("a"), ledger.used_tokens
        (6, [2, 3, 4, 5], 4)
        >>> ledger.truncate("a", 5); ledger.held("a")
        [2, 3, 4]

        With two sinks and a ring of three the seventh token takes the slot of the fourth:

        >>> ledger = RollingLedger(num_seqs=1, window=3, sinks=2)
        >>> ledger.add("a")
        >>> step = ledger.plan({"a": [0] * 7}); step.slot_mapping
        (0, 1, 2, 3, 4, 2, 3)
        >>> ledger.commit(step); ledger.held("a")
        [0, 1, 4, 5, 6]
    """

    def __init__(self, num_seqs: int, window: int, sinks: int = 0) -> None:
        whole_number("window", window)
        whole_number("sinks", sinks, least=0)
        super().__init__(num_seqs, sinks + window)
        # Of a sequence all before position `_gone` is, but for the sinks: there its ring begins.
        self.window, self.sinks = window, sinks

    @property
    def used_tokens(self) -> int:
        """Slots that hold a stored token; one that was overwritten is none."""
        return sum(len(self.held(seq_id)) for seq_id in self._rows)

    def held(self, seq_id: SeqId) -> list[int]:
        """Returns the positions of a live sequence that are still in its row, in order.

        Raises:
            KeyError: no such sequence.
        """
        length = self.length(seq_id)
        first = self._gone[seq_id]
        return [*range(min(self.sinks, first)), *range(first, length)]

    def held_slots(self, seq_id: SeqId) -> list[int]:
        """Returns the slots of the positions held, in order of position.

        Raises:
            KeyError: no such sequence.
        """
        return list(self._slots(seq_id, self.held(seq_id)))

    def _slots(self, seq_id: SeqId, positions: Iterable[int]) -> Iterable[int]:
        row = self._rows[seq_id] * self.row_len
        for at in positions:
            ring = self.sinks + (at - self.sinks) % self.window
            yield row + (at if at < self.sinks else ring)

    def _settle(self, seq_id: SeqId) -> None:
        start = self._lengths[seq_id] - self.window
        if start > self.sinks:
            self._gone[seq_id] = max(self._gone[seq_id], start)

    def _cut(self, seq_id: SeqId, num_tokens: int) -> None:
        """The next query, at position `num_tokens`, must find its sinks and those of its window.

        What goes is known by its position: in a ring, the last slots do not hold the last tokens.
        """
        first, length = self._gone[seq_id], self._lengths[seq_id]
        needed = max(self.sinks, num_tokens - self.window + 1)
        if needed < min(first, num_tokens):
            raise ValueError(
                f"{length} tokens went through a ring of {self.window} behind {self.sinks} sinks:"
                f" those before position {first} are gone, so it cannot go back to {num_tokens}"
            )
        self._gone[seq_id] = 0 if num_tokens <= self.sinks else min(first, num_tokens)

    def _check_lengths(self) -> None:
        super()._check_lengths()
        for seq_id, length in self._lengths.items():
            held, first = self.held(seq_id), self._gone[seq_id]
            assert len(held) <= self.row_len and len(set(held)) == len(held), "no slot for a token"
            assert first == 0 or self.sinks < first <= length, "a ring that begins in the sinks"
            full = sinks_and_window(length, self.sinks, self.window - 1)
            assert set(full) <= set(held), "a gap in a window"
