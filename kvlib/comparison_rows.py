"""What a run has come to as a row of a record, and rows as a table of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvlib.serving_run import ServingRun
from kvlib.waste import PARTS

# Headings of a table, each with its key in a row.
COUNTS = {
    "% used": "percent.used",
    "at once": "mean_running",
    "lost": "preempted",
    "% twice": "recomputed_percent",
}
TIMES = {
    "1st, 50 %": "ttft_s_p50",
    "1st, 99 %": "ttft_s_p99",
    "each, 50 %": "tpot_s_p50",
    "each, 99 %": "tpot_s_p99",
}


def row(run: ServingRun, timed: bool = True) -> dict[str, Any]:
    """Returns the counts of a run as a record holds them, rounded.

    A time that no request had is left out: where each gets one token, the time for each after it.

    Args:
        run: of one configuration.
        timed: whether times have a meaning for it; without a clock they have none.
    """
    found: dict[str, Any] = {
        "percent": {part: round(100 * run.share(part), 1) for part in PARTS},
        "mean_running": round(run.mean_running, 1),
        "peak_running": run.peak_running,
        "hit_percent": round(100 * run.prefix_hit_rate, 1),
        "preempted": run.preempted,
        "recomputed_tokens": run.recomputed_tokens,
        "recomputed_percent": round(100 * run.recomputed_share, 1),
        "finished": run.finished,
        "refused": run.refused,
        "steps": run.steps,
    }
    if not (timed and run.timed and run.now_s):
        return found
    times = {"seconds": run.now_s, "good_per_s": run.good / run.now_s}
    for name, seconds in (("ttft_s", run.ttft_s), ("tpot_s", run.tpot_s)):
        if seconds.count:
            times |= {f"{name}_p{p}": seconds.percentile(p) for p in (50, 99)}
    return found | {name: float(f"{seconds:.3g}") for name, seconds in times.items()}


def table(rows: Mapping[str, Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Returns rows as text, a line each; what a row does not have is a dash.

    Args:
        rows: by name, as `row` returns them.
        columns: heading to key; `percent.used` is `used` in `percent`.

    Example:
        >>> print(table({"a": {"steps": 1200}, "b": {}}, {"steps": "steps"}))
                                 steps
        a                        1,200
        b                            -
    """
    widths = {heading: max(6, len(heading)) for heading in columns}
    # A page shows 72 letters; what fits with it gets a second space between columns.
    gap = "  " if 22 + sum(2 + width for width in widths.values()) <= 72 else " "
    lines = [" " * 22 + "".join(f"{gap}{heading:>{width}}" for heading, width in widths.items())]
    for name, found in rows.items():
        texts = (_text(found, key) for key in columns.values())
        cells = zip(texts, widths.values(), strict=True)
        lines.append(f"{name:22}" + "".join(f"{gap}{text:>{width}}" for text, width in cells))
    return "\n".join(line.rstrip() for line in lines)


def _text(found: Mapping[str, Any], key: str) -> str:
    value: Any = found
    for name in key.split("."):
        value = value.get(name)
        if value is None:
            return "-"
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.3g}"
