"""Which small faults the tests would miss: python measure/mutants.py [module ...] [--record].

Every mutant of a module, or of a sample of them, meets the module's own tests and doctests. One
that no test kills is either harmless, and `harmless_mutants.json` says why, or a test is missing.
It can be stopped at any time and goes on where it was; what was killed is tried again only when its
function has changed. Needs `requirements-mutants.txt` beside what the tests need, and much time: CI
only reads the record.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from mutant_tests import tests_of
from mutant_text import ROOT, Mutant, harmless

if TYPE_CHECKING:
    from mutant_run import Outcome

RECORD = ROOT / "chapters" / "measured" / "mutants.cpu.json"
STATE = ROOT / ".mutants"  # not in _build, which `make test` clears
RULES = ("measure/mutations.py", "measure/mutant_text.py")


class Results:
    """What became of each mutant, one line of JSON for each, kept as soon as it is known."""

    def __init__(self, module: str) -> None:
        STATE.mkdir(parents=True, exist_ok=True)
        self.path = STATE / (module.removesuffix(".py").replace("/", ".") + ".jsonl")

    def known(self, first: int = 0) -> dict[str, dict[str, str]]:
        """Returns the last result of each mutant by its key, from some line of the file on."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return {entry["key"]: entry for entry in map(json.loads, lines[first:])}

    def __len__(self) -> int:
        """Lines so far."""
        return len(self.path.read_text().splitlines()) if self.path.exists() else 0

    def note(self, key: str, outcome: Outcome) -> None:
        """Keeps one result."""
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, "status": outcome[0], "by": outcome[1]}) + "\n")


def listed(module: str) -> list[Mutant]:
    """Returns the mutants of a module; made once for each text of it and of the rules."""
    texts = [(ROOT / each).read_text(encoding="utf-8") for each in (module, *RULES)]
    made = hashlib.sha256("".join(texts).encode()).hexdigest()
    kept = Results(module).path.with_suffix(f".{made[:16]}.json")
    if not kept.exists():
        from mutations import mutants

        kept.write_text(json.dumps(mutants(texts[0])))
    return [Mutant(*each) for each in json.loads(kept.read_text())]


def sample(every: list[Mutant], size: int) -> list[Mutant]:
    """Returns as many of a module's mutants as asked, the same in every run, in their order.

    A larger sample holds the smaller one.
    """
    drawn = sorted(every, key=lambda each: hashlib.sha256(each.key.encode()).digest())[:size]
    taken = {each.key for each in drawn}
    return [each for each in every if each.key in taken]


def try_all(module: str, size: int, again: bool, examples: int, until: float) -> bool:
    """Tries what is not known yet, and answers whether all that is asked is known now.

    Args:
        module: its path.
        size: of the sample of its mutants to try.
        again: whether survivors without a reason are tried again, because there are new tests.
        examples: how many a property is tried on at most: few at first, all that it says again.
        until: when to stop, by the monotonic clock.
    """
    import torch  # noqa: F401 - once, for all children

    from mutant_run import Runner

    results, every = Results(module), sample(listed(module), size)
    begin, known = len(results), results.known()

    def wanted(mutant: Mutant) -> bool:
        status = known.get(mutant.key, {}).get("status")
        return status is None or (again and status == "survived" and not harmless(module, mutant))

    todo = [each for each in every if wanted(each)]

    def note(key: str, outcome: Outcome) -> bool:
        results.note(key, outcome)
        return time.monotonic() < until

    if todo:
        runner = Runner(module, tests_of(module), examples)
        runner.inside(todo, note)
        if rest := [each for each in todo if each.key not in results.known(begin)]:
            runner.start()
        for each in rest:
            if not note(each.key, runner.run(each.source, each.function)):
                break
    known = results.known()
    for each in every:
        if known.get(each.key, {}).get("status") == "survived":
            print(f"{module}:{each.line} {each.function}: {each.before} -> {each.after}")
    print(
        f"{module}: {Counter(known.get(each.key, {}).get('status') for each in every)}", flush=True
    )
    return all(each.key in known for each in every)


def summary(module: str, size: int) -> dict[str, Any]:
    """Returns a module's line of the record: mutants, killed, and each survivor.

    Raises:
        ValueError: some mutants were not tried yet.
    """
    known, survivors, statuses = Results(module).known(), [], Counter()
    every = listed(module)
    for mutant in sample(every, size):
        if mutant.key not in known:
            raise ValueError(f"{module}:{mutant.line} was not tried yet: {mutant.after}")
        status = known[mutant.key]["status"]
        statuses[status] += 1
        if status == "survived":
            place = {name: getattr(mutant, name) for name in ("line", "function", "before")}
            why = harmless(module, mutant)
            survivors.append({**place, "after": mutant.after, "harmless": why})
    return {
        "of": len(every),
        "mutants": statuses.total(),
        "killed": statuses.total() - statuses["survived"],
        "of_them_by_time": statuses["timeout"],
        "tests": tests_of(module),
        "survivors": survivors,
    }


def recorded() -> dict[str, Any]:
    """Returns what the record says of modules that have not changed since."""
    if not RECORD.exists():
        return {}
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return {
        module: {"of": line["mutants"], **line}
        for module, line in record["data"]["modules"].items()
        if (path := ROOT / module).exists()
        and hashlib.sha256(path.read_bytes()).hexdigest() == record["code"][module]
    }


def write_record(modules: list[str], size: int) -> None:
    """Writes the record of these modules, and of those it has that are still as they were."""
    from importlib.metadata import version

    import torch

    from record import write

    lines = {**recorded(), **{module: summary(module, size) for module in modules}}
    data = {
        "tool": f"Cosmic Ray {version('cosmic-ray')}",
        "modules": dict(sorted(lines.items())),
    }
    write("mutants", data, sorted(lines), torch.device("cpu"))


def main() -> None:
    """Tries the modules named, and with `--record` writes the record of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="kvlib/blocks.py, ...; all that were begun")
    parser.add_argument("--again", action="store_true", help="try survivors without a reason again")
    parser.add_argument("--sample", type=int, default=10**6, help="of each module's mutants")
    parser.add_argument("--examples", type=int, default=100, help="of each property")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--record", action="store_true", help="write the record, too")
    asked = parser.parse_args()
    begun = sorted(p.stem.replace(".", "/") + ".py" for p in STATE.glob("*.jsonl"))
    modules, until = asked.modules or begun, time.monotonic() + 60 * asked.minutes
    size, again = asked.sample, asked.again
    whole = [each for each in modules if try_all(each, size, again, asked.examples, until)]
    if asked.record:
        write_record(whole, size)


if __name__ == "__main__":
    main()
