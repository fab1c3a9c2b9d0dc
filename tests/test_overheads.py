"""What an engine takes beside weights and cache, against what engines printed."""

import re
from dataclasses import replace

import pytest

from kvlib import catalog
from kvlib.overheads import (
    DRIVER,
    GIB,
    GRAPHS,
    LOGIT_COPIES,
    RUNTIME,
    activation_bytes,
    card_bytes,
    facts,
    widths,
)

PROFILED = [row for row in facts("startups") if "activations_gib" in row]


@pytest.mark.parametrize("row", PROFILED, ids=lambda row: f"{row['max_batched_tokens']}")
def test_the_peak_of_a_profile_run_is_what_vllm_printed(row):
    model = catalog.model(row["model"])
    mlp_width, vocab_size = widths(model)
    peak = activation_bytes(
        model.hidden_size,
        mlp_width,
        vocab_size,
        max_batched_tokens=row["max_batched_tokens"],
        max_num_seqs=row["max_num_seqs"],
        num_gpus=row.get("num_gpus", 1),
        logit_copies=LOGIT_COPIES.high,  # all these logs are of vLLM 0.6
    )
    assert peak / GIB == pytest.approx(row["activations_gib"], rel=0.035)


def test_in_the_three_logs_without_a_sampler_the_formula_is_within_one_percent():
    rows = [row for row in PROFILED if row["max_batched_tokens"] > 8192]
    assert len(rows) == 3
    for row in rows:
        shared = 3 * 14336 // row.get("num_gpus", 1)
        by_hand = row["max_batched_tokens"] * 2 * (shared + 3 * 4096) / GIB
        assert by_hand == pytest.approx(row["activations_gib"], rel=0.01)


def test_the_peak_grows_with_tokens_until_the_logits_outgrow_it():
    def peak(tokens, seqs):
        return activation_bytes(8, 16, 1000, max_batched_tokens=tokens, max_num_seqs=seqs)

    assert peak(1000, 1) == 2 * peak(500, 1) == 1000 * 2 * (3 * 16 + 3 * 8)
    assert peak(1000, 100) == 100 * 1000 * 4 * LOGIT_COPIES.likely
    assert peak(2, 100) == peak(2, 2)  # no more rows than tokens


@pytest.mark.parametrize("amount", [RUNTIME, GRAPHS, LOGIT_COPIES, DRIVER])
def test_what_is_assumed_has_three_values_in_order_and_says_where_from(amount):
    assert 0 < amount.low <= amount.likely <= amount.high
    assert amount.source


def named(amount):
    """The amounts that a source names, its issue numbers and programs' versions left out."""
    plain = re.sub(r"\w*#\d+|vLLM [\d.]+", "", amount.source)
    return [float(each) for each in re.findall(r"\d+(?:\.\d+)?", plain)]


@pytest.mark.parametrize("amount", [RUNTIME, GRAPHS])
def test_the_ends_are_the_least_and_the_most_that_was_seen(amount):
    seen = sorted(each for each in named(amount) if each < 10)
    assert (amount.low, amount.high) == (seen[0], pytest.approx(seen[-1], abs=0.05))


def test_what_to_plan_with_is_stated():
    """Chosen, not derived: whoever chooses anew changes every plan that the book prints."""
    assert (RUNTIME.likely, GRAPHS.likely, DRIVER.likely) == (0.4, 0.5, 0.5)
    assert LOGIT_COPIES[:3] == (2, 3, 10)


def test_of_a_model_nobody_has_looked_at_the_widths_are_guessed():
    unseen = replace(catalog.model("Llama-3-8B"), name="unseen", hidden_size=100)
    assert widths(unseen) == (400, 131_072)


def test_a_card_is_not_the_size_it_is_sold_by():
    h100, a100, mi300x = map(catalog.gpu, ("H100 SXM5", "A100 40GB", "MI300X"))
    assert card_bytes(h100) / h100.memory_bytes == pytest.approx(1.063, abs=1e-3)
    assert card_bytes(a100) / a100.memory_bytes == pytest.approx(1.057, abs=1e-3)
    assert card_bytes(mi300x) == mi300x.memory_bytes  # nothing seen: as sold
    assert card_bytes(catalog.gpu("L4")) < catalog.gpu("L4").memory_bytes


def test_every_fact_belongs_to_something_in_the_catalogue_and_has_a_source():
    assert {row["name"] for row in facts("widths")} <= set(catalog.models())
    assert {row["name"] for row in facts("cards")} <= set(catalog.gpus())
    assert {row["model"] for row in facts("startups")} <= set(catalog.models())
    assert all(row["source"] for table in ("widths", "cards", "startups") for row in facts(table))
    with pytest.raises(ValueError, match="no table 'card'; known: widths, cards, startups"):
        facts("card")


def test_the_mlp_is_never_narrower_than_the_hidden_state_but_in_fine_experts():
    narrow = [
        name
        for name in catalog.models()
        if widths(catalog.model(name))[0] < catalog.model(name).hidden_size
    ]
    assert narrow == []


def test_a_size_that_is_no_whole_number_is_refused():
    with pytest.raises(ValueError, match="max_batched_tokens must be at least 1, got 0"):
        activation_bytes(8, 16, 100, max_batched_tokens=0, max_num_seqs=1)
    with pytest.raises(TypeError, match="hidden_size must be a whole number"):
        activation_bytes(8.5, 16, 100, max_batched_tokens=1, max_num_seqs=1)
