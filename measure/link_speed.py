"""Times the ways of keys and values into another memory and back: measure/link_speed.py.

Host memory to host memory, and to a disk and back. A file that was just written is still in the
system's page cache, and reading it then measures memory. So each is timed both ways: a write with
and without waiting for the disk (`fsync`), a read from the page cache, one after the system was
asked to forget the file, and one past the cache (`O_DIRECT`). What the disk's own cache or a
virtual machine's host still holds, no program can know; the record says what was asked for.

Beside them a prompt's prefill by the real model, for its break-even. With CUDA also the copies
between host and card, pageable and pinned.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import kvlib
from first_cache import smollm2_shape
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.llama import Llama
from record import rounds, spread, write

REPEATS = 7
SET_BYTES = 2**28  # larger than a processor's caches
PIECES = (2**16, 2**20, 2**24)
PROMPTS = (16, 64, 256)


def gb_s(seconds: list[float], num_bytes: int = SET_BYTES) -> dict[str, float]:
    """Turns seconds for a set into GB/s; GB is 1e9 bytes, and a copied byte counts once."""
    return spread([num_bytes / each / 1e9 for each in seconds])


def memory_copies() -> dict[str, object]:
    """Copies the set in pieces, each piece to a place of its own."""
    source = torch.ones(SET_BYTES // 4)
    target = torch.zeros_like(source)

    def copy(piece: int) -> None:
        for a, b in zip(source.split(piece // 4), target.split(piece // 4), strict=True):
            b.copy_(a)

    times = rounds({str(piece): lambda piece=piece: copy(piece) for piece in PIECES}, REPEATS)
    return {piece: gb_s(each) for piece, each in times.items()}


class DiskFile:
    """A file of the set's size on the disk that is asked about, read and written in pieces."""

    def __init__(self, folder: Path) -> None:
        self.path, self.piece = folder / "link_speed.bin", PIECES[-1]
        # An anonymous map begins at a page, as reading past the cache requires.
        self.buffer = mmap.mmap(-1, self.piece)
        self.buffer.write(os.urandom(self.piece))

    def write(self, *, sync: bool) -> None:
        """Writes all of it, and waits for the disk if asked to."""
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        for _ in range(SET_BYTES // self.piece):
            os.write(file, self.buffer)
        if sync:
            os.fsync(file)
        os.close(file)

    def read(self, flags: int = 0, piece: int | None = None) -> None:
        """Reads all of it."""
        file = os.open(self.path, os.O_RDONLY | flags)
        view = memoryview(self.buffer)[: piece or self.piece]
        for _ in range(SET_BYTES // len(view)):
            if os.readv(file, [view]) != len(view):
                raise OSError("a file ended before it should")
        os.close(file)

    def forget(self) -> None:
        """Asks the system to drop the file from its page cache, once it is on the disk."""
        file = os.open(self.path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def disk_copies(folder: Path) -> dict[str, object]:
    """Writes and reads a file in turns, with the page cache and without it."""
    file = DiskFile(folder)
    file.write(sync=True)
    ways: dict[str, Callable[[], None]] = {
        "write to the page cache": lambda: file.write(sync=False),
        "write and fsync": lambda: file.write(sync=True),
        "read from the page cache": file.read,
        "read after forgetting": file.read,
        "read past the cache": lambda: file.read(os.O_DIRECT),
        "read past the cache, 64 KiB pieces": lambda: file.read(os.O_DIRECT, PIECES[0]),
    }
    before = {name: file.forget for name in ways if "page cache" not in name}
    before["write to the page cache"] = file.forget
    before["read from the page cache"] = file.read
    try:
        return {name: gb_s(each) for name, each in rounds(ways, REPEATS, before=before).items()}
    finally:
        file.path.unlink()


def card_copies(device: torch.device) -> dict[str, object] | None:
    """Copies between host and card, each waited for; None without a card."""
    if device.type != "cuda":
        return None
    card = torch.empty(SET_BYTES, dtype=torch.uint8, device=device)
    hosts = {name: torch.ones_like(card, device="cpu") for name in ("pageable", "pinned")}
    hosts["pinned"] = hosts["pinned"].pin_memory()

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)

    ways = {f"{name} to card": lambda host=host: copy(card, host) for name, host in hosts.items()}
    ways |= {f"card to {name}": lambda host=host: copy(host, card) for name, host in hosts.items()}
    return {name: gb_s(seconds) for name, seconds in rounds(ways, REPEATS).items()}


def prefills(device: torch.device, *, chosen: bool) -> dict[str, object]:
    """Times prompts of several lengths, each into an empty row."""
    model = Llama.random(smollm2_shape(), seed=0, device=device) if chosen else None
    model = model or kvlib.load_model(device=device)[0]
    place = {"dtype": model.dtype, "device": model.device}
    cache = ContiguousKVCache(model.kv_shape, 1, max(PROMPTS) + 1, **place)
    cache.add("prompt")

    def run(num_tokens: int) -> None:
        with cache.step({"prompt": [0] * num_tokens}) as plan:
            model(torch.arange(num_tokens, device=device), cache, plan)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        cache.truncate("prompt", 0)

    times = rounds({str(n): lambda n=n: run(n) for n in PROMPTS}, REPEATS)
    return {
        "token_bytes": model.kv_shape.bytes_per_token("float32"),
        "prefill_s": {n: spread(seconds) for n, seconds in times.items()},
    }


def main() -> None:
    """Writes the record `link_speed.<device>`."""
    torch.set_num_threads(1)
    device, chosen = kvlib.device(), "--random" in sys.argv
    on_card = card_copies(device)  # before a disk that may refuse to be read past its cache
    with tempfile.TemporaryDirectory(dir=os.environ.get("KVLIB_DISK"), prefix="kvlib-") as folder:
        data = {
            "set_bytes": SET_BYTES,
            "repeats": REPEATS,
            "memory_gb_s": memory_copies(),
            "disk_gb_s": disk_copies(Path(folder)),
            "card_gb_s": on_card,
            "model": f"SmolLM2-135M, {'random' if chosen else 'its'} weights, float32",
            **prefills(device, chosen=chosen),
        }
    code = tuple(f"kvlib/tensors/{name}.py" for name in ("caches", "contiguous", "llama"))
    write("link_speed", data, (*code, "measure/link_speed.py"), device)


if __name__ == "__main__":
    main()
