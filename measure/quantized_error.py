"""What fewer bits do to keys, values and the text: python measure/quantized_error.py.

Bits by grouping, keys and values apart: while one side has few bits, the other keeps 8 by token,
which by itself changes nothing that four digits show. The model reads kvlib/data/passage.txt 32
tokens at a time, a block, so that whatever lies further back is read from codes. Nothing is timed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.resources import files

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import kvlib
from kvlib.precision import Precision
from kvlib.tensors.codes import decode, encode
from kvlib.tensors.llama import Llama
from kvlib.tensors.quantized import QuantizedKVCache
from record import ROOT, for_the_book, write

BLOCK = 32  # also the group along a channel, and the group of a row
EIGHT = Precision(8)
GROUPINGS = {
    "a whole row": {},
    "32 of a row": {"group_size": 32},
    "a channel": {"along": "channel"},
}
CODES = {"8": {}, "4": {"bits": 4}, "2": {"bits": 2}, "fp8": {"kind": "fp8"}}
PAIRS = {
    "int8, keys by channel": (Precision(8, along="channel"), EIGHT),
    "int4, both by token": (Precision(4, 32), Precision(4, 32)),
    "int4, keys by channel": (Precision(4, along="channel"), Precision(4, 32)),
    "int4 values, int8 keys": (Precision(8, along="channel"), Precision(4, 32)),
    "int4 keys, int8 values": (Precision(4, along="channel"), EIGHT),
    "int2, both by token": (Precision(2, 32), Precision(2, 32)),
    "int2, keys by channel (KIVI)": (Precision(2, along="channel"), Precision(2, 32)),
    "fp8, both by token": (Precision(kind="fp8"), Precision(kind="fp8")),
    "fp8, static scale 1": (Precision.static(kind="fp8"), Precision.static(kind="fp8")),
}

Quality = Callable[[Precision, Precision], dict[str, float]]


def losses_and_logits(model: Llama, tokens: Sequence[int], cache: object) -> tuple[Tensor, Tensor]:
    """Feeds a text a block at a time; returns the losses behind the first block, and all logits."""
    ids, found = torch.tensor(tokens), []
    cache.add("text")
    for first in range(0, len(tokens), BLOCK):
        new = ids[first : first + BLOCK]
        with cache.step({"text": new.tolist()}) as plan:
            found.append(model(new, cache, plan, all_logits=True))
    logits = torch.cat(found)
    return cross_entropy(logits[BLOCK:-1], ids[BLOCK + 1 :], reduction="none"), logits


def perplexity(losses: Tensor) -> float:
    """Returns exp of the mean loss, to four digits."""
    return float(f"{losses.double().mean().exp().item():.4g}")


def relative_error(x: Tensor, precision: Precision) -> float:
    """Returns how large the error is beside the numbers, both squared and summed.

    Args:
        x: [L, Hkv, T, D], of which whole blocks count.
        precision: the format.
    """
    blocks = x[:, :, : x.shape[2] // BLOCK * BLOCK].unflatten(2, (-1, BLOCK))
    back = decode(encode(blocks, precision), precision, x.shape[3], BLOCK)
    return float(f"{((back - blocks).norm() / blocks.norm()).item():.3g}")


def ranges(x: Tensor) -> dict[str, object]:
    """Returns how far numbers spread along a token and along a channel, and which stand out."""
    blocks = x[:, :, : x.shape[2] // BLOCK * BLOCK].unflatten(2, (-1, BLOCK))
    along = {"token": -1, "channel": -2}
    found = {
        name: round((blocks.amax(axis) - blocks.amin(axis)).median().item(), 2)
        for name, axis in along.items()
    }
    peaks = x.abs().amax(2)
    stands_out = peaks.amax(-1) / peaks.median(-1).values
    return {
        "median_range_along": found,
        "largest_channel_over_median": {
            "median": round(stands_out.median().item(), 2),
            "most": round(stands_out.max().item(), 2),
        },
    }


def quality_on(model: Llama, tokens: Sequence[int], exact_logits: Tensor) -> Quality:
    """Returns what reads a text with keys and values in two formats, beside its exact logits."""
    shape, num_blocks = model.kv_shape, -(-len(tokens) // BLOCK)

    def quality(keys: Precision, values: Precision) -> dict[str, float]:
        cache = QuantizedKVCache(
            shape, num_blocks, BLOCK, keys=keys, values=values, num_seqs=1, way="dequantize"
        )
        found, logits = losses_and_logits(model, tokens, cache)
        each = (p.bits_per_element(shape.head_dim, BLOCK) for p in (keys, values))
        return {
            "bits_per_element": sum(each) / 2,
            "perplexity": perplexity(found),
            "max_logit_error": round((logits - exact_logits).abs().max().item(), 3),
            "same_first_choice": round(
                (logits.argmax(1) == exact_logits.argmax(1)).double().mean().item(), 4
            ),
        }

    return quality


def one_side_at_a_time(sides: Sequence[Tensor], quality: Quality) -> list[dict[str, object]]:
    """Returns a row for keys and for values in each code and grouping, the other side in 8 bits.

    Args:
        sides: the exact keys and values, [L, Hkv, T, D] each.
        quality: of `quality_on`.
    """
    grid = []
    for side, name in enumerate(("keys", "values")):
        for code, bits in CODES.items():
            for grouping, group in GROUPINGS.items():
                precision = Precision(**bits, **group)
                formats = (precision, EIGHT) if side == 0 else (EIGHT, precision)
                row = {"side": name, "code": code, "group": grouping}
                row["bits_per_element"] = precision.bits_per_element(sides[side].shape[-1], BLOCK)
                row["relative_error"] = relative_error(sides[side], precision)
                row["perplexity"] = quality(*formats)["perplexity"]
                grid.append(row)
                print(row, flush=True)
    return grid


def main() -> None:
    """Writes the record `quantized_error.cpu`, and what the drawing needs of it."""
    torch.set_num_threads(1)
    model, tokenizer = kvlib.load_model(device="cpu")
    text = (files("kvlib") / "data" / "passage.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text.strip())
    exact_cache = kvlib.ContiguousKVCache(model.kv_shape, 1, len(tokens))
    exact, exact_logits = losses_and_logits(model, tokens, exact_cache)
    sides = [exact_cache.store.keys[:, 0], exact_cache.store.values[:, 0]]
    quality = quality_on(model, tokens, exact_logits)
    grid = one_side_at_a_time(sides, quality)
    pairs = {name: quality(*formats) for name, formats in PAIRS.items()}
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "text": f"kvlib/data/passage.txt, {len(tokens)} tokens, {len(exact)} scored",
        "block_size": BLOCK,
        "exact_perplexity": perplexity(exact),
        "ranges": {name: ranges(x) for name, x in zip(("keys", "values"), sides, strict=True)},
        "grid": grid,
        "pairs": pairs,
    }
    tensors = (f"tensors/{name}.py" for name in ("codes", "quantized", "quantized_store"))
    code = ("precision.py", "data/passage.txt", *tensors)
    measured = (*(f"kvlib/{path}" for path in code), "measure/quantized_error.py")
    write("quantized_error", data, measured, torch.device("cpu"))
    if not for_the_book():
        return
    kept = {"record": "quantized_error.cpu", "exact_perplexity": data["exact_perplexity"]}
    kept |= {"block_size": BLOCK, "grid": grid}
    target = ROOT / "kvlib" / "data" / "quantized_error.json"
    target.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
