"""Whether imports and signatures are worth keeping: python measure/structure_loss.py.

Source files of this library go through a model whose cache has few slots. Some rules give up the
oldest token, others spare the first four, or the lines that import and declare, or as many tokens
of lines drawn at random. All have the same number of slots. Nothing is timed.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Container, Sequence
from random import Random

import torch
from torch import Tensor

import kvlib
from kept import Kept
from kvlib.tensors.llama import Llama
from kvlib.tensors.tokenizer import Tokenizer
from record import ROOT, write
from window_loss import losses

# Gets the positions held, in order, the newest last, and names the one to give up.
Victim = Callable[[Sequence[int]], int]

FILES = ("kvlib/catalog.py", "kvlib/roofline.py", "kvlib/sizes.py")
LONGEST = 1024
BUDGETS = (64, 128, 256)
SINKS = 4
SEEDS = (0, 1)
PAIRS = {
    "structure without the first 4": ("structure and newest", "newest"),
    "structure": ("first 4, structure and newest", "first 4 and newest"),
    "structure against random lines": (
        "first 4, structure and newest",
        "first 4, random lines and newest",
    ),
}
# Every budget is full by then. Differences are averaged over stretches, since neighbours are alike.
FIRST_SCORED, STRETCH = BUDGETS[-1], 64


def held_by(num_tokens: int, budget: int, victim: Victim) -> Tensor:
    """Returns what each token finds, bool [num_tokens, num_tokens], itself included.

    A token given up never comes back, so a real cache of `budget` slots could have held this.

    Example:
        >>> held_by(4, 2, victim=lambda held: held[0]).int().tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    mask = torch.zeros(num_tokens, num_tokens, dtype=torch.bool)
    held: list[int] = []
    for position in range(num_tokens):
        held.append(position)
        if len(held) > budget:
            held.remove(victim(held))
        mask[position, held] = True
    return mask


def spare(spared: Container[int], budget: int, sinks: int = 0) -> Victim:
    """Returns a rule that gives up the oldest token that is not spared.

    Half of the slots always go to the newest tokens; if the rest is all spared, the oldest of them
    goes. The first `sinks` tokens never go.
    """

    def victim(held: Sequence[int]) -> int:
        older = [at for at in held[: -(budget // 2)] if at >= sinks]
        return next((at for at in older if at not in spared), older[0])

    return victim


def structure_lines(source: str) -> set[int]:
    r"""Returns the lines, from 1, that import a name or declare a function or a class.

    Example:
        >>> sorted(structure_lines("import os\n\n\ndef f(\n    x,\n):\n    return x\n"))
        [1, 4, 5, 6]
    """
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines.update(range(node.lineno, node.end_lineno + 1))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            lines.update(range(node.lineno, max(node.body[0].lineno, node.lineno + 1)))
    return lines


def random_lines(
    sizes: dict[int, int], among: Sequence[int], num_tokens: int, seed: int
) -> set[int]:
    """Returns lines drawn from `among` until they have at least `num_tokens` tokens."""
    draw, chosen = Random(seed), set()
    for line in sorted(among, key=lambda _: draw.random()):
        if sum(sizes[each] for each in chosen) >= num_tokens:
            break
        chosen.add(line)
    return chosen


def rules(lines: Sequence[int], source: str, budget: int) -> dict[str, list[Victim]]:
    """Returns the rules by name; a rule that draws lots is there once a seed."""
    declared = structure_lines(source)
    sizes = {line: lines.count(line) for line in set(lines)}
    num_tokens = sum(sizes[line] for line in declared & set(sizes))
    others = sorted(set(sizes) - declared)

    def at(chosen: set[int]) -> set[int]:
        return {position for position, line in enumerate(lines) if line in chosen}

    drawn = [at(random_lines(sizes, others, num_tokens, seed)) for seed in SEEDS]
    return {
        "newest": [spare((), budget)],
        "structure and newest": [spare(at(declared), budget)],
        "first 4 and newest": [spare((), budget, SINKS)],
        "first 4, structure and newest": [spare(at(declared), budget, SINKS)],
        "first 4, random lines and newest": [spare(each, budget, SINKS) for each in drawn],
    }


def one_file(name: str, model: Llama, tokenizer: Tokenizer) -> dict[object, dict[str, Tensor]]:
    """Returns the scored losses of a file by budget and rule, those of a rule's seeds averaged."""
    source = (ROOT / name).read_text(encoding="utf-8")
    encoded = tokenizer.core.encode(source)
    tokens = encoded.ids[:LONGEST]
    lines = [source.count("\n", 0, start) + 1 for start, _ in encoded.offsets[:LONGEST]]

    def mean_losses(budget: int, victims: list[Victim]) -> Tensor:
        masks = (held_by(len(tokens), budget, victim).to(model.device) for victim in victims)
        runs = [losses(model, tokens, Kept(mask))[FIRST_SCORED:].cpu() for mask in masks]
        return torch.stack(runs).mean(0)

    found = {"all": {"whole text": mean_losses(len(tokens), [spare((), len(tokens))])}}
    for budget in BUDGETS:
        each = rules(lines, source, budget)
        found[budget] = {rule: mean_losses(budget, victims) for rule, victims in each.items()}
    return found


def compare(mine: Tensor, other: Tensor) -> dict[str, float]:
    """Returns the mean loss of `mine` minus that of `other`, in nats, with its 95 % interval."""
    gap = (mine - other).double()
    means = gap[: len(gap) // STRETCH * STRETCH].view(-1, STRETCH).mean(1)
    half = 1.96 * means.std().item() / len(means) ** 0.5
    mean = means.mean().item()
    return {"mean": round(mean, 4), "low": round(mean - half, 4), "high": round(mean + half, 4)}


def main() -> None:
    """Writes the record `structure_loss.<device>`."""
    torch.set_num_threads(1)
    device = kvlib.device()
    model, tokenizer = kvlib.load_model(device=device)
    by_file = [one_file(name, model, tokenizer) for name in FILES]
    lost = {
        budget: {rule: torch.cat([each[budget][rule] for each in by_file]) for rule in by_rule}
        for budget, by_rule in by_file[0].items()
    }
    whole = lost.pop("all")["whole text"]
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "files": {f: hashlib.sha256((ROOT / f).read_bytes()).hexdigest() for f in FILES},
        "num_scored": len(whole),
        "whole": float(f"{whole.double().mean().exp():.4g}"),
        "budgets": list(BUDGETS),
        "perplexity": {
            rule: [float(f"{lost[b][rule].double().mean().exp():.4g}") for b in BUDGETS]
            for rule in lost[BUDGETS[0]]
        },
        "nats": {
            name: [compare(lost[b][mine], lost[b][other]) for b in BUDGETS]
            for name, (mine, other) in PAIRS.items()
        },
    }
    own = ("measure/kept.py", "measure/structure_loss.py", "measure/window_loss.py")
    code = (*FILES, "kvlib/tensors/llama.py", *own)
    write("structure_loss", data, code, device)


if __name__ == "__main__":
    main()
