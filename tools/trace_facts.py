"""Prints what `kvlib/data/workloads.json` holds of a trace, as far as its file says it.

    python tools/trace_facts.py mooncake-conv conversation_trace.jsonl

The file's form must be one that `kvlib/trace_files.py` reads. Numbers stand as counted; whatever
only its publisher can say is a text that begins with TODO. The SHA-256 is of the file given: it
belongs into the entry only if that is the publisher's own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from kvlib import files
from kvlib.trace_files import read
from kvlib.trace_lines import MAX_FILE_BYTES

ASKED = {
    "about": "what the requests are, in a few words",
    "attribution": "the name that its licence asks to be shown",
    "licence": "name and address",
    "changes": "what reading changes, as 'timestamps converted to relative milliseconds'",
    "citation": "the paper that its publisher asks to be cited; null for none",
    "repository": "owner/name on GitHub",
    "commit": "40 digits",
    "path": "of the file in its repository",
}


def permille(values: Sequence[int]) -> list[int]:
    """Returns the 1001 order statistics: of n values number max(1, ceil(p n / 1000)).

    Example:
        >>> found = permille([30, 10, 20])
        >>> found[0], found[333], found[334], found[1000], len(found)
        (10, 10, 20, 30, 1001)
    """
    ordered, n = sorted(values), len(values)
    return [ordered[max(0, -(-p * n // 1000) - 1)] for p in range(1001)]


def facts(path: Path) -> dict[str, Any]:
    """Returns the entry of a trace, with what the file does not say left to be written.

    Raises:
        ValueError: the file's form is unknown, or it is malformed.
        OSError: it cannot be read.
    """
    requests = list(read(path))
    prompts, outputs = [r.prompt_tokens for r in requests], [r.output_tokens for r in requests]
    times = [r.arrival_s for r in requests if r.arrival_s is not None]
    gaps = [round(1000 * (after - before)) for before, after in pairwise(times)]
    return {
        **{name: f"TODO: {what}" for name, what in ASKED.items()},
        "sha256": sha256(files.read(path, MAX_FILE_BYTES)).hexdigest(),
        "compact_file": "TODO: a name of its own for a smaller form; where there is none, as path",
        "num_requests": len(requests),
        "mean_prompt_tokens": round(fmean(prompts), 2),
        "mean_output_tokens": round(fmean(outputs), 2),
        "mean_gap_ms": round(fmean(gaps), 3) if gaps else None,
        "prompt_tokens_permille": permille(prompts),
        "output_tokens_permille": permille(outputs),
        "gap_ms_permille": permille(gaps) if gaps else None,
    }


def entry(name: str, found: dict[str, Any]) -> str:
    """Returns the text of an entry as the file has it: one line a field."""
    tight = {"separators": (",", ":"), "ensure_ascii": False}
    lines = [f"{json.dumps(key)}: {json.dumps(value, **tight)}" for key, value in found.items()]
    return f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="of the trace, in small letters with hyphens")
    parser.add_argument("file", type=Path)
    given = parser.parse_args(arguments)
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", given.name):
        parser.error(f"a name has small letters, digits and hyphens, got {given.name!r}")
    try:
        print(entry(given.name, facts(given.file)))
    except (OSError, ValueError) as error:
        print(f"trace_facts: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
