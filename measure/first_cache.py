"""Times the next token of the real model with and without a cache: python measure/first_cache.py.

One step at each context length: with a cache one token is forwarded and the cache is read, without
one the whole text is forwarded again. Both ways take turns in one process.
"""

from __future__ import annotations

import sys

import torch

import kvlib
from kvlib.tensors.caches import ContiguousKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import NoCache
from record import interleaved, write

CONTEXTS = (16, 32, 64, 128, 256)
REPEATS = 11


def step_times(model: Llama, context: int) -> dict[str, object]:
    """Times one next-token step after `context - 1` tokens, both ways."""
    tokens = [(7 * i) % model.config.vocab_size for i in range(context)]
    cache = ContiguousKVCache(model.kv_shape, 1, context, dtype=model.dtype, device=model.device)
    cache.add("text")
    forward(model, cache, tokens[:-1])

    def cached() -> None:
        forward(model, cache, tokens[-1:])
        cache.truncate("text", context - 1)

    def uncached() -> None:
        forward(model, NoCache(model.device), tokens)

    times = interleaved({"cached_s": cached, "uncached_s": uncached}, REPEATS)
    ratio = times["uncached_s"]["median"] / times["cached_s"]["median"]
    return {"context": context, **times, "speed_up": float(f"{ratio:.3g}")}


def forward(model: Llama, cache: ContiguousKVCache | NoCache, new: list[int]) -> None:
    """Forwards the new tokens of one text and waits for the result."""
    with cache.step({"text": new}) as plan:
        model(torch.tensor(new, device=model.device), cache, plan)
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Writes the record `first_cache.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device = kvlib.device()
    if "--random" in sys.argv:
        model = Llama.random(smollm2_shape(), seed=0, device=device)
    else:
        model, _ = kvlib.load_model(device=device)
    rows = [step_times(model, context) for context in CONTEXTS]
    code = ("kvlib/tensors/caches.py", "kvlib/tensors/step.py", "kvlib/tensors/llama.py")
    weights = "random weights of its shape" if "--random" in sys.argv else "its weights"
    data = {"model": f"SmolLM2-135M, {weights}, float32", "repeats": REPEATS, "steps": rows}
    write("first_cache", data, (*code, "measure/first_cache.py"), device)


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
    main()
