"""Reads a file line by line without trusting it, and checks the fields that all traces share."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kvlib.files import open_file
from kvlib.request import ContentPiece

MAX_LINE_BYTES = 64 * 1024
# RAGPulse's compact file starts with one line that gives the length of every piece of content.
HEADER_START = b'{"token_length"'
MAX_HEADER_BYTES = 1024 * 1024
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_ROWS = 1_000_000
MAX_GZIP_MEMBERS = 10_000

_PACKED_BYTES = io.DEFAULT_BUFFER_SIZE
_GZIP = 16 + zlib.MAX_WBITS

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
    the memory or takes long: at most `MAX_LINE_BYTES` a line (`MAX_HEADER_BYTES` for RAGPulse's
    first) and, in all, `MAX_FILE_BYTES`, packed or not, `MAX_ROWS` lines and `MAX_GZIP_MEMBERS`.

    Raises:
        ValueError: a limit is passed, or it is no text or broken gzip; the message gives the file,
            the line and the reason.
        OSError: the file is no plain file, or cannot be opened or read.
    """
    number = size = 0
    with open_file(path) as file:
        try:
            within("bytes in the file", os.fstat(file.fileno()).st_size, MAX_FILE_BYTES)
            packed = file.peek()[:2] == b"\x1f\x8b"
            stream = io.BufferedReader(_Unpacked(file)) if packed else file
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number, most = number + 1, MAX_LINE_BYTES
                if number == 1 and len(line) > most and line.startswith(HEADER_START):
                    most = MAX_HEADER_BYTES
                    if not line.endswith(b"\n"):
                        line += stream.readline(most)
                size += len(line)
                within("bytes in the line", len(line), most)
                within("bytes in the file", size, MAX_FILE_BYTES)
                within("lines", number, MAX_ROWS)
                if line.strip():
                    yield number, line.decode("utf-8").strip()
        except (ValueError, EOFError, zlib.error) as error:
            raise ValueError(f"{path.name}, line {max(number, 1)}: {error}") from error


class _Unpacked(io.RawIOBase):
    """What a gzip file holds. `gzip` walks through names and padding byte by byte: for minutes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._packed = file, b""
        self._member, self._num_members = zlib.decompressobj(_GZIP), 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        data = b""
        while not data:
            self._packed = self._packed or self._file.read(_PACKED_BYTES)
            if not self._packed and self._member.eof:
                break
            if not self._packed:
                raise EOFError("the gzip stream is cut short")
            if self._member.eof:
                self._begin_member()
                continue
            data = self._member.decompress(self._packed, len(buffer))
            self._packed = self._member.unconsumed_tail or self._member.unused_data
        buffer[: len(data)] = data
        return len(data)

    def _begin_member(self) -> None:
        """Goes on to what stands behind a member's end, if that is no padding so far."""
        self._packed = self._packed.lstrip(b"\0")
        if self._packed:
            self._num_members += 1
            within("gzip members", self._num_members, MAX_GZIP_MEMBERS)
            self._member = zlib.decompressobj(_GZIP)


@contextmanager
def place(path: Path, number: int) -> Iterator[None]:
    """Turns whatever a malformed line raises inside into a `ValueError` that says where it is."""
    try:
        yield
    except (ValueError, TypeError, LookupError) as error:
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


def digits(text: object) -> int:
    """Returns the whole number that plain digits write."""
    if not (isinstance(text, str) and text.isascii() and text.isdigit()):
        raise ValueError(f"{repr(text)[:40]} is no whole number")
    return int(text)
