"""What a way to attend moves, counted between torch and its kernels: the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvlib.tensors.kernel_settings import Attend, Setting, timing_step


@dataclass
class Work:
    """What torch's operations moved. A compiled kernel's own reading is not seen by torch.

    Attributes:
        read_bytes: of their inputs; looking up by an index reads as much as it returns.
        written_bytes: of their results; a view is no result.
        largest_bytes: the largest result.
        calls: operations that read or wrote.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    largest_bytes: int = 0
    calls: int = 0


_PICKS = ("index", "index_select", "gather", "embedding")
_FILLS = ("copy_", "fill_", "zero_")


def _nbytes(tensor: Tensor) -> int:
    sizes = (n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not n)
    return torch.Size(sizes).numel() * tensor.element_size()


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        given = [each for each in torch.utils._pytree.tree_leaves(args) if isinstance(each, Tensor)]
        made = [each for each in torch.utils._pytree.tree_leaves(out) if isinstance(each, Tensor)]
        places = {each.untyped_storage().data_ptr() for each in given}
        if not func._schema.is_mutable:
            made = [each for each in made if each.untyped_storage().data_ptr() not in places]
        if not made or "empty" in name:
            return out
        written = sum(map(_nbytes, made))
        read = given[1:] if name in _FILLS or name in _PICKS else given
        self.work.read_bytes += sum(map(_nbytes, read)) + written * (name in _PICKS)
        self.work.written_bytes += written
        self.work.largest_bytes = max(self.work.largest_bytes, *map(_nbytes, made))
        self.work.calls += 1
        return out


def work(attend: Attend, step: Setting | None = None) -> Work:
    """Returns what one call moves, counted between torch and its kernels: the same everywhere.

    Args:
        attend: a way to attend.
        step: where; a decode step of SmolLM2's heads by default.
    """
    step = step or timing_step()
    step.context.rows_of(step.window)  # kept for all layers of a step: not this call's work
    with _Count() as count:
        step.run(attend)
    return count.work
