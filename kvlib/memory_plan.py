"""A card's memory as an engine divides it at its start: weights, activations, graphs, KV blocks.

Everything but the cache is fixed by the model and the largest step. The cache takes what is left of
the share the engine was given, and so decides how many sequences can run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from fractions import Fraction

from kvlib.catalog import GPU, ModelShape
from kvlib.overheads import GIB, GRAPHS, RUNTIME, activation_bytes, card_bytes, widths
from kvlib.plan import SequenceTooLong
from kvlib.sharding import head_shares
from kvlib.sizes import KVShape, whole_number


class DoesNotFit(ValueError):
    """A model and its cache do not fit where they were told to."""


def shape_on_rank(kv: KVShape, num_gpus: int = 1, num_layers: int | None = None) -> KVShape:
    """Returns what one GPU caches of a model: its KV heads, and its layers where they are split.

    More GPUs than heads store copies; an MLA latent is on every GPU whole.

    Args:
        kv: the whole model's.
        num_gpus: that share the heads (tensor parallelism).
        num_layers: layers on this GPU (a pipeline stage), windows spread evenly; all if not given.

    Raises:
        TypeError, ValueError: a number is not whole, below 1, or more layers than there are.

    Example:
        >>> kv = shape_on_rank(KVShape(48, 4, 128), num_gpus=8, num_layers=16)
        >>> kv.num_layers, kv.num_kv_heads
        (16, 1)
    """
    whole_number("num_gpus", num_gpus)
    layers = kv.num_layers if num_layers is None else num_layers
    whole_number("num_layers", layers)
    if layers > kv.num_layers:
        raise ValueError(f"asked for {layers} layers, the model has {kv.num_layers}")
    heads = kv.num_kv_heads and len(head_shares(kv.num_kv_heads, num_gpus)[0].kv_heads)
    local = kv.num_local_layers * layers // kv.num_layers
    return replace(kv, num_layers=layers, num_kv_heads=heads, num_local_layers=local)


@dataclass(frozen=True)
class CapacityPlan:
    """The memory of one GPU, in bytes, and what it can serve.

    Attributes:
        kv: what one GPU caches.
        kv_dtype: of what it caches.
        block_size: tokens of a block.
        num_gpus: that serve together; each has a memory like this.
        total_bytes: of the card.
        foreign_bytes: of other processes.
        weight_bytes: on this GPU.
        activation_bytes: at the peak of the largest step.
        graph_bytes: of captured CUDA graphs.
        runtime_bytes: context, libraries, communication, the allocator's slack.
        num_blocks: whole blocks of the cache.
    """

    kv: KVShape
    kv_dtype: str
    block_size: int
    num_gpus: int
    total_bytes: int
    foreign_bytes: int
    weight_bytes: int
    activation_bytes: int
    graph_bytes: int
    runtime_bytes: int
    num_blocks: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.kv.bytes_per_block(self.block_size, self.kv_dtype)

    @property
    def num_tokens(self) -> int:
        """Tokens of all blocks, where every layer keeps every token."""
        return self.num_blocks * self.block_size

    def parts(self) -> dict[str, int]:
        """Returns the bytes of each part; they add up to the card's."""
        names = ("foreign", "weight", "activation", "graph", "runtime", "kv")
        parts = {name: getattr(self, f"{name}_bytes") for name in names}
        return parts | {"free": self.total_bytes - sum(parts.values())}

    def concurrency(self, context: int) -> float:
        """Returns how many sequences of `context` tokens the cache holds, not rounded.

        It is what vLLM prints as maximum concurrency: tokens / context, a window counted as what it
        keeps. Below 1 not even one fits.
        """
        whole_number("context", context)
        if not self.kv.num_local_layers:
            return self.num_tokens / context
        return self.kv_bytes / self.kv.bytes_per_sequence(context, self.kv_dtype)

    def max_num_seqs(self, context: int) -> int:
        """Returns how many sequences of `context` tokens fit in whole blocks at the same time.

        Raises:
            SequenceTooLong: not one does; with both numbers.
        """
        each = self.kv.bytes_per_sequence(context, self.kv_dtype, block_size=self.block_size)
        if each > self.kv_bytes:
            raise SequenceTooLong(
                f"a sequence of {context:,} tokens takes {each / GIB:.2f} GiB, the cache has "
                f"{self.kv_bytes / GIB:.2f} GiB, for {int(self.concurrency(context) * context):,}"
            )
        return self.kv_bytes // each


def plan_capacity(
    model: ModelShape,
    gpu: GPU,
    *,
    utilization: float | Fraction = 0.92,
    weight_dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    block_size: int = 16,
    max_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    num_gpus: int = 1,
    total_bytes: int | None = None,
    foreign_bytes: int = 0,
    weight_bytes: int | None = None,
    activations: int | None = None,
    graphs: int | None = None,
    runtime: int | None = None,
    outside: Collection[str] = (),
) -> CapacityPlan:
    """Divides a card's memory as an engine does: the cache gets what is left of its share.

    Args:
        model: a published model.
        gpu: one card.
        utilization: the engine's share of the card. vLLM 0.33: 0.92; 0.90 before. A float means
            the decimal it prints as.
        weight_dtype: what the weights are stored in.
        kv_dtype: what the cache stores; by default the model's own.
        block_size: tokens of a block.
        max_batched_tokens: the most tokens of one step; the profile run has so many.
        max_num_seqs: the most sequences of one step.
        num_gpus: that share weights and KV heads (tensor parallelism).
        total_bytes: of the card; by default `card_bytes(gpu)`.
        foreign_bytes: of other processes on the card. They do not shrink the share, but what is
            really free.
        weight_bytes: on one GPU; by default an equal part of all parameters.
        activations: bytes at the peak; by default `kvlib.overheads.activation_bytes`.
        graphs: bytes of CUDA graphs; by default the likely one of `GRAPHS`, 0 without graphs.
        runtime: bytes outside the framework; by default the likely one of `RUNTIME`.
        outside: parts that do not come out of the share: `{"graphs"}` for vLLM before 0.21,
            `{"graphs", "activations"}` for SGLang's static fraction, nothing for vLLM since.

    Raises:
        TypeError, ValueError: a number or name is refused.
        DoesNotFit: the share is too small for a single block, or the card has no room for what lies
            outside the share or belongs to others; it says which.

    Source: vLLM 0.33.0, `v1/worker/gpu_worker.py`; SGLang 0.5.23, `mem_fraction_static`.

    Example:
        >>> from kvlib.catalog import gpu, model
        >>> plan = plan_capacity(model("Llama-3-8B"), gpu("H100 SXM5"))
        >>> plan.num_blocks, round(plan.concurrency(8192), 1)
        (28764, 56.2)
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization is in (0, 1], got {utilization}")
    if unknown := sorted(set(outside) - {"graphs", "activations", "runtime"}):
        raise ValueError(f"only graphs, activations and runtime may lie outside; got {unknown}")
    kv = shape_on_rank(model.kv, num_gpus)
    kv_dtype = model.dtype if kv_dtype is None else kv_dtype
    total = card_bytes(gpu) if total_bytes is None else total_bytes
    needs = _assumed(model, weight_dtype, num_gpus, max_batched_tokens, max_num_seqs)
    given = {"weights": weight_bytes, "activations": activations}
    given |= {"graphs": graphs, "runtime": runtime}
    needs |= {name: value for name, value in given.items() if value is not None}
    for name, value in (needs | {"total": total, "foreign": foreign_bytes}).items():
        whole_number(f"bytes of {name}", value, least=0)
    block_bytes, free = kv.bytes_per_block(block_size, kv_dtype), total - foreign_bytes
    share = int(total * Fraction(str(utilization)))
    num_blocks = _blocks(needs, block_bytes, share=share, free=free, outside=outside)
    amounts = (needs[name] for name in ("weights", "activations", "graphs", "runtime"))
    card = (total, foreign_bytes)
    return CapacityPlan(kv, kv_dtype, block_size, num_gpus, *card, *amounts, num_blocks)


def _assumed(
    model: ModelShape, weight_dtype: str, num_gpus: int, max_batched_tokens: int, max_num_seqs: int
) -> dict[str, int]:
    """Returns the bytes of what an engine takes beside the cache, as far as nobody tells them."""
    mlp_width, vocab_size = widths(model)
    peak = activation_bytes(
        model.hidden_size,
        mlp_width,
        vocab_size,
        max_batched_tokens=max_batched_tokens,
        max_num_seqs=max_num_seqs,
        num_gpus=num_gpus,
    )
    return {
        "weights": -(-model.weight_bytes(weight_dtype) // num_gpus),
        "activations": peak,
        "graphs": int(GRAPHS.likely * GIB),
        "runtime": int(RUNTIME.likely * GIB),
    }


def _blocks(
    needs: dict[str, int], block_bytes: int, *, share: int, free: int, outside: Collection[str]
) -> int:
    inside = sum(value for name, value in needs.items() if name not in outside)
    num_blocks = max(0, share - inside) // block_bytes
    if num_blocks < 1:
        listed = ", ".join(f"{n} {v / GIB:.2f}" for n, v in needs.items() if n not in outside)
        raise DoesNotFit(
            f"the share is {share / GIB:.2f} GiB and {listed} take {inside / GIB:.2f} of it: "
            f"{(share - inside) / GIB:.2f} GiB are left, a block takes {block_bytes / GIB:.4f}"
        )
    wanted = sum(needs.values()) + num_blocks * block_bytes
    if wanted > free:
        raise DoesNotFit(
            f"the cache takes {num_blocks * block_bytes / GIB:.2f} GiB of the share, and with all "
            f"else that is {wanted / GIB:.2f} GiB; the card has {free / GIB:.2f} free for it"
        )
    return num_blocks
