"""Times one hit in two orders of access, a list and LRUPolicy: python measure/lru_time.py.

Both are asked for the same random keys, in turns. This is bookkeeping: the processor does it
whatever device holds the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch

import kvlib
from kvlib.eviction import LRUPolicy
from record import rounds, spread, times_faster, write

SIZES = (1024, 4096, 16384)
HITS = 200
PASSES = {"list": 1, "policy": 20}  # searching the list empties the processor's cache of the other
REPEATS = 9


def touch_list(order: list[int], key: int) -> None:
    """Moves a key to the end of a list, as the outline does (B:591-595)."""
    if key in order:
        order.remove(key)
    order.append(key)


def touches(touch: Callable[[int], None], keys: list[int]) -> Callable[[], None]:
    """Returns a call that touches every key in turn."""

    def run() -> None:
        for key in keys:
            touch(key)

    return run


def hits(num_keys: int) -> dict[str, object]:
    """Times a hit among `num_keys` held keys, in the list and in the policy."""
    rng = Random(num_keys)
    keys = [int(rng.random() * num_keys) for _ in range(HITS)]
    order, policy = list(range(num_keys)), LRUPolicy()
    for key in order:
        policy.add(key)
    ways = {
        "list": touches(lambda key: touch_list(order, key), keys),
        "policy": touches(policy.touch, keys * PASSES["policy"]),
    }
    times = {
        way: [s / HITS / PASSES[way] for s in seconds]
        for way, seconds in rounds(ways, REPEATS).items()
    }
    each = {f"{way}_s": spread(seconds) for way, seconds in times.items()}
    ratio = times_faster(times["list"], times["policy"])
    return {"num_keys": num_keys, **each, "times_faster": ratio}


def main() -> None:
    """Writes the record `lru_time.cpu`, where the CPU is what is measured."""
    if kvlib.device().type != "cpu":
        print("a policy runs on the processor, whatever holds the cache: not measured beside a GPU")
        return
    torch.set_num_threads(1)
    code = ("kvlib/eviction.py", "measure/lru_time.py")
    data = {"hit": [hits(num_keys) for num_keys in SIZES]}
    write("lru_time", data, code, torch.device("cpu"))


if __name__ == "__main__":
    main()
