"""What giving up tokens costs on kvlib/data/passage.txt: python measure/eviction_loss.py.

The same tokens are predicted from the whole text, and from what four ways of keeping `budget`
tokens leave of it. Nothing is timed.
"""

from __future__ import annotations

from importlib.resources import files

import torch

import kvlib
from kept import keep, perplexity_with
from kvlib.tensors.llama import Llama
from kvlib.tensors.tokenizer import Tokenizer
from record import write
from window_loss import SCORED

BUDGETS = (32, 64, 128, 256)
NUM_FIRST = 4


def kept_always(budget: int) -> dict[str, range]:
    """Names each way and the tokens that it never gives up; the rest of the budget is recent."""
    return {
        "recent": range(0),
        "first_4_and_recent": range(NUM_FIRST),
        "next_4_and_recent": range(NUM_FIRST, 2 * NUM_FIRST),
        "oldest": range(budget - 1),
    }


def measured_at(
    model: Llama, tokenizer: Tokenizer, budgets: tuple[int, ...] = BUDGETS
) -> dict[str, object]:
    """Returns the perplexity of the whole text, and of each way at each budget."""
    text = (files("kvlib") / "data" / "passage.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text.strip())

    def perplexity(budget: int, always: range = range(0)) -> float:
        return perplexity_with(model, tokens, keep(len(tokens), budget, always), SCORED)

    rows = [
        {"budget": budget}
        | {way: perplexity(budget, always) for way, always in kept_always(budget).items()}
        for budget in budgets
    ]
    num_scored = len(range(len(tokens) - 1)[SCORED])
    return {
        "model": "SmolLM2-135M, its weights, float32",
        "text": f"kvlib/data/passage.txt, {len(tokens)} tokens, {num_scored} scored",
        "whole": perplexity(len(tokens)),
        "perplexity": rows,
    }


def main() -> None:
    """Writes the record `eviction_loss.<device>`."""
    torch.set_num_threads(1)
    device = kvlib.device()
    data = measured_at(*kvlib.load_model(device=device))
    code = ("kvlib/data/passage.txt", "kvlib/tensors/attention.py", "kvlib/tensors/llama.py")
    own = ("measure/eviction_loss.py", "measure/kept.py", "measure/window_loss.py")
    write("eviction_loss", data, (*code, *own), device)


if __name__ == "__main__":
    main()
