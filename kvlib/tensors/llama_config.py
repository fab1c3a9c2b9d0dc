"""The shape of a Llama, and how a Hugging Face config.json says it."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlib.sizes import whole_number


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and constants of one model; names as in the rest of the library.

    Raises:
        TypeError: a size is no whole number, or a constant no number.
        ValueError: a size is below 1, sizes do not go together, or a constant is not above 0.

    Attributes:
        vocab_size: tokens the model knows.
        hidden_size: width between layers.
        intermediate_size: width inside the MLP.
        num_layers: the layers, L.
        num_q_heads: Hq.
        num_kv_heads: Hkv, a divisor of Hq.
        head_dim: D; even, and not always hidden_size / Hq.
        rope_theta: base of the rotary frequencies.
        rms_norm_eps: added under the root of RMSNorm.
        max_position_embeddings: the context the model was trained for, tokens.
        tie_word_embeddings: whether the output matrix is the embedding.
        rope_scaling: None, or Llama 3.1's "llama3" stretching of low frequencies.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = True
    rope_scaling: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_q_heads")
        for name in (*sizes, "num_kv_heads", "head_dim", "max_position_embeddings"):
            whole_number(name, getattr(self, name))
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(
                f"num_q_heads must be a multiple of num_kv_heads: {self.num_q_heads} and "
                f"{self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"rotary positions turn pairs: head_dim {self.head_dim} is odd")
        for name in ("rope_theta", "rms_norm_eps"):
            _require_positive(name, getattr(self, name))
        if not isinstance(self.tie_word_embeddings, bool):
            raise TypeError(
                f"tie_word_embeddings is true or false, got {self.tie_word_embeddings!r:.50}"
            )
        _check_rope(self.rope_scaling)

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> LlamaConfig:
        """Reads a Hugging Face config.json of a Llama-shaped model.

        Args:
            config: the parsed file.

        Raises:
            ValueError: another architecture, a variant this model does not compute (biases, another
                activation), a size that is missing or beyond any model, or a constant that makes no
                sense.
            TypeError: a size is no whole number, or a constant is none.
        """
        if config.get("model_type") != "llama":
            got = config.get("model_type")
            raise ValueError(f"only model_type 'llama' is read, got {got!r:.50}")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise ValueError(f"rope scaling is an object, got {rope!r:.50}")
        computed = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}
        for name, wanted in (computed | {"partial_rotary_factor": 1.0}).items():
            for given in (config, rope):
                if given.get(name, wanted) != wanted:
                    got = f"{given[name]!r:.50}"
                    raise ValueError(f"{name} must be {wanted!r} for a Llama, got {got}")
        return cls(
            **_sizes_of(config),
            rope_theta=_first(rope.get("rope_theta"), config.get("rope_theta"), 10000.0),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            tie_word_embeddings=config.get("tie_word_embeddings", False),
            rope_scaling=rope if _rope_kind(rope) != "default" else None,
        )

    def inverse_frequencies(self, device: torch.device | str = "cpu") -> Tensor:
        """Returns the rotary angle per position of each pair, [D / 2] float32.

        Pair i turns by `rope_theta ** (-2 i / D)` a token; "llama3" divides the slow pairs by
        `factor` and blends in between.

        Source: Su et al. 2021; the stretching as in transformers' `modeling_rope_utils.py`.
        """
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device)
        frequencies = 1.0 / self.rope_theta ** (exponents / self.head_dim)
        if self.rope_scaling is None:
            return frequencies
        s = self.rope_scaling
        old_len = s["original_max_position_embeddings"]
        low, high = s["low_freq_factor"], s["high_freq_factor"]
        turns = old_len * frequencies / (2 * math.pi)
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return frequencies * (keep + (1 - keep) / s["factor"])


# What a file may ask for: above every published model, and nothing that it takes long to refuse.
MOST_LAYERS, MOST_SIZE = 1000, 2**20

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _sizes_of(config: dict[str, Any]) -> dict[str, int]:
    """The sizes that a config.json gives, under our names."""
    required = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "intermediate_size": "intermediate_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_q_heads",
    }
    missing = [name for name in required if name not in config]
    if missing:
        raise ValueError(f"config.json lacks {missing}")
    sizes = {ours: config[theirs] for theirs, ours in required.items()}
    for name, size in sizes.items():
        whole_number(name, size)
    heads = sizes["num_q_heads"]
    sizes["num_kv_heads"] = _first(config.get("num_key_value_heads"), heads)
    sizes["head_dim"] = _first(config.get("head_dim"), sizes["hidden_size"] // heads)
    for name, size in sizes.items():
        whole_number(name, size)
        if size > (most := MOST_LAYERS if name == "num_layers" else MOST_SIZE):
            raise ValueError(f"{name} is more than {most:,}, the most that is read")
    return sizes


def _require_positive(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r:.50}")
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} must be above 0 and finite, got {value!r:.50}")


def _check_rope(rope: dict[str, Any] | None) -> None:
    if (kind := _rope_kind(rope)) not in ("default", "llama3"):
        raise ValueError(f"rope scaling {kind!r:.50} is not supported: only none and 'llama3'")
    if kind == "default":
        return
    if missing := [name for name in _LLAMA3 if name not in rope]:
        raise ValueError(f"rope scaling 'llama3' lacks {missing}")
    for name in _LLAMA3:
        _require_positive(name, rope[name])
    if not rope["low_freq_factor"] < rope["high_freq_factor"]:
        raise ValueError(
            "rope scaling blends between a low and a higher frequency, got "
            f"{rope['low_freq_factor']} and {rope['high_freq_factor']}"
        )


def _rope_kind(rope: dict[str, Any] | None) -> str:
    rope = rope or {}
    return rope.get("rope_type") or rope.get("type") or "default"
