"""Files from anywhere: read to a known end and understood in one way, or refused; written whole.

Whoever made a file may have meant harm, or stopped in the middle. So nothing is read further than
the caller says, nothing but a plain file is opened, and JSON that could be taken for two things is
none. Nothing is ever unpickled or evaluated.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from json import JSONDecoder
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

MAX_JSON_BYTES = 16 * 2**20  # the index of a model in a hundred thousand tensors has nine


def open_file(path: Path) -> BinaryIO:
    """Opens a plain file for reading, and nothing else that a path may lead to.

    A pipe would block until somebody writes into it, a device may have no end.

    Raises:
        OSError: it is not there, is no plain file, or cannot be opened.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - it is the caller's
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "only a plain file is read, this is none", str(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read(path: Path, most_bytes: int) -> bytes:
    """Returns the bytes of a plain file.

    Raises:
        ValueError: it has more than `most_bytes`; none of them was read.
        OSError: it cannot be opened or read, or it changed meanwhile.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise ValueError(f"{size:,} bytes, at most {most_bytes:,} are read")
        data = file.read(size + 1)
    if len(data) != size:
        raise OSError(errno.EIO, f"it had {size:,} bytes and changed as it was read", str(path))
    return data


def read_json(path: Path, most_bytes: int = MAX_JSON_BYTES) -> Any:
    """Returns what a JSON file says; see `parse_json`.

    Raises:
        ValueError: it is too long, or no JSON; without the file's name.
        OSError: it cannot be read.
    """
    return parse_json(read(path, most_bytes))


def parse_json(text: str | bytes) -> Any:
    """Returns what a JSON text says, if it says one thing.

    Python's own reader keeps the last of two equal names, takes `NaN` and `1e999` for numbers, and
    ends a text that is nested too deeply with a `RecursionError`.

    Args:
        text: as bytes it is UTF-8, with a byte order mark or without.

    Raises:
        ValueError: it is no JSON; a name stands twice in an object; a number is not finite, or has
            thousands of digits; it is nested too deeply.

    Example:
        >>> parse_json('{"a": 1, "b": [0.5]}')
        {'a': 1, 'b': [0.5]}
        >>> parse_json('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: the name 'a' stands twice in one object
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r:.60} stands twice in one object")
        found[name] = value
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text:.40} is no finite number")
    return value


_DECODER = JSONDecoder(object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite)


def write(path: Path, data: str | bytes) -> None:
    """Puts a file in its place in one step: whoever reads finds the old one or the new one, whole.

    It is written under another name, forced to the disk and renamed.

    Args:
        path: where to; its folder is there.
        data: text is written as UTF-8.

    Raises:
        OSError: the disk is full, say. What was there before is there still, and nothing else is.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
