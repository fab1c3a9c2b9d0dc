"""What a block is called outside of this process: a name that tells nobody which text it is of.

A key is a hash of token ids, and anybody can hash a text. Were it the name of a file, or of a
request over a wire, whoever sees names could try whether a text was here.
"""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes, token_hex

from kvlib.files import read

SALT_BYTES, LEAST_SALT_BYTES = 32, 16
# Caches of one process share blocks over a server without being told a salt.
PROCESS_SALT = token_bytes(SALT_BYTES)


def salted(salt: bytes, key: bytes) -> bytes:
    """Returns a block's name for those who share the salt; for others it is a random number.

    It is HMAC-SHA256 of the key, as long as the key is, from 8 to 32 bytes.

    Example:
        >>> a, b = (salted(salt, b"the hash of a text") for salt in (b"one", b"two"))
        >>> len(a), a == b, a == salted(b"one", b"the hash of a text")
        (18, False, True)
    """
    return hmac.digest(salt, key, "sha256")[: max(8, len(key))]


def folder_salt(folder: Path) -> bytes:
    """Returns the salt of a folder's names; whoever comes first draws it and keeps it there.

    Only who may read the blocks may read it. All processes that share the folder get the same.

    Raises:
        ValueError: the file with the salt is damaged.
        OSError: it cannot be written or read.
    """
    path = folder / "salt"
    if not path.exists():
        _draw(path)
    with suppress(ValueError):
        if len(salt := read(path, SALT_BYTES)) == SALT_BYTES:
            return salt
    raise ValueError(
        f"{path} is damaged: a salt has {SALT_BYTES} bytes. Without it no block in the folder can"
        " be found: delete the folder, and blocks are computed anew"
    )


def _draw(path: Path) -> None:
    part = path.with_name(f"{path.name}.{token_hex(4)}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(token_bytes(SALT_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            pass  # another process was first: its salt is the folder's
        except OSError:  # a file system without links
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
