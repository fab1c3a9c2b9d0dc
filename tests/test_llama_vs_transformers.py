"""Our Llama and Hugging Face's compute the same logits from the same files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import small_config
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.generate import generate
from kvlib.tensors.llama import Llama
from kvlib.tensors.model_cache import cached_model
from kvlib.tensors.step import NoCache
from kvlib.tensors.weights import load_model
from tiny_folder import write_folder

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

LOGIT_TOLERANCE = 1e-4  # our logits against theirs, float32
FLIP_TOLERANCE = 5e-4  # two best logits this close may swap
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
PROMPTS = [
    "What is the capital of France?",
    "Explain in two sentences what a cache is.",
    "List the first ten prime numbers.",
    "Schreibe einen Satz über den Regen.",
]


def our_logits(model: Llama, ids: list[int]) -> Tensor:
    cache = NoCache()
    with cache.step({0: ids}) as plan:
        return model(torch.tensor(ids), cache, plan, all_logits=True)


@torch.no_grad()
def their_logits(model: torch.nn.Module, ids: list[int]) -> Tensor:
    return model(torch.tensor([ids])).logits[0]


# Llamas of other shapes, with random weights


def their_random_llama(**changes: object) -> torch.nn.Module:
    ours = small_config()
    sizes = {
        "vocab_size": ours.vocab_size,
        "hidden_size": ours.hidden_size,
        "intermediate_size": ours.intermediate_size,
        "num_hidden_layers": ours.num_layers,
        "num_attention_heads": ours.num_q_heads,
        "num_key_value_heads": ours.num_kv_heads,
        "max_position_embeddings": 256,
        # large enough for logits that differ by far more than the tolerance
        "initializer_range": 0.5,
        "pad_token_id": None,
    }
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes})).eval()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1},
        {"head_dim": 16},
        {"tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500000.0}},
        {"rms_norm_eps": 1e-2},
    ],
    ids=["gqa", "mha", "mqa", "wide-heads", "tied", "theta", "llama3-rope", "eps"],
)
def test_random_llamas_of_any_shape_agree(tmp_path: Path, changes: dict) -> None:
    theirs = their_random_llama(**changes)
    write_folder(tmp_path)
    theirs.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path, device="cpu")
    ids = torch.randint(0, 97, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    got, wanted = our_logits(ours, ids), their_logits(theirs, ids)
    assert wanted.std() > 0.3
    assert (got - wanted).abs().max() < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
        {"hidden_act": "gelu"},
    ],
    ids=str,
)
def test_variants_we_do_not_compute_are_refused(tmp_path: Path, changes: dict) -> None:
    write_folder(tmp_path)
    their_random_llama(**changes).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json"):
        load_model(tmp_path, device="cpu")


# the real model


@pytest.fixture(scope="module")
def their_model() -> torch.nn.Module:
    folder = cached_model("smollm2-135m")
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.model
@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_of_the_real_model_agree(real_model, their_model, prompt: str) -> None:
    model, tokenizer = real_model
    ids = tokenizer.encode(tokenizer.chat(prompt))
    difference = our_logits(model, ids) - their_logits(their_model, ids)
    assert difference.abs().max() < LOGIT_TOLERANCE


@pytest.mark.model
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_of_the_real_model_agree(real_model, their_model, prompt: str) -> None:
    model, tokenizer = real_model
    ids = tokenizer.encode(tokenizer.chat(prompt))
    cache = ContiguousKVCache(model.kv_shape, num_seqs=1, max_seq_len=128)
    ours = generate(model, ids, 32, cache=cache, stop_tokens=tokenizer.eos_ids)
    theirs = their_model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=32,
        do_sample=False,
        eos_token_id=list(tokenizer.eos_ids),
        pad_token_id=0,
    )[0, len(ids) :].tolist()
    parted = [
        i for i, pair in enumerate(zip(ours.tokens, theirs, strict=False)) if len({*pair}) > 1
    ]
    assert parted or len(ours.tokens) == len(theirs)
    assert not parted or ours.gaps[parted[0]] < FLIP_TOLERANCE


@pytest.mark.model
def test_weights_in_gguf_order_under_our_rotation_talk_nonsense(real_model, their_model) -> None:
    model, tokenizer = real_model
    config = model.config
    state = dict(model.state_dict())
    for name in state:
        for part, heads in (("q_proj", config.num_q_heads), ("k_proj", config.num_kv_heads)):
            if part in name:
                halves = state[name].reshape(heads, 2, config.head_dim // 2, -1)
                state[name] = halves.transpose(1, 2).reshape(state[name].shape)
    with torch.device("meta"):
        mixed = Llama(config)
    mixed.load_state_dict(state, assign=True)
    ids = tokenizer.encode(tokenizer.chat(PROMPTS[0]))
    difference = our_logits(mixed, ids) - their_logits(their_model, ids)
    assert difference.abs().max() > 5
    right = tokenizer.decode(generate(model, ids, 8).tokens)
    wrong = tokenizer.decode(generate(mixed, ids, 8).tokens)
    assert "Paris" in right and "Paris" not in wrong


@pytest.mark.model
def test_chat_prompt_is_what_the_model_s_own_template_makes(real_model) -> None:
    _, tokenizer = real_model
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(cached_model("smollm2-135m"))
    user = {"role": "user", "content": "What is 12 + 30?"}
    answer = {"role": "assistant", "content": " 42 "}
    system = {"role": "system", "content": "Be brief."}
    for said in ([user], [user, answer, user], [system, user], [system], [answer]):
        prompt = theirs.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        assert tokenizer.chat(said) == prompt
        assert tokenizer.encode(prompt) == theirs.encode(prompt)
