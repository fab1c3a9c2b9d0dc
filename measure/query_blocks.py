"""Records what a few real queries score with every key: python measure/query_blocks.py.

Writes `kvlib/data/query_blocks.json`, which a drawing in the reader's browser reads: scores of one
query head with the keys of the passage's first tokens, in hundredths, and the bounds of its blocks
for each block size. Three heads, chosen for where they look.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

import kvlib
from few_blocks import read_text
from kvlib.tensors.block_bounds import block_bounds, block_extremes
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import DevicePlan

DATA = Path(kvlib.__file__).parent / "data"
NUM_TOKENS = 128
HEADS = {"near": (2, 1), "first": (20, 6), "far": (14, 8)}  # layer, query head
QUERIES = (97, 119, 127)
SIZES = (4, 8, 16)


class Watched(kvlib.NoCache):
    """Keeps every layer's queries and keys of one text read in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends as `NoCache` does, and keeps what it saw."""
        self.seen[layer] = q, self._fresh[0]
        return super().attend(layer, q, plan)


def one_query(q: Tensor, keys: Tensor) -> dict[str, list[int]]:
    """Returns a query's scores with its keys and the bounds of their blocks, in hundredths.

    Args:
        q: [D].
        keys: [T, D].
    """
    scale = 100 * q.shape[0] ** -0.5
    row = {"scores": (scale * keys @ q).round().int().tolist()}
    for size in SIZES:
        num_blocks = -(-len(keys) // size)
        padded = torch.zeros(num_blocks * size, 1, len(q))
        padded[: len(keys), 0] = keys
        filled = (len(keys) - size * torch.arange(num_blocks)).clamp(max=size)
        blocks = padded.unflatten(0, (num_blocks, size)).transpose(1, 2)
        bounds = block_bounds(q.reshape(1, 1, -1), block_extremes(blocks, filled)[:, None])
        # Rounded up, so that a bound still bounds.
        row[str(size)] = (scale * bounds).ceil().int().flatten().tolist()
    return row


def rows(model: Llama, tokens: list[int]) -> dict[str, dict[str, dict[str, list[int]]]]:
    """Returns for each head and each query what `one_query` says."""
    cache, result = Watched(), {}
    read_text(model, tokens, cache)
    for name, (layer, head) in HEADS.items():
        q, k = cache.seen[layer]
        keys = k[:, head // (q.shape[1] // k.shape[1])]
        result[name] = {str(at): one_query(q[at, head], keys[: at + 1]) for at in QUERIES}
    return result


def main() -> None:
    """Writes the file."""
    torch.set_num_threads(1)
    model, tokenizer = kvlib.load_model(device="cpu")
    text = (DATA / "passage.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text.strip())[:NUM_TOKENS]
    record = {
        "what": f"one query head of SmolLM2-135M on the first {NUM_TOKENS} tokens of passage.txt: "
        "scores in hundredths, and for each block size what a block's keys can score at most",
        "command": "python measure/query_blocks.py",
        "heads": {name: list(where) for name, where in HEADS.items()},
        "tokens": [tokenizer.decode([token]) for token in tokens],
        "rows": rows(model, tokens),
    }
    target = DATA / "query_blocks.json"
    target.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
