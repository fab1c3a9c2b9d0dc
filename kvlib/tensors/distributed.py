"""Ranks that serve one model together: what they agree on, what they exchange, what they count.

The transport (gloo on CPUs, NCCL on GPUs) checks nothing. Ranks that bring tensors of different
sizes to one gather end in an aborted process here and numbers nobody wrote there, without an error.
So ranks agree on what they are about to do, in notes of one fixed size, before data moves. Notes
have a channel of their own: a rank that breaks off a step and begins the next one alone then waits
for the others' notes, and they for its data, until all know that they have lost each other. In one
channel its note would be taken for the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from secrets import token_bytes

import torch
import torch.distributed as dist
from torch import Tensor

from kvlib.sizes import whole_number

TEXT_BYTES = 256


class PeerLost(RuntimeError):
    """Another rank did not answer in time, or is gone. The group is of no more use.

    Nothing half received was kept. What this rank needs of the other's bytes it must recompute.
    """


class RanksDisagree(ValueError):
    """Ranks were about to do different things; every rank that could hear it gets this error."""


class Ranks:
    """One rank's view of its group: gathers, messages, and the bytes they cost.

    After one call has failed with `PeerLost` all later ones do, at once: a group in which one rank
    gave up waiting is out of step for good.

    Args:
        timeout_s: how long to wait for another rank; the group's own limit must be the same.

    Raises:
        RuntimeError: this process is in no group; see `kvlib.tensors.process_group`.

    Attributes:
        rank: this process, from 0.
        size: ranks in the group, R.
        sent_bytes: bytes that left this rank for others, as if each receiver got its own copy.
        received_bytes: bytes of others that reached this rank.
        salt: 16 random bytes that this group alone has, for hashes of what is not to be guessed.
    """

    def __init__(self, timeout_s: float) -> None:
        if not dist.is_initialized():
            raise RuntimeError("ranks are processes of one group, this process has joined none")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.timeout_s = timeout_s
        self.sent_bytes = self.received_bytes = 0
        self.wire = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        self._notes = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.salt = self._drawn_together()
        self._lost: str | None = None

    def gather(self, part: Tensor, *, notes: bool = False) -> list[Tensor]:
        """Returns every rank's part, in the order of ranks; all must be equal in shape and dtype.

        Nobody checks that they are: see `agree`.

        Args:
            part: this rank's.
            notes: in the channel of notes, which only `agree` uses.

        Raises:
            PeerLost: a rank did not bring its part in time.
        """
        if self.size == 1 or not part.numel():  # nothing to exchange
            return [part] * self.size
        mine = part.to("cpu" if notes else self.wire).contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        with self._answered(f"{mine.nbytes} bytes from each of {self.size - 1} other ranks"):
            dist.all_gather(parts, mine, group=self._notes if notes else None)
        self.sent_bytes += mine.nbytes * (self.size - 1)
        self.received_bytes += mine.nbytes * (self.size - 1)
        return [each.to(part.device) for each in parts]

    def agree(self, what: str, mine: str) -> None:
        """Returns once every rank has said the same of something, else raises on every rank.

        Args:
            what: what is to be agreed on, for the message.
            mine: what this rank has; a longer text than 256 bytes is compared by its SHA-256.

        Raises:
            RanksDisagree: the texts differ.
            PeerLost: a rank said nothing in time.
        """
        said = [_text(each) for each in self.gather(_framed(mine), notes=True)]
        if len(set(said)) > 1:
            had = "; ".join(f"rank {rank} has {text}" for rank, text in enumerate(said))
            raise RanksDisagree(f"ranks must agree on {what}: {had}")

    def send(self, data: Tensor, to: int) -> None:
        """Sends a tensor to a rank that receives one of this shape and dtype.

        Raises:
            ValueError: there is no such other rank.
            PeerLost: it did not take it in time.
        """
        self._require_other(to)
        mine = data.to(self.wire).contiguous()
        with self._answered(f"{mine.nbytes} bytes to be taken by rank {to}"):
            dist.send(mine, to)
        self.sent_bytes += mine.nbytes

    def receive(self, shape: Sequence[int], dtype: torch.dtype, source: int) -> Tensor:
        """Receives a tensor that another rank sends; its shape and dtype must be known.

        Raises:
            ValueError: there is no such other rank.
            PeerLost: it did not come in time.
        """
        self._require_other(source)
        data = torch.empty(tuple(shape), dtype=dtype, device=self.wire)
        with self._answered(f"{data.nbytes} bytes from rank {source}"):
            dist.recv(data, source)
        self.received_bytes += data.nbytes
        return data

    def send_text(self, text: str, to: int) -> None:
        """Sends a text of at most 256 bytes; raises as `send`, and ValueError if it is longer."""
        self.send(_framed(text, cut=False), to)

    def receive_text(self, source: int) -> str:
        """Receives a text; raises as `receive`."""
        return _text(self.receive((TEXT_BYTES,), torch.uint8, source))

    def leave(self, why: str) -> None:
        """Notes that this rank broke off what others still expect of it: no later call is made."""
        self._lost = self._lost or f"rank {self.rank} broke off: {why}"

    def _drawn_together(self) -> bytes:
        drawn = torch.tensor(list(token_bytes(16)), dtype=torch.uint8)
        dist.broadcast(drawn, 0, group=self._notes)
        return bytes(drawn.tolist())

    def _require_other(self, rank: int) -> None:
        whole_number("rank", rank, least=0)
        if rank >= self.size or rank == self.rank:
            raise ValueError(f"this is rank {self.rank} of {self.size}, asked for rank {rank}")

    @contextmanager
    def _answered(self, wanted: str) -> Iterator[None]:
        """Turns what the transport raises into one error, and remembers it."""
        if self._lost is not None:
            raise PeerLost(f"this group lost a rank before: {self._lost}")
        try:
            yield
        except RuntimeError as error:
            reason = str(error).rpartition("] ")[2].split(". ")[0]
            self._lost = (
                f"rank {self.rank} waited for {wanted}, {self.timeout_s} s at most: {reason}"
            )
            raise PeerLost(self._lost) from error
        except BaseException as error:
            self.leave(f"{type(error).__name__} while it waited for {wanted}")
            raise


def _framed(text: str, *, cut: bool = True) -> Tensor:
    data = text.encode()
    if len(data) > TEXT_BYTES:
        if not cut:
            raise ValueError(f"a text of {TEXT_BYTES} bytes at most, got {len(data)}")
        digest = sha256(data).hexdigest()[:16]
        data = data[: TEXT_BYTES - 20].decode(errors="ignore").encode() + f"... {digest}".encode()
    return torch.tensor(list(data.ljust(TEXT_BYTES, b"\0")), dtype=torch.uint8)


def _text(frame: Tensor) -> str:
    return bytes(frame.tolist()).rstrip(b"\0").decode(errors="replace")
