"""Times kvlib's caches under Hugging Face's `generate`: python measure/hf_speed.py.

The same weights, prompt, dtype and threads, in turns in one process: transformers' own dynamic and
static caches, and a paged cache of kvlib that gathers ("sdpa") or attends where the keys lie
("kvlib"). Each cache holds the prompt; a round generates a few tokens behind it and takes them away
again. A step's time is that between two tokens, all of `generate` included.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch

from kvlib.tensors.device import device
from kvlib.tensors.hf import HFCache
from kvlib.tensors.hf_attention import NAME
from kvlib.tensors.model_cache import cached_model
from record import spread, times_faster, wait, write

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
import transformers

THREADS, BLOCK_SIZE, STEPS = 2, 16, 16
REPEATS = {128: 11, 512: 11, 2048: 9, 6000: 7}
CODE = [
    *(f"kvlib/tensors/hf{part}.py" for part in ("", "_attention", "_cache", "_decode", "_groups")),
    *(f"kvlib/tensors/hf_{part}.py" for part in ("layer", "rows", "step")),
    *(f"kvlib/tensors/{name}.py" for name in ("paged", "paged_attention", "paged_context")),
    "kvlib/tensors/store.py",
    "kvlib/tensors/kernels/paged_cpu.cpp",
]
Model = Any


def load() -> Model:
    """Returns transformers' model with the weights of our loader's folder."""
    folder = cached_model("smollm2-135m")
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval().to(device())


def makers(model: Model, context: int) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Returns by name the attention and the cache, each with room for the text and no more."""
    most = context + STEPS + 1
    blocks = -(-most // BLOCK_SIZE)
    config = model.config
    return {
        "dynamic": ("sdpa", lambda: transformers.DynamicCache(config=config)),
        "static": ("sdpa", lambda: transformers.StaticCache(config=config, max_cache_len=most)),
        "gathered": ("sdpa", lambda: HFCache.paged(model, blocks, BLOCK_SIZE)),
        "paged": (NAME, lambda: HFCache.paged(model, blocks, BLOCK_SIZE)),
    }


class Stamps:
    """A streamer that notes when each token comes; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Notes the time."""
        self.times.append(perf_counter())

    def end(self) -> None:
        """Does nothing."""


def step_seconds(model: Model, ids: torch.Tensor, cache: Any) -> tuple[float, list[int]]:
    """Returns the median seconds of a step, and the new tokens; the cache is as it was."""
    stamps = Stamps()
    options = {"do_sample": False, "max_new_tokens": STEPS, "min_new_tokens": STEPS}
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        cache=cache,
        streamer=stamps,
        pad_token_id=2,
        disable_compile=True,
        **options,
    )
    cache.crop(-STEPS)
    times = stamps.times[1:]
    gaps = [b - a for a, b in pairwise(times)]
    return median(gaps), out[0, -STEPS:].tolist()


@torch.no_grad()
def measure(model: Model, context: int, repeats: int) -> dict[str, Any]:
    """Returns what one context says: seconds, ratios to the dynamic cache, and equal texts."""
    generator = torch.Generator().manual_seed(context)
    ids = torch.randint(3, 49000, (1, context + 1), generator=generator).to(device())
    ways, first, caches = makers(model, context), {}, {}
    for name, (attention, make) in ways.items():
        model.set_attn_implementation(attention)
        caches[name] = make()
        wait()
        start = perf_counter()
        model(ids[:, :-1], cache=caches[name], logits_to_keep=1)
        wait()
        first[name] = perf_counter() - start
    times: dict[str, list[float]] = {name: [] for name in ways}
    texts = {}
    for round_ in range(-1, repeats):
        for name, (attention, _) in ways.items():
            model.set_attn_implementation(attention)
            seconds, texts[name] = step_seconds(model, ids, caches[name])
            if round_ >= 0:
                times[name].append(seconds)
    return {
        "step_s": {name: spread(each) for name, each in times.items()},
        "of_dynamic": {name: times_faster(times["dynamic"], each) for name, each in times.items()},
        "prompt_s": {name: float(f"{s:.4g}") for name, s in first.items()},
        "equal": {name: text == texts["dynamic"] for name, text in texts.items()},
    }


def main() -> None:
    """Measures every context and writes the record."""
    torch.set_num_threads(THREADS)
    model = load()
    contexts = [int(each) for each in sys.argv[1:]] or list(REPEATS)
    data: dict[str, Any] = {"transformers": transformers.__version__, "contexts": {}}
    for context in contexts:
        data["contexts"][str(context)] = measure(model, context, REPEATS.get(context, 3))
        print(context, data["contexts"][str(context)])
    write("hf_speed", data, CODE, device())


if __name__ == "__main__":
    main()
