"""A sequence's keys and values from one process's cache into another's: prefill here, decode there.

The receiver plans the tokens as a step, writes the bytes as they arrive, and commits only after the
whole was verified. Until then the sequence has no such tokens: a half-sent or damaged one leaves no
trace, and nothing of it is ever attended to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256

import torch
from torch import Tensor

from kvlib.plan import OutOfBlocks, SeqId, SequenceTooLong
from kvlib.tensors.block_bytes import LostBlock
from kvlib.tensors.caches import SlotCache
from kvlib.tensors.distributed import TEXT_BYTES, Ranks, RanksDisagree
from kvlib.tensors.known_tokens import KnownTokensKVCache
from kvlib.tensors.tiered import TieredKVCache

REFUSALS = {each.__name__: each for each in (RanksDisagree, OutOfBlocks, SequenceTooLong)}


@dataclass(frozen=True)
class Header:
    """What the sender is about to send; both sides must mean the same by every byte.

    Attributes:
        num_layers: the layers, L.
        num_kv_heads: Hkv.
        head_dim: numbers of a head, D.
        dtype: of the numbers, as torch names it.
        num_tokens: the tokens that follow, T.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    num_tokens: int

    @classmethod
    def of(cls, cache: SlotCache, num_tokens: int) -> Header:
        """Describes so many tokens of a cache; block sizes may differ between the two sides."""
        num_layers, _, num_kv_heads, _, head_dim = cache.store.keys.shape
        dtype = str(cache.store.dtype)
        return cls(num_layers, num_kv_heads, head_dim, dtype, num_tokens)

    @property
    def layer_shape(self) -> tuple[int, int, int, int]:
        """Keys and values of one layer: [2, T, Hkv, D]."""
        return (2, self.num_tokens, self.num_kv_heads, self.head_dim)


def send_sequence(
    ranks: Ranks, to: int, cache: SlotCache, seq_id: SeqId, tokens: Sequence[int]
) -> int:
    """Sends what a cache holds of a sequence, layer by layer; the sequence stays here as it is.

    Args:
        ranks: the group.
        to: the rank that calls `receive_sequence`.
        cache: any cache whose tokens have slots.
        seq_id: which sequence.
        tokens: its token ids, those stored; they travel with it.

    Returns:
        Bytes sent, header and checksum included.

    Raises:
        TypeError: the cache holds a part of each sequence only, being cut over ranks itself.
        ValueError: the tokens are none, or not as many as are stored. Nothing is sent.
        RanksDisagree, OutOfBlocks, SequenceTooLong: what the receiver answered to the header. No
            key or value is sent.
        PeerLost: the receiver is gone, or silent.
    """
    _require_whole(cache)
    if not tokens or len(tokens) != cache.length(seq_id):
        raise ValueError(
            f"what is stored is sent, at least 1 token: {cache.length(seq_id)} are stored, "
            f"{len(tokens)} were named"
        )
    before = ranks.sent_bytes
    header = Header.of(cache, len(tokens))
    ranks.send_text(json.dumps(asdict(header)), to)
    if refused := ranks.receive_text(to):
        kind, _, reason = refused.partition(": ")
        raise REFUSALS[kind](reason)
    ids = torch.tensor(tokens, dtype=torch.int64)
    digest = _started(header, ids)
    try:
        ranks.send(ids, to)
        if isinstance(cache, TieredKVCache):  # what comes up from below may be on its way still
            cache.drain()
        slots = stored_slots(cache, seq_id)
        for layer in range(header.num_layers):
            both = torch.stack(cache.store.read(layer, slots)).cpu()
            digest.update(_bytes(both))
            ranks.send(both, to)
        ranks.send_text(digest.hexdigest(), to)
    except BaseException as error:
        ranks.leave(f"{type(error).__name__} in the middle of a sequence")
        raise
    return ranks.sent_bytes - before


def receive_sequence(ranks: Ranks, source: int, cache: SlotCache, seq_id: SeqId) -> tuple[int, ...]:
    """Receives a sequence into a cache, as the tokens of one step.

    Args:
        ranks: the group.
        source: the rank that calls `send_sequence`.
        cache: where to; its blocks may have another size than the sender's.
        seq_id: a live sequence of this cache, still empty.

    Returns:
        The token ids, all stored now.

    Raises:
        TypeError: the cache is cut over ranks.
        ValueError: the sequence is not empty. The sender is told nothing, and gives up in time.
        RanksDisagree: the sender's layers, heads, head size or dtype are not this cache's.
        OutOfBlocks, SequenceTooLong: there is no room; the sender gets the same error.
        LostBlock: what came is not what was sent.
        PeerLost: the sender is gone, or silent.
        In each case the sequence is as it was: empty.
    """
    _require_whole(cache)
    if cache.length(seq_id):
        raise ValueError(f"sequence {seq_id!r} has {cache.length(seq_id)} tokens, it must be empty")
    header = Header(**json.loads(ranks.receive_text(source)))
    try:
        if header != (mine := Header.of(cache, header.num_tokens)):
            raise RanksDisagree(f"rank {source} sends {header}, rank {ranks.rank} stores {mine}")
        plan = cache.plan({seq_id: range(header.num_tokens)})
    except tuple(REFUSALS.values()) as error:
        said = f"{type(error).__name__}: {error}".encode()[:TEXT_BYTES]
        ranks.send_text(said.decode(errors="ignore"), source)
        raise
    try:
        ranks.send_text("", source)
        ids = ranks.receive((header.num_tokens,), torch.int64, source)
        if isinstance(cache, KnownTokensKVCache):
            cache.name_tokens(plan, {seq_id: ids.tolist()})
        digest = _started(header, ids)
        for layer in range(header.num_layers):
            both = ranks.receive(header.layer_shape, cache.store.dtype, source)
            digest.update(_bytes(both.cpu()))
            k, v = both.to(cache.device)
            cache.write(layer, k, v, plan)
        fits = ranks.receive_text(source) == digest.hexdigest()
    except BaseException as error:
        cache.abort(plan)
        ranks.leave(f"{type(error).__name__} in the middle of a sequence")
        raise
    if not fits:
        cache.abort(plan)
        raise LostBlock(
            f"a sequence is used only if its SHA-256 fits: that of {header.num_tokens} tokens "
            f"from rank {source} does not"
        )
    cache.commit(plan)
    return tuple(ids.tolist())


def stored_slots(cache: SlotCache, seq_id: SeqId) -> Tensor:
    """Returns the slots of a sequence's tokens, in order, [T] int64 on the cache's device."""
    plan = cache.ledger.plan({seq_id: []})
    cache.ledger.abort(plan)
    size, blocks = plan.block_size, plan.block_table[0]
    slots = [blocks[p // size] * size + p % size for p in range(plan.context_lens[0])]
    return torch.tensor(slots, dtype=torch.int64, device=cache.device)


def _require_whole(cache: SlotCache) -> None:
    if hasattr(cache, "ranks"):
        raise TypeError(
            "what is handed over is a whole sequence of one process, each rank of a"
            f" {type(cache).__name__} holds a part of it"
        )


def _started(header: Header, ids: Tensor) -> sha256:
    return sha256(json.dumps(asdict(header)).encode() + _bytes(ids.cpu()))


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(torch.uint8).reshape(-1).numpy())
