"""Blocks on disk: one safetensors file each, verified at every read, whole or not there."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from kvlib.files import open_file
from kvlib.tensors.block_bytes import MAX_PACKED_BYTES, LostBlock, pack, unpack
from kvlib.tensors.block_names import folder_salt, salted

_ABANDONED_S = 3600.0


class BlockFiles:
    """Keeps each block in a file of its own, whose name tells nobody which text it is of.

    A file appears whole: it is written under another name, forced to the disk and renamed. Several
    processes may share a folder; equal keys mean equal blocks, so it does not matter who wrote
    last. Every read checks the SHA-256 over the whole file, header included, before it parses a
    byte. What fails is removed and reported as lost.

    A name is the key under a salt that lies in the folder, so that a list of names says nothing.
    Files are for their owner alone: whoever may read one may read what was said.

    The checksum finds damage. Against somebody who may write into the folder it does not help, for
    they can compute it too.

    Args:
        folder: made if it is not there. What a process that was killed left half written there for
            more than an hour is removed.

    Raises:
        OSError: the folder cannot be made, or not written into.
        ValueError: its salt is damaged.

    Example:
        >>> import torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     blocks = BlockFiles(folder)
        ...     k = torch.zeros(1, 1, 4, 2)
        ...     blocks.put(b"name", k, k + 1)
        ...     b"name" in blocks, b"other" in blocks, blocks.get(b"name")[1].sum().item()
        (True, False, 8.0)
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(0o700, parents=True, exist_ok=True)
        for path in self.folder.glob("*.part"):
            with suppress(OSError):  # another process has just finished it, or it is a folder
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()
        self._salt = folder_salt(self.folder)

    def __len__(self) -> int:
        """Blocks that are there."""
        return sum(1 for _ in self.folder.glob("*.safetensors"))

    def __contains__(self, key: bytes) -> bool:
        """Answers whether there is a file; whether it is sound, only `get` knows."""
        try:
            return self.path(key).exists()
        except OSError:  # a disk that does not answer
            return False

    def path(self, key: bytes) -> Path:
        """Returns where a block is, or would be."""
        return self.folder / f"{self.name(key).hex()}.safetensors"

    def name(self, key: bytes) -> bytes:
        """Returns what a block is called in this folder, and in its file."""
        return salted(self._salt, key)

    def put(self, key: bytes, k: Tensor, v: Tensor) -> None:
        """Writes a block; see `BlockBytes.put`.

        Raises:
            ValueError: this is no block.
            OSError: the disk is full, or the folder cannot be written into. No file is left, and
                a block that was there before is there still.
        """
        data, path = pack(self.name(key), k, v), self.path(key)
        part = None
        try:
            handle, part = tempfile.mkstemp(dir=self.folder, suffix=".part")
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            self._keep_name()
        except BaseException as error:
            if part is not None:
                Path(part).unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise OSError(
                    error.errno,
                    f"a block is written whole or not at all: asked for {len(data)} bytes,"
                    f" {os.strerror(error.errno or 0)}",
                    str(self.folder),
                ) from error
            raise

    def get(self, key: bytes) -> tuple[Tensor, Tensor]:
        """Reads a block and verifies it; see `BlockBytes.get`.

        Raises:
            KeyError: there is no such file.
            LostBlock: a byte of it is wrong or missing, it has more than a block can have, or it is
                no plain file, or cannot be read. The file is gone.
        """
        name, path = self.name(key), self.path(key)
        short = name.hex()[:8]
        try:
            file = open_file(path)
        except FileNotFoundError:
            raise KeyError(f"no block {short} among {len(self)} in {self.folder}") from None
        except OSError as error:
            with suppress(OSError):
                self._discard(path, path.stat())
            raise LostBlock(f"block {short} cannot be opened: {error}") from error
        with file:
            try:
                size = os.fstat(file.fileno()).st_size
                if size > MAX_PACKED_BYTES:
                    raise LostBlock(
                        f"a block has at most {MAX_PACKED_BYTES:,} bytes: the file of"
                        f" {short} has {size:,}"
                    )
                return unpack(name, file.read(size))
            except LostBlock:
                self._discard(path, os.fstat(file.fileno()))
                raise
            except OSError as error:
                self._discard(path, os.fstat(file.fileno()))
                raise LostBlock(f"block {short} cannot be read: {error}") from error

    def remove(self, key: bytes) -> None:
        """Deletes a block's file, if there is one."""
        self.path(key).unlink(missing_ok=True)

    def _discard(self, path: Path, bad: os.stat_result) -> None:
        """Removes the file that was read, and not a sound one that has taken its place since.

        Where nobody may remove it, it stays, and is refused again when it is read again.
        """
        aside = path.with_suffix(f".{os.getpid()}.part")
        with suppress(OSError):
            os.rename(path, aside)
            if os.path.samestat(aside.stat(), bad):
                aside.unlink()
            else:
                os.replace(aside, path)

    def _keep_name(self) -> None:
        """Forces the new name to the disk: without it a crash may leave the old one.

        If it cannot be, the block is there all the same, and verified when it is read.
        """
        with suppress(OSError):
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
