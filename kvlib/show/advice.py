"""What a notebook's reader can do after a cell failed for want of memory, disk or patience.

Jupyter shows the error; this adds one sentence that says what to do. And it lets go of what the
cell had in work: a traceback keeps every tensor of the calls that it shows alive, so that without
this the cell after an out-of-memory error would find no room either.
"""

from __future__ import annotations

import errno
import gc
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

NO_MEMORY = (
    "Out of memory. What the cell had in work has been let go; what you gave a name is still "
    "there. Drop what you no longer need (`del cache`), ask for fewer blocks or shorter rows, "
    "and run the cell again."
)
DISK_FULL = (
    "The disk is full. Nothing half-written was kept. Free some space, or name another folder with "
    "the variable KVLIB_CACHE, and run the cell again."
)
STOPPED = (
    "Stopped. What you gave a name is still there, and a cache or an engine is as it was before "
    "the step that ran: go on from any cell."
)
# As torch, CUDA and cuBLAS put it where they raise a plain RuntimeError.
_NO_MEMORY_WORDS = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


def advice(error: BaseException) -> str:
    """Returns the sentence for an error or for what caused it; empty where its own words suffice.

    Example:
        >>> advice(MemoryError()).partition(".")[0]
        'Out of memory'
        >>> advice(ValueError("block_size must be at least 1"))
        ''
    """
    return next((found for each in _chain(error) if (found := _of_one(each))), "")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and what it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _of_one(error: BaseException) -> str:
    words = str(error)
    if isinstance(error, KeyboardInterrupt):
        return STOPPED
    # Windows has no quota error.
    full = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
    if (isinstance(error, OSError) and error.errno in full) or "No space left on device" in words:
        return DISK_FULL
    failed = isinstance(error, RuntimeError) and any(each in words for each in _NO_MEMORY_WORDS)
    failed |= isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return NO_MEMORY if failed else ""


def _let_go(error: BaseException) -> None:
    """Drops the local variables of the calls that an error's traceback shows.

    Their lines stay in the traceback. A call that still runs keeps its variables.
    """
    for each in _chain(error):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            with suppress(RuntimeError):  # it still runs
                frame.clear()
                # Jupyter looked at the variables, and Python keeps a copy of what was looked at
                # until somebody looks again.
                _ = frame.f_locals
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _after_cell(result: Any) -> None:
    """Advises after a cell that failed; `result` is what IPython says of it."""
    error = result.error_in_exec
    if error is None or not (words := advice(error)):
        return
    if words == NO_MEMORY:
        _let_go(error)
    print(f"\n{words}", file=sys.stderr)


def install() -> None:
    """Makes the notebook that runs this advise after failed cells; elsewhere it does nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        shell.events.register("post_run_cell", _after_cell)
