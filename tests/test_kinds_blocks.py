"""Siblings of public faults in blocks: references, slots, growth, copies before a write, holes."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.arena import Arena, best_fit
from kvlib.block_table import num_blocks_for
from kvlib.blocks import BlockPool
from kvlib.buddy import BuddyArena
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.segments import MIB, SegmentPool
from kvlib.sizes import KVShape
from kvlib.slab import SlabPool
from kvlib.tensors.contiguous import AlignedKVCache

IDS = st.lists(st.integers(-2, 5), max_size=5)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["share", "free"]), IDS),
        st.tuples(st.sampled_from(["mark", "unmark"]), st.integers(-1, 5)),
        st.tuples(st.just("allocate"), st.integers(0, 5)),
    ),
    max_size=30,
)


class Counts:
    """The rules of a pool, said once more without lines of free blocks."""

    def __init__(self, num_blocks):
        self.size, self.refs, self.marked = num_blocks, Counter(), set()

    def allowed(self, call, what):
        known = range(self.size)
        if call == "allocate":
            return what <= sum(not self.refs[b] for b in known)
        ids = what if isinstance(what, list) else [what]
        if any(b not in known for b in ids):
            return False
        if call == "free":
            return all(n <= self.refs[b] for b, n in Counter(ids).items())
        if call == "share":
            return all(self.refs[b] or b in self.marked for b in ids)
        return call == "unmark" or self.refs[what] > 0

    def call(self, call, what, got):
        if call == "allocate":
            assert len(set(got)) == what and not any(self.refs[b] for b in got)
            kept = [b for b in range(self.size) if not self.refs[b] and b in self.marked]
            empty = sum(not self.refs[b] for b in range(self.size)) - len(kept)
            lost = [b for b in got if b in self.marked]
            assert len(lost) == max(0, what - empty), "content was given up for nothing"
            self.refs.update(got)
            self.marked.difference_update(got)
        elif call == "mark":
            self.marked.add(what)
        elif call == "unmark":
            self.marked.discard(what)
        elif call == "share":
            self.refs.update(what)
        else:
            self.refs.subtract(what)


@settings(max_examples=300)
@given(calls=CALLS)
def test_a_pool_counts_each_name_in_a_call_and_refuses_the_whole_or_nothing(calls):
    """Blocks named twice in one call, unknown ones, the null block, freed ones: in any order."""
    pool, rules = BlockPool(4), Counts(4)
    for call, what in calls:
        before = [pool._refs[:], list(pool._empty), list(pool._kept), pool._marked[:]]
        if rules.allowed(call, what):
            rules.call(call, what, getattr(pool, call)(what))
        else:
            with pytest.raises((ValueError, OutOfBlocks)):
                getattr(pool, call)(what)
            assert before == [pool._refs[:], list(pool._empty), list(pool._kept), pool._marked[:]]
        assert [pool.ref_count(b) for b in range(4)] == [rules.refs[b] for b in range(4)]
        assert [pool.has_content(b) for b in range(4)] == [b in rules.marked for b in range(4)]
        pool.check()


class Texts:
    """Sequences in a paged ledger, and a memory of slots that holds what each step wrote."""

    def __init__(self, seed, window):
        self.random = Random(f"texts/{seed}")
        self.size = self.random.choice([1, 2, 3, 4])
        self.window, self.num_blocks = window, self.random.randint(5, 9)
        self.ledger = PagedLedger(self.num_blocks, self.size, window=window)
        self.tokens, self.memory, self.made = {}, {}, 0

    def sees(self, seq_id, position, text):
        """The query at a position finds each token of its window where its table says."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        self.finds(seq_id, range(first, position + 1), text)

    def finds(self, seq_id, positions, text):
        table = self.ledger.table(seq_id)
        for at in positions:
            block = table[at // self.size]
            assert block != self.ledger.pool.null_block_id, f"{seq_id} has lost {at}"
            assert self.memory[block * self.size + at % self.size] == text[at]

    def step(self):
        chosen = self.random.sample(sorted(self.tokens), self.random.randint(1, len(self.tokens)))
        counts = {s: self.random.choice([0, 1, 1, 1, self.size, self.size + 1]) for s in chosen}
        able, free = self.ledger.can_plan(counts), self.ledger.num_free
        try:
            plan = self.ledger.plan({s: [0] * n for s, n in counts.items()})
        except (OutOfBlocks, SequenceTooLong) as error:
            assert not able or isinstance(error, SequenceTooLong)
            assert self.ledger.num_free == free
            return
        assert able, "it was said that it would not fit"
        for copy in plan.copies:
            for i in range(copy.num_tokens):
                source, target = copy.src * self.size + i, copy.dst * self.size + i
                self.memory[target] = self.memory[source]
        texts = {s: self.tokens[s] + [self.token() for _ in range(n)] for s, n in counts.items()}
        self.write(plan, texts)
        if self.random.random() < 0.2:
            self.ledger.abort(plan)
            assert self.ledger.num_free == free
        else:
            self.ledger.commit(plan)
            self.tokens |= texts

    def write(self, plan, texts):
        for i, seq_id in enumerate(plan.seq_ids):
            span = range(plan.query_start[i], plan.query_start[i + 1])
            table = plan.block_table[i]
            for row in span:
                at, slot = plan.positions[row], plan.slot_mapping[row]
                assert slot == table[at // self.size] * self.size + at % self.size
                self.memory[slot] = texts[seq_id][at]
        for i, seq_id in enumerate(plan.seq_ids):
            used = num_blocks_for(plan.context_lens[i], self.size)
            assert len(self.ledger.table(seq_id)) == used, "a block too many, or one too few"
            assert set(plan.block_table[i][used:]) <= {self.ledger.pool.null_block_id}
            for row in range(plan.query_start[i], plan.query_start[i + 1]):
                self.sees(seq_id, plan.positions[row], texts[seq_id])

    def token(self):
        self.made += 1
        return self.made

    def change(self):
        """Forks, drops, shortens or reorders sequences, or adds one."""
        names, kind = sorted(self.tokens), self.random.random()
        if kind < 0.45 or not names:
            self.made += 1
            if names and kind < 0.3:
                self.ledger.fork(parent := self.random.choice(names), self.made)
                self.tokens[self.made] = self.tokens[parent]
            else:
                self.ledger.add(self.made)
                self.tokens[self.made] = []
        elif kind < 0.65:
            self.ledger.free(gone := self.random.choice(names))
            del self.tokens[gone]
        elif kind < 0.75:
            sources = {s: self.random.choice(names) for s in names}
            self.ledger.reorder(sources)
            self.tokens = {s: self.tokens[source] for s, source in sources.items()}
        else:
            self.shorten(self.random.choice(names))

    def shorten(self, seq_id):
        text = self.tokens[seq_id]
        keep = max(0, len(text) - self.random.choice([0, 1, 2, self.size, 99]))
        try:
            self.ledger.truncate(seq_id, keep)
        except ValueError:
            assert self.window is not None and 0 < keep < len(text)
            first = max(0, keep - self.window + 1) // self.size
            gone = self.ledger.table(seq_id)[first] == self.ledger.pool.null_block_id
            assert gone, "what the next query needs is there, and was refused"
            return
        self.tokens[seq_id] = text[:keep]
        first = 0 if self.window is None else max(0, keep - self.window + 1)
        self.finds(seq_id, range(first, keep), text)  # what the next query sees beside itself

    def holds(self):
        self.ledger.check()
        held = {b for s in self.tokens for b in self.ledger.table(s)}
        held -= {self.ledger.pool.null_block_id}
        assert self.ledger.num_free + len(held) == self.num_blocks
        for seq_id, text in self.tokens.items():
            assert self.ledger.length(seq_id) == len(text)
            blocks = num_blocks_for(len(text), self.size)
            assert len(self.ledger.table(seq_id)) == blocks
            if self.window is not None and text:
                table = self.ledger.table(seq_id)
                behind = sum(b != self.ledger.pool.null_block_id for b in table)
                assert behind <= (self.window - 2) // self.size + 2, "a window holds too much"


@pytest.mark.parametrize("window", [None, 1, 2, 4, 7])
def test_each_text_reads_its_own_tokens_whatever_is_shared_dropped_or_taken_back(window):
    """Tables, slots, growth and copy-on-write against a plain list of tokens for each sequence."""
    for seed in range(25):
        texts = Texts(seed, window)
        for _ in range(120):
            if texts.tokens and texts.random.random() < 0.75:
                texts.step()
            else:
                texts.change()
            texts.holds()
        for seq_id in list(texts.tokens):
            texts.ledger.free(seq_id)
        assert texts.ledger.num_free == texts.num_blocks


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_a_table_is_never_a_block_too_long_or_too_short(block_size):
    """Every length, reached in steps of every size: the block is there before its first token."""
    for chunk in range(1, 2 * block_size + 2):
        ledger = PagedLedger(12, block_size)
        ledger.add("a")
        for _ in range(3):
            free = ledger.num_free
            step = ledger.plan({"a": [0] * chunk})
            end = step.context_lens[0]
            taken = num_blocks_for(end, block_size) - num_blocks_for(end - chunk, block_size)
            assert free - ledger.num_free == taken
            assert max(step.slot_mapping) // block_size in step.block_table[0]
            ledger.abort(step)
            assert ledger.num_free == free
            ledger.commit(ledger.plan({"a": [0] * chunk}))
            assert len(ledger.table("a")) == -(-ledger.length("a") // block_size)


ALLOCATORS = {
    "first fit": lambda: Arena(40),
    "best fit": lambda: Arena(40, best_fit),
    "buddy": lambda: BuddyArena(40),
    "slab": lambda: SlabPool(40, 7),
}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_what_is_said_to_fit_fits_and_nothing_else_does(name):
    """`can_allocate` and `allocate` agree for every size, in memories with all kinds of holes."""
    for seed in range(15):
        random, allocator = Random(f"fits/{seed}"), ALLOCATORS[name]()
        pieces = []
        for _ in range(25):
            size = random.randint(1, 12)
            if pieces and random.random() < 0.45:
                allocator.free(pieces.pop(random.randrange(len(pieces))))
            elif size <= allocator.largest_request and allocator.can_allocate(size):
                pieces.append(allocator.allocate(size))
            for wanted in range(1, 42):
                before = allocator.holes, allocator.pieces
                able = allocator.can_allocate(wanted)
                least = allocator.piece_size(wanted) if wanted <= allocator.largest_request else 99
                assert able == any(hole.size >= least for hole in allocator.holes)
                parts = allocator.split(wanted)
                assert (parts.free > 0) == able or wanted > allocator.largest_request
                if not able:
                    with pytest.raises((OutOfBlocks, SequenceTooLong)):
                        allocator.allocate(wanted)
                    assert (allocator.holes, allocator.pieces) == before


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(1, 24 * MIB), min_size=1, max_size=12), expandable=st.booleans())
def test_blocks_of_segments_never_overlap_and_reserved_is_never_less_than_used(sizes, expandable):
    pool = SegmentPool(expandable)
    blocks = []
    for i, size in enumerate(sizes):
        blocks.append(pool.allocate(size))
        assert blocks[-1].piece.size >= size and blocks[-1].piece.start % 512 == 0
        if i % 3 == 2:
            pool.free(blocks.pop(0))
        assert pool.used_bytes <= pool.reserved_bytes
        for segment in pool.segments:
            segment.check()
    for block in blocks:
        pool.free(block)
    assert pool.used_bytes == 0


@settings(max_examples=25)
@given(
    dims=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 70)),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    alignment=st.sampled_from([4, 32, 64, 256]),
    rows=st.tuples(st.integers(1, 3), st.integers(1, 5)),
)
def test_aligned_rows_start_on_their_address_and_never_reach_into_each_other(
    dims, dtype, alignment, rows
):
    shape, (num_seqs, max_seq_len) = KVShape(*dims), rows
    cache = AlignedKVCache(
        shape, num_seqs, max_seq_len, row_alignment_bytes=alignment, dtype=getattr(torch, dtype)
    )
    width = dims[2] * cache.store.dtype.itemsize
    spans = sorted(
        (row.data_ptr(), row.data_ptr() + width)
        for side in (cache.store.keys, cache.store.values)
        for head in side.flatten(0, 2)
        for row in head
    )
    assert all(start % alignment == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert cache.row_stride_bytes == -(-width // alignment) * alignment
    assert cache.nbytes >= len(spans) * cache.row_stride_bytes
    assert shape.bytes_per_token(dtype) * num_seqs * max_seq_len == len(spans) * width
