"""Whole traces for the scripts `trace_*.py`, and the records of what was counted in them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kvlib import traces, workloads
from kvlib.workloads import Workload
from record import ROOT, write

BESIDE = ROOT.parent / "shared" / "data" / "traces"


def load(name: str) -> Workload:
    """Returns the whole trace.

    Raises:
        FileNotFoundError: it is not on this machine; the message says how to get it.
    """
    return workloads.load(name, [BESIDE])


def record_figures(
    topic: str, figures: Callable[[], dict[str, Any]], names: Iterable[str], code: Iterable[str]
) -> None:
    """Writes the record `<topic>.cpu`, or says in one line which trace is not here.

    Args:
        topic: the script's name, `trace_…`.
        figures: what the record holds; a test calls it again and compares.
        names: the traces it counts; the record keeps each file's name and SHA-256.
        code: the files whose figures these are, relative to the repository.
    """
    found = {name: traces.find(name, [BESIDE]) for name in names}
    if missing := [name for name, path in found.items() if path is None]:
        print(f"no record {topic}: no file of {', '.join(missing)} here (set KVLIB_TRACES)")
        return
    files = {
        name: {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for name, path in found.items()
    }
    write(topic, {"files": files, **figures()}, code, torch.device("cpu"))
