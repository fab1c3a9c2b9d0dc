"""Which device and precision the tensor half runs on, chosen in one place."""

from __future__ import annotations

import os
import platform

import torch


def device(name: str | torch.device | None = None) -> torch.device:
    """Returns the device to run on: `name`, else `KVLIB_DEVICE`, else CUDA when there is one.

    On CUDA, TF32 is switched off for matrix products, so that float32 means float32 and a result
    can be compared with the CPU's.

    Args:
        name: "cpu", "cuda", "cuda:1", "meta" (shapes without bytes), or None to let the
            environment decide.

    Raises:
        ValueError: no such kind of device.
        RuntimeError: CUDA was asked for on a machine without it, or a card that is not there.

    Example:
        >>> device("cpu")
        device(type='cpu')
    """
    asked = str(name or os.environ.get("KVLIB_DEVICE") or _best())
    try:
        chosen = torch.device(asked)
    except RuntimeError as error:
        raise ValueError(f"no device named {asked!r}: use cpu, cuda, cuda:N or meta") from error
    if chosen.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"no device named {asked!r}: use cpu, cuda, cuda:N or meta")
    if chosen.type == "cuda":
        _require_cuda(asked, chosen.index or 0)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return chosen


def _best() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _require_cuda(asked: str, index: int) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        raise RuntimeError(
            f"asked for device {asked!r}, this machine has {count} CUDA device(s): "
            "leave KVLIB_DEVICE unset or set it to cpu"
        )


def card(on: str | torch.device | None = None) -> str:
    """Returns the lines that tell where a notebook ran: device, memory in use, versions.

    Belongs in a cell that is not compared, since it differs from machine to machine.

    Args:
        on: as for `device`.
    """
    chosen = device(on)
    if chosen.type == "cuda":
        name = torch.cuda.get_device_name(chosen)
        allocated = f"{torch.cuda.memory_allocated(chosen):,} bytes allocated"
    else:
        name = platform.processor() or platform.machine()
        allocated = f"{torch.get_num_threads()} threads"
    return f"device {chosen} ({name}), {allocated}, torch {torch.__version__}"
