"""Times a real model's first token with and without a found prefix: python measure/prefix_probe.py.

What a stranger sees who asks for a prompt of which a part is in the cache already. Every round
times each length once, in turns. How well one look tells a hit from a miss is the share of all
pairs, one miss and one hit, in which the miss took longer: a half would be guessing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import Random

import torch

import kvlib
from first_cache import smollm2_shape
from kvlib.tensors.llama import Llama
from record import rounds, spread, write

PROMPT, HITS, REPEATS = 384, (0, 16, 64, 256), 15


def told_apart(misses: Sequence[float], hits: Sequence[float]) -> float:
    """Returns the share of pairs in which the miss took longer, to three digits.

    Example:
        >>> told_apart([3.0, 4.0], [1.0, 3.5])
        0.75
    """
    slower = sum(miss > hit for miss in misses for hit in hits)
    return round(slower / (len(misses) * len(hits)), 3)


def first_tokens(model: Llama, tokens: Sequence[int]) -> dict[str, Callable[[], None]]:
    """Returns what makes a prompt's first token, by how much of it is in the cache already."""
    cache = kvlib.PagedKVCache(model.kv_shape, 128, 16, device=model.device)

    @torch.inference_mode()
    def forward(seq_id: object, new: Sequence[int]) -> None:
        ids = torch.tensor(new, device=model.device)
        with cache.step({seq_id: new}) as plan:
            model(ids, cache, plan)[-1].argmax().item()  # waits for a device

    for hit in HITS[1:]:
        cache.add(hit)
        forward(hit, tokens[:hit])

    def first_token(hit: int) -> Callable[[], None]:
        def work() -> None:
            if hit:
                cache.fork(hit, "asked")
            else:
                cache.add("asked")
            forward("asked", tokens[hit:])
            cache.free("asked")

        return work

    return {str(hit): first_token(hit) for hit in HITS}


def main() -> None:
    """Measures and writes the record; with --random a model without weights, which is as fast."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    if "--random" in sys.argv:
        model = Llama.random(smollm2_shape(), seed=0, device=kvlib.device())
    else:
        model, _ = kvlib.load_model()
    random = Random(0)
    tokens = [int(random.random() * 49_152) for _ in range(PROMPT)]
    times = rounds(first_tokens(model, tokens), REPEATS)
    data = {
        "prompt_tokens": PROMPT,
        "repeats": REPEATS,
        "seconds": {hit: spread(each) for hit, each in times.items()},
        "told_apart": {
            hit: told_apart(times["0"], each) for hit, each in times.items() if hit != "0"
        },
    }
    code = ("kvlib/tensors/paged.py", "kvlib/tensors/llama.py", "measure/prefix_probe.py")
    write("prefix_probe", data, code, model.device)


if __name__ == "__main__":
    main()
