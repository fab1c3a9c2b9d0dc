"""Published models and GPUs: each row against its facts, and what is refused and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvlib.catalog import GPU, gpu, gpus, model, models
from kvlib.sizes import KVShape

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "data"


def published(name: str) -> dict[str, Any]:
    path = PUBLISHED / name
    if not path.exists():
        pytest.skip(f"{name} is not beside this checkout: the retyped table goes unchecked here")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("OPT-13B", 819_200),
        ("Llama-3-8B", 131_072),
        ("Llama-3-70B", 327_680),
        ("DeepSeek-V3", 70_272),
    ],
)
def test_published_bytes_per_token(name: str, expected: int) -> None:
    shape = model(name)
    assert shape.kv.bytes_per_token(shape.dtype) == expected


def test_every_published_model_recomputed() -> None:
    facts = published("model_configs.json")
    rows = {row["name"]: row for row in facts["models"]}
    assert models() == list(rows) and len(rows) == 37
    for name, row in rows.items():
        shape, kv = model(name), model(name).kv
        n = row["context_length"]
        computed = {
            "num_layers": kv.num_layers,
            "num_q_heads": shape.num_q_heads,
            "num_kv_heads": kv.num_kv_heads,
            "head_dim": kv.head_dim,
            "hidden_size": shape.hidden_size,
            "window": kv.window,
            "num_local_layers": kv.num_local_layers,
            "num_global_layers": kv.num_full_layers,
            "attention": shape.attention,
            "context_length": shape.context_length,
            "params_b": shape.params / 1e9,
            "active_params_b": shape.active_params and shape.active_params / 1e9,
            "kv_elements_per_token_per_layer": kv.elements_per_layer,
            "kv_bytes_per_token": kv.bytes_per_token(shape.dtype),
            "kv_bytes_per_token_beyond_window": kv.bytes_per_token(shape.dtype, beyond_window=True),
            "kv_bytes_at_context": shape.kv_bytes(n),
            "kv_bytes_at_context_no_window": n * kv.bytes_per_token(shape.dtype),
        }
        assert computed == {key: row[key] for key in computed}, name
        # One row adds what the weights are stored in: "bfloat16 cache (weights fp8)".
        assert shape.dtype == row["dtype"].split()[0], name


def test_every_published_gpu_is_retyped() -> None:
    rows = {row["name"]: row for row in published("gpus.json")["gpus"]}
    assert gpus() == list(rows)
    for name, row in rows.items():
        card = gpu(name)
        for key in ("vendor", "year", "memory_gb", "memory_gb_alt", "memory_bandwidth_gb_s"):
            assert getattr(card, key) == row[key], (name, key)
        assert card.fp16_dense_tflops == row["fp16_dense_tflops"]
        assert card.bf16_dense_tflops == row["bf16_dense_tflops"]
        assert card.verification == row["verified"]
        assert round(card.ridge_flop_per_byte, 1) == row["ridge_flop_per_byte"]


def test_every_row_names_its_source() -> None:
    for fact in [*map(model, models()), *map(gpu, gpus())]:
        assert fact.source and fact.verification
        assert set(getattr(fact, "unsourced", ())) <= set(vars(fact))


def test_kv_overtakes_the_weights_at_that_token_and_not_before() -> None:
    for shape in map(model, models()):
        total, per_token = shape.overtaking_tokens("float16"), shape.kv.bytes_per_token(shape.dtype)
        assert (total - 1) * per_token <= shape.weight_bytes("float16") < total * per_token


def test_a_row_does_not_change_but_another_may_be_made_of_it() -> None:
    for row in (gpu("L4"), model("DeepSeek-V3")):
        with pytest.raises(FrozenInstanceError):
            row.name = "mine"
    assert replace(model("DeepSeek-V3"), name="mine", num_q_heads=3).attention == "mla"


def test_a_number_of_tokens_is_whole() -> None:
    for num_tokens in (1e9, 1.0, True):
        with pytest.raises(TypeError, match="num_tokens must be a whole number"):
            model("OPT-13B").kv_bytes(num_tokens)


def test_a_smaller_cache_overtakes_later() -> None:
    opt = model("OPT-13B")
    assert opt.overtaking_tokens("float16", "int8") == 63_477  # 26e9 / 409,600 = 63,476.6


def card(memory_gb: int) -> GPU:
    return replace(gpu("A100 80GB SXM"), memory_gb=memory_gb)


def test_sequences_that_fit_use_every_byte_and_no_more() -> None:
    llama = model("Llama-3-8B")
    # 16 sequences of 8,192 tokens take 17.18e9 bytes and the weights 16.06e9: 33.24 of 34.
    assert llama.max_num_seqs(card(34), 8192, reserved=0, weight_dtype="bfloat16") == 16
    assert llama.max_num_seqs(card(33), 8192, reserved=0, weight_dtype="bfloat16") == 15
    fp8 = {"weight_dtype": "fp8", "kv_dtype": "fp8"}
    assert llama.max_num_seqs(card(34), 8192, reserved=0, **fp8) == 48


def test_a_reserved_tenth_is_exactly_a_tenth() -> None:
    # 10e9 bytes, a tenth reserved, 5e9 of weights: exactly 4e9 / 2 tokens' bytes remain.
    tiny = replace(
        model("OPT-13B"), params=5 * 10**9, kv=KVShape(1, 1, 10**9), context_length=1, num_q_heads=1
    )
    for tenth in (0.1, Fraction(1, 10)):
        count = tiny.max_num_seqs(card(10), 1, reserved=tenth, weight_dtype="int8", kv_dtype="int8")
        assert count == 2


def test_no_sequence_fits_where_the_weights_do_not() -> None:
    big = model("Llama-3-70B")
    assert big.max_num_seqs(gpu("H100 SXM5"), 8192, reserved=0.1, weight_dtype="bfloat16") == 0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: replace(model("Llama-3-8B"), num_q_heads=6, kv=KVShape(1, 4, 2)),
            "multiple of num_kv_heads, got 6 query heads for 4 KV heads",
        ),
        (lambda: replace(model("OPT-13B"), params=0), "params must be at least 1, got 0"),
        (lambda: replace(model("OPT-13B"), dtype="half"), "no dtype 'half'; known: float32"),
        (
            lambda: model("OPT-13B").kv_bytes(2049),
            "OPT-13B has a context of 2,048 tokens, asked for 2,049; beyond_context=True sizes it",
        ),
        (lambda: model("OPT-13B").kv_bytes(0), "num_tokens must be at least 1, got 0"),
        (lambda: model("OPT-13B").kv_bytes(8, ""), "no dtype ''; known: float32"),
        (lambda: model("OPT-13B").weight_bytes("fp4"), "no dtype 'fp4'; known: float32"),
        (lambda: gpu("H100"), "no GPU 'H100'; known: .*H100 SXM5, H100 PCIe"),
        (
            lambda: model("OPT-13B").max_num_seqs(card(80), 9, reserved=1, weight_dtype="fp8"),
            r"reserved must be in \[0, 1\), got 1",
        ),
    ],
)
def test_bad_input_is_refused_with_its_numbers(ask: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask()


def test_beyond_its_context_a_model_is_sized_when_told() -> None:
    llama = model("Llama-3-8B")
    assert llama.kv_bytes(131_072, beyond_context=True) == 16 * 2**30
    on_80_gb = {"reserved": 0.1, "weight_dtype": "bfloat16"}
    with pytest.raises(ValueError, match="asked for 131,072"):
        llama.max_num_seqs(card(80), 131_072, **on_80_gb)
    assert llama.max_num_seqs(card(80), 131_072, beyond_context=True, **on_80_gb) == 3


@pytest.mark.parametrize(
    ("asked", "offered"),
    [("llama-3-8b", "Llama-3-8B"), ("Llama 3 8B", "Llama-3-8B"), ("v3", "DeepSeek-V3")],
)
def test_an_unknown_model_lists_the_near_names(asked: str, offered: str) -> None:
    with pytest.raises(ValueError, match=f"model '{asked}'; near: .*{offered}") as told:
        model(asked)
    assert "SmolLM2-360M" not in str(told.value)


def test_a_name_like_none_lists_them_all() -> None:
    with pytest.raises(ValueError, match=r"known: GPT-3 175B, .*, gpt-oss-120b$"):
        model("???")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("GPT-4", "the sizes of GPT-4 were never published: OpenAI's GPT-4 Technical Report"),
        ("gpt-4 turbo", "the sizes of GPT-4 were never published"),
        ("Claude 3", "the sizes of Claude 3 were never published: Anthropic has published no"),
        ("claude-3-opus", "the sizes of Claude 3 were never published"),
    ],
)
def test_sizes_never_published_are_refused_with_the_reason(asked: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        model(asked)
    assert asked not in models()


def test_lists_handed_out_are_copies() -> None:
    models().clear()
    gpus().clear()
    assert len(models()) == 37 and len(gpus()) == 11
