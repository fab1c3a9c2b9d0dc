"""Looks through a GGUF file before a reader believes it: every count, length and place in it.

The reader of the package `gguf` takes a file at its word. A list that claims 2^60 numbers keeps it
adding empty ones until memory is gone; two weights may lie on the same bytes.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import os
import struct
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES

from kvlib.files import open_file

# The reader makes an object of each value of the header. SmolLM2's has 147,000.
MAX_VALUES = 600_000
MAX_WEIGHTS = 2**30
MAX_NAME_BYTES = 2**16

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _LIST = 4, 8, 9


def check_gguf(path: Path) -> None:
    """Returns if the file is a GGUF file whose parts lie where it says, apart, inside of it.

    Raises:
        ValueError: it is none; the message gives the file and the reason.
        OSError: it is no plain file, or cannot be read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            if not size:
                raise ValueError("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _Header(data, size).check()
        except ValueError as error:
            raise ValueError(f"{path} is no sound GGUF file: {error}") from error


class _Header:
    """The place in a file up to which it was looked through."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data, self._size, self._at = data, size, 0
        self._values = 0
        self._alignment = 32

    def check(self) -> None:
        if self._skip(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version, num_tensors, num_fields = self._number("I"), self._number("Q"), self._number("Q")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not read, 2 and 3 are")
        names: set[bytes] = set()
        for _ in range(num_fields):
            self._new(names, name := self._string(MAX_NAME_BYTES))
            self._field(name)
        names.clear()
        tensors = []
        for _ in range(num_tensors):
            self._new(names, self._string(MAX_NAME_BYTES))
            tensors.append(self._tensor())
        self._check_places(tensors)

    def _skip(self, size: int) -> bytes | None:
        """Goes past so many bytes; returns them where they are few."""
        if size > self._size - self._at:
            raise ValueError(f"{size:,} bytes are to come at {self._at:,}, it has {self._size:,}")
        self._at += size
        return self._data[self._at - size : self._at] if size <= MAX_NAME_BYTES else None

    def _number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self._skip(struct.calcsize(f"<{kind}")))[0]

    def _string(self, most: int) -> bytes | None:
        size = self._number("Q")
        if size > most:
            raise ValueError(f"a text of {size:,} bytes, at most {most:,} are read")
        return self._skip(size)

    def _new(self, names: set[bytes], name: bytes) -> None:
        self._count(1)
        if name in names:
            raise ValueError(f"the name {name!r:.60} stands in it twice")
        names.add(name)

    def _count(self, more: int) -> None:
        self._values += more
        if self._values > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values in its header")

    def _field(self, name: bytes) -> None:
        kind, many = self._number("I"), 1
        if kind == _LIST:
            kind, many = self._number("I"), self._number("Q")
            self._count(many)
        elif name == b"general.alignment" and kind == _UINT32:
            self._alignment = self._number("I")
            return
        if kind == _STRING:
            for _ in range(many):
                self._string(self._size)
        elif kind in _SIZES:
            self._skip(many * _SIZES[kind])
        else:
            raise ValueError(f"{name!r:.60} is of kind {kind}, which is not read")

    def _tensor(self) -> tuple[int, int, int]:
        """Returns where a tensor begins, its bytes and its numbers."""
        num_dims = self._number("I")
        if not 1 <= num_dims <= 4:
            raise ValueError(f"a tensor of {num_dims} dimensions, 1 to 4 are read")
        dims = [self._number("Q") for _ in range(num_dims)]
        kind, offset = self._number("I"), self._number("Q")
        if kind not in GGML_QUANT_SIZES or not all(dims):
            raise ValueError(f"a tensor of kind {kind} and shape {dims} is not read")
        many, size = GGML_QUANT_SIZES[kind]
        if dims[0] % many:
            raise ValueError(f"rows of {dims[0]} numbers do not hold whole groups of {many}")
        return offset, prod(dims) // many * size, prod(dims)

    def _check_places(self, tensors: list[tuple[int, int, int]]) -> None:
        step = self._alignment
        if not step or step & (step - 1):
            raise ValueError(f"the alignment is a power of two, got {step}")
        start = -(-self._at // step) * step
        room = self._size - start
        for offset, size, _ in tensors:
            if offset % step or offset + size > room:
                raise ValueError(f"a tensor at {offset:,} of {size:,} bytes, there are {room:,}")
        for (first, size, _), (second, _, _) in pairwise(sorted(tensors)):
            if first + size > second:
                raise ValueError(f"tensors overlap: {size:,} bytes at {first:,}, and {second:,}")
        if sum(many for _, _, many in tensors) > MAX_WEIGHTS:
            raise ValueError(f"more than {MAX_WEIGHTS:,} weights")
