"""Widgets whose picture is backed by a real cache: with a kernel, true bytes on the true device."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

from kvlib.show.drawings import cache_rows, paged_rows, quantized_rows
from kvlib.show.widgets import DrawingWidget

CACHES = ("contiguous_cache", "aligned_cache", "paged_cache", "quantized_cache")


class RealCache(NamedTuple):
    """What a cache that was really allocated and filled says of itself.

    Attributes:
        device: where it lives.
        allocated_bytes: on CUDA by what `torch.cuda.memory_allocated` grew, else the cache's own
            count of what it asked for.
        admitted: requests that got a row.
        held_tokens: tokens that are stored.
        refused_tokens: tokens the cache refused with an error.
    """

    device: str
    allocated_bytes: int
    admitted: int
    held_tokens: int
    refused_tokens: int

    @property
    def text(self) -> str:
        """One sentence for the reader."""
        return (
            f"a real cache on {self.device}: {self.allocated_bytes:,} bytes allocated, "
            f"{self.admitted} of 8 requests admitted, {self.held_tokens:,} tokens stored, "
            f"{self.refused_tokens:,} refused"
        )


def _bytes_now(device: Any) -> int:
    import torch

    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _store(cache: Any, seq_id: int, num_tokens: int) -> None:
    """Stores tokens in all layers, in one step; raises what `plan` of the cache raises."""
    import torch

    layers, _, heads, _, head_dim = cache.store.keys.shape
    zeros = torch.zeros(num_tokens, heads, head_dim, dtype=cache.store.dtype, device=cache.device)
    with cache.step({seq_id: [0] * num_tokens}) as plan:
        for layer in range(layers):
            cache.write(layer, zeros, zeros, plan)


def _fill(cache: Any, requests: tuple[cache_rows.Row, ...]) -> tuple[int, int]:
    """Brings the requests to the cache; returns how many it admitted and the tokens it refused."""
    from kvlib.plan import OutOfBlocks, SequenceTooLong

    admitted = refused = 0
    for seq_id, row in enumerate(requests):
        answer = row.wanted - row.prompt
        try:
            cache.add(seq_id)
        except OutOfBlocks:
            refused += row.wanted
            continue
        try:
            _store(cache, seq_id, row.prompt)
        except SequenceTooLong:
            cache.free(seq_id)
            refused += row.wanted
            continue
        admitted += 1
        try:
            _store(cache, seq_id, answer)
        except SequenceTooLong:
            room = cache.max_seq_len - cache.length(seq_id)
            _store(cache, seq_id, room)
            refused += answer - room
    return admitted, refused


def build(name: str, values: dict[str, Any]) -> RealCache:
    """Allocates the cache that a drawing shows, brings it the same requests, and drops it.

    Raises:
        ImportError: torch is not installed.
    """
    return {"paged_cache": _paged, "quantized_cache": _quantized}.get(name, _contiguous)(
        name, values
    )


def _paged(name: str, values: dict[str, Any]) -> RealCache:
    import torch

    import kvlib

    shape = kvlib.KVShape(cache_rows.LAYERS, cache_rows.KV_HEADS, cache_rows.HEAD_DIM)
    options = {"dtype": torch.float16, "device": kvlib.device(), "way": "gather"}
    return _in_blocks(lambda: kvlib.PagedKVCache(shape, **values, **options))


def _quantized(name: str, values: dict[str, Any]) -> RealCache:
    import torch

    import kvlib
    from kvlib.tensors.quantized import QuantizedKVCache

    formats = quantized_rows.FORMATS[values["precision"]]
    blocks = quantized_rows.blocks_in(values["precision"], values["megabytes"])
    sizes = {"num_blocks": blocks, "block_size": quantized_rows.BLOCK}
    if formats is None:
        return _paged(name, sizes)
    options = {"dtype": torch.float16, "device": kvlib.device(), "way": "dequantize"}
    options |= {"keys": formats[0], "values": formats[1], "num_seqs": quantized_rows.NUM_SEQS}
    return _in_blocks(lambda: QuantizedKVCache(quantized_rows.SHAPE, **sizes, **options))


def _in_blocks(make: Callable[[], Any]) -> RealCache:
    """Makes a cache of blocks and brings it the requests."""
    import kvlib

    device = kvlib.device()
    before = _bytes_now(device)
    cache = make()
    allocated = _bytes_now(device) - before or cache.nbytes
    rows = paged_rows.fill(cache, lambda seq_id, num_tokens: _store(cache, seq_id, num_tokens))
    refused = sum(row.wanted - row.held for row in rows)
    admitted = sum(row.admitted for row in rows)
    return RealCache(str(device), allocated, admitted, cache.ledger.used_tokens, refused)


def _contiguous(name: str, values: dict[str, Any]) -> RealCache:
    import torch

    import kvlib

    device = kvlib.device()
    head_dim = values.get("head_dim", cache_rows.HEAD_DIM)
    shape = kvlib.KVShape(cache_rows.LAYERS, cache_rows.KV_HEADS, head_dim)
    num_seqs = values.get("num_seqs", 4)
    options = {"dtype": getattr(torch, values.get("dtype", "float16")), "device": device}
    kind = kvlib.ContiguousKVCache
    if name == "aligned_cache":
        kind, options = kvlib.AlignedKVCache, options | {"row_alignment_bytes": values["alignment"]}
    before = _bytes_now(device)
    cache = kind(shape, num_seqs, values["cache_size"], **options)
    allocated = _bytes_now(device) - before or cache.nbytes
    admitted, refused = _fill(cache, cache_rows.admit(values["cache_size"], num_seqs))
    held = cache.ledger.used_tokens
    return RealCache(str(device), allocated, admitted, held, refused)


class CacheWidget(DrawingWidget):
    """A drawing of a cache and, where there is a kernel with torch, the cache itself.

    Example:
        >>> CacheWidget("contiguous_cache", cache_size=256).real.admitted
        1
    """

    @property
    def real(self) -> RealCache:
        """The real cache at the present values; allocated, filled and dropped anew each time."""
        return build(self._drawing.name, self.value)

    def _sheet(self) -> str:
        try:
            words = self.real.text
        except (ImportError, RuntimeError) as error:  # no torch, or no memory for it
            words = f"no real cache: {error}"
        except Exception as error:  # in a callback nobody would see it
            words = f"no real cache: {type(error).__name__}: {error}"
        return f"{super()._sheet()}<p><small>{escape(words)}</small></p>"


def widget(name: str, **values: Any) -> DrawingWidget:
    """Returns a drawing with its controls; those of caches bring the real cache along.

    Args:
        name: the drawing; the API page lists all of them.
        values: where its controls start.

    Raises:
        ValueError: there is no such drawing, or a value is not one its control lists.
        TypeError: a name is not a control of it.
    """
    kind = CacheWidget if name in CACHES else DrawingWidget
    return kind(name, **values)
