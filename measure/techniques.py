"""One row for each technique of chapter 4's second half: python measure/techniques.py.

Every cache reads the same text and the same needles, through the same interface: bytes saved, error
of the logits, perplexity, needles found, time of a step, and where it loses.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import kvlib
from kvlib.tensors.distributed import Ranks
from kvlib.tensors.head_sharded import HeadShardedKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.processes import run_ranks
from kvlib.tensors.sequence_sharded import SequenceShardedKVCache
from kvlib.tensors.step import CacheBase
from kvlib.tensors.tokenizer import Tokenizer
from needle import needle_accuracy
from record import ROOT, for_the_book, rounds, spread, times_faster, write
from technique_rows import BLOCK, BUDGET, Technique, paged, techniques

NEEDLE_TOKENS, SEEDS = 512, range(3)
HELD = NEEDLE_TOKENS + BLOCK  # with room for the answer
PROMPT = 256  # read in one step; the rest of the text comes token by token, and is scored
TIMED_CONTEXT, REPEATS = 2048, 9


@torch.inference_mode()
def logits_of(model: Llama, cache: CacheBase, tokens: list[int], row: Technique) -> Tensor:
    """Returns the logits after tokens `PROMPT - 1`, `PROMPT`, ... of a text, read one by one."""
    cache.add("text")
    found = []
    for start, end in [(0, PROMPT), *((i, i + 1) for i in range(PROMPT, len(tokens) - 1))]:
        with cache.step({"text": tokens[start:end]}) as plan:
            new = torch.tensor(tokens[start:end], device=model.device)
            found.append(model(new, cache, plan)[0])
        if not start:
            row.move(cache)
    cache.free("text")
    return torch.stack(found).float().cpu()


def quality(
    model: Llama, tokens: list[int], cache: CacheBase, row: Technique, exact: Tensor | None
) -> tuple[dict[str, object], Tensor]:
    """Returns perplexity, error against the exact logits, and the logits themselves."""
    logits = logits_of(model, cache, tokens, row)
    loss = cross_entropy(logits, torch.tensor(tokens[PROMPT:]))
    exact = logits if exact is None else exact
    return {
        "perplexity": float(f"{loss.double().exp():.4g}"),
        "max_logit_error": float(f"{(logits - exact).abs().max():.2g}"),
        "other_tokens": int((logits.argmax(1) != exact.argmax(1)).sum()),
        "scored": len(logits),
    }, logits


def saved(model: Llama, row: Technique, cache: CacheBase) -> dict[str, object]:
    """Returns the bytes allocated for a text of `HELD` tokens, and the share saved of 16 bits."""
    full = paged(model, HELD).nbytes
    per_16_bit = full if row.bits == 16 else full / 2
    share = round(1 - cache.nbytes / per_16_bit, 3)
    return {"nbytes": cache.nbytes, "saved": 1.0 if row.name == "two tiers" else share}


def step_times(model: Llama, caches: dict[str, CacheBase], context: int, repeats: int) -> dict:
    """Times one token's step after `context` tokens with each cache, in turns, the exact first."""
    tokens = [(7 * i) % 4000 for i in range(context)]

    def forward(cache: CacheBase, new: list[int]) -> None:
        with cache.step({"text": new}) as plan:
            model(torch.tensor(new, device=model.device), cache, plan)

    for cache in caches.values():
        cache.add("text")
        forward(cache, tokens)
    ways = {name: lambda cache=cache: forward(cache, [1]) for name, cache in caches.items()}
    times = rounds(ways, repeats)
    exact = next(iter(times.values()))
    return {
        name: {"step_s": spread(seconds), "times_exact": times_faster(seconds, exact)}
        for name, seconds in times.items()
    }


def over_ranks(ranks: Ranks, by: str, tokens: list[int], repeats: int) -> dict[str, object]:
    """Returns the row of a cache that is cut over the ranks; every rank calls it."""
    kinds = {"heads": HeadShardedKVCache, "tokens": SequenceShardedKVCache}
    model, tokenizer = kvlib.load_model()
    model.one_call = False

    def new_cache(model: Llama, num_tokens: int) -> CacheBase:
        parts = ranks.size if by == "tokens" else 1
        blocks = -(-num_tokens // (BLOCK * parts)) + 1
        return kinds[by](model.kv_shape, blocks, BLOCK, ranks=ranks)

    losses = {"heads": "a message a layer; heads that do not divide", "tokens": "a message a layer"}
    row = Technique(f"{by} over {ranks.size} ranks", new_cache, losses[by])
    _, exact = quality(model, tokens, paged(model, len(tokens)), row, None)
    mine = new_cache(model, HELD)
    return (
        finish(row, model, tokenizer, tokens, mine, exact)
        | step_times(
            model,
            {"exact": paged(model, 3000), row.name: new_cache(model, 3000)},
            TIMED_CONTEXT,
            repeats,
        )[row.name]
    )


def finish(
    row: Technique,
    model: Llama,
    tokenizer: Tokenizer,
    tokens: list[int],
    cache: CacheBase,
    exact: Tensor,
) -> dict[str, object]:
    """Returns a row but for its time."""
    found, _ = quality(model, tokens, row.new_cache(model, len(tokens)), row, exact)
    needles = {
        f"needle_{when}": round(
            needle_accuracy(
                model,
                tokenizer,
                lambda model: row.new_cache(model, HELD),
                NEEDLE_TOKENS,
                asked_later=later,
                seeds=SEEDS,
                between=row.move,
            ),
            3,
        )
        for when, later in (("asked_with_it", False), ("asked_later", True))
    }
    what = {"technique": row.name, "lossy": cache.lossy, "loses": row.loses}
    return what | saved(model, row, cache) | found | needles


def main() -> None:
    """Writes the record `techniques.<device>`."""
    torch.set_num_threads(1)
    device = kvlib.device()
    model, tokenizer = kvlib.load_model(device=device)
    model.one_call = False  # every row goes layer by layer: only an exact paged cache need not
    text = (files("kvlib") / "data" / "passage.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text.strip())
    repeats = 2 if "--quick" in sys.argv else REPEATS
    with TemporaryDirectory() as folder, torch.inference_mode():
        rows, every = [], techniques(folder)
        _, exact = quality(model, tokens, paged(model, len(tokens)), every[0], None)
        for row in every:
            cache = row.new_cache(model, HELD)
            rows.append(finish(row, model, tokenizer, tokens, cache, exact))
            print(rows[-1], flush=True)
        caches = {row.name: row.new_cache(model, 3000) for row in every}
        times = step_times(model, caches, TIMED_CONTEXT, repeats)
    rows = [row | times[row["technique"]] for row in rows]
    if device.type == "cpu":
        rows += [run_ranks(over_ranks, 2, by, tokens, repeats)[0] for by in ("heads", "tokens")]
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "text": f"kvlib/data/passage.txt, {len(tokens)} tokens, those after {PROMPT} scored",
        "needle_tokens": NEEDLE_TOKENS,
        "budget_tokens": BUDGET,
        "timed_context": TIMED_CONTEXT,
        "rows": rows,
    }
    write("techniques", data, code(), device)
    if device.type == "cpu" and for_the_book():
        keep_for_the_drawing(rows, rows[0]["perplexity"])


def keep_for_the_drawing(rows: list[dict[str, object]], exact: float) -> None:
    """Leaves what the page's drawing shows where it finds it in a reader's browser."""
    shown = ("technique", "saved", "needle_asked_later")
    kept = [
        {name: row[name] for name in shown}
        | {"perplexity_ratio": round(row["perplexity"] / exact, 4)}
        for row in rows
    ]
    target = ROOT / "kvlib" / "data" / "techniques.json"
    data = {"record": "techniques.cpu", "rows": kept}
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def code() -> tuple[str, ...]:
    """Returns the files whose results these are."""
    tensors = (
        *("head_sharded", "heavy_hitters", "paged", "paged_attention", "paged_context", "per_head"),
        *(
            "quantized",
            "quantized_store",
            "sequence_sharded",
            "sink_window",
            "snap",
            "tiered",
            "top_blocks",
        ),
    )
    scripts = (f"measure/{name}.py" for name in ("needle", "technique_rows", "techniques"))
    return (*(f"kvlib/tensors/{name}.py" for name in tensors), *scripts, "kvlib/data/passage.txt")


if __name__ == "__main__":
    main()
