"""A Llama in one file: RMSNorm, rotary positions, grouped heads, SwiGLU, tied or free output.

The model forwards packed tokens `[T]` of several sequences at once and asks a cache where their
keys and values go. It knows no cache class. Parameter names are Hugging Face's. On a CPU, a step of
few tokens on a paged cache runs the same layers in one call of a kernel (`decode_step`).
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from kvlib.metrics import WorkCounters
from kvlib.sizes import KVShape
from kvlib.tensors import decode_step
from kvlib.tensors.kernels import few_rows
from kvlib.tensors.llama_config import LlamaConfig
from kvlib.tensors.step import DevicePlan


class Cache(Protocol):
    """What the model asks of a cache."""

    counters: WorkCounters

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Stores the new keys and values of one layer, each [T, Hkv, D]."""

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Returns attention of the new queries [T, Hq, D] over all their sequences hold."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each head's pairs (i, i + D/2) by the angle of their position.

    The pairing is Hugging Face's half-split. Weights stored for interleaved pairs (2i, 2i + 1), as
    in GGUF files, must be permuted first; mixing the two gives fluent nonsense.

    Args:
        x: [T, H, D] queries or keys.
        cos: [T, 1, D / 2], in float32.
        sin: [T, 1, D / 2], in float32.

    Returns:
        [T, H, D] in the dtype of `x`.

    Source: Su et al. 2021, RoFormer.
    """
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * rms_norm(x.float(), x.shape[-1:], eps=self.eps).to(x.dtype)


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        q_size = config.num_q_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, cache: Cache, plan: DevicePlan
    ) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        # Keys are stored after rotation: a key's position is fixed when it is written.
        cache.write(layer, rotate(k, cos, sin), v, plan)
        return self.o_proj(cache.attend(layer, rotate(q, cos, sin), plan).flatten(1))


class _MLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _MLP(config)
        self.input_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, *where: object) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), *where)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Body(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))
        self.norm = _Norm(config.hidden_size, config.rms_norm_eps)


class Llama(nn.Module):
    """A decoder-only transformer of any published Llama shape, for inference.

    Args:
        config: the shape.

    Attributes:
        one_call: on a CPU, run a step of few tokens on a paged cache in one call of a kernel, where
            there is one; False goes layer by layer, as on every other cache. Texts are the same.

    Example:
        >>> from kvlib.tensors.step import NoCache
        >>> config = LlamaConfig(vocab_size=8, hidden_size=4, intermediate_size=8, num_layers=1,
        ...                      num_q_heads=2, num_kv_heads=1, head_dim=2)
        >>> model, cache = Llama.random(config, seed=0), NoCache()
        >>> with cache.step({"a": [1, 2, 3]}) as plan:
        ...     tuple(model(torch.tensor([1, 2, 3]), cache, plan).shape)
        (1, 8)
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config, self.one_call = config, True
        self.model = _Body(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @classmethod
    def random(cls, config: LlamaConfig, seed: int, *, device: torch.device | str = "cpu") -> Llama:
        """Returns a model with seeded random weights, scaled to keep activations near 1.

        Args:
            config: the shape.
            seed: equal seeds give equal weights on every device.
            device: where the weights end up.
        """
        model = cls(config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 2:
                    std = 1.0 if "embed_tokens" in name else 1 / math.sqrt(weight.shape[1])
                    weight.normal_(0.0, std, generator=generator)
        return model.to(device)

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, and of the keys and values they make."""
        return self.model.embed_tokens.weight.dtype

    @property
    def kv_shape(self) -> KVShape:
        """What one token of this model costs a cache."""
        c = self.config
        return KVShape(c.num_layers, c.num_kv_heads, c.head_dim)

    @torch.no_grad()
    def forward(
        self, tokens: Tensor, cache: Cache, plan: DevicePlan, *, all_logits: bool = False
    ) -> Tensor:
        """Forwards the new tokens of a step and returns the logits that predict what follows.

        Args:
            tokens: [T] int64, packed as the plan says, on the model's device.
            cache: gets the new keys and values and answers attention.
            plan: the open plan of the step.
            all_logits: return logits after every token instead of each sequence's last.

        Returns:
            [S, vocab_size], or [T, vocab_size] with `all_logits`.

        Raises:
            ValueError: the tokens do not match the plan, or there are none. Nothing is written.
        """
        if not plan.host.num_tokens:
            raise ValueError(
                f"a step forwards at least 1 token, this one 0 of {plan.host.num_seqs}"
            )
        if tuple(tokens.shape) != (plan.host.num_tokens,):
            raise ValueError(
                f"the plan has {plan.host.num_tokens} new tokens, got {tuple(tokens.shape)}"
            )
        frequencies = self.config.inverse_frequencies(self.device)
        angles = plan.positions[:, None, None].float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        x = self.model.embed_tokens(tokens)
        if self.one_call and decode_step.takes(x, cache):
            x = decode_step.all_layers(self, x, cos, sin, cache, plan)
        else:
            for index, layer in enumerate(self.model.layers):
                x = layer(x, cos, sin, index, cache, plan)
        cache.counters.tokens_forwarded += plan.host.num_tokens
        return self._logits(x if all_logits else x[plan.last_token])

    def _logits(self, x: Tensor) -> Tensor:
        head = self.model.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        norm = self.model.norm
        if few_rows.takes(x):
            return few_rows.product(x, head.weight, norm=norm.weight, eps=norm.eps)
        return norm(x) @ head.weight.T
