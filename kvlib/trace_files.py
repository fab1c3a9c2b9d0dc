"""Reads a trace file row by row, in the publisher's form or in the compact one.

The compact form keeps times as whole milliseconds and block ids as runs `[first_id, count]`, under
gzip. A file's first line decides its form, never its name.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from kvlib.request import Request

MOONCAKE_BLOCK_SIZE = 512
MAX_LINE_BYTES = 64 * 1024
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_ROWS = 1_000_000
MAX_BLOCK_IDS = 5_000_000

# Every whole number up to here is exact as a float, so `arrival_ms / 1000` is rounded only once.
_LARGEST = 2**53
_EPOCH = datetime(1970, 1, 1)


_Runs = Sequence[tuple[int, int]]


class _Row(NamedTuple):
    """A row before any check: the fields hold whatever the file says."""

    arrival_ms: int | None
    prompt_tokens: int
    output_tokens: int
    runs: _Runs | None = None


_Parser = Callable[[str], _Row]


def read(path: Path) -> Iterator[Request]:
    """Yields the requests of a trace file, in the file's order.

    Lines are decoded one at a time, and a hostile file is refused before it fills the memory: at
    most `MAX_LINE_BYTES` a line and, in all, `MAX_FILE_BYTES` decompressed, `MAX_ROWS` and
    `MAX_BLOCK_IDS`. The largest known trace needs less than a tenth of each.

    Args:
        path: a publisher's file or a compact one, under gzip or not.

    Raises:
        ValueError: the form is unknown, a row is malformed or a limit is passed; the message gives
            the file, the line and the reason.
        OSError: the file cannot be opened or read.
    """
    parse, num_rows, num_ids, last_ms = None, 0, 0, 0
    for number, line in _lines(path):
        try:
            if parse is None:
                parse, is_header = _form(line)
                if is_header:
                    continue
            row = parse(line)
            _check(row, last_ms)
            ids = _expand(row, MAX_BLOCK_IDS - num_ids)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise ValueError(f"{path.name}, line {number}: {_reason(error)}") from error
        arrival_s = None if row.arrival_ms is None else row.arrival_ms / 1000
        yield Request(num_rows, arrival_s, row.prompt_tokens, row.output_tokens, ids)
        num_rows, num_ids, last_ms = num_rows + 1, num_ids + len(ids), row.arrival_ms or 0
    if not num_rows:
        raise ValueError(f"{path.name} holds no request")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = size = 0
    with path.open("rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        stream = gzip.GzipFile(fileobj=file) if packed else file
        try:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number, size = number + 1, size + len(line)
                _within("bytes in the line", len(line), MAX_LINE_BYTES)
                _within("bytes in the file", size, MAX_FILE_BYTES)
                _within("lines", number, MAX_ROWS)
                if line.strip():
                    yield number, line.decode("utf-8").strip()
        except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path.name}, line {max(number, 1)}: {error}") from error


def _within(what: str, asked: int, most: int) -> None:
    if asked > most:
        raise ValueError(f"{what}: more than {most:,}, the most that is read")


def _form(line: str) -> tuple[_Parser, bool]:
    header = line.lstrip("\ufeff")
    if header == "TIMESTAMP,ContextTokens,GeneratedTokens":
        return _csv(3, _since_first()), True
    if header == "arrival_ms,context_tokens,generated_tokens":
        return _csv(3, _digits), True
    if header == "context_tokens,generated_tokens":
        return _csv(2, _digits), True
    if header.startswith("{"):
        return _mooncake, False
    if header.startswith("["):
        return _compact, False
    raise ValueError(f"no known trace starts with {header[:40]!r}")


def _csv(num_fields: int, arrival: Callable[[str], int]) -> _Parser:
    def parse(line: str) -> _Row:
        fields = line.split(",")
        if len(fields) != num_fields:
            raise ValueError(f"a row has {num_fields} fields, got {len(fields)}")
        *times, prompt, output = fields
        return _Row(arrival(times[0]) if times else None, _digits(prompt), _digits(output))

    return parse


def _mooncake(line: str) -> _Row:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("a row is a JSON object, like the first one")
    runs = [(block_id, 1) for block_id in row["hash_ids"]]
    return _Row(row["timestamp"], row["input_length"], row["output_length"], runs)


def _compact(line: str) -> _Row:
    row = json.loads(line)
    if not isinstance(row, list) or len(row) != 4:
        raise ValueError("a row is [timestamp_ms, input_length, output_length, runs]")
    return _Row(*row[:3], [(first_id, count) for first_id, count in row[3]])


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text[:40]!r} is no whole number")
    return int(text)


def _since_first() -> Callable[[str], int]:
    first_ticks: int | None = None

    def arrival_ms(stamp: str) -> int:
        nonlocal first_ticks
        whole, _, fraction = stamp.partition(".")
        since = datetime.fromisoformat(whole) - _EPOCH
        # A tick is 100 ns: the publisher writes seven digits, one more than datetime keeps.
        ticks = (since.days * 86_400 + since.seconds) * 10**7 + _digits(fraction.ljust(7, "0")[:7])
        if first_ticks is None:
            first_ticks = ticks
        # Halves go to the even millisecond, as in the compact files.
        return round((ticks - first_ticks) / 10_000)

    return arrival_ms


def _check(row: _Row, last_ms: int) -> None:
    _whole(row.prompt_tokens, row.output_tokens)
    if not (row.prompt_tokens and row.output_tokens):
        raise ValueError(
            "a request has at least 1 prompt token and 1 output token, "
            f"got {row.prompt_tokens} and {row.output_tokens}"
        )
    if row.arrival_ms is not None:
        _whole(row.arrival_ms)
        if row.arrival_ms < last_ms:
            raise ValueError(f"arrives at {row.arrival_ms} ms, the row above at {last_ms} ms")


def _whole(*values: Any) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise ValueError(f"{repr(value)[:40]} is no whole number from 0 to 2**53")


def _expand(row: _Row, most: int) -> tuple[int, ...]:
    if row.runs is None:
        return ()
    for run in row.runs:
        _whole(*run)
    num_ids = sum(count for _, count in row.runs)
    needed = -(-row.prompt_tokens // MOONCAKE_BLOCK_SIZE)
    if num_ids != needed:
        raise ValueError(
            f"{row.prompt_tokens} prompt tokens have {needed} block ids, got {num_ids}"
        )
    _within("block ids in the file", num_ids, most)
    return tuple(i for first, count in row.runs for i in range(first, first + count))


def _reason(error: Exception) -> str:
    return f"the field {error} is missing" if isinstance(error, KeyError) else str(error)[:200]
