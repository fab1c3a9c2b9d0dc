"""Reads RAGPulse: questions with what was retrieved for them, as pieces of content with lengths.

The publisher's form is six files, which must lie in one folder: the trace, not in order of time,
and a table of lengths for each kind of content. The compact form is one file, in order; its first
line holds the tables. Both give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvlib.files import parse_json
from kvlib.request import ContentPiece
from kvlib.trace_lines import Row, digits, lines, place, whole, within


class Kind(NamedTuple):
    """A kind of content: its name in the compact file, and the publisher's words for it."""

    name: str
    file: str
    id_field: str
    field: str


# In the order in which they stand in a prompt, as we assume it: the publisher states none.
KINDS = (
    Kind("sys", "1_sys_prompt.jsonl", "sys_prompt_id", "sys_prompt"),
    Kind("passage", "2_passages.jsonl", "passage_id", "passages_ids"),
    Kind("history", "3_history.jsonl", "history_id", "history"),
    Kind("web", "5_web_search.jsonl", "web_search_id", "web_search"),
    Kind("user", "4_user_input.jsonl", "user_input_id", "user_input"),
)

# As many as fit into the one line that the compact form gives them.
MAX_TABLE_PIECES = 200_000

_Table = dict[int, ContentPiece]
_Tables = Mapping[str, _Table]
Parser = Callable[[str], Row]


def compact(header: str) -> Parser:
    """Returns the reader of a compact row, from the file's first line with the lengths."""
    written = parse_json(header)["token_length"]
    tables = {kind.name: _table(kind, written[kind.name]) for kind in KINDS}

    def parse(line: str) -> Row:
        row = parse_json(line)
        if not isinstance(row, list) or len(row) != 4 + len(KINDS):
            raise ValueError("a row is [t_s, input_length, output_length, session, five id lists]")
        arrival_s, prompt_tokens, output_tokens, session_id, *ids = row
        whole(arrival_s, prompt_tokens, output_tokens, session_id)
        pieces = _pieces(tables, ids, prompt_tokens)
        return Row(1000 * arrival_s, prompt_tokens, output_tokens, None, session_id, pieces)

    return parse


def published(path: Path) -> Parser:
    """Returns the reader of the publisher's row, from the five tables beside the trace's file.

    Raises:
        FileNotFoundError: a table is not there.
        ValueError: a table is malformed.
    """
    tables = {kind.name: _published_table(path.with_name(kind.file), kind) for kind in KINDS}

    def parse(line: str) -> Row:
        row = parse_json(line)
        if not isinstance(row, dict) or not isinstance(row["session_id"], str):
            raise ValueError("a row is a JSON object whose session_id is a string")
        arrival_s, prompt_tokens = digits(row["timestamp"]), row["input_length"]
        whole(arrival_s, prompt_tokens)
        pieces = _pieces(tables, [row["hash_ids"][kind.field] for kind in KINDS], prompt_tokens)
        session_id, output_tokens = row["session_id"], row["output_length"]
        return Row(1000 * arrival_s, prompt_tokens, output_tokens, None, session_id, pieces)

    return parse


def by_arrival(rows: Iterable[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    """Yields published rows in order of time, their sessions numbered as they first appear."""
    numbers: dict[str, int] = {}
    # The sort is stable: requests of one second stay in the file's order.
    for number, row in sorted(rows, key=lambda numbered: numbered[1].arrival_ms):
        yield number, row._replace(session_id=numbers.setdefault(row.session_id, len(numbers)))


def _published_table(path: Path, kind: Kind) -> _Table:
    if not path.is_file():
        raise FileNotFoundError(f"RAGPulse is six files in one folder; {path.name} is not there")
    table: _Table = {}
    for number, line in lines(path):
        with place(path, number):
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError("a row is a JSON object")
            _enter(table, kind, row[kind.id_field], row["token_length"])
    return table


def _table(kind: Kind, pairs: Iterable[Any]) -> _Table:
    table: _Table = {}
    for content_id, num_tokens in pairs:
        _enter(table, kind, content_id, num_tokens)
    return table


def _enter(table: _Table, kind: Kind, content_id: Any, num_tokens: Any) -> None:
    whole(content_id, num_tokens)
    piece = ContentPiece(kind.name, content_id, num_tokens)
    known = table.setdefault(content_id, piece)
    if known != piece:
        raise ValueError(
            f"{kind.name} {content_id} has one length, got {known.num_tokens} and {num_tokens}"
        )
    within(f"pieces of the kind {kind.name}", len(table), MAX_TABLE_PIECES)


def _pieces(tables: _Tables, ids: list[Any], prompt_tokens: int) -> tuple[ContentPiece, ...]:
    found = []
    for kind, of_kind in zip(KINDS, ids, strict=True):
        for content_id in of_kind:
            whole(content_id)
            if content_id not in tables[kind.name]:
                raise ValueError(f"no length is given for {kind.name} {content_id}")
            found.append(tables[kind.name][content_id])
    known = sum(piece.num_tokens for piece in found)
    if known > prompt_tokens:
        raise ValueError(f"a prompt of {prompt_tokens} tokens with pieces of {known}")
    return tuple(found)
