"""How a cache writes numbers with few bits: codes, scales, padding, and how far off they may be.

A *group* of numbers shares a scale `s` and perhaps a minimum `m`; a number is kept as a code `c` of
a few bits and read back as `m + s * c`. How many share is the trade: fewer make the steps smaller
and the scales more. All sizes are exact whole bytes, padding and scales included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvlib.sizes import KVShape, near, whole_number

SCALE_BYTES = {"float16": 2, "float32": 4, "power_of_two": 1}
LARGEST_FLOAT16 = 65504.0
LARGEST_FP8 = 448.0  # of e4m3: four bits of exponent, three of mantissa


class Layout(NamedTuple):
    """Where the bytes of one block of one KV head are, keys or values alone.

    Attributes:
        row_bytes: codes of one token's row.
        scale_offset: where the scales begin, behind all codes; a multiple of a scale's bytes.
        num_scales: scales; as many minima follow them where the format has minima.
        block_bytes: all of it.
    """

    row_bytes: int
    scale_offset: int
    num_scales: int
    block_bytes: int


@dataclass(frozen=True)
class Precision:
    """A format for keys or for values.

    Attributes:
        bits: of a code: 8, 4 or 2; fp8 has 8.
        group_size: how many numbers share a scale. Along a token: channels, by default the whole
            row. Along a channel the block is the group, so it is the block size or None.
        along: "token" cuts the row of a token into groups; "channel" takes one channel over all
            tokens of a block.
        symmetric: codes reach as far below zero as above it, and no minimum is stored. It halves
            what is stored beside the codes and wastes codes where all numbers have one sign.
        scale_dtype: "float16", "float32", or "power_of_two", one byte of exponent; the last has no
            minima, so it goes with `symmetric` or fp8.
        kind: "int", or "fp8" (e4m3), whose steps grow with the number.
        scale: None takes scales from the numbers. A number is a *static* scale: nothing is stored
            beside the codes, and what lies beyond the largest code is cut off.

    Raises:
        TypeError, ValueError: no such bits, group, kind or scale.

    Example:
        >>> keys = Precision(2, along="channel"); values = Precision(2, group_size=32)
        >>> keys.bits_per_element(head_dim=64, block_size=32)
        3.0
        >>> values.layout(head_dim=64)
        Layout(row_bytes=16, scale_offset=16, num_scales=2, block_bytes=24)
    """

    bits: int = 8
    group_size: int | None = None
    along: str = "token"
    symmetric: bool = False
    scale_dtype: str = "float16"
    kind: str = "int"
    scale: float | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("bits", self.bits, (8,) if self.kind == "fp8" else (8, 4, 2)),
            ("along", self.along, ("token", "channel")),
            ("kind", self.kind, ("int", "fp8")),
        ):
            if value not in known or isinstance(value, float):
                raise ValueError(f"{name} is one of {', '.join(map(str, known))}, got {value!r}")
        if self.scale_dtype not in SCALE_BYTES:
            raise ValueError(near(self.scale_dtype, SCALE_BYTES, "scale_dtype"))
        if self.group_size is not None:
            whole_number("group_size", self.group_size)
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise ValueError(f"a static scale is a finite number above 0, got {self.scale!r}")
        if self.scale_dtype == "power_of_two" and self.has_minimum:
            raise ValueError("a minimum is no power of two: take symmetric=True, or another scale")

    @classmethod
    def static(cls, scale: float = 1.0, **options: object) -> Precision:
        """Returns a format with one scale for everything, 1 unless said otherwise.

        Example:
            >>> Precision.static(kind="fp8").scale
            1.0
        """
        return cls(scale=scale, **options)

    @property
    def has_minimum(self) -> bool:
        """Whether a minimum lies beside each scale."""
        return self.kind == "int" and not self.symmetric and self.scale is None

    @property
    def largest_code(self) -> float:
        """The largest code, counted from the minimum, or from zero where there is none."""
        if self.kind == "fp8":
            return LARGEST_FP8
        return 2**self.bits - 1 if self.has_minimum else 2 ** (self.bits - 1) - 1

    @property
    def largest(self) -> float:
        """The largest number that can be written, either sign: a scale or a minimum must hold it.

        Beyond it a float16 would be infinite, and `inf - inf` is no number at all. In float32 the
        distance of the lowest number from the highest must not be infinite either.
        """
        float16 = self.scale_dtype == "float16" and self.scale is None
        return LARGEST_FLOAT16 if float16 else 2.0**126

    def layout(self, head_dim: int, block_size: int = 1) -> Layout:
        """Returns where the bytes of a block of one KV head are.

        Args:
            head_dim: numbers of a row.
            block_size: rows. A block of one row shows what a token takes where it has its own
                scales.

        Raises:
            TypeError, ValueError: a size is no whole number of at least 1, or the group does not
                divide what it cuts.

        Example:
            Five codes of four bits take three bytes, and a float16 cannot begin at the third:

            >>> Precision(4, symmetric=True).layout(head_dim=5)
            Layout(row_bytes=3, scale_offset=4, num_scales=1, block_bytes=6)
        """
        whole_number("head_dim", head_dim)
        whole_number("block_size", block_size)
        row_bytes = -(-head_dim * self.bits // 8)
        num_scales = self._num_scales(head_dim, block_size)
        each = SCALE_BYTES[self.scale_dtype] if num_scales else 1
        offset = -(-row_bytes * block_size // each) * each
        stored = num_scales * (2 if self.has_minimum else 1)
        return Layout(row_bytes, offset, num_scales, offset + stored * each)

    def _num_scales(self, head_dim: int, block_size: int) -> int:
        whole, what = head_dim, f"the head of {head_dim} channels"
        if self.along == "channel":
            whole, what = block_size, f"the block of {block_size} tokens, which is the group"
        group = self.group_size or whole
        if whole % group or (self.along == "channel" and group != whole):
            raise ValueError(f"groups along a {self.along} divide {what}: got groups of {group}")
        if self.scale is not None:
            return 0
        return head_dim if self.along == "channel" else block_size * (head_dim // group)

    def bits_per_element(self, head_dim: int, block_size: int = 1) -> float:
        """Returns bits for each number, with its share of scales, minima and padding.

        Example:
            llama.cpp's q8_0 and LMDeploy's INT4 at a head of 128:

            >>> Precision(8, 32, symmetric=True).bits_per_element(128)
            8.5
            >>> Precision(4).bits_per_element(128)
            4.25
        """
        return 8 * self.layout(head_dim, block_size).block_bytes / (head_dim * block_size)

    def half_step(self, low: float, high: float) -> float:
        """Returns how far off a number is read back at most, in a group from `low` to `high`.

        Half of the largest step between two codes. A float16 scale is rounded up and a minimum
        down, so that every number lies between the first code and the last; that makes the steps
        larger by a thousandth at most, and is counted here. Arithmetic in float32 adds about 1e-7
        of the numbers. A static scale is also off by what it cuts.

        Example:
            >>> Precision(4, scale_dtype="float32").half_step(-3.0, 12.0)
            0.5
            >>> Precision.static(0.5).half_step(-64.0, 64.0)  # 127 steps of 0.5 reach 63.5
            0.5
        """
        most = max(abs(low), abs(high))
        widest = 32.0 if self.kind == "fp8" else 1.0  # of the steps between codes
        if self.scale is not None:
            return max(widest * self.scale / 2, most - self.largest_code * self.scale)
        rounded = 2.0**-10 if self.scale_dtype == "float16" else 0.0
        spread = high - low + rounded * abs(low) if self.has_minimum else most
        step = spread / self.largest_code * (1 + rounded)
        if self.scale_dtype == "float16" and spread:
            step += 2.0**-23  # the smallest float16, for the scale and for the minimum
        if self.scale_dtype == "power_of_two":
            step *= 2
        return widest * step / 2


def cache_bytes(
    shape: KVShape,
    num_blocks: int,
    block_size: int,
    keys: Precision,
    values: Precision,
    *,
    num_seqs: int = 0,
    full_bytes: int = 4,
) -> int:
    """Returns the bytes of a quantised cache: blocks of codes, and full-precision rows beside them.

    Args:
        shape: layers, KV heads and head size.
        num_blocks: blocks of codes.
        block_size: tokens per block.
        keys: format of the keys.
        values: format of the values.
        num_seqs: sequences, each with a row of `block_size` tokens in full precision.
        full_bytes: bytes of a number in full precision.

    Raises:
        TypeError, ValueError: as `Precision.layout`.

    Example:
        One layer, one head of 4 channels, 2 blocks of 4 tokens: 16 codes and 8 bytes of scales and
        minima by channel for keys, 16 and 8 times 2 by token for values:

        >>> one = KVShape(1, 1, 4)
        >>> cache_bytes(one, 2, 4, Precision(8, along="channel"), Precision(8))
        128
    """
    per_head = sum(p.layout(shape.head_dim, block_size).block_bytes for p in (keys, values))
    row = 2 * block_size * shape.head_dim * full_bytes
    return shape.num_layers * shape.num_kv_heads * (num_blocks * per_head + num_seqs * row)
