"""Measures what a cache is worth as the text grows: python measure/speed_up.py.

One decode step at each length: with a cache one token is forwarded, without one the whole text is.
Both ways take turns in one process. `first_cache.py` measures the short end of the same curve.
"""

from __future__ import annotations

import sys

import torch

import kvlib
from first_cache import forward, smollm2_shape
from kvlib.tensors.caches import ContiguousKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import NoCache
from record import interleaved, write

# Rounds at each length; recomputing 2,048 tokens takes seconds, so there are few.
REPEATS = {128: 11, 512: 9, 2048: 5}


def step_speed(model: Llama, context: int, repeats: int) -> dict[str, object]:
    """Times the step that forwards token `context`, both ways."""
    tokens = [(7 * i) % model.config.vocab_size for i in range(context)]
    cache = ContiguousKVCache(model.kv_shape, 1, context, dtype=model.dtype, device=model.device)
    cache.add("text")
    forward(model, cache, tokens[:-1])

    def cached() -> None:
        forward(model, cache, tokens[-1:])
        cache.truncate("text", context - 1)

    def uncached() -> None:
        forward(model, NoCache(model.device), tokens)

    times = interleaved({"cached_s": cached, "uncached_s": uncached}, repeats)
    ratio = times["uncached_s"]["median"] / times["cached_s"]["median"]
    speeds = {f"{way[:-2]}_tokens_per_s": _digits(1 / s["median"]) for way, s in times.items()}
    row = {"context": context, "repeats": repeats, **times, **speeds}
    return row | {"speed_up": _digits(ratio), "cache_bytes": cache.nbytes}


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    """Writes the record `speed_up.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device = kvlib.device()
    random = "--random" in sys.argv
    if random:
        model = Llama.random(smollm2_shape(), seed=0, device=device)
    else:
        model, _ = kvlib.load_model(device=device)
    steps = [step_speed(model, context, repeats) for context, repeats in REPEATS.items()]
    weights = "random weights of its shape" if random else "its weights"
    data = {"model": f"SmolLM2-135M, {weights}, float32", "steps": steps}
    code = ("kvlib/tensors/caches.py", "kvlib/tensors/step.py", "kvlib/tensors/llama.py")
    write("speed_up", data, (*code, "measure/first_cache.py", "measure/speed_up.py"), device)


if __name__ == "__main__":
    main()
