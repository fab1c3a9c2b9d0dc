"""Generation: the same tokens with and without a cache, and the work that proves which it was."""

import pytest
import torch

from conftest import small_config
from kvlib.metrics import WorkCounters
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.generate import Generation, generate, stream
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig
from kvlib.tensors.sampling import Sampling

PROMPT = [3, 1, 4, 1, 5]


def cache_for(model, **changes):
    sizes = {"num_seqs": 2, "max_seq_len": 32, "dtype": model.dtype, "device": model.device}
    return ContiguousKVCache(model.kv_shape, **{**sizes, **changes})


def test_tokens_agree_with_and_without_a_cache(small_model):
    cached = generate(small_model, PROMPT, 12, cache=cache_for(small_model))
    naive = generate(small_model, PROMPT, 12)
    assert len(cached.tokens) == 12
    assert cached.agrees_with(naive)


@pytest.mark.parametrize("prompt_len, new", [(1, 1), (1, 16), (5, 12)])
def test_a_cache_forwards_each_token_once_and_no_cache_all_of_them_again(
    small_model, prompt_len, new
):
    cached = generate(small_model, [7] * prompt_len, new, cache=cache_for(small_model))
    naive = generate(small_model, [7] * prompt_len, new)
    n = prompt_len + new - 1
    assert cached.work.tokens_forwarded == n
    assert naive.work.tokens_forwarded == sum(range(prompt_len, n + 1))
    assert cached.work.attention_pairs == n * (n + 1) // 2
    per_token = small_model.kv_shape.bytes_per_token("float32")
    assert cached.work.bytes_written == n * per_token
    assert cached.work.bytes_read == sum(range(prompt_len, n + 1)) * per_token
    assert naive.work.bytes_written == 0


def test_n_against_n_n_plus_1_over_2(small_model):
    n = 24
    assert generate(small_model, [7], n, cache=cache_for(small_model)).work.tokens_forwarded == n
    assert generate(small_model, [7], n).work.tokens_forwarded == n * (n + 1) // 2


@pytest.mark.model
def test_the_real_model_agrees_with_itself_and_uses_its_cache(real_model):
    model, tokenizer = real_model
    prompt = tokenizer.encode("The capital of France is")
    cached = generate(model, prompt, 12, cache=cache_for(model))
    naive = generate(model, prompt, 12)
    assert cached.agrees_with(naive)
    assert cached.work.tokens_forwarded == len(prompt) + 11
    assert naive.work.tokens_forwarded == sum(range(len(prompt), len(prompt) + 12))
    assert "Paris" in tokenizer.decode(list(cached.tokens))


def test_rows_come_back_however_generation_ends(small_model):
    cache = cache_for(small_model)
    generate(small_model, PROMPT, 3, cache=cache)
    stream(small_model, PROMPT, 3, cache=cache)
    half_read = stream(small_model, PROMPT, 3, cache=cache)
    next(half_read)
    assert cache.ledger.num_free == 1
    half_read.close()
    small_model.model.embed_tokens.forward = None
    with pytest.raises(TypeError):
        generate(small_model, PROMPT, 3, cache=cache)
    assert cache.ledger.num_free == 2
    cache.check()


def test_streaming_yields_the_tokens_of_generate(small_model):
    got = list(stream(small_model, PROMPT, 6, cache=cache_for(small_model)))
    assert tuple(got) == generate(small_model, PROMPT, 6).tokens


def test_a_stop_token_ends_the_text_and_is_its_last(small_model):
    free = generate(small_model, PROMPT, 8).tokens
    stopped = generate(small_model, PROMPT, 8, stop_tokens=[free[3]]).tokens
    assert stopped == free[: free.index(free[3]) + 1]


def test_equal_seeds_draw_equal_tokens(small_model):
    warm = Sampling(temperature=2.0, seed=5)
    first, second = (generate(small_model, PROMPT, 10, sampling=warm).tokens for _ in range(2))
    other = generate(small_model, PROMPT, 10, sampling=Sampling(temperature=2.0, seed=6)).tokens
    assert first == second != other


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}])
def test_sampling_among_one_token_is_greedy(small_model, narrow):
    greedy = generate(small_model, PROMPT, 6).tokens
    assert generate(small_model, PROMPT, 6, sampling=Sampling(3.0, **narrow)).tokens == greedy


def test_top_p_keeps_the_fewest_tokens_that_hold_the_share():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    choose = Sampling(temperature=1.0, top_p=0.6).chooser()
    assert {choose(logits) for _ in range(200)} == {0, 1}
    choose = Sampling(temperature=1.0, top_p=0.5).chooser()
    assert {choose(logits) for _ in range(50)} == {0}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"temperature": -1}, "temperature is 0 or more"),
        ({"temperature": float("nan")}, "temperature is 0 or more"),
        ({"top_k": 0}, "top_k is at least 1"),
        ({"top_p": 0}, r"top_p lies in \(0, 1\]"),
        ({"top_p": 1.1}, r"top_p lies in \(0, 1\]"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)


@pytest.mark.parametrize(
    "prompt, new, error, message",
    [
        ([], 3, ValueError, "0 prompt tokens"),
        (PROMPT, 0, ValueError, "max_new_tokens 0"),
        ([3, 97], 3, ValueError, r"token 1 of the prompt is outside the vocabulary \[0, 97\)"),
        ([-1], 3, ValueError, "token 0 of the prompt is outside"),
        (PROMPT, 61, ValueError, "store 65, beyond the model's context of 64"),
        (PROMPT, 29, SequenceTooLong, "store 33, beyond the cache's max_seq_len 32"),
    ],
)
@pytest.mark.parametrize("way", [generate, stream])
def test_what_cannot_work_is_refused_at_once(small_model, way, prompt, new, error, message):
    cache = cache_for(small_model)
    with pytest.raises(error, match=message):
        way(small_model, prompt, new, cache=cache)
    assert cache.ledger.num_free == 2
    assert cache.counters == WorkCounters()


def test_a_full_cache_refuses_and_keeps_its_sequences(small_model):
    cache = cache_for(small_model, num_seqs=1)
    cache.add("tenant")
    with pytest.raises(OutOfBlocks):
        generate(small_model, PROMPT, 3, cache=cache)
    assert cache.ledger.seq_ids == ("tenant",)


def test_agreement_forgives_a_near_tie_and_nothing_else():
    def made(tokens, gaps):
        return Generation(tokens, gaps, WorkCounters())

    tie, clear = made((1, 2, 3), (1.0, 1e-5, 1.0)), made((1, 2, 3), (1.0, 0.5, 1.0))
    other = made((1, 9, 9), (1.0, 1e-5, 1.0))
    assert tie.agrees_with(other)
    assert not clear.agrees_with(other)
    assert not tie.agrees_with(made((1, 2), (1.0, 1.0)))


def test_tokens_that_do_not_match_the_plan_are_refused(small_model):
    cache = cache_for(small_model)
    cache.add("a")
    with pytest.raises(ValueError, match="2 new tokens"), cache.step({"a": [1, 2]}) as plan:
        small_model(torch.tensor([1], device=small_model.device), cache, plan)
    assert cache.length("a") == 0


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_q_heads": 5}, "multiple of num_kv_heads: 5 and 2"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"num_layers": 0}, "num_layers must be at least 1"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "'llama3' lacks"),
    ],
)
def test_a_config_that_cannot_be_computed_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        small_config(**change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "qwen3"}, "only model_type 'llama' is read, got 'qwen3'"),
        ({"attention_bias": True}, "attention_bias must be False"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1.0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor must be 1.0"),
        ({"vocab_size": None}, "vocab_size must be a whole number"),
    ],
)
def test_a_config_of_another_architecture_is_refused(change, message):
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    plain = {"model_type": "llama", "vocab_size": 97, "num_attention_heads": 6, **sizes}
    assert LlamaConfig.from_hf(plain).head_dim == 4
    with pytest.raises((TypeError, ValueError), match=message):
        LlamaConfig.from_hf(plain | change)
    with pytest.raises(ValueError, match=r"lacks \['hidden_size'\]"):
        LlamaConfig.from_hf({k: v for k, v in plain.items() if k != "hidden_size"})


def test_equal_seeds_make_equal_models():
    first, second = (Llama.random(small_config(), seed=s) for s in (4, 4))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
