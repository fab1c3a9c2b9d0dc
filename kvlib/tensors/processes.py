"""Several processes on one machine as the ranks of a group: started, and what they found.

Starting takes about two seconds: put all cases into one call.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic
from typing import Any

import torch

from kvlib.tensors.distributed import PeerLost
from kvlib.tensors.process_group import joined


def run_ranks(
    work: Callable[..., Any],
    num_ranks: int,
    *args: Any,
    peer_s: float = 20.0,
    whole_s: float = 240.0,
    strict: bool = True,
) -> list[Any]:
    """Runs `work(ranks, *args)` in so many new processes and returns what each returned.

    Args:
        work: a function that a new process can import.
        num_ranks: how many processes.
        args: for the function; pickled.
        peer_s: how long a rank waits for another.
        whole_s: how long all may take; then they are ended. None is left behind, however this call
            ends: an interrupt of the notebook ends them too, and so does its kernel's death.
        strict: raise if a rank raised or died. Otherwise its error stands in its place.

    Raises:
        RuntimeError: a rank raised or died; the first is named, its error is the cause.
    """
    # Spawned, not forked: a forked child would inherit locks of threads that it does not have.
    context = torch.multiprocessing.get_context("spawn")
    with TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            context.Process(
                target=_one_rank, args=(work, rank, num_ranks, folder, args, peer_s), daemon=True
            )
            for rank in range(num_ranks)
        ]
        try:
            for process in processes:
                process.start()
            end = monotonic() + whole_s
            for process in processes:
                process.join(max(0.0, end - monotonic()))
        finally:
            for process in processes:
                if process.pid is not None:  # it was started
                    process.kill()
                    process.join()
        results = [_result(folder / str(r), process) for r, process in enumerate(processes)]
    for rank, result in enumerate(results):
        if strict and isinstance(result, BaseException):
            raise RuntimeError(f"rank {rank} of {num_ranks} failed: {result}") from result
    return results


def _one_rank(
    work: Callable[..., Any],
    rank: int,
    size: int,
    folder: Path,
    args: tuple[Any, ...],
    peer_s: float,
) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    # All ranks are here: nobody else need be able to call. Otherwise gloo listens on the address of
    # the host's name, and fails where that has none.
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            os.environ["GLOO_SOCKET_IFNAME"] = name
    # What a library writes before it ends the process is all that is known then.
    os.dup2(os.open(folder / f"{rank}.err", os.O_CREAT | os.O_WRONLY, 0o600), 2)
    try:
        with joined(folder / "meeting", rank, size, peer_s) as ranks:
            result = work(ranks, *args)
    except Exception as error:
        result = error
    (folder / f"{rank}.part").write_bytes(pickle.dumps(result))
    (folder / f"{rank}.part").rename(folder / str(rank))


def _end_with_parent() -> None:
    """Ends this process as soon as the one that started it is gone, killed without a word too."""
    parent_process().join()
    os._exit(1)


def _result(path: Path, process: Any) -> Any:
    if path.exists():
        return pickle.loads(path.read_bytes())
    log = path.with_suffix(".err")
    said = log.read_text(errors="replace").rstrip() if log.exists() else ""
    last = said.rpartition("\n")[2].rpartition("] ")[2]
    code = f"the process left no result; its exit code is {process.exitcode}"
    return PeerLost(f"{code}: {last}" if last else code)
