"""Executes notebooks on a fresh kernel and stores their outputs in one fixed form.

    python tools/notebooks.py chapters              execute and store
    python tools/notebooks.py --measure chapters    take timings and device outputs anew as well
    python tools/notebooks.py --check chapters      store nothing, show what would change

Everything that would change from run to run is left out, so a notebook nobody touched comes out as
it went in. A notebook that raises, takes too long or loses its kernel is reported and stays as it
was, and the next one is run.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[1]
CELL_TIMEOUT_S = 600
UNSTABLE = "nbval-ignore-output"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_KERNEL_FILE = re.compile(r"\S*ipykernel_\d+/\d+(\.py)?")


class Unfinished(Exception):
    """A notebook was not run to its end; the message says where, and what to do."""


def execute(notebook: Any, folder: Path, seconds: int = CELL_TIMEOUT_S) -> Any:
    """Returns an executed copy of a notebook; the kernel is fresh and starts in `folder`.

    Raises:
        Unfinished: a cell raised or took more than `seconds`, or the kernel died or did not start.
    """
    done = copy.deepcopy(notebook)
    environment = os.environ | {"KVLIB_DEVICE": "cpu", "KVLIB_PROGRESS": "off"}
    begun = [0]
    client = NotebookClient(
        done,
        timeout=seconds,
        kernel_name=KERNEL["name"],
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=lambda cell, cell_index: begun.append(cell_index),
    )
    try:
        client.execute(env=environment)
    except CellExecutionError as error:
        raise Unfinished(f"{error.ename}: {error.evalue}\n{error}") from error
    except (CellTimeoutError, RuntimeError, NoSuchKernel) as error:
        raise Unfinished(_why(error, begun[-1], seconds)) from error
    return done


def _why(error: Exception, cell: int, seconds: int) -> str:
    if isinstance(error, CellTimeoutError):
        return (
            f"cell {cell} took more than {seconds} s and was ended. On a slower machine give it "
            "longer: --seconds 1800"
        )
    if isinstance(error, DeadKernelError):
        return (
            f"the kernel died in cell {cell}. Most often the system ended it because memory ran "
            "out: close other programs, then run this notebook again"
        )
    return f"no kernel started ({error}). Install what it needs: pip install -r requirements.txt"


def normalise(notebook: Any, stored: Any | None = None) -> Any:
    """Returns an executed notebook in the stored form.

    Args:
        notebook: the executed notebook.
        stored: the notebook before; cells tagged `nbval-ignore-output` keep their output from it,
            as long as their source is the one that produced it.
    """
    result = copy.deepcopy(notebook)
    for index, cell in enumerate(result.cells):
        cell["id"] = f"c{index:03d}"
        kept = {key: cell.metadata[key] for key in ("tags", "mystnb") if key in cell.metadata}
        if cell.cell_type == "code":
            cell["outputs"] = _merge([_clean(output) for output in cell.outputs])
            if UNSTABLE in kept.get("tags", ()):
                kept["output_of"] = hashlib.sha256(cell.source.encode()).hexdigest()[:12]
                _keep(cell, kept["output_of"], stored and stored.cells[index])
            _copy_alt(cell.outputs, kept)
        cell["metadata"] = nbformat.from_dict(kept)
    page = {"mystnb": result.metadata["mystnb"]} if "mystnb" in result.metadata else {}
    result["metadata"] = nbformat.from_dict(
        page | {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )
    return result


def _keep(cell: Any, source: str, stored: Any | None) -> None:
    if stored is None or stored.metadata.get("output_of") != source:
        return
    cell["outputs"] = copy.deepcopy(stored.outputs)
    for output in cell.outputs:
        if "execution_count" in output:
            output["execution_count"] = cell.execution_count


def _clean(output: Any) -> Any:
    if "text" in output:
        output["text"] = _plain(output.text)
    for kind, content in list(output.get("data", {}).items()):
        if kind == WIDGET_VIEW:
            del output.data[kind]
        elif kind.startswith("text/"):
            output.data[kind] = _plain(content)
    return output


def _plain(text: str) -> str:
    text = _KERNEL_FILE.sub("cell", _ANSI.sub("", text))
    return text.replace(f"{ROOT}/", "").replace(f"{Path.home()}/", "~/")


def _merge(outputs: list[Any]) -> list[Any]:
    """Joins neighbouring pieces of one stream: where the kernel cuts it is a matter of timing."""
    merged: list[Any] = []
    for output in outputs:
        name = output.get("name")
        if name and merged and merged[-1].get("name") == name:
            merged[-1]["text"] += output.text
        else:
            merged.append(output)
    return merged


def _copy_alt(outputs: list[Any], metadata: dict[str, Any]) -> None:
    """Copies a plot's alt text to where the book's builder looks for it."""
    for output in outputs:
        alt = output.get("metadata", {}).get("image/png", {}).get("alt")
        if alt:
            page = metadata.setdefault("mystnb", {})
            page["image"] = page.get("image", {}) | {"alt": alt}


def to_text(notebook: Any) -> str:
    """Returns the notebook as it is written to disk."""
    plain = json.loads(nbformat.writes(notebook))
    return json.dumps(plain, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def refreshed(path: Path, *, measure: bool = False, seconds: int = CELL_TIMEOUT_S) -> str:
    """Returns what a notebook's file should hold after a fresh run.

    Raises:
        Unfinished: the file is no notebook, or as `execute`.
    """
    try:
        stored = nbformat.read(path, 4)
    except ValueError as error:
        raise Unfinished(f"it is no notebook: {str(error).splitlines()[0]}") from error
    done = execute(stored, path.parent, seconds)
    return to_text(normalise(done, None if measure else stored))


def write(path: Path, text: str) -> None:
    """Replaces a file in one step, so that a stopped run leaves the old one or the new one.

    Raises:
        Unfinished: there is no room for it. The old one stays, and nothing beside it.
    """
    part = path.with_suffix(".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise Unfinished(f"not stored ({error}): make room and run it again") from error
    finally:
        part.unlink(missing_ok=True)


def difference(path: Path, text: str) -> str:
    """Returns how a fresh run differs from the file; pixels apart, which hang on the fonts."""
    pixels = re.compile(r'("image/png": )"[^"]*"')
    old, new = (
        pixels.sub(r'\1"..."', version).splitlines(keepends=True)
        for version in (path.read_text(encoding="utf-8"), text)
    )
    return "".join(difflib.unified_diff(old, new, f"{path} as stored", f"{path} after a run"))


def find(paths: list[Path]) -> list[Path]:
    """Returns the notebooks among files and folders, sorted.

    Of a folder, hidden parts are left out (Jupyter keeps copies there) and environments: what is
    installed there is not ours to run.
    """
    lists = ([path] if path.is_file() else _ours(path) for path in paths)
    return sorted({file for files in lists for file in files})


def _ours(folder: Path) -> list[Path]:
    environments = {made.parent for made in folder.rglob("pyvenv.cfg")}
    return [
        file
        for file in folder.rglob("*.ipynb")
        if not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and not environments & set(file.parents)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns 1 where a notebook failed or, with --check, changed."""
    parser = argparse.ArgumentParser(description="execute notebooks and store their outputs")
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "chapters"])
    parser.add_argument("--measure", action="store_true", help=f"replace {UNSTABLE} outputs too")
    parser.add_argument("--check", action="store_true", help="store nothing, show differences")
    parser.add_argument("--seconds", type=int, default=CELL_TIMEOUT_S, help="for one cell")
    options = parser.parse_args(arguments)
    paths = find(options.paths)
    if not paths:
        print(f"no notebook in {', '.join(map(str, options.paths))}", file=sys.stderr)
        return 1
    failed = 0
    for path in paths:
        try:
            text = refreshed(path, measure=options.measure, seconds=options.seconds)
            if not options.check:
                write(path, text)
        except Unfinished as error:
            failed += 1
            print(f"{path}: {error}", file=sys.stderr)
            continue
        changed = difference(path, text) if options.check else ""
        failed += bool(changed)
        print(changed or f"{path}: {'unchanged' if options.check else 'stored'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
