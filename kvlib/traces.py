"""The public request traces: what is known about each, and where its file lies on this machine.

The facts and the quantiles are in `data/workloads.json`; the traces themselves stay with their
publishers (`python -m kvlib.fetch NAME` downloads one).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvlib.sizes import near

PUBLISHER = "https://raw.githubusercontent.com"
_FACTS = Path(__file__).with_name("data") / "workloads.json"


@dataclass(frozen=True)
class Trace:
    """What is known about a public trace, with the lines its licence asks us to print.

    Means are over all requests. The `_permille` columns are 1001 order statistics, from the
    smallest to the largest value; `None` where a trace keeps no times (or no gaps that mean
    something: ragpulse is a selection of requests, so its pace is nobody's load), as `mean_gap_ms`
    is. `changes` says what reading changes, `citation` which paper
    the publisher asks to be cited. `sha256` is of the publisher's file, where it is known in full.
    """

    name: str
    about: str
    attribution: str
    licence: str
    changes: str
    citation: str | None
    repository: str
    commit: str
    path: str
    sha256: str | None
    compact_file: str
    num_requests: int
    mean_prompt_tokens: float
    mean_output_tokens: float
    mean_gap_ms: float | None
    prompt_tokens_permille: tuple[int, ...]
    output_tokens_permille: tuple[int, ...]
    gap_ms_permille: tuple[int, ...] | None

    @property
    def publisher_file(self) -> str:
        """The file's name where it is published."""
        return self.path.rpartition("/")[2]

    @property
    def url(self) -> str:
        """Where the publisher keeps the file."""
        return f"{PUBLISHER}/{self.repository}/{self.commit}/{self.path}"

    @property
    def source(self) -> str:
        """The line to print beside every figure: who, licence, changes, paper."""
        line = f"{self.attribution}, {self.licence}; {self.changes}"
        return f"{line}; {self.citation}" if self.citation else line


@cache
def _all() -> dict[str, Trace]:
    facts = json.loads(_FACTS.read_text(encoding="utf-8"))["traces"]
    return {
        name: Trace(name, **{k: tuple(v) if isinstance(v, list) else v for k, v in known.items()})
        for name, known in facts.items()
    }


def traces() -> list[str]:
    """Lists the names of the known traces.

    Example:
        >>> traces()[:2]
        ['azure-conv', 'azure-code']
    """
    return list(_all())


def trace(name: str) -> Trace:
    """Returns what is known about one trace.

    Raises:
        ValueError: no trace has this name; the message lists those that there are.

    Example:
        >>> trace("azure-code").num_requests
        8819
    """
    if name not in _all():
        raise ValueError(near(name, traces(), "trace"))
    return _all()[name]


def trace_of_file(file_name: str) -> Trace | None:
    """Returns the trace that a file of this name holds, in either form, or `None`.

    Example:
        >>> trace_of_file("conversation_trace.jsonl").name
        'mooncake-conv'
    """
    for known in _all().values():
        if file_name in (known.publisher_file, known.compact_file):
            return known
    return None


def user_cache() -> Path:
    """Returns where downloads are kept: `$KVLIB_CACHE`, else `~/.cache/kvlib` (or under XDG's)."""
    if named := os.environ.get("KVLIB_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvlib"


def cache_folder() -> Path:
    """Returns the folder that downloaded traces go to; it need not exist yet."""
    return user_cache() / "traces"


def find(name: str, folders: Iterable[Path] = ()) -> Path | None:
    """Finds a trace's file on this machine, in either form, or returns `None`.

    Args:
        name: the trace's name.
        folders: looked in after `$KVLIB_TRACES` and before the user's cache.

    Raises:
        ValueError: no trace has this name.
    """
    known = trace(name)
    named = os.environ.get("KVLIB_TRACES")
    for folder in (*([Path(named)] if named else []), *folders, cache_folder()):
        for file_name in (known.publisher_file, known.compact_file):
            if (folder / file_name).is_file():
                return folder / file_name
    return None
