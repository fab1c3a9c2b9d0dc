"""The Triton kernel: interpreted on the CPU, compiled for two generations of cards, run on CUDA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import triton_cases
from kvlib.tensors.kernels import paged_triton

ROOT = Path(__file__).resolve().parents[1]


def python(code, **environment):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, *code]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def test_interpreted_it_meets_the_reference():
    pytest.importorskip("triton")
    done = python(["tests/triton_cases.py", "cpu"], TRITON_INTERPRET="1")
    assert done.stdout.strip() == f"{len(list(triton_cases.cases()))} cases", done.stderr[-2000:]


COMPILE = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kvlib.tensors.kernels import paged_triton
from kvlib.tensors.kernels._paged_triton import attend_part, merge_parts

for arch in (80, 90):
    for dtype, name in ((torch.float32, "fp32"), (torch.float16, "fp16"), (torch.bfloat16, "bf16")):
        for head_dim in (64, 80, 256):
            pad = 1 << (head_dim - 1).bit_length()
            sizes = dict(GROUP=4, GROUP_PAD=16, HEAD_DIM=head_dim, HEAD_PAD=pad, BLOCK_SIZE=16,
                         TILE=paged_triton._tile_tokens(head_dim, dtype), UPCAST=False)
            kinds = [f"*{name}"] * 3 + ["*i32"] * 4 + ["*fp32"] * 3 + ["fp32"]
            kinds += ["i64"] * 4 + ["i32"]
            names = attend_part.arg_names
            signature = dict(zip(names, kinds)) | {n: "constexpr" for n in sizes}
            source = ASTSource(attend_part, signature, sizes)
            made = triton.compile(source, target=GPUTarget("cuda", arch, 32))
            assert f"sm_{arch}" in made.asm["ptx"] and len(made.asm["cubin"]) > 1000
            assert made.metadata.shared < 100_000, (head_dim, name, made.metadata.shared)
            sizes = dict(GROUP=4, HEAD_DIM=head_dim, HEAD_PAD=pad, SPLITS_PAD=32)
            kinds = ["*fp32"] * 3 + [f"*{name}", "*fp32", "i32"]
            signature = dict(zip(merge_parts.arg_names, kinds)) | {n: "constexpr" for n in sizes}
            source = ASTSource(merge_parts, signature, sizes)
            triton.compile(source, target=GPUTarget("cuda", arch, 32))
print("compiled")
"""


def test_it_compiles_for_two_generations_of_cards_without_one():
    pytest.importorskip("triton")
    done = python(["-c", COMPILE])
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]


@pytest.mark.parametrize("case", list(triton_cases.cases()), ids=str)
def test_on_a_card_it_meets_the_reference(case):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    triton_cases.check(*case, torch.device("cuda"))


def test_on_a_card_what_is_none_shows_in_its_own_row_alone():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    for splits in (1, 2):
        triton_cases.check_broken(splits, torch.device("cuda"))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"head_dim": 48}, "head_dim is one of"),
        ({"block_size": 4}, "block_size is 8 to 256, got 4"),
        ({"block_size": 512}, "block_size is 8 to 256, got 512"),
        ({"dtype": torch.float64}, "dtypes are"),
    ],
)
def test_sizes_it_does_not_take_are_refused(options, message):
    sizes = {"dtype": torch.float32, "head_dim": 64, "block_size": 16} | options
    assert message in paged_triton.refusal(**sizes)
    pool = torch.zeros(2, 1, sizes["block_size"], sizes["head_dim"], dtype=sizes["dtype"])
    q = torch.zeros(1, 1, sizes["head_dim"], dtype=sizes["dtype"])
    rows = torch.zeros(3, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="does not take this"):
        paged_triton.attend_rows(q, pool, pool, torch.zeros(1, 1, dtype=torch.int32), rows)


def test_a_sequence_is_split_where_there_would_be_too_few_programs():
    """132 multiprocessors want 528 programs."""
    assert paged_triton.num_splits(1, 8, 131_072, 132) == 64
    assert paged_triton.num_splits(1, 8, 300, 132) == 1
    assert paged_triton.num_splits(64, 8, 8192, 132) == 1
