"""The built book as a reader meets it: served below some path, opened in Debian's Chromium."""

import functools
import http.server
import os
import re
import shutil
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BELOW = "/some/where/"
PATIENCE_MS = 60_000
MARKS = ('<div class="kv-live"', '<div class="kv-exercise"', '<div class="kv-try"')
CALL = "calls => Promise.all(calls.map(call => kvlibPage.runtime.call(...call)))"
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The network, cut: no name leads anywhere.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def book() -> Path | None:
    """The built book, if there is one: `$KVLIB_BOOK`, else `_build/html`."""
    folder = Path(os.environ.get("KVLIB_BOOK") or ROOT / "_build" / "html")
    return folder if (folder / "index.html").is_file() else None


def chromium() -> str | None:
    """The browser's program."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def browser(playwright):
    """A headless Chromium without a network."""
    opened = playwright.chromium.launch(executable_path=chromium(), args=SWITCHES)
    yield opened
    opened.close()


def pages(folder: Path) -> list[str]:
    """Every page a reader can read, relative to the book's folder; `index.html` only forwards."""
    found = (path.relative_to(folder) for path in folder.rglob("*.html"))
    names = {path.as_posix() for path in found if path.parts[0] != "_static"}
    return sorted(names - {"index.html"})


def extension(name: str):
    """A module of `book/_ext`, which only Sphinx has on its path."""
    folder = str(ROOT / "book" / "_ext")
    if folder not in sys.path:
        sys.path.append(folder)
    return __import__(name)


class _Below(http.server.SimpleHTTPRequestHandler):
    """Serves the folder below a path, and nothing at the root: as a static host does."""

    def __init__(self, *args, changed: dict[str, str], **options) -> None:
        self._changed = changed
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        name = self.path.removeprefix(BELOW).partition("?")[0]
        if name not in self._changed:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", f"{self.guess_type(name)}; charset=utf-8")
        self.end_headers()
        self.wfile.write(self._changed[name].encode())

    def translate_path(self, path: str) -> str:
        inside = path.startswith(BELOW)
        return super().translate_path("/" + path[len(BELOW) :]) if inside else os.devnull + "/no"

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(handler):
    """Runs a server on a free port; gives its address without a path."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def served(folder: Path, changed: dict[str, str] | None = None):
    """Serves the book, some of its files with another text; gives the address of its folder."""
    handler = functools.partial(_Below, directory=str(folder), changed=changed or {})
    with serving(handler) as origin:
        yield origin + BELOW


@contextmanager
def opened(browser, site: str, **options):
    """A page of the book, and the list of what goes wrong on it."""
    context = browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []

    def ours(request) -> None:
        if not request.url.startswith((site, "data:", "blob:")):
            faults.append(f"asked for {request.url}")

    page.on("request", ours)
    page.on("console", lambda m: m.type == "error" and faults.append(f"console: {m.text}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("requestfailed", lambda request: faults.append(f"failed: {request.url}"))
    page.on("response", lambda r: r.status >= 400 and faults.append(f"{r.status}: {r.url}"))
    yield page, faults
    context.close()


def go(page, address: str) -> None:
    """Opens a page and waits until its parts have come to life."""
    page.goto(address)
    page.locator(".kv-alive").last.wait_for()


def texts(folder: Path) -> dict[str, str]:
    """Every page with something to bring to life, by name."""
    found = {name: (folder / name).read_text("utf-8") for name in pages(folder)}
    return {name: text for name, text in found.items() if any(mark in text for mark in MARKS)}


def on_pages(folder: Path, pattern: str) -> list:
    """What a pattern finds on those pages, each once."""
    found = (re.findall(pattern, text, re.DOTALL) for text in texts(folder).values())
    return sorted({each for page in found for each in page})
