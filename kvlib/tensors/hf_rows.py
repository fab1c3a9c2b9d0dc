"""The rows of a batch as sequences of kvlib: their pads, and what beams, drafts and resets do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from kvlib.tensors.caches import LedgerCache
from kvlib.tensors.hf_groups import Group

_IDS = count()


class BatchRows:
    """One sequence for each row of a batch, in every group's cache.

    Names are unique in the process, so that several batches can live in one cache.

    Args:
        groups: the model's layers and their caches.

    Attributes:
        ids: the sequences, in the order of the batch.
        recording: whether windows keep all that is new until `crop` says what of it stays.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.ids: tuple[str, ...] = ()
        self.recording = False

    @property
    def caches(self) -> list[LedgerCache]:
        """The groups' caches."""
        return [group.cache for group in self.groups]

    @property
    def lengths(self) -> list[int]:
        """Tokens stored, by row."""
        return [self.caches[0].length(seq_id) for seq_id in self.ids]

    def add(self, num_rows: int, prompts: Sequence[Sequence[int]] | None = None) -> None:
        """Takes rows for a batch.

        Args:
            num_rows: of the batch.
            prompts: by row, the tokens that a tier may have; None for caches without tiers.

        Raises:
            OutOfBlocks: a cache has no place for them. Nothing is taken.
        """
        ids, taken = tuple(f"row {next(_IDS)}" for _ in range(num_rows)), []
        try:
            for cache in self.caches:
                for i, seq_id in enumerate(ids):
                    cache.add(seq_id, *([] if prompts is None else [prompts[i]]))
                    taken.append((cache, seq_id))
        except BaseException:
            for cache, seq_id in taken:
                cache.free(seq_id)
            raise
        self.ids = ids

    def free(self) -> None:
        """Gives everything back."""
        ids, self.ids = self.ids, ()
        for cache in self.caches:
            for seq_id in ids:
                cache.free(seq_id)

    def reorder(self, sources: Sequence[int]) -> None:
        """Lets each row continue another's tokens, as beams do; blocks are shared, not copied."""
        moves = dict(zip(self.ids, (self.ids[i] for i in sources), strict=True))
        for cache in self.caches:
            cache.reorder(moves)

    def select(self, sources: Sequence[int]) -> None:
        """Makes a batch of some of the rows, in any order, each as often as it is named.

        Raises:
            OutOfBlocks: no place for a row that is named twice. Nothing changes.
        """
        kept, made, ids = set(), [], []
        try:
            for i in sources:
                seq_id = self.ids[i]
                if seq_id in kept:
                    parent, seq_id = seq_id, f"row {next(_IDS)}"
                    for cache in self.caches:
                        cache.fork(parent, seq_id)
                        made.append((cache, seq_id))
                kept.add(seq_id)
                ids.append(seq_id)
        except BaseException:
            for cache, seq_id in made:
                cache.free(seq_id)
            raise
        for cache in self.caches:
            for seq_id in set(self.ids) - kept:
                cache.free(seq_id)
        self.ids = tuple(ids)

    def crop(self, num_columns: int) -> None:
        """Takes the last tokens of every row away.

        Raises:
            RuntimeError: a window has given back what would be seen again. Nothing changes.
        """
        for group in self.groups:
            passed = group.drops and max(self.lengths, default=0) > group.window
            if num_columns and passed and not self.recording:
                raise RuntimeError(
                    f"a window of {group.window} gave back what came before it, {num_columns}"
                    " columns cannot be taken away: call activate_past_recording() first"
                )
        for group in self.groups:
            self._window(group, group.window)
            for seq_id in self.ids:
                keep = max(0, group.cache.length(seq_id) - num_columns)
                group.cache.truncate(seq_id, keep)
            if self.recording and group.drops:
                # A step without tokens: what lies before the window goes back at its commit.
                group.cache.commit(group.cache.plan(dict.fromkeys(self.ids, ())))
                self._window(group, None)

    def record(self) -> None:
        """From now on windows keep all that is new until the next `crop`."""
        self.recording = True
        for group in self.groups:
            self._window(group, None)

    def stop_recording(self) -> None:
        """Windows give back what they have passed, at every step, as they began."""
        self.recording = False
        for group in self.groups:
            self._window(group, group.window)

    def _window(self, group: Group, window: int | None) -> None:
        if group.drops:
            group.cache.ledger.window = window


def real_columns(
    padding: Tensor | None, lengths: Sequence[int], columns: int, num_new: int, windows: bool
) -> Tensor | None:
    """Returns which of a batch's new columns are no pads, [B, T] bool, or None if all are.

    Args:
        padding: [B, columns + T] bool, False for pads; None without pads.
        lengths: by row, how many tokens are stored.
        columns: how many columns came before.
        num_new: the new columns, T.
        windows: whether a layer has a window.

    Raises:
        ValueError: the mask does not say of the earlier columns what it said then, or there are
            pads behind a row's first token and a window, which transformers counts in columns.

    Example:
        >>> mask = torch.tensor([[False, True, True], [True, True, True]])
        >>> real_columns(mask, [0, 0], 0, 3, False).sum(1).tolist()
        [2, 3]
    """
    seen = None if padding is None else padding[:, :columns].sum(1).tolist()
    before = [columns] * len(lengths) if seen is None else seen
    whole = padding is None or padding.shape[1] == columns + num_new
    if list(lengths) != before or not whole:
        raise ValueError(
            f"the mask has {before} tokens in the {columns} columns before, {list(lengths)} are"
            f" stored; it must cover them and the {num_new} new ones"
        )
    if padding is None:
        return None
    real = padding[:, columns:]
    begun = torch.tensor(lengths, device=real.device)[:, None] + real.cumsum(1) > 0
    if windows and bool((begun & ~real).any()):
        raise ValueError("under a window pads belong on the left, before a row's first token")
    return None if bool(real.all()) else real
