"""Times what the blocks of a sequence cost to keep account of: python measure/bookkeeping_speed.py.

A prompt's tokens are hashed and its blocks allocated, one token is appended, all is freed. Beside
it the least that any bookkeeping in Python does: a dictionary written and deleted as often.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from random import Random
from time import perf_counter

import torch

import kvlib
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.served import ServedRequest
from record import spread, write

BLOCK_SIZE, PROMPT_TOKENS, SHARED_TOKENS, VARIANTS = 16, 272, 512, 4
NUM_PROMPTS, OUTPUT_TOKENS, ROUNDS = 64, 136, 15  # 64 run at a time


def prompts(num_shared: int, seed: int = 0) -> list[list[int]]:
    """Prompts of `PROMPT_TOKENS` random tokens, behind one of a few shared beginnings."""
    rng = Random(seed)

    def text(num_tokens: int) -> list[int]:
        return [int(rng.random() * 2**16) for _ in range(num_tokens)]

    shared = [text(num_shared) for _ in range(VARIANTS)]
    return [shared[i % VARIANTS] + text(PROMPT_TOKENS) for i in range(NUM_PROMPTS)]


def jobs(texts: Sequence[Sequence[int]]) -> list[ServedRequest]:
    """A job for each prompt, its content still unknown."""
    return [
        ServedRequest(Request(i, None, len(t), 1), i, 0.0, 2**20, 2**20, num_tokens=len(t))
        for i, t in enumerate(texts)
    ]


def start(memory: KVMemory, job: ServedRequest, text: Sequence[int], hashed: bool) -> None:
    """Hashes a prompt, allocates its blocks and makes them known."""
    job.content = TokenContent(text, BLOCK_SIZE) if hashed else None
    memory.start(job, job.num_tokens)
    job.num_computed = job.num_tokens
    memory.index(job)


def append(memory: KVMemory, job: ServedRequest, token: int) -> None:
    """Gives a sequence one more token, computed at once."""
    job.num_tokens += 1
    memory.grow(job, job.num_tokens)
    job.num_computed = job.num_tokens
    if job.content is not None:
        job.content.append((token,))
        memory.index(job)


def seconds(work: Callable[[], object], times: int) -> float:
    """Seconds for each of so many pieces of work."""
    begin = perf_counter()
    work()
    return (perf_counter() - begin) / times


def run(memory: KVMemory, texts: Sequence[Sequence[int]], hashed: bool) -> dict[str, float]:
    """Seconds for one prompt, one token appended and one sequence freed."""
    running = jobs(texts)

    def start_all() -> None:
        for job, text in zip(running, texts, strict=True):
            start(memory, job, text, hashed)

    def append_all() -> None:
        for token in range(OUTPUT_TOKENS):
            for job in running:
                append(memory, job, token)

    def stop_all() -> None:
        for job in running:
            memory.stop(job)

    return {
        "start": seconds(start_all, NUM_PROMPTS),
        "append": seconds(append_all, NUM_PROMPTS * OUTPUT_TOKENS),
        "free": seconds(stop_all, NUM_PROMPTS),
    }


def dictionary(num_tokens: int) -> dict[str, float]:
    """The same run as plain writes: a block for each 16 tokens, a length for each token."""
    table: dict[tuple[int, int], int] = {}
    lengths: dict[int, int] = {}
    blocks = range(-(-num_tokens // BLOCK_SIZE))

    def start_all() -> None:
        for i in range(NUM_PROMPTS):
            lengths[i] = num_tokens
            for block in blocks:
                table[i, block] = block

    def append_all() -> None:
        for _ in range(OUTPUT_TOKENS):
            for i in range(NUM_PROMPTS):
                length = lengths[i] = lengths[i] + 1
                if length % BLOCK_SIZE == 1:
                    table[i, length // BLOCK_SIZE] = i

    def stop_all() -> None:
        for i in range(NUM_PROMPTS):
            for block in range(-(-lengths.pop(i) // BLOCK_SIZE)):
                del table[i, block]

    return {
        "start": seconds(start_all, NUM_PROMPTS),
        "append": seconds(append_all, NUM_PROMPTS * OUTPUT_TOKENS),
        "free": seconds(stop_all, NUM_PROMPTS),
    }


def measure(num_rounds: int = ROUNDS, freeze: bool = True) -> dict[str, dict[str, list[float]]]:
    """Seconds of every round, all ways in turns, each with fresh memory that holds everything."""
    cases = {
        "no index": (0, None),
        "unique": (0, HashIndex),
        "shared": (SHARED_TOKENS, HashIndex),
        "unique, radix": (0, RadixTree),
        "shared, radix": (SHARED_TOKENS, RadixTree),
    }
    texts = {name: prompts(shared) for name, (shared, _) in cases.items()}
    found: dict[str, dict[str, list[float]]] = {}
    if freeze:
        gc.collect()
        gc.freeze()  # what torch has left behind is not searched for garbage in every round
    for round_ in range(-1, num_rounds):
        for name, (shared, index) in cases.items():
            memory = KVMemory(2**13, BLOCK_SIZE, index)
            ways = {name: run(memory, texts[name], index is not None)}
            ways[f"{name}, dictionary"] = dictionary(shared + PROMPT_TOKENS)
            for way, times in ways.items():
                for what, each in times.items() if round_ >= 0 else ():
                    found.setdefault(way, {}).setdefault(what, []).append(each)
    return found


def main() -> None:
    """Writes the record `bookkeeping_speed.cpu`, where the CPU is what is measured."""
    if kvlib.device().type != "cpu":
        print("bookkeeping runs on the processor, whatever holds the cache: not measured here")
        return
    torch.set_num_threads(1)
    found = measure()
    data = {
        "block_size": BLOCK_SIZE,
        "prompt_tokens": PROMPT_TOKENS,
        "shared_tokens": SHARED_TOKENS,
        "sequences": NUM_PROMPTS,
        "rounds": ROUNDS,
        "seconds": {
            way: {what: spread(times) for what, times in each.items()}
            for way, each in found.items()
        },
        "least_seconds": {
            way: {what: float(f"{min(times):.3g}") for what, times in each.items()}
            for way, each in found.items()
        },
    }
    code = [
        f"kvlib/{name}.py"
        for name in ("blocks", "content", "prefix", "hash_index", "radix", "kv_memory")
    ]
    write("bookkeeping_speed", data, (*code, "measure/bookkeeping_speed.py"), torch.device("cpu"))


if __name__ == "__main__":
    main()
