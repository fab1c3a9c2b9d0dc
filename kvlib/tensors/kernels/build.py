"""Compiles a C++ file on first use with the system's compiler, and keeps the result.

What was compiled is kept in the user's cache under a name made of everything that could change it:
the source, the flags, the compiler's version and this processor's features. A file that is there is
therefore the right one, and a cache shared by two machines serves both.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kvlib.traces import user_cache

# Sums may be reordered. Not by -ffast-math: a library linked with it makes the processor round
# subnormal numbers to zero, in the whole process and from the moment that it is loaded.
REORDER = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno")
FLAGS = ("-O3", "-march=native", *REORDER, "-freciprocal-math", "-std=c++17")
LIBRARY = ("-fPIC", "-shared")
THREADS = "-fopenmp"


class NoCompiler(RuntimeError):
    """There is no C++ compiler here, it cannot compile this file, or the result cannot be kept."""


def compiler() -> str:
    """Returns the C++ compiler: `$CXX`, else the first of c++, g++ and clang++ on the path.

    Raises:
        NoCompiler: there is none.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in names:
        if found := shutil.which(name):
            return found
    raise NoCompiler(f"no C++ compiler on this machine: looked for {', '.join(names)}")


@cache
def _features() -> str:
    """What `-march=native` means here: the processor's features, as the system lists them."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return " ".join(sorted(line.split(":", 1)[1].split()))
    return f"{platform.machine()} {platform.processor()}"


@cache
def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace")
    return done.stdout.partition("\n")[0]


@cache
def library(source: Path, defines: Sequence[str] = ()) -> ctypes.CDLL:
    """Loads a compiled file, compiling it first where that has not been done before.

    It is compiled with OpenMP where the compiler has it and without it elsewhere; then the kernel
    uses one thread.

    Args:
        source: the C++ file; it may include headers that lie beside it.
        defines: macros as `NAME=value`; each set of them is compiled on its own.

    Raises:
        NoCompiler: it cannot be compiled here; the message has the compiler's first words. Or the
            cache folder cannot be written to, or holds a damaged file of that name. Nothing half
            written is left behind.
    """
    cxx = compiler()
    flags = (*FLAGS, *LIBRARY, *(f"-D{define}" for define in defines))
    texts = [path.read_text("utf-8") for path in (source, *sorted(source.parent.glob("*.h")))]
    what = "\0".join([*texts, *flags, cxx, _version(cxx), _features()])
    name = f"{source.stem}-{hashlib.sha256(what.encode()).hexdigest()[:24]}.so"
    target = user_cache() / "kernels" / name
    try:
        if not target.exists():
            _compile(cxx, source, flags, target)
        return ctypes.CDLL(str(target))
    except OSError as error:  # no room or no right to write there, or a damaged file
        raise NoCompiler(
            f"{source.name}, compiled, cannot be kept in and loaded from {target.parent}: {error}. "
            f"Make room there, delete {name} if it is there, or let KVLIB_CACHE name another folder"
        ) from error


def _compile(cxx: str, source: Path, flags: Sequence[str], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    said = ""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        half = Path(folder) / target.name
        for threads in ((THREADS,), ()):
            command = [cxx, *flags, *threads, str(source), "-o", str(half)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            if not done.returncode:
                half.replace(target)
                return
            said = said or done.stderr.strip()[:300]
    raise NoCompiler(f"{Path(cxx).name} cannot compile {source.name}: {said}")
