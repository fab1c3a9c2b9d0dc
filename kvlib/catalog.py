"""Published models and GPUs: what their publishers state, each row with its source.

The facts are in `data/models.json` and `data/gpus.json`; whatever follows from them is computed.
A size that was never published is not here, and asking for it says why.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from kvlib.sizes import KVShape, near, num_bytes, whole_number

DATA = Path(__file__).resolve().parent / "data"


@dataclass(frozen=True)
class GPU:
    """One card, with its peak figures as published and dense (no 2:4 sparsity).

    Attributes:
        memory_gb: as marketed, GB = 1e9 bytes.
        memory_gb_alt: another size sold or announced under the same name.
        memory_bandwidth_gb_s: GB/s; the number that bounds decode.
        fp16_dense_tflops: 1e12 FLOP/s.
        bf16_dense_tflops: None on a card without bfloat16.
        verification: what kind of source was seen.
    """

    name: str
    vendor: str
    year: int
    memory_gb: int
    memory_bandwidth_gb_s: int
    fp16_dense_tflops: float
    bf16_dense_tflops: float | None
    source: str
    verification: str
    memory_gb_alt: int | None = None
    notes: str = ""

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory, as marketed."""
        return self.memory_gb * 10**9

    @property
    def ridge_flop_per_byte(self) -> float:
        """FLOP per byte where compute (bfloat16, else float16) and bandwidth bound equally."""
        tflops = self.bf16_dense_tflops or self.fp16_dense_tflops
        return 1000 * tflops / self.memory_bandwidth_gb_s


@dataclass(frozen=True)
class ModelShape:
    """One published model: the shape of its cache and what surrounds it.

    Attributes:
        params: parameters, rounded as published.
        active_params: those a token passes through in a mixture of experts; None where all are.
        context_length: tokens the model was published for.
        dtype: what its cache stores by default.
        verification: what kind of source was seen.
        unsourced: fields for which none was.

    Raises:
        TypeError: a size is not a whole number.
        ValueError: a size is below 1, no such dtype, or the query heads cannot be shared evenly
            among the KV heads.
    """

    name: str
    kv: KVShape
    num_q_heads: int
    hidden_size: int
    params: int
    context_length: int
    dtype: str
    source: str
    params_source: str = ""
    verification: str = ""
    active_params: int | None = None
    unsourced: tuple[str, ...] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        for field in ("num_q_heads", "hidden_size", "params", "context_length"):
            whole_number(field, getattr(self, field))
        self.kv.bytes_per_token(self.dtype)
        if self.num_q_heads % (self.kv.num_kv_heads or 1):
            raise ValueError(
                "num_q_heads must be a multiple of num_kv_heads, "
                f"got {self.num_q_heads} query heads for {self.kv.num_kv_heads} KV heads"
            )

    @property
    def attention(self) -> str:
        """How heads share keys and values: 'mha', 'gqa', 'mqa' or 'mla'."""
        if self.kv.num_kv_heads is None:
            return "mla"
        if self.kv.num_kv_heads == self.num_q_heads:
            return "mha"
        return "mqa" if self.kv.num_kv_heads == 1 else "gqa"

    def weight_bytes(self, dtype: str) -> int:
        """Returns the bytes of all parameters; every expert is resident, active or not.

        Example:
            >>> model("OPT-13B").weight_bytes("float16") == 26 * 10**9
            True
        """
        return num_bytes(self.params, dtype)

    def kv_bytes(
        self, num_tokens: int, dtype: str | None = None, *, beyond_context: bool = False
    ) -> int:
        """Returns the KV bytes of one sequence of `num_tokens`.

        Args:
            num_tokens: prompt and output together.
            dtype: what the cache stores; by default the model's own.
            beyond_context: size it even where the model was not published for so many tokens.

        Raises:
            ValueError: more tokens than `context_length`, unless `beyond_context`.

        Example:
            >>> model("Llama-3-8B").kv_bytes(8192) == 2**30
            True
        """
        whole_number("num_tokens", num_tokens)
        if num_tokens > self.context_length and not beyond_context:
            raise ValueError(
                f"{self.name} has a context of {self.context_length:,} tokens, asked for "
                f"{num_tokens:,}; beyond_context=True sizes it all the same"
            )
        return self.kv.bytes_per_sequence(num_tokens, self.dtype if dtype is None else dtype)

    def overtaking_tokens(self, weight_dtype: str, kv_dtype: str | None = None) -> int:
        """Returns the smallest total of cached tokens whose KV outweighs the weights.

        The total is over all sequences, none longer than the window where the model has one.

        Example:
            26e9 bytes of weights / 819,200 bytes per token = 31,738.3:

            >>> model("OPT-13B").overtaking_tokens("float16")
            31739
        """
        per_token = self.kv.bytes_per_token(self.dtype if kv_dtype is None else kv_dtype)
        return self.weight_bytes(weight_dtype) // per_token + 1

    def max_num_seqs(
        self,
        gpu: GPU,
        num_tokens: int,
        *,
        reserved: float | Fraction,
        weight_dtype: str,
        kv_dtype: str | None = None,
        beyond_context: bool = False,
    ) -> int:
        """Returns how many sequences of `num_tokens` fit in a GPU beside the weights.

        0 where not even one does, and also where the weights alone do not fit.

        Args:
            gpu: one card, which holds the whole model.
            num_tokens: length of each sequence, prompt and output together.
            reserved: share of the memory kept for all else (activations, the allocator's slack),
                0 <= reserved < 1; a float means the decimal it prints as.
            weight_dtype: what the weights are stored in.
            kv_dtype: what the cache stores; by default the model's own.
            beyond_context: as in `kv_bytes`.

        Raises:
            ValueError: `reserved` is out of range, or `kv_bytes` refuses.

        Example:
            (80e9 x 0.9 - 16.06e9) / 2^30 = 52.1:

            >>> llama, h100 = model("Llama-3-8B"), gpu("H100 SXM5")
            >>> llama.max_num_seqs(h100, 8192, reserved=0.1, weight_dtype="bfloat16")
            52
        """
        if not 0 <= reserved < 1:
            raise ValueError(f"reserved must be in [0, 1), got {reserved}")
        per_sequence = self.kv_bytes(num_tokens, kv_dtype, beyond_context=beyond_context)
        # Through str, so that 0.1 is one tenth and the count does not hang on a float's last bit.
        budget = gpu.memory_bytes * (1 - Fraction(str(reserved))) - self.weight_bytes(weight_dtype)
        return max(0, budget // per_sequence)


@cache
def _table(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


@cache
def _models() -> dict[str, ModelShape]:
    rows = (
        row | {"kv": KVShape(**row["kv"]), "unsourced": tuple(row.get("unsourced", ()))}
        for row in _table("models")["models"]
    )
    return {row["name"]: ModelShape(**row) for row in rows}


@cache
def _gpus() -> dict[str, GPU]:
    return {row["name"]: GPU(**row) for row in _table("gpus")["gpus"]}


def models() -> list[str]:
    """Lists the published models by name, family by family."""
    return list(_models())


def gpus() -> list[str]:
    """Lists the GPUs by name."""
    return list(_gpus())


def model(name: str) -> ModelShape:
    """Returns a published model by its exact name.

    Raises:
        ValueError: no such model, with the near names; or its sizes were never published, and why.

    Example:
        >>> model("DeepSeek-V3").kv.bytes_per_token("bfloat16")  # 61 layers x (512 + 64) x 2
        70272
    """
    words = str(name).lower().replace("-", " ").split()
    for secret, reason in _table("models")["not_published"].items():
        secret_words = secret.lower().replace("-", " ").split()
        if words[: len(secret_words)] == secret_words:
            raise ValueError(f"the sizes of {secret} were never published: {reason}")
    if name not in _models():
        raise ValueError(near(name, _models(), "published model"))
    return _models()[name]


def gpu(name: str) -> GPU:
    """Returns a GPU by its exact name.

    Raises:
        ValueError: no such GPU, with the names there are.

    Example:
        >>> gpu("H200 SXM").memory_bytes == 141 * 10**9
        True
    """
    if name not in _gpus():
        raise ValueError(near(name, _gpus(), "GPU"))
    return _gpus()[name]
