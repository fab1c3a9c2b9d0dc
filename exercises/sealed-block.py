"""Give bytes back exactly as they were put, under their own name, or not at all."""

from hashlib import sha256

TASK = """
A block is kept as `digest + payload`. The digest, 32 bytes, is the SHA-256 of three things, one
after the other: the length of its name as 8 bytes (`len(name).to_bytes(8, "little")`), the name,
the payload. **Return the payload**, or `None` if `data` is not exactly what was kept *under this
name*: cut anywhere, longer, changed in any byte, or another block's. All are `bytes`; a payload may
be empty. An error is no answer.
"""

STUB = """
from hashlib import sha256

def unseal(name, data):
    return data[32:]
"""

SOLUTION = """
from hashlib import sha256

def unseal(name, data):
    payload = data[32:]
    known = sha256(len(name).to_bytes(8, "little") + name + payload).digest()
    return payload if data[:32] == known else None
"""

WRONG = (
    STUB,
    # Compares the beginning of the digest only.
    SOLUTION.replace("data[:32] == known", "data[:4] == known[:4]"),
    # An empty payload is a payload.
    SOLUTION.replace("payload if data[:32] == known", "payload if payload and data[:32] == known"),
    # Does not care for the order of bytes.
    SOLUTION.replace("data[:32] == known", "sorted(data[:32]) == sorted(known)"),
    # An error for what is too short.
    SOLUTION.replace(
        "    payload =", "    if data[31] is None:\n        return None\n    payload ="
    ),
    # A payload that was cut to nothing passes.
    SOLUTION.replace("data[:32] == known", "not payload or data[:32] == known"),
)

CASES = ((b"a", b"0123456789"), (b"ab", b""), (b"", b"\0"), (b"key", bytes(range(40))))


def _kept(name, payload):
    return sha256(len(name).to_bytes(8, "little") + name + payload).digest() + payload


def _damaged(data):
    for n in range(len(data)):
        yield data[:n], f"cut to {n} of its {len(data)} bytes"
    for n in range(len(data)):
        yield data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :], f"with byte {n} changed"
    yield data[1::-1] + data[2:], "with its first two bytes in the other order"
    yield data + b"\0", "with one byte more"


def check(answer):
    for name, payload in CASES:
        data = _kept(name, payload)
        got = answer(name, data)
        if got != payload:
            return f"unseal of {name}, sound, should be {payload}, but yours gave {got!r}."
        for damaged, how in _damaged(data):
            try:
                got = answer(name, damaged)
            except (IndexError, ValueError) as error:
                got = error
            if damaged != data and got is not None:
                return f"unseal of {name}, {how}, should be None, but yours gave {got!r}."
    for kept, asked in ((b"a", b"b"), (b"ab", b"a"), (b"", b"0")):
        got = answer(asked, _kept(kept, b"payload"))
        if got is not None:
            return f"unseal({asked}, block {kept}) should be None, but yours gave {got!r}."
    return None
