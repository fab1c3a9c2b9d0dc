"""Ways to damage a file, and to write one on purpose that says what no honest one says."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import Any

COUNTS = (0, 1, 2, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1)
DEEP = "[" * 5000 + "]" * 5000
# What may stand anywhere in a JSON text, in its own words: some of it is no JSON.
RAW = (
    *("null", "true", "-1", "0", "1", "-0.5", "1e308", "1e999", "NaN", "-Infinity", "[]", "{}"),
    *("2147483648", "9007199254740993", "18446744073709551616", "9" * 400, "9" * 5000, "1" * 19),
    *('""', '"x"', '"\\ud800"', '"\\u0000"', '"../../etc/passwd"', '"' + "x" * 3000 + '"'),
    *('{"a": 1, "a": 2}', DEEP, '{"a":' * 3000 + "1" + "}" * 3000, str(list(range(500)))),
)
WORDS = (
    *(
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b",",
        b"%s",
        b"../",
        b"\x1f\x8b",
        b"PK\x05\x06",
    ),
    *(b"nan", b"1e999", b"-1", b"9" * 30, b"1_0", "٣".encode(), b"{", b"]", b'"', b" " * 500),
)


def _place(random: Random, data: bytes) -> int:
    return int(random.random() * (len(data) + 1))


def cut(random: Random, data: bytes) -> bytes:
    return data[: _place(random, data)]


def flip(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(1 + int(random.random() * 4) if data else 0):
        changed[_place(random, data[1:])] ^= 1 << int(random.random() * 8)
    return bytes(changed)


def drop(random: Random, data: bytes) -> bytes:
    start = _place(random, data)
    return data[:start] + data[start + 1 + int(random.random() * 60) :]


def repeat(random: Random, data: bytes) -> bytes:
    start = _place(random, data)
    part = data[start : start + 1 + int(random.random() * 300)]
    return data[:start] + part * random.choice((2, 3, 50)) + data[start:]


def insert(random: Random, data: bytes) -> bytes:
    at = _place(random, data)
    return data[:at] + random.choice(WORDS) + data[at:]


def count(random: Random, data: bytes) -> bytes:
    """Writes a count that cannot be over some bytes, mostly near the beginning."""
    size = random.choice((4, 8))
    at = _place(random, data[: random.choice((64, 1000, len(data)))])
    return (
        data[:at] + (random.choice(COUNTS) % 256**size).to_bytes(size, "little") + data[at + size :]
    )


def number(random: Random, data: bytes) -> bytes:
    """Writes something else where plain text has a number."""
    found = list(re.finditer(rb"\d+", data[:20_000]))
    if not found:
        return insert(random, data)
    at = random.choice(found)
    return data[: at.start()] + random.choice(RAW).encode() + data[at.end() :]


def lines(random: Random, data: bytes) -> bytes:
    rows = data.split(b"\n")
    i, j = (int(random.random() * len(rows)) for _ in range(2))
    rows[i], rows[j] = rows[j], random.choice((rows[i], rows[i] * 2, b"", rows[i] + b"\r"))
    return b"\n".join(rows)


def encoded(random: Random, data: bytes) -> bytes:
    """In another encoding, with a mark in front, or with other ends of lines."""
    text = data.decode("utf-8", "replace")
    way = random.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "crlf", "nul"))
    if way == "crlf":
        return text.replace("\n", "\r\n").encode()
    return data + bytes(50) if way == "nul" else text.encode(way, "replace")


def nodes(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a JSON text are, the first ones of long lists."""
    found = [path]
    inside = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for name, value in list(inside)[:12]:
        found += nodes(value, (*path, name))
    return found


def meaning(random: Random, data: bytes) -> bytes:
    """Replaces a value of a JSON text, or of one of its lines, or says a name twice."""
    rows = [data] if data[:1] == b"{" and data.count(b"\n{") == 0 else data.split(b"\n")
    at = int(random.random() * min(len(rows), 8))
    try:
        tree = json.loads(rows[at])
        path = random.choice(nodes(tree))
    except (ValueError, RecursionError):
        return number(random, data)
    *above, last = path or (None,)
    holder = tree
    for name in above:
        holder = holder[name]
    mark, raw = '"@raw@"', random.choice(RAW)
    if path and isinstance(last, str) and random.random() < 0.2:
        raw = f"{json.dumps(holder[last])}, {json.dumps(last)}: {raw}"
    if path:
        holder[last] = "@raw@"
    rows[at] = (json.dumps(tree) if path else mark).replace(mark, raw, 1).encode()
    return b"\n".join(rows)


PLAIN = (cut, flip, drop, repeat, insert, count)
TEXT = (*PLAIN, number, lines, encoded, meaning, meaning, meaning)
Damage = Callable[[Random, bytes], bytes]


def damaged(random: Random, data: bytes, ways: tuple[Damage, ...]) -> bytes:
    """Returns the bytes after one to three kinds of damage, of at most a few megabytes."""
    for _ in range(random.choice((1, 1, 2, 3))):
        data = random.choice(ways)(random, data)[: 4 * 2**20]
    return data


def in_gzip(random: Random, data: bytes) -> bytes:
    """Damages what a gzip file holds, or the file, or makes several of it."""
    if random.random() < 0.6:
        data = gzip.compress(damaged(random, data, TEXT), 1)
        return data if random.random() < 0.8 else data * 3 + bytes(int(random.random() * 9))
    return damaged(random, gzip.compress(data, 1), PLAIN)


def in_header(random: Random, data: bytes) -> bytes:
    """Damages the header of a safetensors file, whose length then fits again."""
    if random.random() < 0.3:
        return damaged(random, data, PLAIN)
    end = 8 + int.from_bytes(data[:8], "little")
    header = damaged(random, data[8:end], TEXT)
    return len(header).to_bytes(8, "little") + header + data[end:]


def sealed(random: Random, data: bytes) -> bytes:
    """Damages a packed block, and gives it the checksum that then fits, where it has a place."""
    data, label = in_header(random, data), b'"sha256":"'
    at = data.find(label) + len(label)
    if at < len(label) or random.random() < 0.1:
        return data
    blank = data[:at] + b"0" * 64 + data[at + 64 :]
    return data[:at] + sha256(blank).hexdigest().encode() + data[at + 64 :]
