"""Parts of attention merge by what they weigh."""

import math

import pytest
import torch

from kvlib.tensors.attention_parts import merge, partial_attention, shares_of


def test_parts_weigh_what_their_keys_weigh():
    """Weights 1 and 3; the third part has no key, and what it says counts for nothing."""
    outs = torch.tensor([[[1.0, 0.0]], [[5.0, 8.0]], [[math.nan, math.inf]]])
    lses = torch.tensor([[0.0], [math.log(3)], [-math.inf]])
    out, lse = merge(list(zip(outs, lses, strict=True)))
    torch.testing.assert_close(out, torch.tensor([[4.0, 6.0]]))
    torch.testing.assert_close(lse, torch.tensor([math.log(4)]))
    half = [(o.half(), s) for o, s in zip(outs[:2], lses[:2], strict=True)]
    assert merge(half)[0].dtype == torch.float16
    with pytest.raises(ValueError, match="at least one part, got 0"):
        merge([])


def test_what_is_nan_in_a_part_is_nan_in_the_whole():
    sound, torn = (
        (torch.ones(1, 2), torch.zeros(1)),
        (torch.tensor([[1.0, math.nan]]), torch.zeros(1)),
    )
    out = merge([sound, torn])[0][0]
    assert out[0] == 1 and out[1].isnan()


def test_shares_are_taken_along_the_axis_asked_for():
    scores = torch.tensor([[0.0, math.log(3)], [-math.inf, -math.inf], [1e6, 1e6]])
    shares, lse = shares_of(scores, dim=1)
    torch.testing.assert_close(shares, torch.tensor([[0.25, 0.75], [0, 0], [0.5, 0.5]]))
    torch.testing.assert_close(lse, torch.tensor([math.log(4), -math.inf, 1e6 + math.log(2)]))
    turned = shares_of(scores.T, dim=0)
    assert torch.equal(turned[0].T, shares) and torch.equal(turned[1], lse)
    shares, lse = shares_of(torch.zeros(2, 0), dim=1)
    assert shares.shape == (2, 0) and lse.tolist() == [-math.inf] * 2
    shares, lse = shares_of(torch.zeros(2, 0), dim=0)
    assert shares.shape == (2, 0) and lse.shape == (0,)


def test_a_part_says_what_it_saw():
    """Queries at 5 and 6, keys at 4 to 6, of two heads; scores are 2 q k / sqrt(4)."""
    q = torch.tensor([1.0, -1.0]).reshape(2, 1, 1).expand(2, 2, 4) * torch.tensor([2.0, 0, 0, 0])
    k = torch.tensor([0.0, math.log(3), 1.0]).reshape(1, 3, 1).expand(1, 3, 4)
    v = torch.tensor([4.0, 8.0, 16.0]).reshape(1, 3, 1).expand(1, 3, 4)
    out, lse = partial_attention(q, k, v, 4, 5, None)
    assert out.shape == (2, 2, 4) and lse.shape == (2, 2)
    assert out[0, 1].tolist() == pytest.approx([7.0] * 4) and lse[0, 1].item() == pytest.approx(
        math.log(4)
    )
    out, lse = partial_attention(q.half(), k.half(), v.half(), 4, 5, 1)
    assert out.dtype == lse.dtype == torch.float32
    assert out[:, 0, 0].tolist() == [8, 16] and lse[1, 0].item() == pytest.approx(-1)
    out, lse = partial_attention(q, k, v, 7, 5, None)  # keys behind the queries
    assert not out.any() and (lse == -math.inf).all()
    out, lse = partial_attention(q, k, v, 2, 5, 2)  # only the first query still sees the last key
    assert out[:, 0, 0].tolist() == [16, 0] and lse[1, 0] == -math.inf
