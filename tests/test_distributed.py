"""Caches cut over processes: the numbers of one process, or one clear error in time."""

import re
from multiprocessing import active_children
from time import monotonic

import pytest
import torch

import distributed_cases as cases
from kvlib.sharding import tokens_held, wire_bytes_by_heads, wire_bytes_by_tokens
from kvlib.tensors import processes
from kvlib.tensors.attention_parts import merge
from kvlib.tensors.distributed import TEXT_BYTES, PeerLost, Ranks
from kvlib.tensors.generate import generate
from kvlib.tensors.kernels import paged_cpu
from kvlib.tensors.processes import run_ranks
from kvlib.tensors.seen_attention import seen_attention
from kvlib.tensors.transfer import receive_sequence, send_sequence
from kvlib.tensors.workers import SHARDED, tiny_model

BY = pytest.mark.parametrize("by", SHARDED)
STEP = {"num_layers": 2, "head_dim": 8, "num_q_heads": 6, "num_kv_heads": 3}


@pytest.fixture(scope="module", params=[2, 3])
def group(request):
    """What each of 2 and of 3 ranks found, in one start of their processes."""
    return run_ranks(cases.all_cases, request.param)


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("meetings"))
    return run_ranks(cases.lost_peers, 2, folder, strict=False)


def test_every_chunking_gives_the_logits_of_one_process(group):
    """Uneven heads, more ranks than heads; parts that hold nothing of a sequence."""
    errors = {k: v for rank in group for k, v in rank.items() if k[0] in ("chunks", "gather")}
    assert len(errors) == 2 * (len(cases.CASES) + 1)
    assert max(errors.values()) < 1e-5
    assert all(rank["short parts"] < 1e-5 for rank in group)


@BY
def test_ragged_batches_and_branches(group, by):
    for rank in group:
        assert rank["ragged", by] < 1e-5
        assert rank["branched", by] < 1e-5
        assert rank["nobody_new", by] == (0, 6, 8)


@BY
def test_every_rank_writes_the_text_of_one_process(group, by):
    for rank in group:
        equal, different_tokens = rank["texts", by]
        assert equal and different_tokens > 3


@BY
def test_half_precision(group, by):
    assert all(rank["half_precision", by] for rank in group)


@BY
def test_bytes_are_those_computed(group, by):
    """Two layers, 17 blocks of 2 tokens, 3 heads of 8 float32 numbers, keys and values."""
    per_head = 2 * 17 * 2 * 8 * 4 * 2
    text = TEXT_BYTES * (len(group) - 1)
    for rank, results in enumerate(group):
        nbytes, sent, written, forwarded = results["counted", by]
        heads = {2: (2, 1), 3: (1, 1, 1)}[len(group)][rank] if by == "heads" else 3
        assert nbytes == per_head * heads
        held = tokens_held(7, rank, len(group), 2) - tokens_held(2, rank, len(group), 2)
        new = 5 if by == "heads" else held
        assert written == new * heads * 8 * 4 * 2 * 2
        assert forwarded == 5
        if by == "heads":
            assert sent == text + 2 * wire_bytes_by_heads(5, 6, 3, 8, len(group), itemsize=4)
        else:
            assert sent == text + 2 * wire_bytes_by_tokens(5, 6, 8, len(group))


@BY
def test_ranks_that_disagree_get_one_error_each_and_go_on(group, by):
    for results in group:
        said, length, off = results["disagreements", by]
        dtype, layers, kind, heads, token, too_long, alone = said
        assert "torch.float32" in dtype and "rank 1 has" in dtype and "torch.bfloat16" in dtype
        assert "num_layers=1" in layers and "num_layers=2" in layers
        assert "HeadShardedKVCache" in kind and "SequenceShardedKVCache" in kind
        assert heads.startswith("RanksDisagree: ranks must agree on queries: rank 0 has 6 heads")
        assert token.startswith("RanksDisagree: ranks must agree on a step: rank 0 has 1 new")
        assert too_long.startswith("SequenceTooLong")
        assert alone.startswith("RanksDisagree") and "rank 0 has SequenceTooLong" in alone
        assert length == 4 and off < 1e-5
    for texts in zip(*(results["disagreements", by][0] for results in group), strict=True):
        assert len(set(texts)) == 1, "every rank reads the same"


def test_a_sequence_is_handed_over_whole_or_not_at_all(group):
    sent, said_0, kept = group[0]["handed over"]
    equal, off, said_1 = group[1]["handed over"]
    # A header and a checksum, the token ids, then keys and values of 3 heads in 2 layers.
    assert sent == 2 * TEXT_BYTES + 13 * 8 + 13 * 2 * 2 * 3 * 8 * 4
    assert equal and off < 1e-5 and kept == 13
    assert said_0[0].startswith("ValueError: what is stored is sent, at least 1 token: 13 are")
    assert said_0[1] == f"ValueError: this is rank 0 of {len(group)}, asked for rank 0"
    assert said_0[2:] == said_1
    shape, dtype, room = said_1
    assert shape.startswith("RanksDisagree: rank 0 sends") and "num_kv_heads=2" in shape
    assert dtype.startswith("RanksDisagree") and "torch.bfloat16" in dtype
    assert room.startswith("OutOfBlocks: asked for 7 blocks of 2, 5 free of 8")


@BY
def test_a_silent_peer_is_lost_in_time_and_the_text_goes_on(lost, by):
    message, kept, again, fast, equal = lost[0][by]
    assert re.search(r"rank 0 waited for \d+ bytes .* 2.0 s at most: Timed out", message)
    assert kept == 14, "two steps were committed, the third left no trace"
    assert again.startswith("PeerLost: this group lost a rank before")
    assert fast and equal


def test_a_peer_that_dies_is_lost_and_the_text_goes_on(lost):
    message, kept, _, _, equal = lost[0]["dies"]
    assert "rank 0 waited" in message and kept == 14 and equal
    assert isinstance(lost[1], PeerLost) and "exit code is 1" in str(lost[1])


def test_a_rank_that_breaks_off_a_step_alone_never_feeds_another(lost):
    """Its next note would be as many bytes in the middle of the other's data."""
    message, kept, again, fast, equal = lost[0]["breaks off"]
    assert "rank 0 waited for" in message and kept == 14 and fast and equal
    assert again.startswith("PeerLost")


def test_a_receiver_that_breaks_off_takes_no_layer_for_an_answer(lost):
    said, length, num_free = lost[0]["transfer"]
    assert said[0] == "MemoryError: no memory for a layer"
    assert said[1].startswith("PeerLost: this group lost a rank before: rank 0 broke off")
    assert length == 0 and num_free == 9


def test_ranks_can_be_called_from_this_machine_only(group):
    for results in group:
        if results["listening"] is None:
            pytest.skip("what a process listens on is read from /proc")
        ours = {"0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F"}
        assert results["listening"] <= ours


def test_a_rank_that_refuses_alone_stops_all(group):
    for results in group:
        message, length, num_free = results["refused alone"]
        assert "rank 1 has OutOfBlocks: no memory" in message
        assert length == 0 and num_free == 16


def test_a_transfer_that_is_damaged_or_cut_off_is_recomputed():
    prompt, start = list(range(40)), monotonic()
    died, received = run_ranks(cases.failing_transfers, 2, prompt, 6, strict=False)
    assert isinstance(died, PeerLost)
    right = generate(tiny_model(), prompt, 6).tokens
    for report, kind in zip(received, ("LostBlock", "PeerLost"), strict=True):
        assert report.lost.startswith(kind)
        assert report.texts == (right,)
        assert report.forwarded == 45, "the whole prompt, and five of the six new tokens"
    assert monotonic() - start < 60


def test_EM_2_empty_parts_merge_to_nothing_and_leave_others_alone():
    nothing = (torch.zeros(1, 1), torch.tensor([-torch.inf]))
    out, lse = merge([nothing, nothing])
    assert out.item() == 0.0 and lse.item() == -torch.inf
    out, lse = merge([(out, lse), (torch.tensor([[3.0]]), torch.tensor([0.0]))])
    assert (out.item(), lse.item()) == (3.0, 0.0)


def test_EM_2_a_rank_with_nothing_of_one_sequence_and_five_tokens_of_another():
    q, k, v = torch.randn(3, 2, 2, 8).unbind()
    out, lse = seen_attention(q, k[:0].transpose(0, 1), v[:0].transpose(0, 1), torch.tensor([0, 0]))
    assert not out.any() and (lse == -torch.inf).all()
    k, v = torch.randn(2, 2, 5, 8).unbind()
    out, lse = seen_attention(q, k, v, torch.tensor([0, 5]))
    assert not out[0].any() and (lse[0] == -torch.inf).all()
    right = torch.softmax(q[1, 0] @ k[0].T * 8**-0.5, -1) @ v[0]
    torch.testing.assert_close(out[1, 0], right)


def test_the_kernel_gives_a_row_that_sees_nothing_no_weight():
    keys = torch.randn(1, 2, 4, 8)
    rows = torch.tensor([[0, 0], [0, 0], [0, 3]], dtype=torch.int32)
    table = torch.zeros(1, 1, dtype=torch.int32)
    out, lse = paged_cpu.attend_rows(torch.randn(2, 2, 8), keys, keys, table, rows)
    assert not out[0].any() and (lse[0] == -torch.inf).all()
    assert torch.isfinite(lse[1]).all()


@BY
def test_a_part_of_a_sequence_is_not_handed_over(by):
    cache = SHARDED[by].__new__(SHARDED[by])
    cache.ranks = None
    for call in (send_sequence, receive_sequence):
        with pytest.raises(TypeError, match="whole sequence of one process"):
            call(*[None, 1, cache, "a", [1]][: 5 if call is send_sequence else 4])


@pytest.mark.parametrize("work", [60, cases.PickledOnce()])
def test_no_process_is_left_behind(work):
    """Neither those that took too long, nor one whose neighbour could not be started."""
    late, start = isinstance(work, int), monotonic()
    with pytest.raises(RuntimeError if late else ValueError):
        run_ranks(cases.sleeps, 2, work, whole_s=0 if late else 240)
    assert not active_children() and monotonic() - start < 30


def test_ranks_outside_of_a_group_are_refused():
    with pytest.raises(RuntimeError, match="joined none"):
        Ranks(1.0)


def test_a_worker_that_fails_is_named(monkeypatch):
    def failed(path, process):
        process.kill()
        return ZeroDivisionError(f"division in {path.name}")

    monkeypatch.setattr(processes, "_result", failed)
    with pytest.raises(RuntimeError, match="rank 0 of 1 failed: division in 0"):
        run_ranks(cases.all_cases, 1, whole_s=0)
