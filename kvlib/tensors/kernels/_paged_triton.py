"""The Triton kernels of `paged_triton`; importing this needs triton."""

import triton
import triton.language as tl

# A finite stand-in for minus infinity: the difference of two of them is 0, not NaN.
NOTHING = tl.constexpr(-1.0e30)


@triton.jit
def attend_part(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    row_seq_ptr,
    row_first_ptr,
    row_end_ptr,
    sum_ptr,
    peak_ptr,
    total_ptr,
    scale,
    table_stride,
    block_stride,
    head_stride,
    token_stride,
    num_splits,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One query token, one KV head, one run of positions: weights and values, not yet divided."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads = tl.num_programs(1)
    first, end = tl.load(row_first_ptr + row), tl.load(row_end_ptr + row)
    tiles = (end - first + TILE - 1) // TILE
    per_split = (tiles + num_splits - 1) // num_splits
    start = first + split * per_split * TILE
    stop = tl.minimum(end, start + per_split * TILE)
    table = table_ptr + tl.load(row_seq_ptr + row).to(tl.int64) * table_stride
    g, d, t = tl.arange(0, GROUP_PAD), tl.arange(0, HEAD_PAD), tl.arange(0, TILE)
    query = (row * num_heads + head) * GROUP + g
    q = tl.load(
        q_ptr + query[:, None].to(tl.int64) * HEAD_DIM + d[None, :],
        mask=(g < GROUP)[:, None] & (d < HEAD_DIM)[None, :],
        other=0.0,
    )
    if UPCAST:
        q = q.to(tl.float32)
    peak = tl.full([GROUP_PAD], NOTHING, tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, HEAD_PAD], tl.float32)
    for at in range(start, stop, TILE):
        position = at + t
        seen = position < stop
        block = tl.load(table + position // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        token = block * block_stride + (position % BLOCK_SIZE) * token_stride + head * head_stride
        where = token[:, None] + d[None, :]
        there = seen[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + where, mask=there, other=0.0)
        v = tl.load(v_ptr + where, mask=there, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        score = tl.dot(q, tl.trans(k), input_precision="ieee").to(tl.float32) * scale
        score = tl.where(seen[None, :], score, NOTHING)
        high = tl.maximum(peak, tl.max(score, 1))
        shrink = tl.exp(peak - high)
        weight = tl.where(seen[None, :], tl.exp(score - high[:, None]), 0.0)
        total = total * shrink + tl.sum(weight, 1)
        more = tl.dot(weight.to(v.dtype), v, input_precision="ieee").to(tl.float32)
        acc = acc * shrink[:, None] + more
        peak = high
    part = ((row * num_heads + head) * num_splits + split) * GROUP + g
    tl.store(peak_ptr + part, peak, mask=g < GROUP)
    tl.store(total_ptr + part, total, mask=g < GROUP)
    tl.store(
        sum_ptr + part[:, None].to(tl.int64) * HEAD_DIM + d[None, :],
        acc,
        mask=(g < GROUP)[:, None] & (d < HEAD_DIM)[None, :],
    )


@triton.jit
def merge_parts(
    sum_ptr,
    peak_ptr,
    total_ptr,
    out_ptr,
    lse_ptr,
    num_splits,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
):
    """One query: its parts weighted by their share of the whole, and the log-sum-exp."""
    row_head, g = tl.program_id(0), tl.program_id(1)
    s, d = tl.arange(0, SPLITS_PAD), tl.arange(0, HEAD_PAD)
    there = s < num_splits
    part = (row_head * num_splits + s) * GROUP + g
    peak = tl.load(peak_ptr + part, mask=there, other=NOTHING)
    total = tl.load(total_ptr + part, mask=there, other=0.0)
    high = tl.max(peak, 0)
    # A total that is NaN counts: what broke is to be seen in what comes out.
    weight = tl.where(total == 0, 0.0, tl.exp(peak - high))
    whole = tl.sum(weight * total, 0)
    parts = tl.load(
        sum_ptr + part[:, None].to(tl.int64) * HEAD_DIM + d[None, :],
        mask=there[:, None] & (d < HEAD_DIM)[None, :],
        other=0.0,
    )
    divisor = tl.where(whole == 0, 1.0, whole)
    out = tl.sum(parts * weight[:, None], 0) / divisor
    query = (row_head * GROUP + g).to(tl.int64)
    tl.store(out_ptr + query * HEAD_DIM + d, out.to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)
    lse = tl.where(whole == 0, -float("inf"), high + tl.log(divisor))
    tl.store(lse_ptr + query, lse)
