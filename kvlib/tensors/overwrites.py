"""Writing over numbers that count: all of it, or nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Overwrites:
    """Remembers what is written over, and puts it back where anything fails before the end.

    A step's new tokens go where nothing counts yet, so a step that fails leaves no trace. Where a
    write takes the place of what a sequence still holds, that holds only if the old numbers can
    come back. It takes the memory of what is written over, until the end.

    Example:
        >>> import torch
        >>> held = torch.tensor([1.0, 2.0, 3.0])
        >>> try:
        ...     with Overwrites() as over:
        ...         over.put(held, slice(0, 2), 9.0)
        ...         raise MemoryError
        ... except MemoryError:
        ...     held.tolist()
        [1.0, 2.0, 3.0]
    """

    def __init__(self) -> None:
        self._old: list[tuple[Tensor, Any, Tensor]] = []

    def __enter__(self) -> Overwrites:
        """Returns itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Puts everything back, the last first, if the block did not come to its end."""
        if kind is not None:
            for target, index, old in reversed(self._old):
                target[index] = old

    def keep(self, target: Tensor, index: Any) -> None:
        """Remembers what stands at an index, before somebody else writes there."""
        self._old.append((target, index, target[index].clone()))

    def put(self, target: Tensor, index: Any, new: Tensor | float) -> None:
        """Remembers what stands at an index, and writes over it."""
        self.keep(target, index)
        target[index] = new
