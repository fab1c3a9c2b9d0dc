"""Times a live picture in the built book: python measure/live_page.py, after `make html`.

From the first touch to the first picture drawn by the page's own Python, in a browser that has
never seen the book (cold), in the same browser on its next visit (warm); then every further move.
Loading when idle is off, so that the touch is what starts it. Run it on a quiet machine.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Page, sync_playwright

from record import write

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import built_book

ROUNDS = 5
PAGE = "chapters/01_foundations/why_memory.html?noidle"
MOVES = 40

# Moves the first slider back and forth and waits, each time, for the picture at its new value.
MOVE = """async moves => {
    const part = document.querySelector(".kv-live.kv-alive");
    const slider = part.querySelector("input[type=range]");
    const times = [];
    for (let move = 0; move < moves; move++) {
        const before = part.dataset.shown;
        slider.value = Number(slider.value) + (move % 2 ? 1 : -1);
        const start = performance.now();
        slider.dispatchEvent(new Event("input"));
        while (part.dataset.shown === before) await new Promise(next => setTimeout(next));
        times.push(performance.now() - start);
    }
    return times;
}"""


def visit(page: Page, address: str) -> tuple[float, list[float]]:
    """Returns the seconds to the first live picture, and those of each later one."""
    page.goto(address)
    page.locator(".kv-live.kv-alive").first.wait_for()
    first, *later = page.evaluate(MOVE, 1 + MOVES)
    return first / 1000, [each / 1000 for each in later]


def times(program: str, address: str) -> dict[str, list[float]]:
    """Times a fresh browser and its second visit, and the moves on both; in seconds."""
    found: dict[str, list[float]] = {"cold_s": [], "warm_s": [], "later_s": []}
    with sync_playwright() as playwright:
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as profile:
                browser = playwright.chromium.launch_persistent_context(
                    profile, executable_path=program, args=built_book.SWITCHES
                )
                for kind in ("cold_s", "warm_s"):
                    page = browser.new_page()
                    first, later = visit(page, address)
                    page.close()
                    found[kind].append(first)
                    found["later_s"].append(statistics.median(later))
                browser.close()
    return found


def main() -> None:
    """Writes the record `live_page.cpu`."""
    book, program = built_book.book(), built_book.chromium()
    if book is None or program is None:
        sys.exit("needs the built book (`make html`) and Chromium")
    with built_book.served(book) as site:
        found = times(program, site + PAGE)
    data: dict[str, Any] = {
        name: {"median": float(f"{statistics.median(values):.3g}"), "worst": round(max(values), 3)}
        for name, values in found.items()
    }
    versions = built_book.extension("web_assets").versions()
    browser = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip()
    facts = {"browser": browser, "pyodide": versions["pyodide"], "rounds": ROUNDS, "moves": MOVES}
    code = ("kvlib/show/live.py", "book/live/runtime.mjs", "book/live/worker.mjs")
    write("live_page", {**facts, **data}, (*code, "measure/live_page.py"), torch.device("cpu"))


if __name__ == "__main__":
    main()
