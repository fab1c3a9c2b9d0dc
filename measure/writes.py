"""Times four ways of writing a step's keys into a cache of one layer, and counts who waits.

    python measure/writes.py

Every row of the batch already holds another number of tokens, so the new ones go to other positions
in every row. The indices of the last way are on the device beforehand, as a step plan has them
for all layers at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import kvlib
from record import rounds, spread, times_faster, write

NUM_KV_HEADS, HEAD_DIM, ROW_LEN = 3, 64, 1024
BATCHES, CHUNKS = (1, 8, 32), (1, 16, 128)
REPEATS = 11
AT_LEAST_TOKENS = 256  # a small write is repeated until a timing is long enough


class Asks(TorchDispatchMode):
    """Counts how often the host asks the device for a number, and so waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Counts the operator behind `.item()`, `int()`, `bool()` and an index that is a tensor."""
        self.count += func._schema.name == "aten::_local_scalar_dense"
        return func(*args, **(kwargs or {}))


class Step:
    """One layer's cache [B, Hkv, T, D] and the keys [B, S, Hkv, D] of `chunk` tokens a row."""

    def __init__(self, batch: int, chunk: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.starts = [(37 * row) % (ROW_LEN - chunk) for row in range(batch)]
        self.chunk = chunk
        self.keys = torch.zeros(batch, NUM_KV_HEADS, ROW_LEN, HEAD_DIM, device=device)
        self.new = torch.randn(batch, chunk, NUM_KV_HEADS, HEAD_DIM).to(device)
        spans = [list(range(start, start + chunk)) for start in self.starts]
        self.positions = torch.tensor(spans, device=device)
        self.rows = torch.arange(batch, device=device)[:, None].expand(batch, chunk)

    def ask(self) -> None:
        """A loop over tokens that tests each position, as the outline does."""
        for i in range(self.chunk):
            pos = self.positions[:, i]
            for b in range(len(self.starts)):
                if pos[b] < ROW_LEN:
                    self.keys[b, :, pos[b]] = self.new[b, i]

    def loop(self) -> None:
        """The same loop with positions that the host knows."""
        for i in range(self.chunk):
            for b, start in enumerate(self.starts):
                self.keys[b, :, start + i] = self.new[b, i]

    def slice(self) -> None:
        """One slice for each row."""
        for b, start in enumerate(self.starts):
            self.keys[b, :, start : start + self.chunk] = self.new[b].transpose(0, 1)

    def index(self) -> None:
        """One index write for all rows."""
        self.keys[self.rows, :, self.positions] = self.new


def synchronisations(work: Callable[[], None], device: torch.device) -> int | None:
    """Returns how often CUDA reports that the host waited, or None on another device."""
    if device.type != "cuda":
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # Switching it on the first time warns, too, of itself.
    return sum("called a synchronizing" in str(each.message) for each in caught)


def counted(step: Step, way: Callable[[], None], device: torch.device) -> dict[str, int | None]:
    """Runs a way once on an empty cache: what it asks, and whether it writes what it should."""
    step.keys.zero_()
    with Asks() as asks:
        way()
    written: list[Tensor] = [
        step.keys[b, :, start : start + step.chunk] for b, start in enumerate(step.starts)
    ]
    assert torch.equal(torch.stack(written).transpose(1, 2), step.new), way.__name__
    assert step.keys.count_nonzero() == step.new.count_nonzero(), way.__name__
    return {"asks": asks.count, "synchronisations": synchronisations(way, device)}


def measured(batch: int, chunk: int, device: torch.device) -> dict[str, object]:
    """Times the four ways in turns, in seconds for one write of the whole step."""
    step = Step(batch, chunk, device)
    ways = {"ask": step.ask, "loop": step.loop, "slice": step.slice, "index": step.index}
    times = max(1, AT_LEAST_TOKENS // (batch * chunk))

    def repeated(way: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(times):
                way()
            if device.type == "cuda":
                torch.cuda.synchronize()

        return run

    counts = {name: counted(step, way, device) for name, way in ways.items()}
    runs = rounds({name: repeated(way) for name, way in ways.items()}, REPEATS)
    seconds = {name: spread([each / times for each in run]) for name, run in runs.items()}
    return {
        "batch": batch,
        "chunk": chunk,
        **{name: {"s": seconds[name], **counts[name]} for name in ways},
        "loop_over_index": times_faster(runs["loop"], runs["index"]),
        "slice_over_index": times_faster(runs["slice"], runs["index"]),
    }


def main() -> None:
    """Writes the record `writes.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device = kvlib.device()
    data = {
        "layer": f"keys of one layer, {NUM_KV_HEADS} KV heads, head_dim {HEAD_DIM}, float32",
        "repeats": REPEATS,
        "writes": [measured(b, c, device) for b in BATCHES for c in CHUNKS],
    }
    write("writes", data, ("measure/writes.py",), device)


if __name__ == "__main__":
    main()
