"""Faults that were reported of real engines, tried on this one: each case has its public id.

A case is a small input with the outcome that is right; it fails where the fault is made again.
"""

from itertools import permutations

import pytest
import torch

import public_cases_attention  # noqa: F401
import public_cases_positions  # noqa: F401
import public_cases_prefix  # noqa: F401
import public_cases_quantized  # noqa: F401
import public_cases_serving  # noqa: F401
import public_cases_sizes  # noqa: F401
import public_cases_timing  # noqa: F401
from conftest import small_config
from exact_caches import EXACT, fill
from kvlib.arena import Arena
from kvlib.block_table import BlockTable, num_blocks_for
from kvlib.blocks import BlockPool
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.sizes import KVShape
from kvlib.tensors.attention import reference_attention
from kvlib.tensors.attention_parts import merge
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache, PagedPlan
from kvlib.tensors.sink_window import RollingKVCache
from kvlib.tensors.store import KVStore
from public_cases import CASES, case

NAN = float("nan")
ONE = KVShape(num_layers=1, num_kv_heads=1, head_dim=2)


def ledger_of(num_tokens, num_blocks, block_size, **options):
    ledger = PagedLedger(num_blocks, block_size, **options)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": [0] * num_tokens}))
    return ledger


def store(cache, seq_id, numbers):
    """Stores tokens whose keys are zero and whose values are the numbers: one layer, one head.

    All scores are equal then, so that attention is the mean of what is seen. Returns it for each.
    """
    v = torch.tensor(numbers, dtype=torch.float32)[:, None, None].expand(-1, 1, 2)
    with cache.step({seq_id: [0] * len(numbers)}) as plan:
        cache.write(0, torch.zeros_like(v), v, plan)
        return cache.attend(0, torch.ones(len(numbers), 1, 2), plan)[:, 0, 0].tolist()


def all_caches(**sizes):
    for make in EXACT.values():
        cache = make(ONE, **sizes)
        fill(cache.store, NAN)
        cache.add("a")
        yield cache


@case("RC-1")
def a_window_frees_each_block_once_however_often_it_is_named():
    """Eight tokens behind a window of four: two blocks are held, the table names the null block."""
    ledger = ledger_of(8, 4, 2, window=4)
    held = [b for b in ledger.table("a") if b != ledger.pool.null_block_id]
    ledger.fork("a", "b")
    assert [ledger.pool.ref_count(b) for b in held] == [2, 2]
    ledger.free("a")
    assert [ledger.pool.ref_count(b) for b in held] == [1, 1] and ledger.num_free == 2
    ledger.free("b")
    assert ledger.num_free == 4
    ledger.check()


@case("RC-3")
def a_block_freed_twice_is_an_error_that_names_it():
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.free([block])
    with pytest.raises(ValueError, match=f"block {block} has 0 references"):
        pool.free([block])
    assert pool.num_free == 2
    assert set(pool.allocate(1) + pool.allocate(1)) == {0, 1}
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)


@case("RC-4")
def a_fresh_block_has_one_reference():
    pool = BlockPool(2)
    trace = [pool.num_free]
    [block] = pool.allocate(1)
    trace.append(pool.num_free)
    assert pool.ref_count(block) == 1
    pool.free([block])
    assert pool.ref_count(block) == 0 and [*trace, pool.num_free] == [2, 1, 2]


@case("CA-1")
def free_blocks_with_content_are_not_counted_twice():
    """Two of the free blocks are what the six-block request finds again: it needs four others."""
    for num_free in (5, 6):
        pool = BlockPool(num_free)
        hits = pool.allocate(2)
        for block in hits:
            pool.mark(block)
        pool.free(hits)
        pool.share(hits)  # what is found leaves the line of free blocks first
        if num_free == 5:
            assert pool.num_free == 3
            with pytest.raises(OutOfBlocks, match="asked for 4 blocks, 3 free of 5"):
                pool.allocate(4)
            pool.free(hits)
            assert (pool.num_free, pool.num_kept) == (5, 2)
            assert [pool.ref_count(block) for block in hits] == [0, 0]
        else:
            pool.allocate(4)
            assert pool.num_free == 0
        pool.check()


@case("CA-5")
def a_look_ahead_counts_the_started_block_and_the_new_one():
    ledger = ledger_of(14, 4, 16)
    free = ledger.num_free
    step = ledger.plan({"a": [0] * 5})
    assert len({slot // 16 for slot in step.slot_mapping}) == 2
    assert free - ledger.num_free == 1


@case("SM-1")
def slots_and_table_are_one_formula():
    table = BlockTable(BlockPool(8), 16)
    table._blocks, table.num_tokens = [7, 1, 3], 48
    slots = [next(table.slots(p, p + 1)) for p in (0, 15, 16, 35, 47)]
    assert slots == [112, 127, 16, 51, 63]
    held = KVStore(1, 8, 16, 1, 2)
    written = torch.arange(48.0)[:, None, None].expand(-1, 1, 2)
    held.write(0, torch.tensor(list(table.slots(0, 48))), written, written)
    through = held.keys[0, list(table.block_ids)].transpose(1, 2).reshape(48, 1, 2)
    assert torch.equal(through, written)


@case("SM-2")
def padding_overwrites_nobody():
    """-1 would be the last slot of all; it is refused, and padding has a block of its own."""
    held = KVStore(1, 3, 4, 1, 2)
    fill(held, 9.0)
    k = torch.ones(4, 1, 2)
    with pytest.raises(ValueError, match=r"slots are 0 to 11, asked for \[-1, -1\]"):
        held.write(0, torch.tensor([0, 1, -1, -1]), k, k)
    assert (held.keys == 9).all()
    cache = PagedKVCache(ONE, 3, 4, way="gather")
    fill(cache.store, 9.0)
    cache.add("a")
    with cache.step({"a": [0, 0]}) as plan:
        host = plan.host.pad(4, 2, cache.ledger.pool.null_block_id)
        cache.write(0, k, k, PagedPlan.of(host, cache.device))
    usable = cache.store.keys[0, :3, 0, :, 0].flatten().tolist()
    assert usable == [1, 1] + [9] * 10


@case("SM-4")
def a_position_behind_the_table_is_an_error():
    table = BlockTable(BlockPool(10), 16)
    table._blocks, table.num_tokens = [4, 9, 2], 48
    with pytest.raises(ValueError, match=r"hold positions \[0, 48\), asked for \[48, 49\)"):
        list(table.slots(48, 49))


@case("SM-6")
def a_batch_in_any_order_reads_by_sequence():
    for make in EXACT.values():
        cache = make(ONE, num_seqs=8, max_seq_len=4)
        for i in range(8):
            cache.add(i)
            store(cache, i, [i])
        batch = torch.tensor([3.0, 7.0, 1.0])[:, None, None].expand(-1, 1, 2)
        with cache.step({i: [0] for i in (3, 7, 1)}) as plan:
            cache.write(0, torch.zeros_like(batch), batch, plan)
            out = cache.attend(0, torch.ones(3, 1, 2), plan)
        assert out[:, 0, 0].tolist() == [3, 7, 1]


@case("BG-1")
def a_block_is_there_before_its_first_token():
    ledger, held = ledger_of(0, 4, 4), []
    for _ in range(9):
        step = ledger.plan({"a": [0]})
        held.append(len(ledger.table("a")))
        assert step.slot_mapping[0] // 4 == ledger.table("a")[-1]
        ledger.commit(step)
    assert held == [1, 1, 1, 1, 2, 2, 2, 2, 3]


@case("BG-3")
def the_table_grows_with_the_length():
    ledger, at = ledger_of(16, 8, 16), {}
    for _ in range(40):
        at[ledger.length("a")] = len(ledger.table("a"))
        ledger.commit(ledger.plan({"a": [0]}))
    at[ledger.length("a")] = len(ledger.table("a"))
    assert all(blocks == -(-length // 16) for length, blocks in at.items())
    assert (at[16], at[17], at[56]) == (1, 2, 4)


@case("BG-4")
def a_table_has_room_for_what_is_speculated():
    assert num_blocks_for(4096, 128) + 3 == num_blocks_for(4096 + 3 * 128, 128) == 35
    ledger = ledger_of(4096, 35, 128)
    step = ledger.plan({"a": [0] * 3 * 128})
    assert len(step.block_table[0]) == 35


@case("CW-1")
def a_fork_copies_the_started_block_once():
    cache = PagedKVCache(ONE, 4, 4, way="gather")
    fill(cache.store, NAN)
    cache.add("parent")
    store(cache, "parent", [1] * 6)
    cache.fork("parent", "child")
    pool, blocks = cache.ledger.pool, cache.ledger.table("parent")
    assert pool.num_held == 2 and [pool.ref_count(b) for b in blocks] == [2, 2]
    seen = store(cache, "parent", [8]) + store(cache, "child", [15])
    assert seen == pytest.approx([2, 3])
    assert pool.num_held == 3
    ends = [cache.ledger.table(s)[1] * 4 for s in ("parent", "child")]
    numbers = cache.store.values[0, :, 0, :, 0].flatten()
    assert [numbers[end : end + 3].tolist() for end in ends] == [[1, 1, 8], [1, 1, 15]]
    cache.free("parent")
    cache.free("child")
    assert pool.num_held == 0


@case("CW-3")
def forks_leave_in_any_order():
    for order in permutations(range(3)):
        ledger = ledger_of(0, 8, 4)
        ledger.add(0)
        ledger.commit(ledger.plan({0: [0] * 5}))
        for child, keep in ((1, 3), (2, 2)):
            ledger.fork(child - 1, child)
            ledger.truncate(child, keep)
        for child in (1, 2):
            ledger.commit(ledger.plan({child: [0]}))
        tables = {i: ledger.table(i) for i in range(3)}
        for gone, seq_id in enumerate(order, start=1):
            ledger.free(seq_id)
            ledger.check()
            assert all(ledger.table(i) == tables[i] for i in order[gone:])
        assert ledger.pool.num_held == 0


@case("LN-1")
def truncate_says_how_many_to_keep():
    for cache in all_caches():
        store(cache, "a", [1, 2, 3])
        cache.fork("a", "b")
        cache.truncate("a", 0)
        assert cache.length("a") == 0
        with pytest.raises(ValueError, match="asked to keep -2"):
            cache.truncate("b", 3 - 5)
        cache.truncate("b", 3 - 0)
        assert cache.length("b") == 3
        cache.truncate("b", 3 - 3)
        assert cache.length("b") == 0


@case("LN-2")
def zeros_are_tokens_like_any_other():
    for cache in all_caches():
        with cache.step({"a": [0] * 4}) as plan:
            k = torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None, None].expand(-1, 1, 2)
            cache.write(0, k, k, plan)
        cache.add("b")
        store(cache, "b", [0])
        assert (cache.length("a"), cache.length("b")) == (4, 1)


@case("LN-4")
def after_a_reset_a_cache_is_as_new():
    makes = [lambda make=make: make(ONE) for make in EXACT.values()]
    for make in [*makes, lambda: RollingKVCache(ONE, 1, 4), windowed_blocks]:
        used, fresh = make(), make()
        for cache in (used, fresh):
            cache.add("a")
        store(used, "a", list(range(9)))
        used.truncate("a", 0)
        assert used.length("a") == 0
        for numbers in ([5, 7, 2], [6], [1, 3, 9, 4]):
            assert store(used, "a", numbers) == store(fresh, "a", numbers)


@case("LN-5")
def each_step_starts_where_the_last_one_ended():
    for cache in all_caches():
        offsets = []
        for size in (6, 1, 1, 1, 1):
            with cache.step({"a": [0] * size}) as plan:
                offsets.append(cache.length("a"))
                assert plan.host.positions[0] == offsets[-1]
        assert offsets == [0, 6, 7, 8, 9]


@case("LN-7")
def beams_are_reordered_or_refused():
    for make in EXACT.values():
        cache = make(KVShape(2, 1, 2))
        for beam in range(3):
            cache.add(beam)
            row = torch.full((1, 1, 2), float(beam))
            with cache.step({beam: [0]}) as plan:
                for layer in (0, 1):
                    cache.write(layer, row, row, plan)
        cache.reorder({0: 2, 1: 0, 2: 0})
        zero = torch.zeros(3, 1, 2)
        with cache.step({beam: [0] for beam in range(3)}) as plan:
            for layer in (0, 1):
                cache.write(layer, zero, zero, plan)
                out = cache.attend(layer, zero, plan)
                assert (2 * out[:, 0, 0]).tolist() == [2, 0, 0]
    assert not hasattr(RollingKVCache, "reorder")


@case("GO-1")
def growth_keeps_each_layers_tokens():
    cache = ContiguousKVCache(KVShape(2, 1, 2), 1, 4, initial_seq_len=2)
    cache.add("a")
    numbers = torch.arange(8.0).reshape(2, 2, 1, 2)
    with cache.step({"a": [0, 0]}) as plan:
        for layer in (0, 1):
            cache.write(layer, numbers[layer], numbers[layer], plan)
    cache.abort(cache.plan({"a": [0]}))
    assert cache.row_len == 4
    rows = [cache.store.view(layer, 0, 2)[0].flatten().tolist() for layer in (0, 1)]
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7]]


@case("GO-2")
def the_fifth_token_of_four_is_refused():
    makes = [EXACT[name](ONE, num_seqs=1, max_seq_len=4) for name in ("contiguous", "growing")]
    for cache in [
        *makes,
        EXACT["aligned"](ONE, num_seqs=1, max_seq_len=4),
        PagedKVCache(ONE, 2, 2),
    ]:
        cache.add("a")
        store(cache, "a", [1, 2, 3, 4])
        before = cache.store.keys.clone()
        with pytest.raises(SequenceTooLong, match=r"5 > (max_seq_len )?4"):
            store(cache, "a", [5])
        assert cache.length("a") == 4
        assert torch.equal(cache.store.keys.view(torch.int32), before.view(torch.int32))


@case("ST-1")
def the_rest_of_a_block_is_never_read():
    cache = PagedKVCache(ONE, 4, 4)
    fill(cache.store, NAN)
    cache.add("a")
    assert store(cache, "a", list(range(1, 14)))[-1] == pytest.approx(7.0)


@case("ST-3")
def a_broken_sequence_breaks_no_other():
    for cache in all_caches():
        cache.add("b")
        store(cache, "a", [1, 3])
        store(cache, "b", [NAN] * 4)
        both = torch.tensor([5.0, 0.0])[:, None, None].expand(-1, 1, 2)
        with cache.step({"a": [0], "b": [0]}) as plan:
            cache.write(0, torch.zeros_like(both), both, plan)
            out = cache.attend(0, torch.ones(2, 1, 2), plan)[:, 0, 0]
        assert out[0].item() == 3 and out[1].isnan()


def windowed_blocks(window=4):
    return PagedKVCache(ONE, 12, 2, window=window)


@case("SW-1")
def a_window_counts_the_query_itself():
    expected = [0, 0.5, 1, 1.5, 2.5, 3.5, 4.5, 5.5]
    v = torch.arange(8.0)[:, None, None]
    by_mask, _ = reference_attention(torch.zeros(8, 1, 1), torch.zeros_like(v), v, window=4)
    assert by_mask.flatten().tolist() == pytest.approx(expected)
    for chunks in ([8], [1] * 8, [3, 5]):
        for cache in (RollingKVCache(ONE, 1, 4), windowed_blocks()):
            cache.add("a")
            numbers, out = list(range(8)), []
            for size in chunks:
                out += store(cache, "a", numbers[:size])
                numbers = numbers[size:]
            assert out == pytest.approx(expected)
            assert cache.counters.attention_pairs == sum([1, 2, 3, 4, 4, 4, 4, 4])


@case("SW-2")
def a_full_ring_drops_one_token_for_one():
    ring = RollingKVCache(ONE, 1, 8)
    ring.add("a")
    held = []
    for first, end in ((0, 6), (6, 7), (7, 8), (8, 9), (9, 10)):
        store(ring, "a", [10 + p / 10 for p in range(first, end)])
        slots = torch.tensor([p % 8 for p in ring.positions("a")])
        numbers = ring.store.read(0, slots)[1][:, 0, 0].tolist()
        held.append((len(numbers), round(numbers[0], 1), round(numbers[-1], 1)))
    full = [(8, 10.0, 10.7), (8, 10.1, 10.8), (8, 10.2, 10.9)]
    assert held == [(6, 10.0, 10.5), (7, 10.0, 10.6), *full]


@case("SW-4")
def a_first_chunk_longer_than_the_ring_sees_its_own_windows():
    ring = RollingKVCache(ONE, 1, 4)
    ring.add("a")
    assert store(ring, "a", list(range(7))) == pytest.approx([0, 0.5, 1, 1.5, 2.5, 3.5, 4.5])
    assert ring.positions("a") == [3, 4, 5, 6]


@case("SW-6")
def a_ring_goes_back_by_one_or_to_nothing():
    """Six tokens through four slots: the query at position 5 sees 2..5, and at 4 it would see 1."""
    for keep in range(7):
        ring = RollingKVCache(ONE, 1, 4)
        ring.add("a")
        store(ring, "a", list(range(6)))
        if keep in (6, 5, 0):
            ring.truncate("a", keep)
            assert ring.length("a") == keep
            assert store(ring, "a", [9]) == pytest.approx([{6: 5.25, 5: 4.5, 0: 9.0}[keep]])
        else:
            with pytest.raises(ValueError, match=f"gone, so it cannot go back to {keep}"):
                ring.truncate("a", keep)
            assert ring.length("a") == 6 and ring.positions("a") == [2, 3, 4, 5]


@case("CP-1")
def chunks_see_all_that_came_before_them():
    for chunks in ([6], [3, 2, 1], [1] * 6):
        for cache in all_caches():
            numbers, out = list(range(6)), []
            for size in chunks:
                out += store(cache, "a", numbers[:size])
                numbers = numbers[size:]
            assert out == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])


@case("EM-2")
def nothing_merged_with_nothing_is_nothing():
    """And a sequence without tokens, next to one with five, changes nothing for it."""
    nothing = (torch.zeros(1, 1), torch.tensor([-torch.inf]))
    empty = merge([nothing, nothing])
    assert empty[0].item() == 0 and empty[1].item() == -torch.inf
    out, lse = merge([empty, (torch.tensor([[3.0]]), torch.tensor([0.0]))])
    assert (out.item(), lse.item()) == (3, 0)
    for cache in all_caches():
        cache.add("empty")
        store(cache, "a", [1, 2, 3, 4, 5])
        zero = torch.zeros(1, 1, 2)
        with cache.step({"empty": [], "a": [0]}) as plan:
            cache.write(0, zero, zero, plan)
            assert cache.attend(0, zero, plan)[0, 0].tolist() == pytest.approx([2.5, 2.5])


@case("GQ-1")
def query_heads_share_a_kv_head_in_groups():
    shape = KVShape(1, 2, 2)
    for make in EXACT.values():
        cache = make(shape)
        cache.add("a")
        v = torch.tensor([1.0, 2.0])[None, :, None].expand(1, 2, 2)
        with cache.step({"a": [0]}) as plan:
            cache.write(0, v, v, plan)
            out = cache.attend(0, torch.ones(1, 4, 2), plan)
        assert out[0, :, 0].tolist() == [1, 1, 2, 2]


@case("GQ-3")
def heads_that_do_not_divide_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"6.*4|4.*6"):
        Llama.random(small_config(num_q_heads=6, num_kv_heads=4), seed=1)


@case("GQ-4")
def a_cache_holds_kv_heads_and_not_query_heads():
    shape = KVShape(num_layers=1, num_kv_heads=8, head_dim=128)
    place = {"dtype": torch.float16, "device": "meta"}
    assert shape.bytes_per_sequence(1024, "float16") == 4_194_304
    assert ContiguousKVCache(shape, 1, 1024, **place).nbytes == 4_194_304
    blocks = PagedKVCache(shape, 64, 16, **place)
    assert blocks.nbytes * 64 // 65 == 4_194_304  # and the null block


@case("IX-1")
def a_large_offset_needs_more_than_32_bits():
    held = KVStore(1, 2067, 16, 2, 32490, dtype=torch.float16, device="meta")
    assert held.keys.stride(1) == 1_039_680
    assert held.keys[0, 2066].storage_offset() == 2_147_978_880 > 2**31 - 1


@case("PE-1")
def a_ring_counts_rows_and_positions_apart():
    ring = RollingKVCache(ONE, 1, 4)
    ring.add("a")
    store(ring, "a", list(range(6)))
    assert ring.positions("a") == [2, 3, 4, 5] and ring.ledger.used_tokens == 4
    assert ring.plan({"a": [0]}).host.positions == (6,)


@case("FR-1")
def blocks_need_no_hole_and_rows_do():
    arena = Arena(8)
    pieces = [arena.allocate(1) for _ in range(8)]
    for piece in pieces[1::2]:
        arena.free(piece)
    assert (arena.num_free, arena.largest_hole) == (4, 1)
    assert 1 - arena.largest_hole / arena.num_free == 0.75
    with pytest.raises(OutOfBlocks):
        arena.allocate(2)
    pool = BlockPool(8)
    pool.allocate(8)
    pool.free([1, 3, 5, 7])
    assert len(pool.allocate(2)) == 2
    moved = arena.compact()
    assert [new.start for _, new in moved] == [1, 2, 3] and len(arena.pieces) == 4
    assert arena.allocate(4).start == 4


@pytest.mark.parametrize("name", CASES)
def test_a_public_case_comes_out_right(name):
    CASES[name]()
