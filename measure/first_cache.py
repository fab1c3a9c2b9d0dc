"""Times the next token of the real model with and without a cache: python measure/first_cache.py.

One step at each context length: with a cache one token is forwarded and the cache is read, without
one the whole text is forwarded again. Both ways take turns in one process.
"""

from __future__ import annotations

import sys

import torch

import kvlib
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import NoCache
from record import rounds, spread, times_faster, write

CONTEXTS = (16, 32, 64, 128, 256)
REPEATS = 11


def step_times(model: Llama, context: int, repeats: int) -> dict[str, object]:
    """Times one next-token step after `context - 1` tokens, both ways in turns."""
    tokens = [(7 * i) % model.config.vocab_size for i in range(context)]
    cache = ContiguousKVCache(model.kv_shape, 1, context, dtype=model.dtype, device=model.device)
    cache.add("text")
    forward(model, cache, tokens[:-1])

    def cached() -> None:
        forward(model, cache, tokens[-1:])
        cache.truncate("text", context - 1)

    def uncached() -> None:
        forward(model, NoCache(model.device), tokens)

    times = rounds({"cached_s": cached, "uncached_s": uncached}, repeats)
    found = {name: spread(seconds) for name, seconds in times.items()}
    gain = times_faster(times["uncached_s"], times["cached_s"])
    return {"context": context, "repeats": repeats, **found, "speed_up": gain}


def forward(model: Llama, cache: ContiguousKVCache | NoCache, new: list[int]) -> None:
    """Forwards the new tokens of one text and waits for the result."""
    with cache.step({"text": new}) as plan:
        model(torch.tensor(new, device=model.device), cache, plan)
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def record(name: str, repeats: dict[int, int], script: str, device: torch.device) -> None:
    """Times a step at each context, so many times, and writes the record `<name>.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    if "--random" in sys.argv:
        model, weights = Llama.random(smollm2_shape(), seed=0, device=device), "random weights"
    else:
        model, weights = kvlib.load_model(device=device)[0], "its weights"
    data = {
        "model": f"SmolLM2-135M's shape, {weights}, float32",
        "steps": [step_times(model, context, times) for context, times in repeats.items()],
    }
    code = tuple(f"kvlib/tensors/{name}.py" for name in ("caches", "contiguous", "step", "llama"))
    write(name, data, (*code, "measure/first_cache.py", script), device)


def smollm2_shape() -> kvlib.LlamaConfig:
    """SmolLM2-135M's shape, for machines that cannot fetch its weights; speed does not differ."""
    return kvlib.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_q_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rope_theta=1e5,
        max_position_embeddings=8192,
    )


if __name__ == "__main__":
    repeats = dict.fromkeys(CONTEXTS, REPEATS)
    record("first_cache", repeats, "measure/first_cache.py", kvlib.device())
