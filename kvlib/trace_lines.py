"""Reads a file line by line without trusting it, and checks the fields that all traces share."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kvlib.request import ContentPiece

MAX_LINE_BYTES = 64 * 1024
# RAGPulse's compact file starts with one line that gives the length of every piece of content.
HEADER_START = b'{"token_length"'
MAX_HEADER_BYTES = 1024 * 1024
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_ROWS = 1_000_000

# Every whole number up to here is exact as a float, so `arrival_ms / 1000` is rounded only once.
_LARGEST = 2**53


class Row(NamedTuple):
    """A row before any check: the fields hold whatever the file says."""

    arrival_ms: int | None
    prompt_tokens: int
    output_tokens: int
    runs: Sequence[tuple[int, int]] | None = None
    session_id: Any = None
    pieces: tuple[ContentPiece, ...] = ()


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines that are not blank, stripped, with their numbers from 1.

    Lines are decoded one at a time, from gzip or not, and a hostile file is refused before it fills
    the memory: at most `MAX_LINE_BYTES` a line (`MAX_HEADER_BYTES` for RAGPulse's first) and, in
    all, `MAX_FILE_BYTES` decompressed and `MAX_ROWS` lines.

    Raises:
        ValueError: a limit is passed, or it is no text or broken gzip; the message gives the file,
            the line and the reason.
        OSError: the file cannot be opened or read.
    """
    number = size = 0
    with path.open("rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        stream = gzip.GzipFile(fileobj=file) if packed else file
        try:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number, most = number + 1, MAX_LINE_BYTES
                if number == 1 and len(line) > most and line.startswith(HEADER_START):
                    most = MAX_HEADER_BYTES
                    line += stream.readline(most + 1 - len(line))
                size += len(line)
                within("bytes in the line", len(line), most)
                within("bytes in the file", size, MAX_FILE_BYTES)
                within("lines", number, MAX_ROWS)
                if line.strip():
                    yield number, line.decode("utf-8").strip()
        except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path.name}, line {max(number, 1)}: {error}") from error


@contextmanager
def place(path: Path, number: int) -> Iterator[None]:
    """Turns whatever a malformed line raises inside into a `ValueError` that says where it is."""
    try:
        yield
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        missing = isinstance(error, KeyError)
        reason = f"the field {error} is missing" if missing else str(error)[:200]
        raise ValueError(f"{path.name}, line {number}: {reason}") from error


def within(what: str, asked: int, most: int) -> None:
    """Refuses more than `most` of something."""
    if asked > most:
        raise ValueError(f"{what}: more than {most:,}, the most that is read")


def whole(*values: Any) -> None:
    """Refuses whatever is no `int` from 0 to 2**53; `True` and `1.0` are none."""
    for value in values:
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise ValueError(f"{repr(value)[:40]} is no whole number from 0 to 2**53")


def digits(text: str) -> int:
    """Returns the whole number that plain digits write."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text[:40]!r} is no whole number")
    return int(text)
