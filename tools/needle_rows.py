"""Records whom one head of the real model looks at: python tools/needle_rows.py.

Writes `kvlib/data/needle_rows.json`: the attention weights of one KV head of SmolLM2-135M on a text
that says a number and asks for it again, the mean of its query heads, in thousandths. Of all heads
it is the one whose last token looks most at the number. A drawing that runs in a reader's browser,
where there is no model, reads it.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

import kvlib
from kvlib.tensors.attention import causal_mask
from kvlib.tensors.llama import Llama
from kvlib.tensors.per_head import attention_weights
from kvlib.tensors.step import DevicePlan

DATA = Path(kvlib.__file__).parent / "data"
CONTEXT = (
    "The baker drew the old bridge. The secret number of the harbour is 7391."
    " The doctor forgot the long train."
)
QUESTION = " The secret number of the harbour is "
NUMBER = "7391"


class Watched(kvlib.NoCache):
    """Keeps the attention weights of every layer while one text is read in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[Tensor] = []

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends as `NoCache` does, and notes the weights [Hkv, T, T] on the way."""
        keys = self._fresh[0].transpose(0, 1)
        seen = causal_mask(len(q), len(q))
        self.layers.append(attention_weights(q, [keys], seen).double().mean(1))
        return super().attend(layer, q, plan)


def rows_of_the_finder(model: Llama, tokens: list[int], number: range) -> dict[str, object]:
    """Returns layer, head and weights of the head that looks most at the number at the end."""
    cache = Watched()
    with cache.step({"text": tokens}) as plan:
        model(torch.tensor(tokens), cache, plan)
    weights = torch.stack(cache.layers)
    found = weights[:, :, -1, number.start : number.stop].sum(-1)
    layer, head = divmod(int(found.argmax()), found.shape[1])
    rows = (1000 * weights[layer, head]).round().int().tolist()
    return {
        "layer": layer,
        "head": head,
        "weights": [row[: i + 1] for i, row in enumerate(rows)],
    }


def main() -> None:
    """Writes the file."""
    model, tokenizer = kvlib.load_model(device="cpu")
    context, question = tokenizer.encode(CONTEXT), tokenizer.encode(QUESTION)
    tokens = context + question
    words = [tokenizer.decode([token]) for token in tokens]
    start = words.index(NUMBER[0])
    found = rows_of_the_finder(model, tokens, range(start, start + len(NUMBER)))
    rows = found.pop("weights")
    facts = {
        "what": "attention weights of one KV head of SmolLM2-135M, the mean of its query heads, in "
        "thousandths; row i is token i on tokens 0 to i",
        "command": "python tools/needle_rows.py",
        **found,
        "context_tokens": len(context),
        "number": [start, start + len(NUMBER)],
        "tokens": words,
    }
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in facts.items()]
    text = ",\n  ".join(map(json.dumps, rows))
    text = "\n".join(["{", *lines, f' "weights": [\n  {text}\n ]', "}"])
    (DATA / "needle_rows.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
