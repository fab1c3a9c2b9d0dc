"""The CPU kernel: right for every size and layout, compiled once, and missed without a crash."""

import errno
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.sizes import KVShape
from kvlib.tensors import way_choice
from kvlib.tensors.attention import reference_attention
from kvlib.tensors.kernels import build, paged_cpu
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.store import KVStore


def setting(lengths, heads, head_dim, block_size, dtype=torch.float32, seed=0, alignment=None):
    """A store with random blocks of ragged sequences, NaN wherever no token is."""
    num_q, num_kv = heads
    generator = torch.Generator().manual_seed(seed)
    per_seq = [-(-n // block_size) for n in lengths]
    store = KVStore(
        1,
        sum(per_seq) + 1,
        block_size,
        num_kv,
        head_dim,
        dtype=dtype,
        row_alignment_bytes=alignment,
    )
    keys, values = store.keys[0], store.values[0]
    keys.fill_(torch.nan)
    values.fill_(torch.nan)
    order = torch.randperm(sum(per_seq), generator=generator).tolist()
    table = torch.full((len(lengths), max(*per_seq, 1)), sum(per_seq), dtype=torch.int32)
    whole = []
    for s, length in enumerate(lengths):
        k, v = (
            torch.randn(length, num_kv, head_dim, generator=generator).to(dtype) for _ in range(2)
        )
        for position in range(length):
            if position % block_size == 0:
                table[s, position // block_size] = order.pop()
            block = table[s, position // block_size]
            keys[block, :, position % block_size] = k[position]
            values[block, :, position % block_size] = v[position]
        whole.append((k, v))
    q = torch.randn(len(lengths), num_q, head_dim, generator=generator).to(dtype)
    return q, keys, values, table, whole


def rows_for(lengths, window=None):
    first = [0 if window is None else max(0, n - window) for n in lengths]
    return torch.tensor([range(len(lengths)), first, lengths], dtype=torch.int32)


def check(lengths, heads, head_dim, block_size, dtype=torch.float32, window=None, **options):
    threads = options.pop("threads", 1)
    q, keys, values, table, whole = setting(lengths, heads, head_dim, block_size, dtype, **options)
    rows = rows_for(lengths, window)
    out, lse = paged_cpu.attend_rows(q, keys, values, table, rows, threads)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for s, (k, v) in enumerate(whole):
        if not lengths[s]:
            assert not out[s].any() and (lse[s] == -torch.inf).all()
            continue
        expected, expected_lse = reference_attention(q[s : s + 1], k, v, window=window)
        torch.testing.assert_close(out[s].double(), expected[0], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(lse[s].double(), expected_lse[0], rtol=1e-4, atol=1e-4)


RAGGED = [1, 15, 16, 17, 0, 300, 31]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads, head_dim", [((9, 3), 64), ((8, 2), 128)])
def test_sizes_it_is_compiled_for(heads, head_dim, dtype):
    check(RAGGED, heads, head_dim, 16, dtype)


@pytest.mark.parametrize("heads", [(1, 1), (4, 1), (40, 1), (6, 3)])
@pytest.mark.parametrize("head_dim", [1, 8, 33, 112])
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 20, 256])
def test_any_other_size_takes_the_general_loops(heads, head_dim, block_size):
    check([1, 7, 0, 40], heads, head_dim, block_size)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_long_sequences_are_split_and_merged(threads):
    check([3000, 5, 0, 1025], (9, 3), 64, 16, threads=threads)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 200, 5000])
def test_a_window_is_a_range_of_positions(window):
    check(RAGGED, (9, 3), 64, 16, window=window)


def test_rows_of_a_contiguous_cache_are_long_blocks():
    check([1, 64, 0, 33], (9, 3), 64, 64)
    check([1, 64, 0, 33], (9, 3), 80, 64, alignment=256)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    head_dim=st.integers(1, 20),
    block_size=st.integers(1, 40),
    window=st.none() | st.integers(1, 80),
    seed=st.integers(0, 5),
)
def test_random_sizes(lengths, kv_heads, group, head_dim, block_size, window, seed):
    heads = (kv_heads * group, kv_heads)
    check(lengths, heads, head_dim, block_size, window=window, seed=seed)


def test_scores_that_differ_by_hundreds_do_not_overflow():
    q, keys, values, table, whole = setting([50], (2, 1), 64, 16)
    q *= 100
    out, _ = paged_cpu.attend_rows(q, keys, values, table, rows_for([50]))
    expected, _ = reference_attention(q, *whole[0])
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a | {"q": a["q"].half()}, "for q, keys and values"),
        (lambda a: a | {"q": a["q"].transpose(1, 2).contiguous().transpose(1, 2)}, "contiguous"),
        (lambda a: a | {"rows": a["rows"][:2]}, "are int32"),
        (lambda a: a | {"rows": a["rows"].long()}, "are int32"),
        (lambda a: a | {"table": a["table"].long()}, "are int32"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(change, message):
    names = ("q", "keys", "values", "table")
    arguments = dict(zip(names, setting([5, 9], (2, 1), 64, 16), strict=False))
    arguments["rows"] = rows_for([5, 9])
    with pytest.raises(ValueError, match=message):
        paged_cpu.attend_rows(**change(arguments))


@pytest.mark.parametrize(
    "change",
    [
        {"table": [[0, 4]]},
        {"table": [[0, -1]]},
        {"rows": [[1], [0], [8]]},
        {"rows": [[-1], [0], [8]]},
        {"rows": [[0], [0], [9]]},
        {"rows": [[0], [-1], [8]]},
        {"table": [[]]},
    ],
    ids=["block", "null", "sequence", "below", "beyond", "before", "empty"],
)
@pytest.mark.parametrize("head_dim", [64, 24], ids=["constant sizes", "general loops"])
def test_a_row_that_sees_positions_without_a_block_is_refused(change, head_dim):
    blocks = torch.randn(4, 1, 4, head_dim)
    given = {"table": [[0, 3]], "rows": [[0], [0], [8]]} | change
    table, rows = (torch.tensor(given[name], dtype=torch.int32) for name in ("table", "rows"))
    with pytest.raises(ValueError, match="4 blocks of 4"):
        paged_cpu.attend_rows(torch.randn(1, 2, head_dim), blocks, blocks, table, rows)


def test_a_block_outside_of_what_a_row_sees_may_be_anything():
    blocks = torch.randn(4, 1, 4, 64)
    table = torch.tensor([[99, 3, -7]], dtype=torch.int32)
    rows = torch.tensor([[0, 0], [4, 0], [8, 0]], dtype=torch.int32)
    out, lse = paged_cpu.attend_rows(torch.randn(2, 2, 64), blocks, blocks, table, rows)
    assert torch.isfinite(out).all()
    assert (out[1] == 0).all() and (lse[1] == -torch.inf).all()


@pytest.mark.parametrize("head_dim", [64, 24], ids=["constant sizes", "general loops"])
def test_loading_the_kernel_leaves_subnormal_numbers_alone(head_dim):
    """Run apart, since a library that was loaded cannot be unloaded."""
    script = (
        "import torch; from kvlib.tensors.kernels import paged_cpu;"
        f"paged_cpu.kernel(torch.float32, {head_dim}, 1); tiny = 5e-324; print(tiny * 1.0 > 0)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True"]


@pytest.mark.parametrize("heads, head_dim", [((71, 1), 64), ((130, 2), 24), ((2, 1), 600)])
def test_no_number_of_queries_that_share_a_key_is_too_large(heads, head_dim):
    """A published multi-query model has 71."""
    check([1, 17, 40], heads, head_dim, 16)


@pytest.mark.parametrize(
    "shape, message",
    [((3, 5, 64), "5 and 2"), ((3, 1, 64), "1 and 2"), ((3, 4, 80), "head_dim of q")],
)
def test_a_query_that_the_keys_do_not_fit_is_refused(shape, message):
    """The kernel would leave heads unwritten, or read behind the keys."""
    blocks, table = torch.zeros(4, 2, 4, 64), torch.zeros(3, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        paged_cpu.attend_rows(torch.zeros(shape), blocks, blocks, table, rows_for([1, 2, 3]))


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache folder, and nothing loaded or said yet."""
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path))
    kept = (build.library, paged_cpu._call, way_choice._say_once)
    for each in kept:
        each.cache_clear()
    yield tmp_path
    for each in kept:
        each.cache_clear()


def test_what_was_compiled_is_kept_under_a_name_that_says_what_it_is(fresh, monkeypatch):
    paged_cpu.kernel(torch.float32, 8, 1)
    (first,) = (fresh / "kernels").iterdir()
    build.library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(build, "_compile", None)  # nothing is compiled a second time
        paged_cpu.kernel(torch.float32, 8, 1)
    monkeypatch.setattr(build, "_features", lambda: "another processor")
    build.library.cache_clear()
    paged_cpu.kernel(torch.float32, 8, 1)
    assert len(list((fresh / "kernels").iterdir())) == 2
    assert first.suffix == ".so"


def test_without_a_compiler_chunks_are_taken_and_it_says_so_once(fresh, monkeypatch, recwarn):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.warns(UserWarning, match="by chunks, without the CPU kernel: no C\\+\\+ compiler"):
        cache = PagedKVCache(KVShape(1, 1, 8), 2)
    assert cache.way == "chunked"
    recwarn.clear()
    assert PagedKVCache(KVShape(1, 1, 8), 2).way == "chunked"
    assert not recwarn.list
    with pytest.raises(build.NoCompiler, match=r"looked for c\+\+, g\+\+, clang\+\+"):
        PagedKVCache(KVShape(1, 1, 8), 2, way="cpu")


def test_a_compiler_that_fails_leaves_nothing_behind(fresh, tmp_path, monkeypatch):
    source = tmp_path / "broken.cpp"
    source.write_text("int x = ;")
    with pytest.raises(build.NoCompiler, match=r"cannot compile broken\.cpp: .*broken\.cpp:1"):
        build.library(source)
    assert not list((fresh / "kernels").iterdir())


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fault", ["a full disk", "no folder", "a damaged file"])
def test_what_cannot_be_kept_is_done_without(fresh, monkeypatch, fault):
    """The cache comes, attends by chunks, and its warning says what to do."""
    if fault == "a full disk":
        monkeypatch.setattr(build.tempfile, "TemporaryDirectory", no_room)
    elif fault == "no folder":
        (fresh / "kernels").write_text("in the way")
    else:
        monkeypatch.setattr(build, "_compile", lambda cxx, source, flags, target: damaged(target))
    with pytest.warns(UserWarning, match="by chunks, .* Make room there, delete paged_cpu-"):
        assert PagedKVCache(KVShape(1, 1, 8), 2).way == "chunked"
    with pytest.raises(build.NoCompiler, match="let KVLIB_CACHE name another folder"):
        PagedKVCache(KVShape(1, 1, 8), 2, way="cpu")


def damaged(target):
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(b"\x7fELF")


def test_without_openmp_it_is_compiled_for_one_thread(fresh, monkeypatch):
    monkeypatch.setattr(build, "THREADS", "-fno-such-flag")
    lengths = [600, 3]
    q, keys, values, table, whole = setting(lengths, (2, 1), 8, 16)
    out, _ = paged_cpu.attend_rows(q, keys, values, table, rows_for(lengths), threads=2)
    expected, _ = reference_attention(q[:1], *whole[0])
    torch.testing.assert_close(out[:1].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_changed_header_is_compiled_anew(fresh, tmp_path):
    source, header = tmp_path / "answer.cpp", tmp_path / "value.h"
    source.write_text('#include "value.h"\nextern "C" int answer() { return VALUE; }\n')
    for value in (41, 42):
        header.write_text(f"#define VALUE {value}\n")
        build.library.cache_clear()  # as in a new process
        assert build.library(source).answer() == value
