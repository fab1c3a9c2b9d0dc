"""Joining a group of processes on one machine: where they meet, and what they speak by."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from kvlib.tensors.device import device
from kvlib.tensors.distributed import PeerLost, Ranks


@contextmanager
def joined(meeting: Path, rank: int, size: int, timeout_s: float = 10.0) -> Iterator[Ranks]:
    """Joins a group of processes on one machine, and leaves it at the end.

    They speak by NCCL if the chosen device is CUDA and each has a GPU of its own, else by gloo. The
    NCCL way has not been run yet: it takes two GPUs.

    Args:
        meeting: a file that does not exist yet, the same for all ranks.
        rank: this process.
        size: how many processes.
        timeout_s: how long any call waits for another rank.

    Raises:
        PeerLost: the others did not come in time.
    """
    on_gpus = device().type == "cuda" and torch.cuda.device_count() >= size
    if on_gpus:
        torch.cuda.set_device(rank)
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a lost peer is an error, no abort
    store = dist.FileStore(str(meeting), size)
    try:
        dist.init_process_group(
            "nccl" if on_gpus else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
        ranks = Ranks(timeout_s)
    except RuntimeError as error:
        _leave_group()
        raise PeerLost(
            f"rank {rank} waited {timeout_s} s for {size - 1} others: {error}"
        ) from error
    try:
        yield ranks
    finally:
        _leave_group()


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
