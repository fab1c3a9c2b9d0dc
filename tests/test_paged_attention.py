"""Every way to attend over blocks is attention by definition, and takes what it is for."""

import pytest
import torch

from kvlib.tensors import paged_attention as module
from kvlib.tensors.paged_attention import paged_attention
from kvlib.tensors.paged_context import PagedContext
from paged_step import DIM, SIZE, TABLE, context, everything, host

META = torch.device("meta")
WAYS = [way for way in module.WAYS if way != "triton"]  # which has a file of its own


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("window", [None, 1, 3, 6, 40])
def test_every_way_is_attention_by_definition(monkeypatch, way, window):
    monkeypatch.setattr(module, "CHUNK_TOKENS", 3)
    q, keys, values, expected, lse = everything(window)
    out, got = paged_attention(q, keys, values, context(), window=window, way=way)
    assert out.shape == q.shape and out.dtype == q.dtype
    torch.testing.assert_close(out[:19].double(), expected, rtol=1e-5, atol=1e-5)
    if way in ("gather", "cpu"):  # for the latter one sequence has too many new tokens
        assert got is None
    elif got is not None or way in ("reference", "chunked"):
        torch.testing.assert_close(got[:19].double(), lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_table_is_only_padded_with_is_never_looked_up(way):
    """A number of no block stands where the sequences have none."""
    table = tuple(tuple(99 if block == 12 else block for block in row) for row in TABLE)
    q, keys, values, expected, _ = everything()
    out, _ = paged_attention(q, keys, values, context(block_table=table), way=way)
    torch.testing.assert_close(out[:19].double(), expected, rtol=1e-5, atol=1e-5)


def test_chunks_are_gathered_some_hundred_tokens_at_a_time(monkeypatch):
    """Nine tokens, thirteen and eight in parts of five: 2, 3 and 2 parts."""
    seen = []
    plain = module.partial_attention

    def watched(q, k, v, first, position, window):
        seen.append((first, first + k.shape[1], position))
        return plain(q, k, v, first, position, window)

    monkeypatch.setattr(module, "CHUNK_TOKENS", 5)
    monkeypatch.setattr(module, "partial_attention", watched)
    q, keys, values, _, _ = everything()
    paged_attention(q, keys, values, context(), way="chunked")
    a, b, d = [(0, 5, 8), (5, 9, 8)], [(0, 5, 3), (5, 10, 3), (10, 13, 3)], [(0, 5, 0), (5, 8, 0)]
    assert seen == a + b + d


def rows_given_to_the_kernel(monkeypatch, way, **changes):
    """What the compiled kernel is asked for, and whether the log-sum-exp comes back."""
    from kvlib.tensors.kernels import paged_cpu

    asked, kernel = [], {"cpu": module.paged_cpu, "triton": module.paged_triton}[way]

    def watched(q, keys, values, table, rows):
        assert q.is_contiguous() and rows.is_contiguous()
        asked.append(rows.tolist())
        return attend(q, keys, values, table, rows)

    attend = paged_cpu.attend_rows
    monkeypatch.setattr(kernel, "attend_rows", watched)
    q, keys, values, _, _ = everything()
    made = context(**changes)
    q = q[: made.host.num_tokens].transpose(0, 1).contiguous().transpose(0, 1)
    out, lse = paged_attention(q, keys, values, made, way=way)
    return asked, out, lse


@pytest.mark.parametrize("way", ["cpu", "triton"])
def test_the_kernel_takes_rows_of_few_new_tokens_and_padding(monkeypatch, way):
    """Ten new tokens are gathered, eight and one are not."""
    (asked,), out, lse = rows_given_to_the_kernel(monkeypatch, way)
    assert asked[0] == [0, *[3] * 8, 0, 0] and asked[2] == [9, *range(1, 9), 0, 0]
    assert lse is None
    torch.testing.assert_close(out[:19].double(), everything()[3], rtol=1e-5, atol=1e-5)
    assert not out[19:].any()


def test_the_kernel_takes_everything_where_nobody_has_many_new_tokens(monkeypatch):
    few = {"positions": (8, *range(8)), "query_start": (0, 1, 1, 1, 9, 9), "slot_mapping": (0,) * 9}
    (asked,), out, lse = rows_given_to_the_kernel(monkeypatch, "cpu", **few)
    assert asked[0] == [0, *[3] * 8] and out.shape == (9, 6, DIM) and lse.shape == (9, 6)


@pytest.mark.parametrize("new", [9, 10])
def test_the_kernel_is_not_called_for_nothing(monkeypatch, new):
    many = {"positions": tuple(range(13 - new, 13)), "query_start": (0, 0, *[new] * 4)}
    asked, out, lse = rows_given_to_the_kernel(monkeypatch, "cpu", **many, slot_mapping=(0,) * new)
    assert asked == [] and out.shape == (new, 6, DIM) and lse is None


def test_a_part_has_512_tokens(monkeypatch):
    seen, plain = [], module.partial_attention
    monkeypatch.setattr(
        module, "partial_attention", lambda *a: seen.append((a[3], a[1].shape[1])) or plain(*a)
    )
    long = {"seq_ids": ("a",), "positions": (512,), "slot_mapping": (512,), "query_start": (0, 1)}
    made = context(**long, context_lens=(513,), block_table=(tuple(range(129)),))
    side = torch.zeros(129, 2, SIZE, DIM)
    paged_attention(torch.zeros(1, 6, DIM), side, side, made, way="chunked")
    assert seen == [(0, 512), (512, 1)]


BLOCKS = torch.zeros(13, 2, SIZE, DIM)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"q": torch.zeros(20, 6, DIM)}, r"q must be \[21, Hq, D\], got \(20, 6, 8\)"),
        ({"q": torch.zeros(21, 6)}, r"q must be \[21, Hq, D\]"),
        ({"keys": BLOCKS[0], "values": BLOCKS[0]}, "must be .* alike"),
        ({"values": BLOCKS[:5]}, "must be .* alike"),
        ({"q": torch.zeros(21, 6, 4)}, "with the head_dim of q"),
        ({"q": torch.zeros(21, 5, DIM), "way": "chunked"}, "a multiple of KV heads: 5 and 2"),
        ({"q": torch.zeros(21, 6, DIM).half()}, "in one dtype: got torch.float16"),
        ({"q": torch.zeros(21, 6, DIM, device="meta")}, "on one device"),
        ({"keys": BLOCKS.to("meta"), "values": BLOCKS.to("meta")}, "on one device"),
        ({"context": PagedContext.of(host(), META)}, "tables on meta"),
        ({"keys": BLOCKS[:, :, :2], "values": BLOCKS[:, :, :2]}, "blocks of 4, the store has 2"),
        ({"way": "flash"}, "way to attend 'flash'"),
    ],
)
def test_what_does_not_fit_is_refused(changes, says):
    right = {"q": torch.zeros(21, 6, DIM), "keys": BLOCKS, "values": BLOCKS, "context": context()}
    paged_attention(**right)
    with pytest.raises(ValueError, match=says):
        paged_attention(**{**right, **changes})
