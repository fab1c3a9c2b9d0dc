"""Work for several processes: what the page on sharded caches runs.

A process that is started afresh imports its work by name, so the work stands here and not in a
notebook. `kvlib.tensors.processes` starts it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvlib.tensors.block_bytes import LostBlock
from kvlib.tensors.caches import SlotCache
from kvlib.tensors.distributed import PeerLost, Ranks
from kvlib.tensors.generate import generate
from kvlib.tensors.head_sharded import HeadShardedKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.sequence_sharded import SequenceShardedKVCache
from kvlib.tensors.transfer import receive_sequence, send_sequence
from kvlib.tensors.weights import load_model

SHARDED = {"heads": HeadShardedKVCache, "tokens": SequenceShardedKVCache}
BLOCK_SIZE = 4


@dataclass(frozen=True)
class RankReport:
    """What one rank has to say after a run.

    Attributes:
        texts: the new tokens of each prompt.
        nbytes: bytes of keys and values allocated on this rank.
        sent_bytes: bytes sent to other ranks.
        forwarded: tokens that went through this rank's model.
        lost: why this rank had to recompute; empty if it had not to.
    """

    texts: tuple[tuple[int, ...], ...]
    nbytes: int
    sent_bytes: int
    forwarded: int
    lost: str = ""


def tiny_model(num_q_heads: int = 6, num_kv_heads: int = 3, seed: int = 0) -> Llama:
    """Returns a model with random weights, the same in every process."""
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=48,
        intermediate_size=64,
        num_layers=3,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,  # tied random weights would repeat the last token for ever
    )
    return Llama.random(config, seed)


def _open_model(name: str) -> Llama:
    """Returns the model `tiny`, or a published one by its name."""
    return tiny_model() if name == "tiny" else load_model(name, device="cpu")[0]


def generate_sharded(
    ranks: Ranks, by: str, name: str, prompts: Sequence[Sequence[int]], num_new: int
) -> RankReport:
    """Generates after each prompt with a cache cut over the ranks, by `heads` or by `tokens`."""
    model = _open_model(name)
    longest = max(map(len, prompts)) + num_new
    parts = ranks.size if by == "tokens" else 1
    blocks = -(-longest // (BLOCK_SIZE * parts))
    cache = SHARDED[by](model.kv_shape, blocks, BLOCK_SIZE, ranks=ranks)
    texts = tuple(generate(model, prompt, num_new, cache=cache).tokens for prompt in prompts)
    cache.check()
    return RankReport(texts, cache.nbytes, ranks.sent_bytes, cache.counters.tokens_forwarded)


def prefill_then_decode(
    ranks: Ranks, name: str, prompt: Sequence[int], num_new: int, fault: str = ""
) -> RankReport:
    """Rank 0 forwards the prompt and sends what it cached; rank 1 receives it and writes the text.

    Args:
        ranks: two.
        name: the model.
        prompt: token ids; both ranks know them.
        num_new: tokens to write.
        fault: "dies" ends rank 0 in the middle of the transfer, "damages" flips one bit of it.
            Rank 1 then forwards the prompt itself.
    """
    model = _open_model(name)
    # Two machines need not agree on the size of a block.
    size = BLOCK_SIZE * (1 + ranks.rank)
    cache = PagedKVCache(model.kv_shape, -(-(len(prompt) + num_new) // size), size)
    cache.add("a")
    if ranks.rank == 0:
        # The last token is left to the decoder: its logits choose the first new one.
        forward(model, cache, "a", prompt[:-1])
        _add_fault(ranks, fault, model.config.num_layers)
        send_sequence(ranks, 1, cache, "a", prompt[:-1])
        return RankReport((), cache.nbytes, ranks.sent_bytes, cache.counters.tokens_forwarded)
    lost = ""
    try:
        receive_sequence(ranks, 0, cache, "a")
    except (PeerLost, LostBlock) as error:
        lost = f"{type(error).__name__}: {error}"
    text = greedy(model, cache, "a", prompt, num_new)
    cache.check()
    sent = ranks.sent_bytes
    return RankReport((text,), cache.nbytes, sent, cache.counters.tokens_forwarded, lost)


def unequal_parts(ranks: Ranks, asked: bool) -> list[float] | str:
    """Gathers parts that are longer on each rank: rank `r` brings `4 + r` times its number plus 1.

    Args:
        ranks: the group.
        asked: whether the ranks agree on the length first.

    Returns:
        What this rank read of all parts, or the error it got.
    """
    part = torch.full((4 + ranks.rank,), 1.0 + ranks.rank)
    try:
        if asked:
            ranks.agree("the length of a part", f"{len(part)} numbers")
        return torch.cat(ranks.gather(part)).tolist()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


def forward(model: Llama, cache: SlotCache, seq_id: object, tokens: Sequence[int]) -> torch.Tensor:
    """Forwards tokens at the end of a sequence and returns the logits after the last."""
    with cache.step({seq_id: tokens}) as plan:
        return model(torch.tensor(tokens, device=model.device), cache, plan)[0]


def greedy(
    model: Llama, cache: SlotCache, seq_id: object, prompt: Sequence[int], num_new: int
) -> tuple[int, ...]:
    """Writes on after a prompt, forwarding only what the cache does not hold of it yet."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_new:
        logits = forward(model, cache, seq_id, tokens[cache.length(seq_id) :])
        tokens.append(int(logits.argmax()))
    return tuple(tokens[len(prompt) :])


def _add_fault(ranks: Ranks, fault: str, num_layers: int) -> None:
    """Makes this rank's next transfer go wrong in its second layer."""
    if not fault:
        return
    send, sent = ranks.send, []

    def faulty(data: torch.Tensor, to: int) -> None:
        sent.append(data)
        if len(sent) == 4 and fault == "dies":  # header, token ids, one layer
            os._exit(1)
        if len(sent) == 4:
            data = data.clone()
            data.view(torch.uint8)[..., 0] ^= 1
        send(data, to)

    ranks.send = faulty
