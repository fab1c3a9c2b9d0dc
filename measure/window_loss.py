"""What a rolling window costs on kvlib/data/passage.txt: python measure/window_loss.py.

Three ways to predict the same tokens: from the whole text, from a rolling cache, and, as a control,
from the window's tokens read afresh as if they were a text of their own. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import kvlib
from kvlib.tensors.llama import Llama
from record import write

WINDOWS = (16, 32, 64, 128, 256)
# Scored tokens lie behind the longest window, so that every window is full; every third keeps the
# control affordable.
SCORED = slice(WINDOWS[-1], None, 3)


def losses(model: Llama, tokens: Sequence[int], cache: object) -> Tensor:
    """Returns the loss of tokens 1, 2, ... of a text in nats; entry i is that of token i + 1."""
    cache.add("text")
    with cache.step({"text": tokens}) as plan:
        ids = torch.tensor(tokens, device=model.device)
        logits = model(ids, cache, plan, all_logits=True)
    return cross_entropy(logits[:-1], ids[1:], reduction="none")


def afresh(model: Llama, tokens: Sequence[int], window: int) -> Tensor:
    """Returns the losses of the scored tokens, each from the window before it and nothing else."""
    found = []
    for last in range(len(tokens) - 1)[SCORED]:
        alone = tokens[last + 1 - window : last + 2]
        found.append(losses(model, alone, kvlib.NoCache(model.device))[-1])
    return torch.stack(found)


def perplexity(losses: Tensor) -> float:
    """Returns exp of the mean loss, to four digits."""
    return float(f"{losses.double().mean().exp().item():.4g}")


def main() -> None:
    """Writes the record `window_loss.<device>`."""
    torch.set_num_threads(1)
    device = kvlib.device()
    model, tokenizer = kvlib.load_model(device=device)
    text = (files("kvlib") / "data" / "passage.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text.strip())
    whole = losses(model, tokens, kvlib.NoCache(device))[SCORED]
    rows = []
    for window in WINDOWS:
        cache = kvlib.RollingKVCache(model.kv_shape, 1, window, device=device)
        rolling = losses(model, tokens, cache)[SCORED]
        ways = {"rolling": rolling, "afresh": afresh(model, tokens, window)}
        rows.append({"window": window} | {way: perplexity(each) for way, each in ways.items()})
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "text": f"kvlib/data/passage.txt, {len(tokens)} tokens, {len(whole)} scored",
        "whole": perplexity(whole),
        "perplexity": rows,
    }
    code = (
        "data/passage.txt",
        "tensors/attention.py",
        "tensors/sink_window.py",
        "tensors/llama.py",
    )
    files_measured = (*(f"kvlib/{path}" for path in code), "measure/window_loss.py")
    write("window_loss", data, files_measured, device)


if __name__ == "__main__":
    main()
