"""What physical pages under contiguous addresses leave empty: python measure/trace_pages.py."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from statistics import median
from typing import Any

from kvlib import catalog
from kvlib.show.drawings.page_granularity import num_pages, row_bytes
from whole_traces import load, record_figures

NAMES = ("azure-conv", "azure-code", "arxiv", "mooncake-conv")
MODELS = ("OPT-13B", "Llama-2-7B", "Llama-3-8B", "Qwen2.5-7B")
PAGES = {"64 KiB": 2**16, "2 MiB": 2**21}
BLOCKS = (16, 256)


def empty(lengths: Sequence[int], row: int, unit: int) -> float:
    """Percent of the bytes of all pages that hold no token, at the final length."""
    held = fsum(unit * num_pages(n, row, unit) for n in lengths)
    return round(100 * (1 - row * sum(lengths) / held), 2)


def figures() -> dict[str, Any]:
    """Everything the record holds of the traces."""
    whole = {name: load(name) for name in NAMES}
    lengths = {
        name: [r.prompt_tokens + r.output_tokens for r in workload.requests]
        for name, workload in whole.items()
    }
    rows = {model: row_bytes(model) for model in MODELS}
    return {
        "sources": {name: workload.source for name, workload in whole.items()},
        "median_tokens": {name: median(each) for name, each in lengths.items()},
        "num_layers": {model: catalog.model(model).kv.num_layers for model in MODELS},
        "tokens_per_page": {
            model: {page: round(size / row, 1) for page, size in PAGES.items()}
            for model, row in rows.items()
        },
        "empty_percent": {
            name: {
                model: {
                    **{page: empty(each, row, size) for page, size in PAGES.items()},
                    **{f"blocks of {n}": empty(each, row, n * row) for n in BLOCKS},
                }
                for model, row in rows.items()
            }
            for name, each in lengths.items()
        },
    }


if __name__ == "__main__":
    record_figures(
        "trace_pages",
        figures,
        NAMES,
        ("kvlib/show/drawings/page_granularity.py", "measure/trace_pages.py"),
    )
