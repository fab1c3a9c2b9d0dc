"""Times one more token in three kinds of cache: python measure/growth.py.

At each length: concatenation (all that is stored moves to a new tensor), a row that was reserved
in advance (only the token is written), and the step at which a row that doubles is full (a row
twice as long, and all that is stored moves). Keys of one layer, float32.

On Linux the pages that the kernel hands out during a call are counted too: memory that an
allocator gets anew at every call is paid for page by page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

import kvlib
from record import rounds, spread, times_faster, write

CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
SHAPES = ((1, 3, 64), (1, 8, 128), (8, 8, 128))  # batch, KV heads, head_dim
REPEATS = 11
MOST_BYTES = 2**24  # a small move is repeated until a timing is long enough


class Layer:
    """Keys [B, Hkv, n, D] of `context` tokens, and three ways to take one more.

    Args:
        shape: B, Hkv, D.
        context: n, tokens that are stored.
        device: where.
    """

    def __init__(self, shape: tuple[int, int, int], context: int, device: torch.device) -> None:
        batch, heads, head_dim = shape
        self.context, self.device = context, device
        self.stored = torch.randn(batch, heads, context, head_dim, device=device)
        self.token = torch.randn(batch, heads, 1, head_dim, device=device)
        self.reserved = torch.zeros(batch, heads, 2 * context, head_dim, device=device)

    def concatenate(self) -> Tensor:
        """Moves everything to a tensor one token longer."""
        return torch.cat([self.stored, self.token], dim=2)

    def write(self) -> Tensor:
        """Writes the token into a row that is long enough."""
        self.reserved[:, :, self.context : self.context + 1] = self.token
        return self.reserved

    def double(self) -> Tensor:
        """Moves everything to a row twice as long, then writes the token."""
        batch, heads, context, head_dim = self.stored.shape
        longer = torch.empty(batch, heads, 2 * context, head_dim, device=self.device)
        longer[:, :, :context] = self.stored
        longer[:, :, context : context + 1] = self.token
        return longer


def repeated(way: Callable[[], Tensor], times: int, device: torch.device) -> Callable[[], None]:
    """Returns a call that takes `times` steps and waits for them."""

    def run() -> None:
        for _ in range(times):
            way()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return run


def new_pages(way: Callable[[], Tensor], device: torch.device, calls: int = 5) -> float | None:
    """Returns the pages that the kernel hands out during one call, or None where nobody counts."""
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return None
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        way()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls


def step(shape: tuple[int, int, int], context: int, device: torch.device) -> dict[str, object]:
    """Times the three ways in turns, in seconds for one token."""
    layer = Layer(shape, context, device)
    ways = {"concatenate": layer.concatenate, "write": layer.write, "double": layer.double}
    times = max(1, min(200, MOST_BYTES // layer.stored.nbytes))
    runs = rounds({name: repeated(way, times, device) for name, way in ways.items()}, REPEATS)
    each = {name: [seconds / times for seconds in run] for name, run in runs.items()}
    # A doubling at n pays for n tokens: those written until the row is full again.
    amortised = [a + b / context for a, b in zip(each["write"], each["double"], strict=True)]
    each["doubling_amortised"] = amortised
    return {
        "shape": list(shape),
        "context": context,
        "bytes": layer.stored.nbytes,
        **{f"{name}_s": spread(seconds) for name, seconds in each.items()},
        "concatenate_over_write": times_faster(each["concatenate"], each["write"]),
        "concatenate_over_doubling": times_faster(each["concatenate"], amortised),
        "double_over_write": times_faster(each["double"], each["write"]),
        "new_pages": {name: new_pages(way, device) for name, way in ways.items()},
    }


def main() -> None:
    """Writes the record `growth.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device = kvlib.device()
    data = {
        "layer": "keys of one layer, float32",
        "repeats": REPEATS,
        "page_bytes": page_bytes(),
        "steps": [step(shape, context, device) for shape in SHAPES for context in CONTEXTS],
    }
    write("growth", data, ("measure/growth.py",), device)


def page_bytes() -> int | None:
    """Returns the size of a page of memory, or None where it cannot be asked for."""
    if not sys.platform.startswith("linux"):
        return None
    import resource

    return resource.getpagesize()


if __name__ == "__main__":
    main()
