"""Records whom the real model looks at: python tools/attention_rows.py.

Writes `kvlib/data/attention_rows.json`: the attention weights of SmolLM2-135M on the first tokens
of the passage, averaged over all layers and heads, in thousandths. Drawings that run in a reader's
browser, where there is no model, read it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor

import kvlib
from kvlib.tensors.attention import causal_mask
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import DevicePlan

DATA = Path(kvlib.__file__).parent / "data"
NUM_TOKENS = 24


class Watched(kvlib.NoCache):
    """Adds up the attention weights of every layer and head while one text is read in one step."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.total = torch.zeros(num_tokens, num_tokens, dtype=torch.float64)
        self.num_rows = 0

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends as `NoCache` does, and notes the weights on the way."""
        keys, _ = self._fresh
        group = q.shape[1] // keys.shape[1]
        seen = causal_mask(len(q), len(q))
        for head in range(q.shape[1]):
            scores = q[:, head].double() @ keys[:, head // group].double().T
            scores = (scores / math.sqrt(q.shape[2])).masked_fill(~seen, -math.inf)
            self.total += scores.softmax(-1)
            self.num_rows += 1
        return super().attend(layer, q, plan)


def mean_weights(model: Llama, tokens: list[int]) -> list[list[int]]:
    """Returns one row a token: its weights on the tokens up to itself, in thousandths."""
    cache = Watched(len(tokens))
    with cache.step({"text": tokens}) as plan:
        model(torch.tensor(tokens), cache, plan)
    mean = (1000 * cache.total / cache.num_rows).round().int().tolist()
    return [row[: i + 1] for i, row in enumerate(mean)]


def main() -> None:
    """Writes the file."""
    model, tokenizer = kvlib.load_model(device="cpu")
    text = (DATA / "passage.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text.strip())[:NUM_TOKENS]
    facts = {
        "what": "attention weights of SmolLM2-135M on the first tokens of passage.txt, the mean of "
        "all layers and heads, in thousandths; row i is token i on tokens 0 to i",
        "command": "python tools/attention_rows.py",
        "tokens": [tokenizer.decode([token]) for token in tokens],
    }
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in facts.items()]
    rows = ",\n  ".join(map(json.dumps, mean_weights(model, tokens)))
    text = "\n".join(["{", *lines, f' "weights": [\n  {rows}\n ]', "}"])
    (DATA / "attention_rows.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
