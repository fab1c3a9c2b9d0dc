"""Blocks that another process keeps: a `BlockServer` seen from an instance that uses it."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Lock
from time import monotonic

from torch import Tensor

from kvlib.tensors.block_bytes import MAX_PACKED_BYTES, LostBlock, pack, unpack
from kvlib.tensors.block_names import LEAST_SALT_BYTES, PROCESS_SALT, salted
from kvlib.tensors.block_server import (
    ANSWER,
    GET,
    HAS,
    OK,
    PUT,
    READ_BYTES,
    REMOVE,
    REQUEST,
)


class RemoteBlocks:
    """The blocks of a `BlockServer` as one more place for blocks (`kvlib.tensors.BlockBytes`).

    A server that does not answer is not asked again for a while: a lost peer costs one wait, and
    then every block of it is simply not there. The caller recomputes.

    Threads may share one: a request and its answer are never parted.

    What leaves this process is a block's name, and no hash that others could compute: the key
    under a salt, which the server never gets. Its bytes do leave; whoever holds them may read what
    was said.

    Args:
        address: host and port of the server.
        timeout_s: most time for one request with its whole answer; a server that only trickles
            is as good as lost.
        retry_s: for how long a lost server is left alone.
        salt: a secret of all processes that share blocks over the server, at least 16 bytes; by
            default one that this process alone has, so that only its own caches share.

    Raises:
        ValueError: the salt is too short.

    Attributes:
        sent_bytes: bytes of requests that left this process.
        received_bytes: bytes of answers.
    """

    def __init__(
        self,
        address: tuple[str, int],
        timeout_s: float = 2.0,
        retry_s: float = 30.0,
        *,
        salt: bytes = PROCESS_SALT,
    ) -> None:
        if len(salt) < LEAST_SALT_BYTES:
            raise ValueError(f"a salt has at least {LEAST_SALT_BYTES} bytes, got {len(salt)}")
        self.address = address
        self.timeout_s, self.retry_s, self._salt = timeout_s, retry_s, salt
        self.sent_bytes = self.received_bytes = 0
        self._line: socket.socket | None = None
        self._alone_until = 0.0
        self._lock = Lock()

    def __enter__(self) -> RemoteBlocks:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def name(self, key: bytes) -> bytes:
        """Returns what a block is called on the way and in the server."""
        return salted(self._salt, key)

    def put(self, key: bytes, k: Tensor, v: Tensor) -> None:
        """Sends a block to the server.

        Raises:
            ValueError: this is no block.
            OSError: the server is gone or refuses; it keeps nothing of it.
        """
        name = self.name(key)
        letter, reason = self._ask(PUT, name, pack(name, k, v))
        if letter != OK:
            raise OSError(reason.decode(errors="replace"))

    def get(self, key: bytes) -> tuple[Tensor, Tensor]:
        """Returns a block's keys and values, verified here.

        Raises:
            KeyError: the server has no such block.
            LostBlock: the server is gone, or what came is not what was sent; then it is removed.
        """
        name = self.name(key)
        short = name.hex()[:8]
        try:
            letter, data = self._ask(GET, name)
        except OSError as error:
            raise LostBlock(f"block {short} is out of reach: {error}") from error
        if letter != OK:
            raise KeyError(f"the server has no block {short}")
        try:
            return unpack(name, data)
        except LostBlock:
            self.remove(key)
            raise

    def __contains__(self, key: bytes) -> bool:
        try:
            return self._ask(HAS, self.name(key))[0] == OK
        except OSError:
            return False

    def remove(self, key: bytes) -> None:
        """Makes the server forget a block; one that is not there, or a lost server, is no error."""
        with suppress(OSError):
            self._ask(REMOVE, self.name(key))

    def check(self) -> None:
        """Proves that a server that was lost a moment ago has no line, and counts no less than 0.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        with self._lock:
            assert self._line is None or monotonic() >= self._alone_until, "a line to a lost server"
        assert min(self.sent_bytes, self.received_bytes) >= 0, "less than no byte went over"

    def close(self) -> None:
        """Hangs up; the next request calls again."""
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._line is not None:
            with suppress(OSError):
                self._line.close()
        self._line = None

    def _ask(self, what: bytes, name: bytes, data: bytes = b"") -> tuple[bytes, bytes]:
        """Sends a request and returns the whole answer, or raises OSError and hangs up."""
        host, port = self.address
        request = REQUEST.pack(what, len(name), len(data)) + name + data
        with self._lock:
            if monotonic() < self._alone_until:
                raise ConnectionError(f"the server {host}:{port} was lost a moment ago")
            end = monotonic() + self.timeout_s
            try:
                if self._line is None:
                    self._line = socket.create_connection(self.address, self.timeout_s)
                self._until(end).sendall(request)
                self.sent_bytes += len(request)
                letter, size = ANSWER.unpack(self._exactly(ANSWER.size, end))
                return letter, self._exactly(size, end)
            except OSError as error:
                self._hang_up()
                self._alone_until = monotonic() + self.retry_s
                raise ConnectionError(
                    f"the server {host}:{port} did not answer: {error}"
                ) from error
            except BaseException:  # interrupted: the rest would be read as the next answer
                self._hang_up()
                raise

    def _until(self, end: float) -> socket.socket:
        """Returns the line, set to wait no longer than until `end`."""
        left = end - monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._line.settimeout(left)
        return self._line

    def _exactly(self, size: int, end: float) -> bytes:
        if size > MAX_PACKED_BYTES:
            raise ConnectionError(
                f"{size:,} bytes announced, a block has {MAX_PACKED_BYTES:,} at most"
            )
        data = bytearray()
        while len(data) < size:
            part = self._until(end).recv(min(READ_BYTES, size - len(data)))
            if not part:
                raise ConnectionError(f"{size} bytes were to come, {len(data)} came")
            data += part
            self.received_bytes += len(part)
        return bytes(data)
