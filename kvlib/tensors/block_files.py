"""Blocks on disk: one safetensors file each, verified at every read, whole or not there."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from kvlib.tensors.block_bytes import LostBlock, pack, unpack

_ABANDONED_S = 3600.0


class BlockFiles:
    """Keeps each block in a file of its own, named after its key.

    A file appears whole: it is written under another name, forced to the disk and renamed. Several
    processes may share a folder; equal keys mean equal blocks, so it does not matter who wrote
    last. Every read checks the SHA-256 over the whole file, header included, before it parses a
    byte. What fails is removed and reported as lost.

    The checksum finds damage. Against somebody who may write into the folder it does not help, for
    they can compute it too.

    Args:
        folder: made if it is not there. What a process that was killed left half written there for
            more than an hour is removed.

    Raises:
        OSError: the folder cannot be made.

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
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("*.part"):
            with suppress(FileNotFoundError):  # another process has just finished it
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()

    def __len__(self) -> int:
        """Blocks that are there."""
        return sum(1 for _ in self.folder.glob("*.safetensors"))

    def __contains__(self, key: bytes) -> bool:
        """Answers whether there is a file; whether it is sound, only `get` knows."""
        return self.path(key).exists()

    def path(self, key: bytes) -> Path:
        """Returns where a block is, or would be."""
        return self.folder / f"{key.hex()}.safetensors"

    def put(self, key: bytes, k: Tensor, v: Tensor) -> None:
        """Writes a block; see `BlockBytes.put`.

        Raises:
            ValueError: this is no block.
            OSError: the disk is full, or the folder cannot be written into. No file is left, and
                a block that was there before is there still.
        """
        data, path = pack(key, k, v), self.path(key)
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
            LostBlock: a byte of it is wrong or missing, or it cannot be read. The file is gone.
        """
        path = self.path(key)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise KeyError(f"no block {key.hex()[:8]} among {len(self)} in {self.folder}") from None
        except OSError as error:
            with suppress(OSError):
                self._discard(path, path.stat())
            raise LostBlock(f"block {key.hex()[:8]} cannot be opened: {error}") from error
        with file:
            try:
                return unpack(key, file.read())
            except LostBlock:
                self._discard(path, os.fstat(file.fileno()))
                raise
            except OSError as error:
                self._discard(path, os.fstat(file.fileno()))
                raise LostBlock(f"block {key.hex()[:8]} cannot be read: {error}") from error

    def remove(self, key: bytes) -> None:
        """Deletes a block's file, if there is one."""
        self.path(key).unlink(missing_ok=True)

    def _discard(self, path: Path, bad: os.stat_result) -> None:
        """Removes the file that was read, and not a sound one that has taken its place since."""
        aside = path.with_suffix(f".{os.getpid()}.part")
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return
        if os.path.samestat(aside.stat(), bad):
            aside.unlink()
        else:
            os.replace(aside, path)

    def _keep_name(self) -> None:
        """Forces the new name to the disk: without it a crash may leave the old one."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
