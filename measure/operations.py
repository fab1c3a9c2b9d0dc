"""Counts random operations on every structure until something breaks: nothing may.

    python measure/operations.py --operations 10000000 --seed 1 --state operations.state

Operations come in *episodes*: one structure, made anew, and 10 to 3,162 operations on it, all drawn
from the seed, the structure's name and the episode's number. After each operation every invariant
is checked; a part of them have a fault put in. The state file holds counts only and is replaced as
a whole, so whoever is killed goes on where it says, and comes to the counts of an unbroken run.

Each structure gets its share of the operations. One that breaks says how to see it again: `--seed`,
`--structure` and `--episode`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

from operation_steps import Subject

ROOT = Path(__file__).resolve().parents[1]
MEMORY = (
    "operation_allocators",
    "operation_pools",
    "operation_lines",
    "operation_rows",
    "operation_blocks",
    "operation_indexes",
    "operation_tiers",
    "operation_serving",
    "operation_engines",
    "operation_pairs",
)
TENSORS = ("operation_caches", "operation_tiered")
IMPORT = r"^ *from (kvlib[\w.]*|operation\w*) import"


def subjects(halves: str = "memory") -> dict[str, type[Subject]]:
    """Returns all kinds of structures of the memory half, or of both halves (`all`)."""
    modules = MEMORY + (TENSORS if halves == "all" else ())
    return {n: kind for name in modules for n, kind in import_module(name).SUBJECTS.items()}


def code() -> list[str]:
    """Returns the files whose soundness is counted: the steps, and what they import of the rest."""
    todo = [Path(__file__), *(ROOT / "measure" / f"{name}.py" for name in MEMORY + TENSORS)]
    found: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        for name in re.findall(IMPORT, path.read_text(encoding="utf-8"), re.MULTILINE):
            folder = ROOT if name.startswith("kvlib") else ROOT / "measure"
            todo.append(folder.joinpath(*name.split(".")).with_suffix(".py"))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def fresh(seed: int, kinds: Mapping[str, type[Subject]]) -> dict[str, Any]:
    """Returns the state of a run that has not begun."""
    whole = sha256(b"".join((ROOT / path).read_bytes() for path in code())).hexdigest()
    none = {name: 0 for name in kinds}
    counts = {"operations": dict(none), "faults": dict(none), "episodes": dict(none)}
    return {"seed": seed, "code": whole, "structures": sorted(kinds), "cpu_s": 0.0, **counts}


def load(path: Path, seed: int, kinds: Mapping[str, type[Subject]]) -> dict[str, Any]:
    """Returns the state to go on from: the file's, or a fresh one where there is none.

    Raises:
        ValueError: the file is of another seed, other structures or other code.
    """
    new = fresh(seed, kinds)
    if not path.exists():
        return new
    state = json.loads(path.read_text(encoding="utf-8"))
    for name in ("seed", "structures", "code"):
        if state.get(name) != new[name]:
            raise ValueError(f"{path.name} counts operations of another {name}: begin a new file")
    return state


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Replaces the state file as a whole."""
    half = path.with_name(path.name + ".part")
    half.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    half.replace(path)


def episode(state: dict[str, Any], kind: type[Subject], name: str, most: int) -> None:
    """Drives one structure, made anew, with operations drawn for this episode, and counts them."""
    number, done = state["episodes"][name], 0
    random = Random(f"{state['seed']}/{name}/{number}")
    length = min(most, max(10, int(10 ** random.uniform(1.5, 3.5) * kind.share**0.5)))
    made = kind(random)
    try:
        for _ in range(length):
            made.operate()
            done += 1
        made.finish()
    except Exception as error:
        told = f"--structure '{name}' --episode {number} --seed {state['seed']}"
        error.add_note(f"after {done} operations of {told}")
        raise
    state["operations"][name] += length
    state["faults"][name] += made.faults.raised
    state["episodes"][name] += 1


def run(
    state: dict[str, Any],
    kinds: Mapping[str, type[Subject]],
    operations: int,
    saved: Callable[[], object] = lambda: None,
    every_s: float = 2.0,
) -> None:
    """Drives structures until there were so many operations; calls `saved` now and then."""
    last = process_time()
    while (left := operations - sum(state["operations"].values())) > 0:
        name = min(sorted(kinds), key=lambda each: state["operations"][each] / kinds[each].share)
        episode(state, kinds[name], name, left)
        if process_time() - last > every_s:
            state["cpu_s"] += process_time() - last
            last = process_time()
            saved()
    state["cpu_s"] += process_time() - last
    saved()


def data(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a record holds: totals, and counts for each structure."""
    counts = {name: state[name] for name in ("operations", "faults", "episodes")}
    by_structure = {
        name: {each: counts[each][name] for each in counts} for name in state["structures"]
    }
    totals = {name: sum(each.values()) for name, each in counts.items()}
    return {"seed": state["seed"], **totals, "cpu_s": round(state["cpu_s"]), "of": by_structure}


def main() -> None:
    """Runs from the command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=100_000, help="in all, with earlier runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, help="file to go on from, and to keep counts in")
    parser.add_argument("--halves", choices=["memory", "all"], default="all")
    parser.add_argument("--record", action="store_true", help="write a record at the end")
    parser.add_argument("--save-every", type=float, default=2.0, help="seconds of computing")
    parser.add_argument("--structure", help="of --episode")
    parser.add_argument("--episode", type=int, help="run this one alone")
    asked = parser.parse_args()
    kinds = subjects(asked.halves)
    state = load(asked.state, asked.seed, kinds) if asked.state else fresh(asked.seed, kinds)
    if asked.episode is not None:
        state["episodes"][asked.structure] = asked.episode
        episode(state, kinds[asked.structure], asked.structure, asked.operations)
        return

    def saved() -> None:
        done = sum(state["operations"].values())
        if asked.state:
            save(asked.state, state)
        print(f"{done:,} operations, {sum(state['faults'].values()):,} faults", flush=True)

    run(state, kinds, asked.operations, saved, asked.save_every)
    if asked.record:
        import torch

        from record import write

        write("operations", data(state), code(), torch.device("cpu"))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
