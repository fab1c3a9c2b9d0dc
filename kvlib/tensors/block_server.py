"""A store of blocks for several instances, over plain sockets.

The server stores bytes and never looks into them. Whoever reads a block verifies it with the
checksum that its writer packed in, so damage on either way or in the server's memory is found.

A key here is a name without a meaning: `RemoteBlocks` salts what it asks for. But there is no
password, and a checksum finds damage, not lies: who can reach the server and has seen a name can
ask for it, or put what they like under it while it is free. It is for a network whose machines
trust each other. Nothing that comes in is unpickled.
"""

from __future__ import annotations

import socket
import struct
from collections import OrderedDict
from contextlib import suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Lock, Thread

from kvlib.sizes import whole_number

# A request is a letter, a key and data; an answer a letter and data.
REQUEST, ANSWER = struct.Struct("!cHQ"), struct.Struct("!cQ")
PUT, GET, HAS, REMOVE = b"P", b"G", b"H", b"R"
OK, ABSENT, REFUSED = b"K", b"A", b"X"
READ_BYTES = 2**16
# How long a request that has begun may keep its connection waiting.
STALLED_S = 30.0


class BlockServer:
    """Keeps blocks for others, the least recently used dropped first, until it is closed.

    Args:
        capacity_bytes: most bytes of blocks kept, their keys included.
        host: address to listen on; only this machine by default.

    Raises:
        TypeError, ValueError: the capacity is not a whole number of at least 1.
        OSError: the address cannot be listened on.

    Attributes:
        address: host and port, for `RemoteBlocks`.
        nbytes: bytes of blocks kept now, their keys included.

    Example:
        >>> import torch
        >>> from kvlib.tensors.remote_blocks import RemoteBlocks
        >>> k = torch.ones(1, 1, 2, 2)
        >>> with BlockServer(capacity_bytes=10_000) as server:
        ...     with RemoteBlocks(server.address) as here, RemoteBlocks(server.address) as there:
        ...         here.put(b"key", k, 2 * k)
        ...         b"key" in there, there.get(b"key")[1].sum().item()
        (True, 8.0)
    """

    def __init__(self, capacity_bytes: int, host: str = "127.0.0.1") -> None:
        whole_number("capacity_bytes", capacity_bytes)
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()
        self._tcp = _Listener((host, 0), _Session)
        self._tcp.store = self
        self.address: tuple[str, int] = self._tcp.server_address
        self._thread = Thread(target=self._tcp.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self) -> BlockServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Proves that bytes are counted as they are kept, and are no more than there is room for.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        with self._lock:
            kept = sum(len(key) + len(data) for key, data in self._blocks.items())
            assert self.nbytes == kept, f"{self.nbytes} bytes counted, {kept} kept"
            assert kept <= self.capacity_bytes, f"{kept} bytes kept, {self.capacity_bytes} at most"

    def close(self) -> None:
        """Stops, and hangs up on everybody: to its clients the server is gone."""
        self._tcp.shutdown()
        self._tcp.hang_up()
        self._tcp.server_close()
        self._thread.join()

    def answer(self, what: bytes, key: bytes, data: bytes) -> tuple[bytes, bytes]:
        """Does what a request asks for and returns the answer's letter and data."""
        with self._lock:
            if what == PUT:
                return self._keep(key, data)
            if key not in self._blocks:
                return ABSENT, b""
            if what == REMOVE:
                self.nbytes -= len(key) + len(self._blocks.pop(key))
                return OK, b""
            self._blocks.move_to_end(key)
            return OK, self._blocks[key] if what == GET else b""

    def _keep(self, key: bytes, data: bytes) -> tuple[bytes, bytes]:
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return OK, b""
        size = len(key) + len(data)
        while self._blocks and self.nbytes + size > self.capacity_bytes:
            self.nbytes -= sum(map(len, self._blocks.popitem(last=False)))
        self._blocks[key] = data
        self.nbytes += size
        return OK, b""


class _Listener(ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    store: BlockServer

    def __init__(self, *where: object) -> None:
        super().__init__(*where)
        self.sessions: set[socket.socket] = set()

    # Noted before the session's thread starts: one that was accepted last is hung up on as well.
    def process_request(self, request: socket.socket, client: object) -> None:
        self.sessions.add(request)
        super().process_request(request, client)

    def shutdown_request(self, request: socket.socket) -> None:
        self.sessions.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for session in list(self.sessions):
            with suppress(OSError):
                session.shutdown(socket.SHUT_RDWR)


class _Session(StreamRequestHandler):
    """One client's connection: answers requests until it ends, or breaks off in the middle."""

    server: _Listener

    def handle(self) -> None:
        with suppress(OSError):
            while self.rfile.peek(1):  # idle for as long as it likes
                self.connection.settimeout(STALLED_S)
                if not self._answer_one():
                    return
                self.connection.settimeout(None)

    def _answer_one(self) -> bool:
        """Reads a whole request before anything of it counts; False where there is none."""
        head = self.rfile.read(REQUEST.size)
        if len(head) < REQUEST.size:
            return False
        what, key_len, size = REQUEST.unpack(head)
        most = self.server.store.capacity_bytes
        key = self.rfile.read(key_len)
        if key_len + size > most:
            if not self._past(size):
                return False
            letter = REFUSED
            found = f"asked to keep {key_len + size} bytes, {most} at most".encode()
        else:
            data = self.rfile.read(size)
            if len(key) < key_len or len(data) < size or what not in (PUT, GET, HAS, REMOVE):
                return False
            letter, found = self.server.store.answer(what, key, data)
        self.wfile.write(ANSWER.pack(letter, len(found)) + found)
        return True

    def _past(self, size: int) -> bool:
        """Reads to the next request; False if the client breaks off before."""
        while size:
            part = len(self.rfile.read(min(READ_BYTES, size)))
            if not part:
                return False
            size -= part
        return True
