"""A few rows times large weights."""

import pytest
import torch
from torch.nn.functional import rms_norm

from kvlib.tensors.kernels import few_rows
from kvlib.tensors.kernels.few_rows import MOST_ROWS, product

EPS = 1e-5


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator)


def close(got, wanted):
    """Within float32 rounding of sums of some hundred numbers near 1."""
    most = max(1.0, wanted.abs().max())
    return got.shape == wanted.shape and (got - wanted).abs().max() < 2e-6 * most


@pytest.mark.parametrize("out", [1, 5, 8, 96, 1001])
@pytest.mark.parametrize("size", [1, 8, 24, 33, 576, 768, 1537])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 32, 50])
def test_products_are_those_of_float64(rows, size, out):
    x, weight, norm = drawn(rows, size), drawn(out, size, seed=1), drawn(size, seed=2)
    assert close(product(x, weight), x.double() @ weight.double().T)
    normed = norm.double() * rms_norm(x.double(), (size,), eps=EPS)
    assert close(product(x, weight, norm=norm, eps=EPS), normed @ weight.double().T)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_gives_the_same_bits_whatever_rows_stand_beside_it(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for size in (33, 576, 1537):
            x, weight = drawn(11, size), drawn(101, size, seed=1)
            whole = product(x, weight, norm=weight[0], eps=EPS)
            for i in range(len(x)):
                alone = product(x[i : i + 1], weight, norm=weight[0], eps=EPS)
                assert torch.equal(alone[0], whole[i])
    finally:
        torch.set_num_threads(before)


def test_tensors_that_lie_scattered_are_copied_first():
    x, weight = drawn(24, 3).T, drawn(24, 40).T
    assert close(product(x, weight), x.double() @ weight.double().T)


@pytest.mark.parametrize(
    "change",
    [
        {"x": drawn(2, 9)},
        {"x": drawn(2, 8).double()},
        {"x": drawn(2, 8).to("meta")},
        {"x": drawn(8)},
        {"weight": drawn(4, 8).bfloat16()},
        {"weight": drawn(4, 8, 1)},
        {"norm": drawn(9)},
        {"norm": drawn(8).to("meta")},
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(change):
    arguments = {"x": drawn(2, 8), "weight": drawn(4, 8), **change}
    with pytest.raises(ValueError, match="got"):
        product(**arguments)


def test_only_few_float32_rows_on_the_cpu_are_taken():
    assert few_rows.takes(drawn(1, 4)) and few_rows.takes(drawn(MOST_ROWS, 4))
    assert not few_rows.takes(drawn(MOST_ROWS + 1, 4))
    assert not few_rows.takes(drawn(0, 4))
    assert not few_rows.takes(drawn(1, 4).bfloat16())
    assert not few_rows.takes(drawn(1, 4).to("meta"))
