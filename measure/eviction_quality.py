"""What caches that give up tokens lose, and where: python measure/eviction_quality.py.

Four of them read kvlib/data/passage.txt with four budgets. They look for needles at several depths,
asked for together with the text or after it, and for numbers of several lengths, which say how wide
SnapKV's kernel has to be. Timed besides: a prompt whose weights are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import kvlib
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.sink_window import SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache
from kvlib.tensors.step import CacheBase, DevicePlan
from kvlib.tensors.tokenizer import Tokenizer
from needle import DEPTHS, Needle, finds, needle
from record import rounds, spread, times_faster, write
from window_loss import perplexity

BUDGETS = (32, 64, 128, 256)
SINKS = 4
# The passage's first tokens are a prompt, read in one step; the others come one by one.
PROMPT = 256
TIMED_TOKENS, TIMED_BUDGET = 256, 128
NEEDLE_TOKENS, NEEDLE_BUDGET = 512, 128
# How many tokens look and how wide the kernel is: as in the authors' code, and as our question and
# our number ask for: 7 tokens that ask, and 4 digits behind the first token of the answer.
DEFAULT, FITTED = (32, 5), (8, 13)
REACH_TOKENS, REACH_BUDGET = 256, 64
DIGITS, KERNELS = (2, 3, 4, 5), (1, 3, 5, 7, 9, 11, 13)
SEEDS = range(3)
REPEATS = 3

NewCache = Callable[[Llama, int], CacheBase]


def window(model: Llama, budget: int) -> CacheBase:
    """The last tokens."""
    return kvlib.RollingKVCache(model.kv_shape, 1, budget, device=model.device)


def sinks_and_window(model: Llama, budget: int) -> CacheBase:
    """The first four and the last tokens."""
    return SinkWindowKVCache(model.kv_shape, 1, SINKS, budget - SINKS, device=model.device)


def heavy_hitters(model: Llama, budget: int) -> CacheBase:
    """Half of the budget for the newest, half for the most attended."""
    return HeavyHitterKVCache(model.kv_shape, 1, budget, budget // 2, device=model.device)


def snapkv(model: Llama, budget: int) -> CacheBase:
    """The last tokens of the prompt, at most 32 and half of the budget, choose the rest."""
    return SnapKVCache(model.kv_shape, 1, budget, min(32, budget // 2), device=model.device)


def whole(model: Llama, num_tokens: int) -> CacheBase:
    """Everything."""
    return kvlib.ContiguousKVCache(model.kv_shape, 1, num_tokens, device=model.device)


WAYS: dict[str, NewCache] = {
    "window": window,
    "sinks and window": sinks_and_window,
    "heavy hitters": heavy_hitters,
    "SnapKV": snapkv,
}


@torch.inference_mode()
def losses(model: Llama, tokens: Sequence[int], cache: CacheBase, starts: Sequence[int]) -> Tensor:
    """Returns the losses of all tokens but the first, in nats; the text stays in the cache.

    Args:
        model: reads.
        tokens: the text.
        cache: an empty one.
        starts: where a new step begins.
    """
    cache.add("text")
    found = []
    for start, end in pairwise((0, *starts, len(tokens))):
        new = torch.tensor(tokens[start:end], device=model.device)
        with cache.step({"text": tokens[start:end]}) as plan:
            found.append(model(new, cache, plan, all_logits=True).float())
    target = torch.tensor(tokens[1:], device=model.device)
    return cross_entropy(torch.cat(found)[:-1], target, reduction="none")


def quality(model: Llama, tokens: Sequence[int]) -> list[dict[str, object]]:
    """Returns the perplexity of the tokens behind the prompt for each budget and way.

    A window reads a step of many tokens as if token by token, and SnapKV gives up none behind its
    prompt, so only the heavy hitters are really fed one by one.
    """
    prompt, one_by_one = [PROMPT], range(PROMPT, len(tokens))
    starts = {name: one_by_one if name == "heavy hitters" else prompt for name in WAYS}
    rows = []
    for budget in BUDGETS:
        row: dict[str, object] = {"budget": budget}
        for name, new_cache in WAYS.items():
            found = losses(model, tokens, new_cache(model, budget), starts[name])
            row[name] = perplexity(found[PROMPT - 1 :])
        rows.append(row)
        print(row, flush=True)
    return rows


def snap(budget: int, observe: int, kernel: int) -> Callable[[Llama], CacheBase]:
    """Returns what makes SnapKV caches with these sizes, with room for a short answer."""
    return lambda model: SnapKVCache(
        model.kv_shape, 1, budget, observe, kernel, room=16, device=model.device
    )


class Together:
    """Caches that read one prompt in one forward, as each attends to all of it.

    Args:
        caches: the output is the first one's.
        plans: one step of each.
    """

    def __init__(self, caches: Sequence[CacheBase], plans: Sequence[DevicePlan]) -> None:
        self.pairs = list(zip(caches, plans, strict=True))
        self.counters = caches[0].counters

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Gives one layer's keys and values to every cache."""
        for cache, own in self.pairs:
            cache.write(layer, k, v, own)

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Lets every cache choose."""
        outputs = [cache.attend(layer, q, own) for cache, own in self.pairs]
        return outputs[0]


@torch.inference_mode()
def who_finds(
    model: Llama, caches: dict[str, CacheBase], text: Needle, *, asked_later: bool
) -> dict[str, bool]:
    """Answers for each cache what `needle.finds` does, with one forward of the prompt for all.

    Heavy hitters choose after every step, so the number comes token by token; to the others, which
    give up nothing behind the prompt, in one step.
    """
    prompt, tail = [*text.context], [[*text.question]]
    if not asked_later:
        prompt, tail = prompt + tail[0], []
    tail += [[token] for token in text.answer[:-1]]
    for cache in caches.values():
        cache.add("text")
    every = list(caches.values())
    plans = [cache.plan({"text": prompt}) for cache in every]
    new = torch.tensor(prompt, device=model.device)
    first = model(new, Together(every, plans), plans[0]).argmax(1).tolist()
    for cache, plan in zip(every, plans, strict=True):
        cache.commit(plan)
    found = {}
    for name, cache in caches.items():
        said, steps = list(first), tail
        if not isinstance(cache, HeavyHitterKVCache):
            steps = [[token for step in tail for token in step]]
        for tokens in steps:
            with cache.step({"text": tokens}) as plan:
                new = torch.tensor(tokens, device=model.device)
                said += model(new, cache, plan, all_logits=True).argmax(1).tolist()
        found[name] = tuple(said[-len(text.answer) :]) == text.answer
    return found


def needles(model: Llama, tokenizer: Tokenizer) -> dict[str, object]:
    """Returns how many needles each way finds at each depth, and the whole text.

    A window reads token by token, whatever comes in one step, so it is asked once.
    """
    makers = {
        "whole": lambda model: whole(model, NEEDLE_TOKENS + 16),
        "heavy hitters": lambda model: heavy_hitters(model, NEEDLE_BUDGET),
        "SnapKV, default": snap(NEEDLE_BUDGET, *DEFAULT),
        "SnapKV, fitted": snap(NEEDLE_BUDGET, *FITTED),
    }
    times = {"asked with it": False, "asked later": True}
    found = {name: {when: [0] * len(DEPTHS) for when in times} for name in makers}
    ring = [0] * len(DEPTHS)
    for at, depth in enumerate(DEPTHS):
        for seed in SEEDS:
            text = needle(tokenizer, NEEDLE_TOKENS, depth, 1000 * seed + at)
            for when, later in times.items():
                caches = {name: make(model) for name, make in makers.items()}
                for name, hit in who_finds(model, caches, text, asked_later=later).items():
                    found[name][when][at] += hit
            cache = sinks_and_window(model, NEEDLE_BUDGET)
            ring[at] += finds(model, cache, text, asked_later=True)
        print(depth, ring, found, flush=True)
    return {
        "tokens": NEEDLE_TOKENS,
        "budget": NEEDLE_BUDGET,
        "default": DEFAULT,
        "fitted": FITTED,
        "depths": list(DEPTHS),
        "of": len(SEEDS),
        "whole": found.pop("whole"),
        "ways": {"sinks and window": {"at either time": ring}, **found},
    }


def reach(model: Llama, tokenizer: Tokenizer) -> dict[str, object]:
    """Returns how many numbers of each length SnapKV finds by kernel, asked with the text."""
    observe = FITTED[0]
    makers = {kernel: snap(REACH_BUDGET, observe, kernel) for kernel in KERNELS}
    makers = {"whole": lambda model: whole(model, REACH_TOKENS + 16), **makers}
    rows = []
    for digits in DIGITS:
        found = dict.fromkeys(makers, 0)
        for at, depth in enumerate(DEPTHS):
            for seed in SEEDS:
                text = needle(tokenizer, REACH_TOKENS, depth, 1000 * seed + at, digits)
                caches = {name: make(model) for name, make in makers.items()}
                for name, hit in who_finds(model, caches, text, asked_later=False).items():
                    found[name] += hit
        rows.append({"digits": digits, "whole": found.pop("whole"), "found": list(found.values())})
        print(rows[-1], flush=True)
    sizes = {"tokens": REACH_TOKENS, "budget": REACH_BUDGET, "observe": observe}
    return {**sizes, "kernels": KERNELS, "of": len(DEPTHS) * len(SEEDS), "rows": rows}


def prompt_times(model: Llama, tokens: Sequence[int]) -> dict[str, object]:
    """Times one prompt: fused, with all weights in the open, with the last ones."""
    prompt = list(tokens[:TIMED_TOKENS])
    new = torch.tensor(prompt, device=model.device)

    def read(new_cache: NewCache, size: int) -> None:
        cache = new_cache(model, size)
        cache.add("text")
        with torch.inference_mode(), cache.step({"text": prompt}) as plan:
            model(new, cache, plan)[0, 0].item()

    sizes = {"whole": TIMED_TOKENS, "heavy hitters": TIMED_BUDGET, "SnapKV": TIMED_BUDGET}
    ways = {n: lambda n=n: read({"whole": whole, **WAYS}[n], sizes[n]) for n in sizes}
    times = rounds(ways, REPEATS)
    return {
        "tokens": TIMED_TOKENS,
        "seconds": {name: spread(each) for name, each in times.items()},
        "times_whole": {name: times_faster(each, times["whole"]) for name, each in times.items()},
    }


def main() -> None:
    """Writes the record `eviction_quality.<device>`."""
    torch.set_num_threads(1)
    device = kvlib.device()
    model, tokenizer = kvlib.load_model(device=device)
    text = (files("kvlib") / "data" / "passage.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text.strip())
    exact = losses(model, tokens, whole(model, len(tokens)), [PROMPT])[PROMPT - 1 :]
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "text": f"kvlib/data/passage.txt, {len(tokens)} tokens, {len(exact)} scored",
        "prompt": PROMPT,
        "whole": perplexity(exact),
        "perplexity": quality(model, tokens),
        "prompt_times": prompt_times(model, tokens),
        "needle": needles(model, tokenizer),
        "reach": reach(model, tokenizer),
    }
    own = ("eviction_quality", "needle", "window_loss")
    tensors = ("heavy_hitters", "llama", "per_head", "sink_window", "snap")
    code = (
        "kvlib/data/passage.txt",
        *(f"kvlib/tensors/{name}.py" for name in tensors),
        *(f"measure/{name}.py" for name in own),
    )
    write("eviction_quality", data, code, device)


if __name__ == "__main__":
    main()
