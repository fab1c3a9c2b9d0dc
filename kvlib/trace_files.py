"""Reads a trace file row by row, in the publisher's form or in the compact one.

The compact form keeps times as whole milliseconds and block ids as runs `[first_id, count]`, under
gzip. A file's first line decides its form, never its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from kvlib import trace_ragpulse
from kvlib.files import parse_json
from kvlib.request import Request
from kvlib.trace_lines import HEADER_START, Row, digits, lines, place, whole, within

MOONCAKE_BLOCK_SIZE = 512
MAX_BLOCK_IDS = 5_000_000

_EPOCH = datetime(1970, 1, 1)

_Numbered = Iterator[tuple[int, Row]]


class _Form(NamedTuple):
    """How the rows of a file are read, whether its first line is one, and how they are ordered."""

    parse: Callable[[str], Row]
    has_header: bool
    order: Callable[[_Numbered], _Numbered] = iter


def read(path: Path) -> Iterator[Request]:
    """Yields the requests of a trace file, in order of arrival.

    A hostile file is refused before it fills the memory: see `trace_lines.lines`, and at most
    `MAX_BLOCK_IDS` block ids in all, and as many pieces. The largest known trace needs less than a
    tenth of each limit, and a third of the header's.

    Args:
        path: a publisher's file or a compact one, under gzip or not.

    Raises:
        ValueError: the form is unknown, a row is malformed or a limit is passed; the message gives
            the file, the line and the reason.
        OSError: the file is no plain file, or cannot be opened or read.
    """
    num_rows = num_ids = last_ms = 0
    for number, row in _rows(path):
        with place(path, number):
            _check(row, last_ms)
            num_ids += _num_ids(row)
            within("block ids in the file", num_ids, MAX_BLOCK_IDS)
            ids = _expand(row)
        arrival_s = None if row.arrival_ms is None else row.arrival_ms / 1000
        yield Request(
            num_rows,
            arrival_s,
            row.prompt_tokens,
            row.output_tokens,
            block_ids=ids,
            session_id=row.session_id,
            pieces=row.pieces,
        )
        num_rows, last_ms = num_rows + 1, row.arrival_ms or 0
    if not num_rows:
        raise ValueError(f"{path.name} holds no request")


def _rows(path: Path) -> _Numbered:
    numbered = lines(path)
    for number, first in numbered:
        with place(path, number):
            form = _form(first, path)
        rest = numbered if form.has_header else chain([(number, first)], numbered)
        yield from form.order(_parsed(path, form, rest))


def _parsed(path: Path, form: _Form, numbered: Iterable[tuple[int, str]]) -> _Numbered:
    num_pieces = 0
    for number, line in numbered:
        with place(path, number):
            row = form.parse(line)
            # Counted here, since an order other than the file's holds every row at once.
            num_pieces += len(row.pieces)
            within("pieces in the file", num_pieces, MAX_BLOCK_IDS)
        yield number, row


def _form(line: str, path: Path) -> _Form:
    header = line.lstrip("\ufeff")
    if header == "TIMESTAMP,ContextTokens,GeneratedTokens":
        return _Form(_csv(3, _since_first()), True)
    if header == "arrival_ms,context_tokens,generated_tokens":
        return _Form(_csv(3, digits), True)
    if header == "context_tokens,generated_tokens":
        return _Form(_csv(2, digits), True)
    if header.startswith(HEADER_START.decode()):
        return _Form(trace_ragpulse.compact(header), True)
    if header.startswith("{") and '"session_id"' in header:
        return _Form(trace_ragpulse.published(path), False, trace_ragpulse.by_arrival)
    if header.startswith("{"):
        return _Form(_mooncake, False)
    if header.startswith("["):
        return _Form(_compact, False)
    raise ValueError(f"no known trace starts with {header[:40]!r}")


def _csv(num_fields: int, arrival: Callable[[str], int]) -> Callable[[str], Row]:
    def parse(line: str) -> Row:
        fields = line.split(",")
        if len(fields) != num_fields:
            raise ValueError(f"a row has {num_fields} fields, got {len(fields)}")
        *times, prompt, output = fields
        return Row(arrival(times[0]) if times else None, digits(prompt), digits(output))

    return parse


def _mooncake(line: str) -> Row:
    row = parse_json(line)
    if not isinstance(row, dict):
        raise ValueError("a row is a JSON object, like the first one")
    whole(row["timestamp"])
    runs = [(block_id, 1) for block_id in row["hash_ids"]]
    return Row(row["timestamp"], row["input_length"], row["output_length"], runs)


def _compact(line: str) -> Row:
    row = parse_json(line)
    if not isinstance(row, list) or len(row) != 4:
        raise ValueError("a row is [timestamp_ms, input_length, output_length, runs]")
    whole(row[0])
    return Row(*row[:3], [(first_id, count) for first_id, count in row[3]])


def _since_first() -> Callable[[str], int]:
    first_ticks: int | None = None

    def arrival_ms(stamp: str) -> int:
        nonlocal first_ticks
        seconds, _, fraction = stamp.partition(".")
        since = datetime.fromisoformat(seconds) - _EPOCH
        # A tick is 100 ns: the publisher writes seven digits, one more than datetime keeps.
        behind = digits(fraction.ljust(7, "0")) // 10 ** max(0, len(fraction) - 7)
        ticks = (since.days * 86_400 + since.seconds) * 10**7 + behind
        if first_ticks is None:
            first_ticks = ticks
        # Halves go to the even millisecond, as in the compact files.
        return round((ticks - first_ticks) / 10_000)

    return arrival_ms


def _check(row: Row, last_ms: int) -> None:
    whole(row.prompt_tokens, row.output_tokens)
    if not (row.prompt_tokens and row.output_tokens):
        raise ValueError(
            "a request has at least 1 prompt token and 1 output token, "
            f"got {row.prompt_tokens} and {row.output_tokens}"
        )
    if row.arrival_ms is not None:
        whole(row.arrival_ms)
        if row.arrival_ms < last_ms:
            raise ValueError(f"arrives at {row.arrival_ms} ms, the row above at {last_ms} ms")


def _num_ids(row: Row) -> int:
    """Returns how many block ids a row has, once it is known that its prompt has as many."""
    if row.runs is None:
        return 0
    for run in row.runs:
        whole(*run)
    num_ids = sum(count for _, count in row.runs)
    needed = -(-row.prompt_tokens // MOONCAKE_BLOCK_SIZE)
    if num_ids != needed:
        raise ValueError(
            f"{row.prompt_tokens} prompt tokens have {needed} block ids, got {num_ids}"
        )
    return num_ids


def _expand(row: Row) -> tuple[int, ...]:
    return tuple(i for first, count in row.runs or () for i in range(first, first + count))
