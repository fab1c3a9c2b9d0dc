"""What every kernel for single queries refuses, and where it finds its rows."""

import pytest
import torch

from kvlib.tensors.kernels import rows as module

TABLE = torch.tensor([[0, 3], [1, 2]], dtype=torch.int32)
ROWS = torch.tensor([[0, 1, 1], [0, 2, 0], [4, 5, 8]], dtype=torch.int32)


def test_rows_and_tables_are_int32_without_holes():
    module.require_rows(TABLE, ROWS, 3)
    for table, rows, num_rows in (
        (TABLE.long(), ROWS, 3),
        (TABLE, ROWS.long(), 3),
        (TABLE[0], ROWS, 3),
        (TABLE.T, ROWS, 3),
        (TABLE, ROWS[:, ::2], 2),
        (TABLE, ROWS[:2], 3),
        (TABLE, ROWS, 2),
    ):
        with pytest.raises(ValueError, match=rf"rows \[3, {num_rows}\] are int32"):
            module.require_rows(table, rows, num_rows)


def test_the_parts_of_rows_lie_one_behind_the_other():
    assert module.addresses(ROWS) == tuple(part.data_ptr() for part in ROWS)


@pytest.mark.parametrize("num_q_heads, num_kv_heads", [(0, 2), (1, 2), (3, 2)])
def test_a_kv_head_has_a_whole_number_of_queries(num_q_heads, num_kv_heads):
    module.require_groups(4, 2)
    with pytest.raises(ValueError, match=f"multiple of KV heads: {num_q_heads} and {num_kv_heads}"):
        module.require_groups(num_q_heads, num_kv_heads)


def test_a_head_lies_in_one_run_in_keys_and_values_alike():
    q, side = torch.zeros(3, 4, 8), torch.zeros(5, 2, 4, 8)
    module.require_strides(q, side[:, :1], side[:, 1:])
    turned = side.transpose(2, 3).contiguous().transpose(2, 3)
    for wrong in ((q[..., ::2], side, side), (q, turned, turned), (q, side, turned)):
        with pytest.raises(ValueError, match="q must be contiguous, keys and values alike"):
            module.require_strides(*wrong)


def test_sizes_that_are_met_often_are_constants():
    sizes = [
        module.constants(dim, group, (64, 80)) for dim in (64, 72, 80) for group in (0, 1, 8, 9)
    ]
    none = (0, 0)
    assert sizes == [none, (64, 1), (64, 8), none, *[none] * 4, none, (80, 1), (80, 8), none]


def test_what_a_kernel_refused_is_said():
    module.require_done(0, (1, 2), TABLE, 4, 16)
    with pytest.raises(ValueError, match=r"compiled for other sizes than \(1, 2\)"):
        module.require_done(1, (1, 2), TABLE, 4, 16)
    says = "4 blocks of 16, and a table of 2 sequences, 2 blocks each"
    with pytest.raises(ValueError, match=says):
        module.require_done(2, (1, 2), TABLE, 4, 16)
