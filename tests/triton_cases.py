"""Run in a process of its own with TRITON_INTERPRET=1: Triton reads that when it is imported."""

import sys

import torch

from kvlib.tensors.attention import reference_attention
from kvlib.tensors.kernels.paged_triton import attend_rows

LENGTHS = [1, 16, 17, 0, 33]
HEADS = {"GQA": (9, 3), "MHA": (2, 2), "MQA": (4, 1)}


def check(heads, head_dim, block_size, dtype, splits, window, device):
    """Five ragged sequences, one of them empty, blocks in random order and NaN in free slots."""
    num_q, num_kv = HEADS[heads]
    generator = torch.Generator().manual_seed(head_dim + block_size)
    per_seq = -(-max(LENGTHS) // block_size)
    num_blocks = len(LENGTHS) * per_seq

    def draw(*size):
        return torch.randn(*size, generator=generator).to(device=device, dtype=dtype)

    keys, values = (draw(num_blocks + 1, num_kv, block_size, head_dim) for _ in range(2))
    order = torch.randperm(num_blocks, generator=generator)
    table = order.reshape(len(LENGTHS), per_seq).int().to(device)
    for s, length in enumerate(LENGTHS):
        for position in range(length, per_seq * block_size):
            block = table[s, position // block_size]
            for side in (keys, values):
                side[block, :, position % block_size] = torch.nan
    first = [0 if window is None else max(0, n - window) for n in LENGTHS]
    rows = torch.tensor([range(len(LENGTHS)), first, LENGTHS], dtype=torch.int32, device=device)
    q = draw(len(LENGTHS), num_q, head_dim)
    out, lse = attend_rows(q, keys, values, table, rows, splits)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for s, length in enumerate(LENGTHS):
        if not length:
            assert not out[s].any() and (lse[s] == -torch.inf).all()
            continue
        k, v = (
            side[table[s].long()].transpose(1, 2).reshape(-1, num_kv, head_dim)[:length]
            for side in (keys, values)
        )
        expected, expected_lse = reference_attention(q[s : s + 1], k, v, window=window)
        torch.testing.assert_close(out[s].double(), expected[0], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(lse[s].double(), expected_lse[0], rtol=1e-3, atol=1e-3)


def check_broken(splits, device):
    """A query that is none gives none, for itself alone; one that sees nothing gives zeros."""
    blocks = torch.ones(3, 1, 16, 32, device=device)
    table = torch.tensor([[0, 1], [2, 0], [0, 0]], dtype=torch.int32, device=device)
    rows = torch.tensor([[0, 1, 2], [0] * 3, [32, 16, 0]], dtype=torch.int32, device=device)
    q = torch.ones(3, 2, 32, device=device)
    q[0] = torch.nan
    out, lse = attend_rows(q, blocks, blocks, table, rows, splits)
    assert out[0].isnan().all() and lse[0].isnan().all()
    assert (out[1] == 1).all() and lse[1].isfinite().all()
    assert not out[2].any() and (lse[2] == -torch.inf).all()


def cases():
    """Every head size and block size in float32, two of them in half precision, then the rest."""
    sizes = ((32, 8), (64, 16), (80, 32), (96, 64), (128, 16), (256, 256))
    for dtype, some in (
        (torch.float32, sizes),
        (torch.float16, sizes[1:3]),
        (torch.bfloat16, sizes[1:3]),
    ):
        for head_dim, block_size in some:
            yield "MHA" if head_dim > 64 else "GQA", head_dim, block_size, dtype, 2, None
    yield "MQA", 64, 16, torch.float32, 1, None
    yield "MQA", 32, 24, torch.float32, 4, 5
    yield "GQA", 32, 16, torch.bfloat16, 2, 1


if __name__ == "__main__":
    todo = list(cases())
    for case in todo:
        check(*case, torch.device(sys.argv[1]))
    for splits in (1, 2):
        check_broken(splits, torch.device(sys.argv[1]))
    print(len(todo), "cases")
