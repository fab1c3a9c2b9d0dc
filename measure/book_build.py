"""Times the book's build and weighs its pages: python measure/book_build.py.

In a fresh clone: `make html` from nothing (which makes the virtual environment, too), with nothing
new, and after one sentence of one page has changed, each with its wall time. Packages come from
wherever pip gets them, so the first time depends on the network. A page weighs its own HTML and the
pictures, styles and scripts of this book that it names; a browser keeps the last two for all pages.
"""

from __future__ import annotations

import gzip
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from record import ROOT, write

CHANGED = "chapters/01_foundations/why_memory.ipynb"
AGAIN = 3  # the two short builds are run so often; their median counts
NAMED = re.compile(r'<(?:img|script|link)\b[^>]*?\b(?:src|href)="([^"#?:]+)')
LOADED = {".css", ".js", ".mjs"}
PICTURES = {".png", ".svg"}


def make_html(clone: Path) -> float:
    """Runs the README's command and returns its seconds; a failed build is no time."""
    start = time.perf_counter()
    command = ["make", "-s", "html", f"PYTHON={sys.executable}"]
    subprocess.run(command, cwd=clone, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def change(page: Path, round_: int) -> None:
    """Adds words to a page, as an author would."""
    text = page.read_text(encoding="utf-8")
    promise = "**After this page"
    assert text.count(promise) == 1
    page.write_text(text.replace(promise, f"Once more: {round_}. {promise}"), encoding="utf-8")


def weigh(page: Path) -> dict[str, int]:
    """Returns bytes of a page: its HTML, that compressed, its pictures, its styles and scripts."""
    html = page.read_bytes()
    parts = {(page.parent / name).resolve() for name in NAMED.findall(html.decode())}
    sizes = {part: part.stat().st_size for part in parts if part.is_file()}

    def of(kinds: set[str]) -> int:
        return sum(size for part, size in sizes.items() if part.suffix in kinds)

    packed = len(gzip.compress(html, mtime=0))
    own = {"html": len(html), "html_gzip": packed, "pictures": of(PICTURES)}
    return own | {"styles_and_scripts": of(LOADED)}


def weights(book: Path) -> dict[str, Any]:
    """Returns the median and the heaviest page of each kind of weight, and the whole."""
    folders = [book / "chapters", book / "book"]
    pages = {p: weigh(p) for folder in folders for p in sorted(folder.rglob("*.html"))}
    table = {}
    for kind in next(iter(pages.values())):
        heaviest = max(pages, key=lambda page: pages[page][kind])
        table[kind] = {
            "median_kb": round(statistics.median(each[kind] for each in pages.values()) / 1000),
            "most_kb": round(pages[heaviest][kind] / 1000),
            "heaviest": heaviest.relative_to(book).with_suffix("").as_posix(),
        }
    whole = sum(path.stat().st_size for path in book.rglob("*") if path.is_file())
    return {"pages": len(pages), "site_mb": round(whole / 1e6, 1), "page": table}


def main() -> None:
    """Builds in a temporary clone, then writes the record."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "book"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        first = make_html(clone)
        nothing = [make_html(clone) for _ in range(AGAIN)]
        one = []
        for round_ in range(AGAIN):
            change(clone / CHANGED, round_)
            one.append(make_html(clone))
        times = {
            "from_nothing_s": round(first),
            "nothing_new_s": round(statistics.median(nothing), 1),
            "one_page_changed_s": round(statistics.median(one), 1),
        }
        data = {"build": times, **weights(clone / "_build" / "html")}
    code = ["_config.yml", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("book/_ext/*.py"))]
    write("book_build", data, code, torch.device("cpu"))


if __name__ == "__main__":
    main()
