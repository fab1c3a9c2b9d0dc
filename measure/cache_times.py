"""Times allocation, update and query of every cache: python measure/cache_times.py.

Update: one new token's keys and values into all layers, from `plan` to `commit`. Query: one token
attends in all layers to everything its cache holds. No cache at all stores nothing and is handed
the whole text each time; its query attends for the whole text too, without what else the model
would compute. Allocation: making the cache, and filling as much memory with zeros. Giving memory
back is in that time, as taking the new token back is in that of an update.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import kvlib
from bandwidth import wait
from record import rounds, spread, times_faster, write

SHAPE = kvlib.KVShape(num_layers=30, num_kv_heads=3, head_dim=64)  # SmolLM2-135M
NUM_Q_HEADS, RESERVED, WINDOW = 9, 2048, 256
LENGTHS = (128, 512, 2000)
ROW_LENS = (512, 2048, 8192, 32_768)
REPEATS = 9

MAKE: dict[str, Callable[..., object]] = {
    "contiguous": lambda **place: kvlib.ContiguousKVCache(SHAPE, 1, RESERVED, **place),
    "growing": lambda **place: kvlib.ContiguousKVCache(
        SHAPE, 1, RESERVED, initial_seq_len=16, **place
    ),
    # Packed rows have 256 bytes, so a smaller alignment would change nothing.
    "aligned": lambda **place: kvlib.AlignedKVCache(
        SHAPE, 1, RESERVED, row_alignment_bytes=512, **place
    ),
    "rolling": lambda **place: kvlib.RollingKVCache(SHAPE, 1, WINDOW, **place),
    "none": lambda **place: kvlib.NoCache(**place),
}


class Held:
    """One cache with a text in it, and the keys, values and query of what comes next."""

    def __init__(self, kind: str, length: int, device: torch.device) -> None:
        self.cache = MAKE[kind](device=device)
        self.keeps, self.length = kind != "none", length
        self.new = 1 if self.keeps else length + 1
        self.cache.add("text")
        if self.keeps:
            self._store(length)
        self.kv = torch.randn(self.new, SHAPE.num_kv_heads, SHAPE.head_dim, device=device)
        self.q = torch.randn(self.new, NUM_Q_HEADS, SHAPE.head_dim, device=device)

    def _store(self, num_tokens: int) -> None:
        new = torch.randn(num_tokens, SHAPE.num_kv_heads, SHAPE.head_dim, device=self.cache.device)
        with self.cache.step({"text": [0] * num_tokens}) as plan:
            for layer in range(SHAPE.num_layers):
                self.cache.write(layer, new, new, plan)

    def update(self) -> None:
        """Stores the next token; all caches but a rolling one then take it back."""
        with self.cache.step({"text": [0] * self.new}) as plan:
            for layer in range(SHAPE.num_layers):
                self.cache.write(layer, self.kv, self.kv, plan)
        wait(self.cache.device)
        if self.keeps and not isinstance(self.cache, kvlib.RollingKVCache):
            self.cache.truncate("text", self.length)

    def query(self) -> Callable[[], None]:
        """Returns a call that attends in all layers, with the next token in an open step.

        No cache at all holds one layer at a time, and is handed each before it attends.
        """
        plan = self.cache.plan({"text": [0] * self.new})
        if self.keeps:
            for layer in range(SHAPE.num_layers):
                self.cache.write(layer, self.kv, self.kv, plan)

        def run() -> None:
            for layer in range(SHAPE.num_layers):
                if not self.keeps:
                    self.cache.write(layer, self.kv, self.kv, plan)
                self.cache.attend(layer, self.q, plan)
            wait(self.cache.device)

        return run


def at_length(length: int, device: torch.device) -> list[dict[str, object]]:
    """Times update and query of every cache that holds `length` tokens, all caches in turns."""
    updates = {kind: Held(kind, length, device).update for kind in MAKE}
    queries = {kind: Held(kind, length, device).query() for kind in MAKE}
    times = {"update": rounds(updates, REPEATS), "query": rounds(queries, REPEATS)}
    found = []
    for kind in MAKE:
        row: dict[str, object] = {"cache": kind, "length": length}
        for way, each in times.items():
            row[f"{way}_s"] = spread(each[kind])
            row[f"{way}_over_contiguous"] = times_faster(each[kind], each["contiguous"])
        found.append(row)
    return found


def allocations(device: torch.device) -> dict[str, object]:
    """Times making each cache, and contiguous ones of several sizes with and without zeros."""

    def timed(make: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            make()
            wait(device)

        return run

    def sized(row_len: int, zeros: bool) -> Callable[[], object]:
        def make() -> object:
            cache = kvlib.ContiguousKVCache(SHAPE, 1, row_len, device=device)
            return [side.zero_() for side in (cache.store.keys, cache.store.values) if zeros]

        return make

    kinds = {kind: timed(lambda make=make: make(device=device)) for kind, make in MAKE.items()}
    sizes = {(n, zeros): timed(sized(n, zeros)) for n in ROW_LENS for zeros in (False, True)}
    of_kinds, of_sizes = rounds(kinds, REPEATS), rounds(sizes, REPEATS)
    return {
        "caches": [{"cache": kind, "make_s": spread(each)} for kind, each in of_kinds.items()],
        "sizes": [
            {
                "row_len": n,
                "bytes": n * int(SHAPE.bytes_per_token("float32")),
                "make_s": spread(of_sizes[n, False]),
                "zeroed_s": spread(of_sizes[n, True]),
            }
            for n in ROW_LENS
        ],
    }


def main() -> None:
    """Writes the record `cache_times.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device = kvlib.device()
    data = {
        "shape": "30 layers, 3 KV heads, 9 query heads, head_dim 64, float32",
        "reserved": RESERVED,
        "window": WINDOW,
        "repeats": REPEATS,
        "allocation": allocations(device),
        "steps": [row for length in LENGTHS for row in at_length(length, device)],
    }
    names = ("caches", "contiguous", "sink_window", "step")
    code = tuple(f"kvlib/tensors/{name}.py" for name in names)
    write("cache_times", data, (*code, "measure/cache_times.py"), device)


if __name__ == "__main__":
    main()
