"""A card's memory adds up, and what does not fit is refused with the reason."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib import catalog
from kvlib.memory_plan import DoesNotFit, plan_capacity, shape_on_rank
from kvlib.overheads import GIB, facts
from kvlib.plan import SequenceTooLong
from kvlib.sizes import KVShape

LLAMA, H100 = catalog.model("Llama-3-8B"), catalog.gpu("H100 SXM5")
NOTHING = {"activations": 0, "graphs": 0, "runtime": 0}


def test_ME_1_a_token_of_32_layers_and_8_heads():
    shape = KVShape(32, 8, 128)
    assert shape.bytes_per_token("float16") == 131072
    assert shape.bytes_per_sequence(131072, "float16") == 16 * GIB
    assert KVShape(32, 32, 128).bytes_per_token("float16") == 524288  # query heads: 4 times


def test_ME_3_windows_stop_growing():
    shape = KVShape(36, 8, 64, window=128, num_local_layers=18)
    sizes = [shape.bytes_per_sequence(n, "bfloat16") for n in (1, 128, 131072)]
    assert sizes == [73728, 9437184, 4836556800]
    model = replace(LLAMA, kv=shape, context_length=131072)
    plan = plan_capacity(model, H100)
    assert plan.concurrency(131072) == pytest.approx(plan.kv_bytes / 4836556800)


def test_ME_4_hidden_size_counts_the_heads_already():
    layers, heads, hidden = 32, 32, 4096
    assert KVShape(layers, heads, hidden // heads).bytes_per_token("float16") == 524288
    assert 2 * layers * heads * hidden * 4 // 8 == 8 * 524288


def test_ME_6_a_stage_counts_its_own_layers():
    shape = KVShape(48, 4, 128)
    first, second = shape_on_rank(shape, num_layers=16), shape_on_rank(shape, num_layers=32)
    whole = [each.bytes_per_sequence(262144, "float16") / GIB for each in (shape, first, second)]
    assert whole == [24.0, 8.0, 16.0]
    room = int(3.18 * GIB)
    assert [room // each.bytes_per_token("float16") for each in (first, shape)] == [104202, 34734]


@pytest.mark.parametrize(
    "blocks, context, tokens, concurrency",
    [(1952, 20000, 31232, 1.5616), (1478, 29000, 23648, 0.8154), (229, 4096, 3664, 0.8945)],
)
def test_ME_7_blocks_are_tokens_and_tokens_are_requests(blocks, context, tokens, concurrency):
    plan = replace(plan_capacity(LLAMA, H100), num_blocks=blocks)
    assert plan.num_tokens == tokens
    assert plan.concurrency(context) == pytest.approx(concurrency, abs=1e-4)
    if concurrency >= 1:
        assert plan.max_num_seqs(context) == 1
    else:
        with pytest.raises(SequenceTooLong, match=f"{context:,} tokens takes .* for {tokens:,}"):
            plan.max_num_seqs(context)


def test_sequences_are_counted_in_whole_blocks_and_a_logs_concurrency_is_not():
    plan = replace(plan_capacity(LLAMA, H100), num_blocks=7)
    assert plan.concurrency(33) > 3 and plan.max_num_seqs(33) == 2
    assert plan.max_num_seqs(112) == 1


def test_gpus_that_share_a_model_share_weights_and_most_of_a_step():
    one, two = (plan_capacity(LLAMA, H100, num_gpus=n) for n in (1, 2))
    assert two.weight_bytes == one.weight_bytes / 2
    assert one.activation_bytes == 8192 * 110_592
    assert two.activation_bytes == 8192 * 2 * (3 * 7168 + 3 * 4096)


def test_ME_9_a_share_is_ours_and_what_is_free_is_not():
    amounts = {"total_bytes": 24 * GIB, "weight_bytes": 4 * GIB, **NOTHING}
    plan = plan_capacity(LLAMA, H100, utilization=0.4, foreign_bytes=12 * GIB, **amounts)
    assert plan.kv_bytes == 2867 * 2 * 2**20 == pytest.approx(5.6 * GIB, rel=1e-3)
    with pytest.raises(DoesNotFit, match=r"takes 5.60 GiB of the share.*card has 9.00 free"):
        plan_capacity(LLAMA, H100, utilization=0.4, foreign_bytes=15 * GIB, **amounts)
    with pytest.raises(DoesNotFit, match=r"share is 3.60 GiB.*-0.40 GiB are left"):
        plan_capacity(LLAMA, H100, utilization=0.15, **amounts)


def test_one_block_fits_where_one_is_left_even_of_one_byte():
    latent = KVShape(1, kv_lora_rank=1, qk_rope_head_dim=1)
    tiny = replace(LLAMA, kv=latent, num_q_heads=1)
    options = {"total_bytes": 100, "utilization": 0.1, "block_size": 1, "kv_dtype": "int4"}
    one = plan_capacity(tiny, H100, weight_bytes=9, **NOTHING, **options)
    assert (one.num_blocks, one.kv_bytes, one.parts()["free"]) == (1, 1, 90)
    with pytest.raises(DoesNotFit, match=r"0\.00 GiB are left"):
        plan_capacity(tiny, H100, weight_bytes=10, **NOTHING, **options)


def test_unless_said_otherwise_256_sequences_run():
    """Of a short step the logits are the peak: 128,256 of them for each row, three times."""
    plan = plan_capacity(LLAMA, H100, max_batched_tokens=512)
    assert plan.activation_bytes == 3 * 4 * 256 * 128_256


def test_ME_10_the_published_table_mixes_two_kinds_of_thousand():
    def gib(shape, n):
        return shape.bytes_per_sequence(n, "float16") / GIB

    small, large = LLAMA.kv, catalog.model("Llama-3.1-405B").kv
    found = [gib(small, n) for n in (1000, 1024, 128000, 131072)]
    assert found == [0.1220703125, 0.125, 15.625, 16.0]
    twice = replace(large, num_kv_heads=16)
    assert [gib(each, 128000) for each in (large, twice)] == [61.5234375, 123.046875]


def test_published_slots_follow_from_published_gigabytes():
    """PagedAttention, Table 1; its GB are GiB, and 21 is rounded."""
    printed = {"OPT-13B": (12, 15_700), "OPT-175B": (264, 60_100)}
    for name, (gib, slots) in printed.items():
        model = catalog.model(name)
        amounts = {"total_bytes": gib * GIB, "weight_bytes": 0, **NOTHING}
        plan = plan_capacity(model, H100, utilization=1, block_size=1, **amounts)
        assert plan.num_tokens == pytest.approx(slots, rel=0.002)


LOGS = [row for row in facts("startups") if "concurrency" in row or "kv_gib" in row]


@pytest.mark.parametrize("row", LOGS, ids=lambda row: row["source"])
def test_bytes_blocks_and_concurrency_are_those_a_log_prints(row):
    """The printed bytes, divided by our bytes per token, are the printed tokens."""
    model, num_gpus = catalog.model(row["model"]), row.get("num_gpus", 1)
    kv = shape_on_rank(model.kv, num_gpus)
    tokens = row.get("num_tokens", 16 * row.get("num_blocks", 0))
    if tokens:
        fits = row["kv_gib"] * GIB / kv.bytes_per_token(model.dtype)
        assert fits == pytest.approx(tokens, rel=0.012)
    if "concurrency" in row:
        assert round(tokens / row["context"], 2) == row["concurrency"]


@pytest.mark.parametrize(
    "row", [r for r in LOGS if "activations_gib" in r], ids=lambda r: r["source"]
)
def test_with_the_parts_a_log_prints_the_cache_is_the_one_it_prints(row):
    plan = plan_capacity(
        catalog.model(row["model"]),
        H100,
        utilization=row["utilization"],
        num_gpus=row.get("num_gpus", 1),
        total_bytes=int(row["total_gib"] * GIB),
        activations=int(row["activations_gib"] * GIB),
        runtime=int(row["runtime_gib"] * GIB),
        graphs=0,
    )
    assert plan.kv_bytes / GIB == pytest.approx(row["kv_gib"], abs=0.04)


def test_utilization_1_leaves_no_room_for_what_lies_outside_the_share():
    plan_capacity(LLAMA, H100, utilization=0.99, outside={"graphs"})
    with pytest.raises(DoesNotFit, match=r"card has 79\.22 free"):
        plan_capacity(LLAMA, H100, utilization=1.0, outside={"graphs"})
    assert plan_capacity(LLAMA, H100, utilization=1.0).parts()["free"] < 2 * 2**20


def test_ranks_share_heads_copy_them_or_all_hold_a_latent():
    shape = catalog.model("Qwen3-235B-A22B").kv
    assert [shape_on_rank(shape, n).num_kv_heads for n in (1, 2, 4, 8)] == [4, 2, 1, 1]
    assert shape_on_rank(KVShape(2, 3, 4), 2).num_kv_heads == 2  # the fullest GPU decides
    latent = catalog.model("DeepSeek-V3").kv
    assert shape_on_rank(latent, 8) == latent
    gemma = catalog.model("Gemma-3-27B").kv
    assert shape_on_rank(gemma, num_layers=31).num_local_layers == 26
    with pytest.raises(ValueError, match="asked for 49 layers, the model has 48"):
        shape_on_rank(KVShape(48, 4, 128), num_layers=49)


@given(
    utilization=st.sampled_from([0.5, 0.8, 0.9, 0.92, 0.97, 1]),
    num_gpus=st.sampled_from([1, 2, 4]),
    tokens=st.integers(1, 32768),
    foreign=st.integers(0, 20),
    outside=st.sets(st.sampled_from(["graphs", "activations", "runtime"])),
)
def test_the_parts_add_up_and_no_block_more_would_fit(
    utilization, num_gpus, tokens, foreign, outside
):
    arguments = {
        "utilization": utilization,
        "num_gpus": num_gpus,
        "max_batched_tokens": tokens,
        "foreign_bytes": foreign * GIB,
        "outside": outside,
    }
    try:
        plan = plan_capacity(LLAMA, H100, **arguments)
    except DoesNotFit:
        return
    parts = plan.parts()
    assert sum(parts.values()) == plan.total_bytes and min(parts.values()) >= 0
    inside = {"graphs": "graph", "activations": "activation", "runtime": "runtime"}
    share = parts["weight"] + parts["kv"]
    share += sum(parts[part] for name, part in inside.items() if name not in outside)
    block = plan.kv.bytes_per_block(16, "bfloat16")
    assert share <= plan.total_bytes * utilization < share + block + 1


def test_an_argument_that_means_nothing_is_refused():
    for utilization in (0, 1.01, -0.5, float("nan")):
        with pytest.raises(ValueError, match=rf"^utilization is in \(0, 1\], got {utilization}$"):
            plan_capacity(LLAMA, H100, utilization=utilization)
    with pytest.raises(ValueError, match=r"^only graphs, .* may lie outside; got \['weights'\]$"):
        plan_capacity(LLAMA, H100, outside={"weights"})
    with pytest.raises(ValueError, match="no dtype 'fp7'"):
        plan_capacity(LLAMA, H100, weight_dtype="fp7")
    with pytest.raises(ValueError, match="bytes of graphs must be at least 0, got -1"):
        plan_capacity(LLAMA, H100, graphs=-1)
