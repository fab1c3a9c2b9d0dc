"""Numbers to codes and back: what a block of a quantised cache holds, written out in torch.

Axes: B tokens of a block, D channels of a head. A block is a run of bytes: the codes of its B rows,
padding, scales, and minima where the format has them.

Within a row, code `d` is in byte `d % row_bytes`, at bit `bits * (d // row_bytes)`: neighbours in
a row are neighbours in memory, so that a kernel unpacks a whole vector with one shift.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvlib.precision import LARGEST_FLOAT16, SCALE_BYTES, Precision

_DTYPES = {"float16": torch.float16, "float32": torch.float32}


def rounded(x: Tensor, scale_dtype: str, *, up: bool) -> Tensor:
    """Returns float32 numbers as they will be stored, never on the wrong side of the exact ones.

    Args:
        x: float32, what is to be stored as a scale or minimum.
        scale_dtype: "float16" or "float32"; the second stores it as it is.
        up: round up, as scales are, or down, as minima are.

    Example:
        >>> rounded(torch.tensor([1.0001, 2.0]), "float16", up=True).tolist()
        [1.0009765625, 2.0]
    """
    if scale_dtype == "float32":
        return x
    near = x.to(torch.float16)
    wrong = near.float() < x if up else near.float() > x
    bits = near.view(torch.int16)
    # The next float16 in a direction is the next integer, away from zero or towards it.
    away = (bits >= 0) == up
    stepped = torch.where(away, bits + 1, bits - 1)
    return torch.where(wrong, stepped, bits).view(torch.float16).float()


def _power_of_two(x: Tensor) -> Tensor:
    """The smallest power of two that is no smaller; 2^-126 for zero."""
    mantissa, exponent = torch.frexp(x)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.ldexp(torch.ones_like(x), exponent.clamp(-126, 126))


def _grouped(x: Tensor, precision: Precision) -> tuple[Tensor, int]:
    """The numbers with each group along one axis, and that axis."""
    if precision.along == "channel":
        return x, -2
    return x.unflatten(-1, (-1, precision.group_size or x.shape[-1])), -1


def _scales_of(x: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
    """Returns the scale and the minimum of each group, as stored, each with the group's axis kept.

    Args:
        x: [..., B, D] float32.
        precision: the format; a static one gives its own scale to all.

    Returns:
        Along a channel [..., 1, D], along a token [..., B, D / group, 1]. Where the format has no
        minimum it is 0.
    """
    grouped, axis = _grouped(x, precision)
    low, high = grouped.amin(axis, keepdim=True), grouped.amax(axis, keepdim=True)
    zero = torch.zeros_like(low)
    if precision.scale is not None:
        return zero + precision.scale, zero
    if precision.has_minimum:
        low = rounded(low, precision.scale_dtype, up=False)
        return rounded((high - low) / precision.largest_code, precision.scale_dtype, up=True), low
    scale = torch.maximum(high, -low) / precision.largest_code
    if precision.scale_dtype == "power_of_two":
        return _power_of_two(scale), zero
    return rounded(scale, precision.scale_dtype, up=True), zero


def _codes(x: Tensor, scale: Tensor, low: Tensor, precision: Precision) -> Tensor:
    """The codes of the numbers, uint8 [..., B, D]."""
    grouped, _ = _grouped(x, precision)
    # A group of equal numbers has scale 0, and any code would do.
    steps = (grouped - low) / torch.where(scale > 0, scale, 1.0)
    most = precision.largest_code
    if precision.kind == "fp8":
        found = steps.clamp(-most, most).to(torch.float8_e4m3fn).view(torch.uint8)
    elif precision.has_minimum:
        found = steps.round().clamp(0, most).to(torch.uint8)
    else:  # kept as c + most, which is never negative
        found = (steps.round().clamp(-most, most) + most).to(torch.uint8)
    return found.reshape(x.shape)


def encode(x: Tensor, precision: Precision) -> Tensor:
    """Returns blocks as bytes.

    Args:
        x: [..., B, D], finite and within `precision.largest`.
        precision: the format.

    Returns:
        [..., block_bytes] uint8; padding is 0.

    Example:
        >>> block = torch.tensor([[0.0, 15.0], [3.0, 4.0]])
        >>> encode(block, Precision(4, scale_dtype="power_of_two", symmetric=True)).tolist()
        [183, 186, 2, 0]
    """
    *lead, block_size, head_dim = x.shape
    layout = precision.layout(head_dim, block_size)
    scale, low = _scales_of(x.float(), precision)
    codes = _codes(x.float(), scale, low, precision)
    planes = 8 // precision.bits
    codes = torch.nn.functional.pad(codes, (0, planes * layout.row_bytes - head_dim))
    out = torch.zeros(*lead, layout.block_bytes, dtype=torch.uint8, device=x.device)
    rows = out[..., : block_size * layout.row_bytes].unflatten(-1, (block_size, layout.row_bytes))
    for plane, part in enumerate(codes.unflatten(-1, (planes, layout.row_bytes)).unbind(-2)):
        rows |= part << plane * precision.bits
    stored = [scale, low] if precision.has_minimum else [scale] if layout.num_scales else []
    at = layout.scale_offset
    for each in stored:
        as_bytes = _to_bytes(each.reshape(*lead, layout.num_scales), precision.scale_dtype)
        out[..., at : at + as_bytes.shape[-1]] = as_bytes
        at += as_bytes.shape[-1]
    return out


def _to_bytes(scales: Tensor, scale_dtype: str) -> Tensor:
    if scale_dtype == "power_of_two":
        return (torch.frexp(scales)[1] - 1).to(torch.int8).view(torch.uint8)
    return scales.to(_DTYPES[scale_dtype]).contiguous().view(torch.uint8)


def _from_bytes(stored: Tensor, scale_dtype: str) -> Tensor:
    if scale_dtype == "power_of_two":
        exponent = stored.contiguous().view(torch.int8).to(torch.int32)
        return torch.ldexp(torch.ones(exponent.shape, device=stored.device), exponent)
    # A copy: a view needs an address that is a multiple of the number's bytes.
    return stored.clone(memory_format=torch.contiguous_format).view(_DTYPES[scale_dtype]).float()


def stored_scales(data: Tensor, precision: Precision, head_dim: int, block_size: int) -> Tensor:
    """Returns the scales that blocks hold, float32 [..., num_scales], and a static one if not."""
    layout = precision.layout(head_dim, block_size)
    if not layout.num_scales:
        return torch.full((*data.shape[:-1], 1), precision.scale, device=data.device)
    num_bytes = layout.num_scales * SCALE_BYTES[precision.scale_dtype]
    held = data[..., layout.scale_offset : layout.scale_offset + num_bytes]
    return _from_bytes(held, precision.scale_dtype)


def decode(
    data: Tensor,
    precision: Precision,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Reads blocks back: `minimum + scale * code`, with what is stored and nothing else.

    Args:
        data: [..., block_bytes] uint8, as `encode` returns it.
        precision: the format they were written in.
        head_dim: numbers of a head, D.
        block_size: slots of a block, B.
        dtype: of the result.

    Returns:
        [..., B, D].

    Example:
        >>> format_ = Precision(8)
        >>> decode(encode(torch.tensor([[9.0, 9.0]]), format_), format_, 2, 1).tolist()
        [[9.0, 9.0]]
    """
    layout = precision.layout(head_dim, block_size)
    codes = _unpacked(data, precision, head_dim, block_size)
    scale = stored_scales(data, precision, head_dim, block_size)
    low = torch.zeros_like(scale)
    if precision.has_minimum:
        at = layout.scale_offset + layout.num_scales * SCALE_BYTES[precision.scale_dtype]
        low = _from_bytes(data[..., at : layout.block_bytes], precision.scale_dtype)
    if not layout.num_scales:  # one static scale for everything
        scale, low = scale[..., None], low[..., None]
    elif precision.along == "channel":
        scale, low = scale[..., None, :], low[..., None, :]
    else:
        group = precision.group_size or head_dim
        scale, low = (each.unflatten(-1, (block_size, -1)) for each in (scale, low))
        scale, low = (each.repeat_interleave(group, -1) for each in (scale, low))
    return narrowed(low + scale * codes, dtype)


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns what was read back in another type; beyond its largest number is its largest.

    A scale is rounded up, so the last code of large numbers may stand for more than float16 has.

    Example:
        >>> narrowed(torch.tensor([-65536.0, 3.0]), torch.float16).tolist()
        [-65504.0, 3.0]
    """
    if dtype == torch.float16:
        x = x.clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16)
    return x.to(dtype)


def _unpacked(data: Tensor, precision: Precision, head_dim: int, block_size: int) -> Tensor:
    """The codes as float32 [..., B, D], counted from the minimum or from zero."""
    row_bytes = precision.layout(head_dim, block_size).row_bytes
    rows = data[..., : block_size * row_bytes].unflatten(-1, (block_size, row_bytes))
    if precision.kind == "fp8":
        return rows.view(torch.float8_e4m3fn).float()
    bits = precision.bits
    planes = [(rows >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    codes = torch.cat(planes, -1)[..., :head_dim].float()
    return codes if precision.has_minimum else codes - precision.largest_code
