"""Every engine of the atlas on two whole traces: python measure/engine_atlas.py.

Takes about twenty minutes. A test runs the cheapest engines again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trace_atlas import CODE, FASTER, LARGE, TRACES, Load, described, paced, served
from whole_traces import load, record_figures


def loads() -> dict[str, Load]:
    """Returns the whole traces, at twice the pace of their requests."""
    chat, long = (load(name).requests for name in TRACES)
    about = "all requests, twice as fast as they came"
    return {
        "azure-conv": Load(FASTER, about, 1024, paced(chat, 0.5, 1024)),
        "mooncake-conv": Load(LARGE, about, 2048, paced(long, 0.5, 2048), 64),
    }


def figures(names: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns everything the record holds; of some engines only, if they are named."""
    return {
        "loads": {
            name: described(each) | {"engines": served(each, names)}
            for name, each in loads().items()
        }
    }


if __name__ == "__main__":
    code = (*CODE, "measure/trace_atlas.py", "measure/engine_atlas.py")
    record_figures("engine_atlas", figures, TRACES, code)
