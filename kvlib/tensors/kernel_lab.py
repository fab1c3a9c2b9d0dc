"""The kernel lab: is a way to attend over blocks right, what does it move, and then how fast is it.

`check` says whether it is right, `work` counts bytes. `time` refuses what is wrong.
"""

from __future__ import annotations

import statistics
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlib.tensors.kernel_check import Report, check, exact
from kvlib.tensors.kernel_settings import RAGGED, Attend, Setting, setting, timing_step, trials
from kvlib.tensors.kernel_work import Work, work
from kvlib.tensors.paged_attention import WAYS, gather

__all__ = [
    "RAGGED",
    "Attend",
    "Contiguous",
    "Report",
    "Setting",
    "Work",
    "check",
    "exact",
    "setting",
    "time",
    "timing_step",
    "trials",
    "work",
]


class Contiguous:
    """Torch's attention on the same keys laid out in rows, which are made before and not timed.

    The queries of one KV head are the rows of a small matrix: the fastest contiguous form.

    Args:
        step: without an empty sequence and without a window.

    Attributes:
        rows: keys and values, each [S, Hkv, tokens of the longest, D].

    Raises:
        ValueError: it has an empty sequence or a window.
    """

    def __init__(self, step: Setting) -> None:
        lens, size = step.context.host.context_lens, step.keys.shape[2]
        if 0 in lens or step.window is not None:
            raise ValueError(f"rows take no empty sequence and no window: {lens}, {step.window}")
        at = torch.arange(max(lens), device=step.q.device)
        blocks = step.context.block_table[:, at // size].long()
        self.rows = [
            side[blocks, :, at % size].transpose(1, 2).nan_to_num().contiguous()
            for side in (step.keys, step.values)
        ]
        here = at < torch.tensor(lens, device=at.device)[:, None]
        self._mask = None if here.all() else here[:, None, None]

    def __call__(self, q: Tensor, *_: object) -> Tensor:
        """Attends; takes what the ways over blocks take, and looks at the queries only."""
        grouped = q.unflatten(1, (self.rows[0].shape[1], -1))
        return scaled_dot_product_attention(grouped, *self.rows, attn_mask=self._mask).flatten(1, 2)


def time(attend: Attend, step: Setting | None = None, *, repeats: int = 7) -> dict[str, float]:
    """Returns how many times as long as yours each anchor takes: above 1, yours is faster.

    All take turns, so that a busy moment of the machine meets all of them; the medians of the
    ratios round by round are returned.

    Args:
        attend: a way to attend.
        step: where; no empty sequence and no window.
        repeats: rounds that are timed; one before is not.

    Returns:
        For `gather`, for the library's `cpu` kernel where it can be compiled, and for `contiguous`.

    Raises:
        ValueError: it is wrong: a wrong kernel has no speed. The message has the first fault.
    """
    step = step or timing_step()
    if fault := check(attend, [*trials(step.q.device), step]).first_fault:
        raise ValueError(f"correct first: {fault}")
    ways = {"yours": attend, "gather": gather, "contiguous": Contiguous(step)}
    if not check(WAYS["cpu"], [step]).first_fault:
        ways["cpu"] = WAYS["cpu"]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(-1, repeats):
        for name, way in ways.items():
            start = perf_counter()
            step.run(way)
            if step.q.is_cuda:  # a card answers before it is done
                torch.cuda.synchronize(step.q.device)
            if round_ >= 0:
                seconds[name].append(perf_counter() - start)
    yours = seconds.pop("yours")
    return {
        name: statistics.median(a / b for a, b in zip(each, yours, strict=True))
        for name, each in seconds.items()
    }
