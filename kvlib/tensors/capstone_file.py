"""An engine in a file of its own, graded: here, or in a process that may hang, crash or exit."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from kvlib import capstone as rules
from kvlib.capstone import Refused, Score
from kvlib.capstone_fair import require_fair
from kvlib.files import parse_json, read
from kvlib.tensors.capstone import judge

MOST_BYTES = 2**16  # that a graded process says


def grade_file(path: Path, seed: int = rules.TRACE_SEED) -> Score:
    """Returns the score of an engine in a file of its own.

    Raises:
        Refused: the file asks for what no engine needs, has no `build`, or its engine breaks a
            rule or fails; then the message has the line.
    """
    name = f"graded {path.stem}"
    module = sys.modules[name] = ModuleType(name)  # where its dataclasses look for it
    try:
        source = read(path, MOST_BYTES * 16).decode("utf-8")
        require_fair(source, path.name)
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
        if not callable(build := getattr(module, "build", None)):
            raise Refused(f"{path.name} should have a function build(model, num_blocks)")
        return judge(path.stem, build, seed)
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        at = [each.lineno for each in extract_tb(error.__traceback__) if each.filename == str(path)]
        where = f" in line {at[-1]}" if at else ""
        said = f"{path.name} failed{where}: {type(error).__name__}: {error}"
        raise Refused(said) from error
    finally:
        del sys.modules[name]


def grade_apart(path: Path, limit_s: float = rules.LIMIT_S) -> Score:
    """Returns what `grade_file` does, from a process that may hang, crash or exit.

    Args:
        path: the file.
        limit_s: seconds on the wall after which the process is ended.

    Raises:
        Refused: as `grade_file`, or the process took too long or ended without a score.
    """
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_send_score, args=(there, path), daemon=True)
    child.start()
    there.close()
    try:
        if not here.poll(limit_s):
            raise Refused(f"{path.name} should be through within {limit_s:g} s, yours was not")
        said = here.recv_bytes(MOST_BYTES)
    except (EOFError, OSError):
        child.join(10.0)
        raise Refused(f"{path.name} ended the program, exit status {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
        here.close()
    return read_score(said, path.name)


def read_score(said: bytes, name: str) -> Score:
    """Returns the score that a graded process said.

    The file that is graded can write into this line too, so nothing that comes is unpickled.

    Raises:
        Refused: what was said is no score, or a refusal; `name` is the file's.
    """
    with suppress(ValueError, TypeError, AttributeError):
        found = parse_json(said)
        if set(found) == {"refused"}:
            raise Refused(str(found["refused"]))
        counts = [each for name, each in found.items() if name != "name"]
        if all(type(each) in (int, float) for each in counts):
            return Score(**found)
    raise Refused(f"{name} should leave it to the judge to say its score")


def _send_score(there: Connection, path: Path) -> None:
    try:
        said = asdict(grade_file(path))
    except Refused as error:
        said = {"refused": str(error)[: MOST_BYTES // 16]}
    there.send_bytes(json.dumps(said).encode())
