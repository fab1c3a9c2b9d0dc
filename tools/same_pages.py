"""Builds the book once more, in another place and time zone, and compares it with the one there is.

    python tools/same_pages.py [_build/html]

The second build finds only the packages that requirements-book.txt names, as a reader's does who
asks for the book alone. Two builds of the same files must give the same bytes: then a page that
changed was changed by somebody. Exit code 0: the same. 1: not, or there was nothing to compare; the
differences are named.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOOK = shutil.which("jupyter-book", path=str(Path(sys.executable).parent)) or "jupyter-book"
LEFT_OUT = ("_build", "__pycache__", "*.egg-info", ".*")
ELSEWHERE = {"TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "7"}
sys.path.append(str(ROOT / "book" / "_ext"))
SHOWN = 120  # characters around the first difference of a file
NOT_FOUND = """import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.partition(".")[0] in {absent!r}
        return None if absent else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def _name(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def beyond_the_book() -> set[str]:
    """Returns the modules installed here that belong to nothing in requirements-book.txt."""
    lines = (ROOT / "requirements-book.txt").read_text(encoding="utf-8").splitlines()
    kept = {"kvlib", "pip", *(_name(line.split("==")[0]) for line in lines if "==" in line)}
    owners = importlib.metadata.packages_distributions()
    return {module for module, of in owners.items() if kept.isdisjoint(map(_name, of))}


def book_packages(folder: Path) -> str:
    """Writes what hides every other package from a Python that has `folder` on its path."""
    folder.mkdir()
    text = NOT_FOUND.replace("{absent!r}", repr(beyond_the_book()))
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return str(folder)


def build(folder: Path) -> Path:
    """Copies the sources into `folder`, builds them there, and returns the folder of pages.

    Raises:
        RuntimeError: the build failed; the message is what it said.
    """
    from publishing import commit  # the copy is no repository

    copy = folder / "book"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    done = subprocess.run(
        [BOOK, "build", ".", "-W", "-n", "--keep-going", "--quiet"],
        cwd=copy,
        env={
            "KVLIB_COMMIT": commit(),
            **os.environ,
            **ELSEWHERE,
            "PYTHONPATH": book_packages(folder / "packages"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    pages = copy / "_build" / "html"
    if done.returncode or not (pages / "index.html").is_file():
        raise RuntimeError(f"the second build ended with {done.returncode}:\n{done.stdout}")
    return pages


def files(folder: Path) -> dict[str, Path]:
    """Every file below a folder by its name there."""
    return {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }


def differences(one: Path, other: Path) -> list[str]:
    """Returns a line for each file that only one folder has, or that holds other bytes."""
    mine, its = files(one), files(other)
    found = [f"{name}: only in {one}" for name in sorted(mine.keys() - its.keys())]
    found += [f"{name}: only in {other}" for name in sorted(its.keys() - mine.keys())]
    for name in sorted(mine.keys() & its.keys()):
        pair = mine[name].read_bytes(), its[name].read_bytes()
        if pair[0] != pair[1]:
            found.append(f"{name}: {_first(*pair)}")
    return found


def _first(one: bytes, other: bytes) -> str:
    both = enumerate(zip(one, other, strict=False))
    at = next((i for i, (a, b) in both if a != b), min(len(one), len(other)))
    start = max(0, at - SHOWN // 2)
    shown = (text[start : start + SHOWN].decode(errors="replace") for text in (one, other))
    return f"differs at byte {at}: " + " | ".join(map(repr, shown))


def main(arguments: list[str]) -> int:
    """Runs the command line."""
    pages = Path(arguments[0] if arguments else ROOT / "_build" / "html").resolve()
    if not (pages / "index.html").is_file():
        print(f"no built book in {pages}: run `make html` first")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        found = differences(pages, build(Path(folder)))
        count = len(files(pages))
    print("\n".join(found) or f"{count} files, the same bytes in both builds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
