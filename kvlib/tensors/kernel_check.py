"""Whether a way to attend over blocks is right, and if not, what it has most likely done.

Who writes a kernel is its worst judge. `check` tries what kernels get wrong: lengths that fill a
block or do not, an empty sequence, query heads that share keys, a window, scores that no power
holds, and NaN in every slot that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kvlib.tensors.kernel_settings import Attend, Setting, trials

# What a wrong result is compared with: the definition, one thing changed; and what that means.
TWISTS = {
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
        twist: a name of `TWISTS`, to get a well-known wrong result instead.
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
    for twist, meaning in TWISTS.items():
        if alike(exact(step, twist)):
            return f"{where} is off; yours is {meaning}"
    head = int((got - expected)[row].abs().amax(-1).argmax())
    shown = f"should be {expected[row, head, 0]:.3f}, yours is {got[row, head, 0]:.3f}"
    return f"{where} is off: head {head} begins with what {shown}"
