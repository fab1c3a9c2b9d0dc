"""What blocks of several sizes leave empty on whole traces: python measure/trace_blocks.py."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from kvlib.block_table import num_blocks_for
from whole_traces import load, record_figures

NAMES = ("azure-conv", "azure-code", "arxiv", "mooncake-conv")
BLOCK_SIZES = (8, 16, 32, 64, 128, 256, 512)


def percent(share: float) -> float:
    """Rounds a share to a hundredth of a percent."""
    return round(100 * share, 2)


def empty(lengths: Sequence[int], block_size: int) -> float:
    """Percent of the slots of all blocks that hold no token, at the final length."""
    held = block_size * sum(num_blocks_for(n, block_size) for n in lengths)
    return percent(1 - sum(lengths) / held)


def by_rule(lengths: Sequence[int], block_size: int) -> float:
    """The same by the rule that a last block lacks `(block_size - 1) / 2` tokens on average."""
    lost = (block_size - 1) / 2
    return percent(lost / (fmean(lengths) + lost))


def figures() -> dict[str, Any]:
    """Everything the record holds of the traces."""
    whole = {name: load(name) for name in NAMES}
    lengths = {
        name: [r.prompt_tokens + r.output_tokens for r in workload.requests]
        for name, workload in whole.items()
    }
    return {
        "sources": {name: workload.source for name, workload in whole.items()},
        "mean_tokens": {name: round(fmean(each), 1) for name, each in lengths.items()},
        "empty_percent": {
            name: {size: empty(each, size) for size in BLOCK_SIZES}
            for name, each in lengths.items()
        },
        "by_rule_percent": {
            name: {size: by_rule(each, size) for size in BLOCK_SIZES}
            for name, each in lengths.items()
        },
        "entries": {
            name: {
                size: round(fmean(num_blocks_for(n, size) for n in each), 2) for size in BLOCK_SIZES
            }
            for name, each in lengths.items()
        },
    }


if __name__ == "__main__":
    record_figures(
        "trace_blocks", figures, NAMES, ("kvlib/block_table.py", "measure/trace_blocks.py")
    )
