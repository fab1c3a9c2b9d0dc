"""Small models of transformers with random weights, and their texts with its own cache."""

import os
from functools import cache

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
pytest.importorskip("transformers")

import transformers

from kvlib.tensors.hf_support import UnsupportedTransformers

try:
    from kvlib.tensors.hf import HFCache
except UnsupportedTransformers as error:
    pytest.skip(str(error), allow_module_level=True)

SIZES = {
    "vocab_size": 89,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": 1,
}
HYBRID = {"head_dim": 8, "sliding_window": 7, "query_pre_attn_scalar": 5}
KINDS = {
    "llama": ("Llama", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "gemma2": ("Gemma2", {**HYBRID, "attn_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3", {**HYBRID, "num_hidden_layers": 3}),
}
LAYERS = {
    "gemma2": ["sliding_attention", "full_attention"],
    "gemma3": ["sliding_attention", "full_attention", "sliding_attention"],
}
EXACT = {
    "contiguous": lambda model, rows=9: HFCache.contiguous(model, rows, 64),
    "paged": lambda model, rows=9: HFCache.paged(model, 60, 4),
    "tiered": lambda model, rows=9: HFCache.tiered(model, 60, 4),
}
CACHES = {
    **EXACT,
    "quantized": lambda model, rows=9: HFCache.quantized(model, 60, 4, num_seqs=rows),
}
STRATEGIES = {
    "greedy": {},
    "sampling": {"do_sample": True},
    "beams": {"num_beams": 3},
    "chunked": {"prefill_chunk_size": 4},
}
IDS = torch.randint(2, 89, (3, 13), generator=torch.Generator().manual_seed(1))
PADS = (0, 5, 9)
MASK = torch.stack([(torch.arange(13) >= pads).long() for pads in PADS])
PADDED = IDS * MASK


def tiny(kind, device="cpu", **changes):
    """A model of one kind; its scale, window and QK norm are not a Llama's."""
    name, own = KINDS[kind]
    config_class = getattr(
        transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    )
    layers = {"layer_types": LAYERS[kind]} if kind in LAYERS else {}
    config = config_class(**{**SIZES, **own, **layers, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval().to(device)
    model.set_attn_implementation(plain(kind))
    return model


def plain(kind):
    """Capped scores, as Gemma 2 has them, are refused by `sdpa`."""
    return "eager" if kind == "gemma2" else "sdpa"


def text(model, cache, strategy="greedy", padded=True, **options):
    """Generates after three prompts, with pads on the left or equally long."""
    torch.manual_seed(5)
    options = {"do_sample": False, "max_new_tokens": 12, **STRATEGIES[strategy], **options}
    ids, mask = (PADDED, MASK) if padded else (IDS, torch.ones_like(IDS))
    ids, mask = ids.to(model.device), mask.to(model.device)
    return model.generate(ids, attention_mask=mask, cache=cache, **options)


@cache
def expected(kind, strategy="greedy", padded=True, device="cpu"):
    """The text with the cache that transformers makes itself."""
    return text(tiny(kind, device), None, strategy, padded)


def free_blocks(cache):
    """Of every group, how many blocks (rows) are free, and how many there are."""
    ledgers = [group.cache.ledger for group in cache.groups]
    return [(ledger.num_free, getattr(ledger, "num_seqs", 60)) for ledger in ledgers]


def assert_all_free(cache):
    cache.check()
    assert all(free == total for free, total in free_blocks(cache))
