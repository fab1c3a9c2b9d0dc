"""The kernel on codes: right for every format and size, and blind to what nobody wrote."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.precision import Precision
from kvlib.tensors.attention import reference_attention
from kvlib.tensors.codes import decode, encode
from kvlib.tensors.kernels import quantized_cpu
from test_codes import FORMATS

STATIC = (Precision.static(0.05), Precision.static(0.01, kind="fp8", along="channel"))
KEYS8, VALUES8 = Precision(8, along="channel"), Precision(8)


def setting(lengths, heads, head_dim, block_size, formats, seed=0):
    """Blocks of ragged sequences in random order; free ones are 255 throughout, a NaN where floats.

    What lies behind a sequence's length in its last block is coded, but belongs to nobody.
    """
    num_q, num_kv = heads
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-n // block_size) for n in lengths]
    table = torch.full((len(lengths), max(*counts, 1)), 999, dtype=torch.int32)
    order = torch.randperm(sum(counts), generator=generator).tolist()
    sides = [
        torch.full(
            (sum(counts) + 2, num_kv, f.layout(head_dim, block_size).block_bytes),
            255,
            dtype=torch.uint8,
        )
        for f in formats
    ]
    whole = []
    for s, count in enumerate(counts):
        table[s, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        read = []
        for side, precision in zip(sides, formats, strict=True):
            x = torch.randn(count, num_kv, block_size, head_dim, generator=generator) + 0.5
            side[table[s, :count].long()] = encode(x, precision)
            back = decode(encode(x, precision), precision, head_dim, block_size)
            read.append(back.transpose(1, 2).flatten(0, 1)[: lengths[s]])
        whole.append(read)
    q = torch.randn(len(lengths), num_q, head_dim, generator=generator)
    rows = torch.tensor([range(len(lengths)), [0] * len(lengths), lengths], dtype=torch.int32)
    return {"q": q, "keys": sides[0], "values": sides[1], "table": table, "rows": rows}, whole


def check(lengths, heads, head_dim, block_size, formats, seed=0, threads=1):
    given_, whole = setting(lengths, heads, head_dim, block_size, formats, seed)
    out, lse = quantized_cpu.attend_rows(
        **given_, formats=formats, block_size=block_size, threads=threads
    )
    for s, (k, v) in enumerate(whole):
        if not lengths[s]:
            assert not out[s].any() and (lse[s] == -torch.inf).all()
            continue
        expected, expected_lse = reference_attention(given_["q"][s : s + 1], k, v)
        torch.testing.assert_close(out[s].double(), expected[0], rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(lse[s].double(), expected_lse[0], rtol=1e-4, atol=1e-4)


RAGGED = [16, 0, 33, 300, 5]


@pytest.mark.parametrize("precision", [*FORMATS, *STATIC], ids=str)
@pytest.mark.parametrize("side", ["keys", "values"])
def test_every_format_where_vectors_fit_and_where_they_do_not(precision, side):
    other = Precision(4, along="channel")
    formats = (precision, other) if side == "keys" else (other, precision)
    block_size = 6
    if precision.group_size is None:
        check(RAGGED, (9, 3), 64, 16, formats)
    check([7, 12, 0], (4, 2), 12, block_size, formats)


@pytest.mark.parametrize("group", [16, 32, 64])
def test_groups_of_whole_vectors(group):
    check(RAGGED, (9, 3), 64, 16, (Precision(8, group), Precision(4, group)))
    check(RAGGED, (8, 2), 128, 32, (Precision(2, group), Precision(2, group, symmetric=True)))


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    head_dim=st.integers(1, 20),
    block_size=st.integers(1, 40),
    bits=st.sampled_from([8, 4, 2]),
    seed=st.integers(0, 5),
)
def test_random_sizes(lengths, kv_heads, group, head_dim, block_size, bits, seed):
    formats = (Precision(bits, along="channel"), Precision(bits))
    check(lengths, (kv_heads * group, kv_heads), head_dim, block_size, formats, seed=seed)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_long_sequences_and_many_heads_are_split_and_merged(threads):
    check([3000, 5, 0, 1025], (9, 3), 64, 16, (KEYS8, VALUES8), threads=threads)
    check([40, 600], (22, 11), 64, 16, (KEYS8, VALUES8), threads=threads)


def test_scores_that_differ_by_hundreds_do_not_overflow():
    given_, whole = setting([50], (2, 1), 64, 16, (KEYS8, VALUES8))
    given_["q"] *= 100
    out, _ = quantized_cpu.attend_rows(**given_, formats=(KEYS8, VALUES8), block_size=16)
    expected, _ = reference_attention(given_["q"], *whole[0])
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head_dim", [64, 24], ids=["constant sizes", "general loops"])
@pytest.mark.parametrize(
    "change",
    [
        {"table": [[0, 9]]},
        {"table": [[0, -1]]},
        {"rows": [[1], [0], [8]]},
        {"rows": [[0], [0], [9]]},
        {"rows": [[0], [-1], [8]]},
    ],
    ids=["block", "null", "sequence", "beyond", "before"],
)
def test_a_row_that_sees_positions_without_a_block_is_refused(change, head_dim):
    given_, _ = setting([8], (2, 1), head_dim, 4, (KEYS8, VALUES8))
    given_ |= {name: torch.tensor(value, dtype=torch.int32) for name, value in change.items()}
    with pytest.raises(ValueError, match="4 blocks of 4"):
        quantized_cpu.attend_rows(**given_, formats=(KEYS8, VALUES8), block_size=4)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a | {"keys": a["keys"][..., :-1]}, "keys are contiguous uint8"),
        (lambda a: a | {"values": a["values"].float()}, "values are contiguous uint8"),
        (lambda a: a | {"formats": (VALUES8, VALUES8)}, "keys are contiguous uint8"),
        (lambda a: a | {"rows": a["rows"].long()}, "are int32"),
        (lambda a: a | {"q": a["q"][:, :3]}, "query heads must be a multiple of KV heads: 3 and 2"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(change, message):
    given_, _ = setting([5, 9], (4, 2), 64, 16, (KEYS8, VALUES8))
    with pytest.raises(ValueError, match=message):
        quantized_cpu.attend_rows(**change(given_ | {"formats": (KEYS8, VALUES8)}), block_size=16)


@pytest.mark.parametrize("head_dim", [64, 24], ids=["constant sizes", "general loops"])
def test_loading_the_kernel_leaves_subnormal_numbers_alone(head_dim):
    """Run apart, since a library that was loaded cannot be unloaded."""
    script = (
        "import torch; from kvlib.tensors.kernels import quantized_cpu;"
        f"quantized_cpu.kernel({head_dim}, 1); tiny = 5e-324; print(tiny * 1.0 > 0)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True"]


@pytest.mark.parametrize("head_dim", [64, 12])
@pytest.mark.parametrize("scale", [2.0**-20, 1.0, 512.0])
def test_every_code_of_fp8_is_its_number_at_every_scale(head_dim, scale):
    """At 512 a product of the scale with 2^120, by which such codes are often made, overflows."""
    precision = Precision.static(scale, kind="fp8")
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).float() * scale
    values = codes[:, None, None].expand(-1, 1, head_dim).contiguous()
    keys = torch.zeros_like(values)
    rows = torch.tensor([range(254), [0] * 254, [1] * 254], dtype=torch.int32)
    table = torch.arange(254, dtype=torch.int32)[:, None]
    q, formats = torch.ones(254, 1, head_dim), (precision, precision)
    out, _ = quantized_cpu.attend_rows(q, keys, values, formats, 1, table, rows)
    assert torch.equal(out, expected[:, None, None].expand_as(out))
