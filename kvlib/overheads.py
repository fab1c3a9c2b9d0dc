"""What an engine's memory holds beside weights and cache, each amount with where it was seen.

None of it follows from a model's shape alone. So every amount is low, likely and high, an argument
wherever it is used, and what was seen in a log is told from what is guessed.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kvlib.catalog import GPU, ModelShape
from kvlib.sizes import near, whole_number

GIB = 2**30
_FACTS = Path(__file__).with_name("data") / "capacity.json"


class Assumed(NamedTuple):
    """An amount nobody publishes: three values of it, and why these.

    The likely one was chosen with the logs of `data/capacity.json` in view, so a plan that agrees
    with those logs is no forecast.

    Attributes:
        low: the least in the logs that `source` names; others may show less.
        likely: what to plan with.
        high: the most in those logs; others may show more.
        source: the logs it comes from, or that it is a guess.
    """

    low: float
    likely: float
    high: float
    source: str


# In GiB on each GPU.
RUNTIME = Assumed(
    0.16,
    0.4,
    3.6,
    "'non_torch_memory' of vLLM logs: 0.16 (vllm#12126), 0.20 (#14447), 0.35 (#10517), "
    "0.34 to 0.43 (#16570), 1.79 and with two GPUs 3.58 (#10511)",
)
GRAPHS = Assumed(
    0.17,
    0.5,
    3.0,
    "'Estimated CUDA graph memory': 0.17 (club-3090#127), 0.36 (gpustack/runner#251), 0.52 "
    "(LMCache#3430), 0.73 (vllm#39559); measured 2.4 (vllm#7553); 'can take 1~3 GiB' (vllm#3175)",
)
# Copies of the logits in float32 that the sampler of a profile run holds at once.
LOGIT_COPIES = Assumed(
    2,
    3,
    10,
    "fitted: 10 in vLLM 0.6 (vllm#10511, #13882), at most 3 in 0.21 (LMCache#3430)",
)
# What a driver keeps: an engine sees less than nvidia-smi shows.
DRIVER = Assumed(
    0.4, 0.5, 0.65, "H100 79.65 and 79.22, A100 40.00 and 39.38, RTX 4090 23.99, 23.55"
)


@cache
def facts(table: str) -> tuple[dict[str, Any], ...]:
    """Returns one table of `data/capacity.json`: 'widths', 'cards' or 'startups'.

    Raises:
        ValueError: no such table, with those there are.

    Example:
        >>> next(row for row in facts("widths") if row["name"] == "Llama-3-8B")["mlp_width"]
        14336
    """
    tables = json.loads(_FACTS.read_text(encoding="utf-8"))
    if not isinstance(tables.get(table), list):
        raise ValueError(near(table, [name for name in tables if name != "note"], "table"))
    return tuple(tables[table])


def card_bytes(gpu: GPU) -> int:
    """Returns the bytes of a card that an engine can count on.

    What an engine reported where that was seen; else what nvidia-smi shows, less what a driver
    keeps; else the size it is sold by, which is a guess: an H100 sold as 80 GB reports 85.1.

    Example:
        >>> from kvlib.catalog import gpu
        >>> round(card_bytes(gpu("H100 SXM5")) / 1e9, 1), card_bytes(gpu("MI300X")) // 10**9
        (85.1, 192)
    """
    for row in facts("cards"):
        if row["name"] == gpu.name:
            gib = row["total_gib"] if "total_gib" in row else row["smi_gib"] - DRIVER.likely
            return int(gib * GIB)
    return gpu.memory_bytes


def widths(model: ModelShape) -> tuple[int, int]:
    """Returns how wide the MLP is that one token passes through, and how many tokens are known.

    Of a model whose widths were not seen, four times the hidden size and 2^17: a guess.

    Example:
        >>> from kvlib.catalog import model
        >>> widths(model("Mixtral-8x7B"))  # two experts of 14,336
        (28672, 32000)
    """
    for row in facts("widths"):
        if row["name"] == model.name:
            return row["mlp_width"], row["vocab_size"]
    return 4 * model.hidden_size, 2**17


def activation_bytes(
    hidden_size: int,
    mlp_width: int,
    vocab_size: int,
    *,
    max_batched_tokens: int,
    max_num_seqs: int,
    num_gpus: int = 1,
    itemsize: int = 2,
    logit_copies: float = LOGIT_COPIES.likely,
) -> int:
    """Returns the peak of a profile run on one GPU: what one step of the largest size holds.

    The MLP holds most of a layer: gate and up, their product, and the hidden state three times
    (the residual, its norm, the output): `T * itemsize * (3 * mlp_width / num_gpus + 3 * hidden)`.
    After the last layer come the logits of one row a sequence, in float32, several times. The two
    are not alive at once, so the larger counts. Attention is left out: a fused kernel keeps no
    scores. The formula is ours, and was fitted: which terms count was chosen with the logs in view
    that it reproduces within 1 % (vllm#10517, #11251).

    Args:
        hidden_size: width between layers.
        mlp_width: as `widths` gives it, of the whole model.
        vocab_size: logits of one row.
        max_batched_tokens: the most tokens of one step.
        max_num_seqs: the most sequences of one step.
        num_gpus: that share the MLP.
        itemsize: bytes of an activation.
        logit_copies: see `LOGIT_COPIES`.

    Raises:
        TypeError, ValueError: a size is not a whole number of at least 1.

    Example:
        Llama-3-8B, 20,000 tokens: 20,000 x 2 x (3 x 14,336 + 3 x 4,096); the log says 2.07 GiB.

        >>> peak = activation_bytes(4096, 14336, 128256, max_batched_tokens=20000, max_num_seqs=16)
        >>> peak == 20000 * 110592, round(peak / 2**30, 2)
        (True, 2.06)
    """
    for name, value in list(locals().items())[:-1]:
        whole_number(name, value)
    inside = max_batched_tokens * itemsize * (3 * -(-mlp_width // num_gpus) + 3 * hidden_size)
    rows = min(max_num_seqs, max_batched_tokens)
    return max(inside, int(rows * vocab_size * 4 * logit_copies))
