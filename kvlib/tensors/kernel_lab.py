"""The kernel lab: is a way to attend over blocks right, what does it move, and then how fast is it.

Who writes a kernel is its worst judge. `check` tries what kernels get wrong: lengths that fill a
block or do not, an empty sequence, query heads that share keys, a window, scores that no power
holds, and NaN in every slot that nobody wrote. `work` counts bytes. `time` refuses what is wrong.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

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

# What a wrong result is compared with: the definition, one thing changed.
_TWISTS = {
    "scale": "what one gets without the factor 1 / sqrt(head_dim)",
    "heads": "what one gets if query head h reads KV head h % Hkv, not h // group",
    "no window": "what one gets without the window",
    "wide window": "what one gets with a window of one key more",
    "last": "what one gets without the newest token",
    "mean": "the plain mean of the blocks' results",
}


def exact(step: Setting, twist: str = "") -> Tensor:
    """Returns the attention in float64, sequence by sequence: the definition.

    Args:
        step: the setting.
        twist: a name of `_TWISTS`, to get a well-known wrong result instead.
    """
    window = step.window
    if window is not None and twist.endswith("window"):
        window = None if twist == "no window" else window + 1
    out = torch.zeros(step.q.shape, dtype=torch.float64, device=step.q.device)
    num_q, num_kv, size = step.q.shape[1], step.keys.shape[1], step.keys.shape[2]
    heads = torch.arange(num_q, device=step.q.device)
    owner = heads % num_kv if twist == "heads" else heads // (num_q // num_kv)
    for s, rows, first, end in step.context.spans(window):
        end = max(first + 1, end - (twist == "last"))
        at = torch.arange(first, end, device=step.q.device)
        blocks = step.context.block_table[s, at // size].long()
        k, v = (side[blocks, :, at % size].double()[:, owner] for side in (step.keys, step.values))
        scores = torch.einsum("hd,thd->ht", step.q[rows][0].double(), k)
        scores = scores * (1.0 if twist == "scale" else step.q.shape[2] ** -0.5)
        cuts = [*range(0, len(at), size), len(at)] if twist == "mean" else [0, len(at)]
        parts = [
            torch.einsum("ht,thd->hd", scores[:, a:b].softmax(-1), v[a:b])
            for a, b in pairwise(cuts)
        ]
        out[rows] = torch.stack(parts).mean(0)
    return out


@dataclass(frozen=True)
class Report:
    """What `check` found: a line for each trial.

    Attributes:
        lines: name of the trial and what was wrong, or an empty string.
    """

    lines: tuple[tuple[str, str], ...]

    @property
    def passed(self) -> bool:
        """Whether every trial was right."""
        return not any(said for _, said in self.lines)

    @property
    def first_fault(self) -> str:
        """The first trial that failed and why, or an empty string."""
        return next((f"{name}: {said}" for name, said in self.lines if said), "")

    def __str__(self) -> str:
        right = sum(not said for _, said in self.lines)
        rows = [f"{right} of {len(self.lines)} trials are right"]
        rows += [f"  {name}: {said or 'right'}" for name, said in self.lines]
        return "\n".join(rows)


def check(attend: Attend, steps: Sequence[Setting] | None = None) -> Report:
    """Tries a way to attend against the float64 definition, and says what is wrong with it.

    Args:
        attend: takes what `paged_attention.WAYS` take, for one new token a sequence; returns the
            output [R, Hq, D], or a pair that begins with it.
        steps: what to try; `trials()`, on the CPU, by default.
    """
    steps = trials() if steps is None else steps
    return Report(tuple((step.name, _fault(attend, step)) for step in steps))


def _fault(attend: Attend, step: Setting) -> str:
    before = [each.clone() for each in (step.q, step.keys, step.values)]
    try:
        got = step.run(attend)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return f"raised {type(error).__name__}: {first}"
    for name, old, new in zip(
        ("q", "keys", "values"), before, (step.q, step.keys, step.values), strict=True
    ):
        if not torch.equal(old.nan_to_num(7.0), new.nan_to_num(7.0)):
            return f"it has written into {name}, which is not its own"
    if not isinstance(got, Tensor) or got.shape != step.q.shape or got.dtype != step.q.dtype:
        is_one = isinstance(got, Tensor)
        has = f"{tuple(got.shape)} in {got.dtype}" if is_one else type(got).__name__
        return f"should return {tuple(step.q.shape)} in {step.q.dtype}, yours is {has}"
    return _difference(got.double(), step)


def _difference(got: Tensor, step: Setting) -> str:
    tolerance = 1e-5 if step.q.dtype == torch.float32 else 1e-2
    tolerance *= 10 if step.name == "loud scores" else 1  # scores of a few hundred

    def alike(other: Tensor) -> bool:
        return torch.allclose(got, other, rtol=tolerance, atol=tolerance)

    expected = exact(step)
    if alike(expected):
        return ""
    off = (got - expected).abs().nan_to_num(torch.inf).amax((1, 2))
    row = int((off > tolerance).int().argmax())
    length = [n for n in step.context.host.context_lens if n][row]
    where = f"the sequence of {length} token{'s' * (length > 1)}"
    if not got[row].isfinite().all():
        return f"{where} is not finite: a free slot was read, or a power is too large"
    for twist, meaning in _TWISTS.items():
        if alike(exact(step, twist)):
            return f"{where} is off; yours is {meaning}"
    head = int((got - expected)[row].abs().amax(-1).argmax())
    shown = f"should be {expected[row, head, 0]:.3f}, yours is {got[row, head, 0]:.3f}"
    return f"{where} is off: head {head} begins with what {shown}"


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
