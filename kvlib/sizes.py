"""How many bytes the KV cache takes: per token, per block, per sequence.

A token leaves a key row and a value row in every KV head of every layer; a layer with a window
stops growing when it is full. Published models and GPUs are in `catalog`.

Every answer is an exact whole number of bytes: the elements only, without an engine's slack, the
scales of a quantized cache, or the layers of a draft model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from fractions import Fraction

DTYPE_BYTES = dict(float32=4, float16=2, bfloat16=2, fp8=1, int8=1, int4=Fraction(1, 2))
UNIT_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNIT_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def near(name: object, known: Iterable[str], kind: str = "name") -> str:
    """Writes the error for a name nobody knows: which one, and which were perhaps meant.

    A dozen names or fewer are all listed; of more, those that contain `name` or are spelt like it.

    Example:
        >>> near("A1O", ["A10", "L4"], "GPU")
        "no GPU 'A1O'; known: A10, L4"
        >>> near("fax", ["fox", "fan", *"abcdefghijkl"])
        "no name 'fax'; near: fox, fan"
    """
    lowered = {each.lower(): each for each in known}
    wanted = str(name).lower()
    close = [each for each in lowered if wanted and wanted in each][:5]
    close += [each for each in get_close_matches(wanted, lowered, n=5) if each not in close]
    label, shown = ("near", close) if close and len(lowered) > 12 else ("known", list(lowered))
    return f"no {kind} {name!r}; {label}: {', '.join(lowered[each] for each in shown)}"


def whole_number(name: str, value: object, least: int = 1) -> None:
    """Refuses a size that is not a whole number, or is below `least`.

    Raises:
        TypeError: `value` is not an `int`; 2.0 and True are not.
        ValueError: it is too small.

    Example:
        >>> whole_number("block_size", 0)
        Traceback (most recent call last):
        ValueError: block_size must be at least 1, got 0
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def num_bytes(num_elements: int, dtype: str) -> int:
    """Returns the bytes of packed elements; two int4 share a byte.

    Raises:
        ValueError: no such dtype (it lists those that exist), or the last byte would be half full.

    Example:
        >>> num_bytes(6, "float16"), num_bytes(6, "int4")
        (12, 3)
    """
    if dtype not in DTYPE_BYTES:
        raise ValueError(near(dtype, DTYPE_BYTES, "dtype"))
    size = num_elements * DTYPE_BYTES[dtype]
    if size != int(size):
        raise ValueError(f"{num_elements} elements of {dtype} take {float(size)} bytes, not whole")
    return int(size)


def format_bytes(size_bytes: int, unit: str = "GB", digits: int = 2) -> str:
    """Writes a byte count in the unit you name: GB is 1e9 bytes, GiB is 2^30.

    Example:
        >>> format_bytes(2**30), format_bytes(2**30, "GiB", digits=0)
        ('1.07 GB', '1 GiB')
    """
    if unit not in UNIT_BYTES:
        raise ValueError(near(unit, UNIT_BYTES, "unit"))
    return f"{size_bytes / UNIT_BYTES[unit]:,.{digits}f} {unit}"


@dataclass(frozen=True)
class KVShape:
    """What one token leaves in the cache, and for how long.

    Count key/value heads, not query heads: MHA has as many of one as of the other, GQA fewer, MQA
    one. MLA keeps neither keys nor values but one latent row, and is given by its two widths.

    Attributes:
        num_layers: layers that cache, of both kinds.
        num_kv_heads: key/value heads; None for MLA.
        head_dim: width of a key or value row, not hidden_size / num_q_heads; None for MLA.
        kv_lora_rank: MLA only, width of the latent that keys and values are rebuilt from.
        qk_rope_head_dim: MLA only, width of the rotary key kept beside the latent.
        window: tokens a local layer sees, the query itself included.
        num_local_layers: layers that use the window; the others keep every token. It goes with the
            window because a config may carry one that none of its layers uses.

    Raises:
        TypeError: a size is not a whole number.
        ValueError: a size is below 1, the MLA and the head widths are mixed or incomplete, or the
            window and the number of local layers do not go together.

    Example:
        >>> KVShape(num_layers=2, num_kv_heads=1, head_dim=4).bytes_per_token("float16")
        32
    """

    num_layers: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    _: KW_ONLY
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    window: int | None = None
    num_local_layers: int | None = None

    def __post_init__(self) -> None:
        widths = {"num_kv_heads", "head_dim"}, {"kv_lora_rank", "qk_rope_head_dim"}
        given = {name for name in set.union(*widths) if getattr(self, name) is not None}
        if given not in widths:
            raise ValueError(
                "give num_kv_heads and head_dim, or for MLA kv_lora_rank and qk_rope_head_dim; "
                f"got {' and '.join(sorted(given)) or 'none of them'}"
            )
        for name in ("num_layers", *sorted(given)):
            whole_number(name, getattr(self, name))
        self._check_window()

    def _check_window(self) -> None:
        if self.window is not None:
            whole_number("window", self.window)
        if self.num_local_layers is None:
            if self.window is not None:
                raise ValueError(
                    f"window={self.window} needs num_local_layers: how many of the "
                    f"{self.num_layers} layers use it, 0 if none"
                )
            object.__setattr__(self, "num_local_layers", 0)
        whole_number("num_local_layers", self.num_local_layers, least=0)
        if self.num_local_layers > (self.num_layers if self.window else 0):
            raise ValueError(
                "num_local_layers is at most num_layers, and 0 without a window: "
                f"got {self.num_local_layers} of {self.num_layers} layers, window={self.window}"
            )

    @property
    def num_full_layers(self) -> int:
        """Layers that keep every token."""
        return self.num_layers - self.num_local_layers

    @property
    def elements_per_layer(self) -> int:
        """Elements one token leaves in one layer: key and value of each head, or one MLA latent."""
        if self.kv_lora_rank is not None:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return 2 * self.num_kv_heads * self.head_dim

    def _layer_bytes(self, dtype: str) -> int:
        # Every row starts on a byte of its own, so an odd row of int4 is refused, not shared.
        num_bytes(self.head_dim or self.elements_per_layer, dtype)
        return num_bytes(self.elements_per_layer, dtype)

    def bytes_per_token(self, dtype: str, *, beyond_window: bool = False) -> int:
        """Returns the bytes one more token adds to a sequence.

        Args:
            dtype: what the cache stores, a key of `DTYPE_BYTES`.
            beyond_window: the sequence has filled the window: only the full layers still grow.

        Raises:
            ValueError: no such dtype, or a row of it is not a whole number of bytes.

        Source: PagedAttention (Kwon et al., SOSP 2023) section 3; MLA: DeepSeek-V2 section 2.1.4.

        Example:
            2 (key, value) x 32 layers x 8 heads x 128 wide x 2 bytes:

            >>> KVShape(32, 8, 128).bytes_per_token("bfloat16")
            131072
        """
        layers = self.num_full_layers if beyond_window else self.num_layers
        return layers * self._layer_bytes(dtype)

    def bytes_per_block(self, block_size: int, dtype: str) -> int:
        """Returns the bytes of one block: `block_size` tokens in every layer.

        Example:
            >>> KVShape(32, 8, 128).bytes_per_block(16, "float16") == 2 * 2**20
            True
        """
        whole_number("block_size", block_size)
        return block_size * self.bytes_per_token(dtype)

    def bytes_per_sequence(self, num_tokens: int, dtype: str, *, block_size: int = 1) -> int:
        """Returns the bytes a sequence of `num_tokens` holds.

        A local layer holds `min(num_tokens, window)` of them. Whole blocks are counted, per layer:
        a local layer is a ring of the blocks its window needs.

        Raises:
            TypeError, ValueError: a size or the dtype is refused; see `bytes_per_token`.

        Example:
            One full and one local layer, 8 bytes per token each; at 10 tokens they hold 10 and 3,
            in blocks of 4 they hold 12 and 4:

            >>> shape = KVShape(2, 1, 2, window=3, num_local_layers=1)
            >>> shape.bytes_per_sequence(10, "float16")
            104
            >>> shape.bytes_per_sequence(10, "float16", block_size=4)
            128
        """
        whole_number("num_tokens", num_tokens)
        whole_number("block_size", block_size)
        local_tokens = min(num_tokens, self.window or num_tokens)
        blocks = self.num_full_layers * -(-num_tokens // block_size)
        blocks += self.num_local_layers * -(-local_tokens // block_size)
        return blocks * block_size * self._layer_bytes(dtype)
