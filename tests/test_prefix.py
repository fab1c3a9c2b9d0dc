"""Both prefix indexes under one suite, and vLLM's rules for the one by hashed keys."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.plan import OutOfBlocks
from kvlib.radix import RadixTree
from prefix_cases import KINDS, PARENTS_FIRST, Sequence, made

NAMES = [f"{index.__name__}-{policy}" for index, policy in KINDS]
REFUSED = r"whole ones|nobody|twice|something else"
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=7)
EXTRAS = st.sampled_from([{}, {"tenant": "a"}, {"adapter": "a"}])
every_kind = pytest.mark.parametrize("kind", KINDS, ids=NAMES)
both = pytest.mark.parametrize("index", [HashIndex, RadixTree])


def machine(kind, block_size):
    class PrefixMachine(RuleBasedStateMachine):
        """The model: which prefixes are known, told by what was inserted and what was evicted."""

        def __init__(self):
            super().__init__()
            self.pool, self.index = made(kind, 9)
            self.known, self.running, self.copies = {}, [], False
            inner = self.pool.on_evict

            def lost(block_id):
                assert not self.pool.ref_count(block_id), "a block in use was evicted"
                inner(block_id)
                self.lost.append(block_id)
                self.known = {k: b for k, b in self.known.items() if b != block_id}

            self.lost, self.pool.on_evict = [], lost

        def prefixes(self, content):
            tokens = tuple(content.block(i) for i in range(content.num_blocks))
            return [(content.namespace, tokens[: i + 1]) for i in range(len(tokens))]

        def longest(self, content, most):
            found = []
            for prefix in self.prefixes(content)[:most]:
                if prefix not in self.known:
                    break
                found.append(self.known[prefix])
            return found

        def model_insert(self, sequence, start=0):
            prefixes = self.prefixes(sequence.content)[start:]
            for prefix, block in zip(prefixes, sequence.blocks[start:], strict=False):
                if self.known.setdefault(prefix, block) != block:
                    self.copies = True

        def lost_no_more_than_needed(self, empty, need):
            if kind[1] != "drop-all":
                assert len(self.lost) == max(need - empty, 0)

        @rule(tokens=TOKENS, extras=EXTRAS)
        def start(self, tokens, extras):
            self.lost.clear()
            content = TokenContent(tokens, block_size, extras)
            most = (len(tokens) - 1) // block_size
            expected = self.longest(content, most)
            assert self.index.find(content, most) == expected
            empty, before = self.pool.num_free - self.pool.num_kept, self.pool.num_free
            try:
                sequence = Sequence(self.pool, self.index, tokens, block_size, extras)
            except OutOfBlocks:
                assert not self.lost and self.pool.num_free == before
                assert self.index.find(content, most) == expected
                return
            assert sequence.blocks[: len(expected)] == expected
            self.lost_no_more_than_needed(empty, len(sequence.blocks) - len(expected))
            self.model_insert(sequence)
            self.running.append(sequence)

        @precondition(lambda self: self.running)
        @rule(data=st.data(), token=st.integers(0, 1))
        def grow(self, data, token):
            self.lost.clear()
            sequence = data.draw(st.sampled_from(self.running))
            empty, had = self.pool.num_free - self.pool.num_kept, len(sequence.blocks)
            start = sequence.num_inserted
            try:
                sequence.grow(token)
            except OutOfBlocks:
                assert not self.lost and len(sequence.blocks) == had
                return
            self.lost_no_more_than_needed(empty, len(sequence.blocks) - had)
            self.model_insert(sequence, start)

        @precondition(lambda self: self.running)
        @rule(data=st.data())
        def stop(self, data):
            sequence = data.draw(st.sampled_from(self.running))
            sequence.stop()
            self.running.remove(sequence)

        @rule(num_blocks=st.integers(0, 4))
        def make_room_for_nobody(self, num_blocks):
            self.index.make_room(num_blocks)

        @precondition(lambda self: self.running)
        @rule(data=st.data())
        def refuse(self, data):
            """Too many blocks; one that nobody holds; one that is known as something else."""
            sequence = data.draw(st.sampled_from(self.running))
            other = TokenContent([7] * 9 * block_size, block_size)
            idle = [b for b in range(9) if not self.pool.ref_count(b)]
            bad = [(sequence.content, list(range(9)) * 3), (other, idle[:1] * 2)]
            bad += [(other, idle[:1])] if idle else []
            held = [b for b in self.known.values() if self.pool.ref_count(b)]
            bad += [(other, held[:1])] if held else []
            for content, blocks in bad:
                if blocks:
                    with pytest.raises(ValueError, match=REFUSED):
                        self.index.insert(content, blocks)

        @invariant()
        def all_is_sound(self):
            self.index.check()
            holders = Counter(b for sequence in self.running for b in sequence.blocks)
            holders.update(self.index.held)
            assert {b: self.pool.ref_count(b) for b in range(9)} == {
                b: holders[b] for b in range(9)
            }
            assert len(self.index) == len(self.known)
            if kind[0] is HashIndex:
                assert self.index.held == ()

        @invariant()
        def no_child_outlives_its_parent(self):
            excused = kind in PARENTS_FIRST or (kind[0] is HashIndex and self.copies)
            for namespace, tokens in self.known:
                whole = excused or len(tokens) == 1 or (namespace, tokens[:-1]) in self.known
                assert whole, f"{kind[1]} gave up a block before its child: see PARENTS_FIRST"

    PrefixMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=30)
    return PrefixMachine.TestCase


for _kind, _name in zip(KINDS, NAMES, strict=True):
    for _size in (1, 2):
        globals()[f"Test{_name.replace('-', '')}{_size}"] = machine(_kind, _size)


@given(st.lists(st.tuples(TOKENS, TOKENS, st.integers(0, 4)), min_size=1, max_size=12))
def test_hash_index_and_radix_tree_of_single_tokens_find_the_same(plans):
    """Sequences overlap and grow, so that second copies arise; the pools never run out."""
    found = []
    for index in (HashIndex, RadixTree):
        pool, tree = made((index, "pool"), 999)
        running, here = [], []
        for prompt, output, stops in plans:
            running.append(Sequence(pool, tree, prompt))
            here.append(running[-1].num_found)
            for token in output:
                running[-1].grow(token)
            for sequence in running[:stops]:
                sequence.stop()
            del running[:stops]
        found.append(here)
    assert found[0] == found[1]


@every_kind
def test_a_full_hit_leaves_the_last_token_to_compute(kind):
    cached = []
    for n in (1, 15, 16, 17, 31, 32, 33):
        pool, index = made(kind, 10)
        Sequence(pool, index, range(n), 16).stop()
        cached.append(Sequence(pool, index, range(n), 16).cached)
    assert cached == [0, 0, 0, 16, 16, 16, 32]


@both
def test_a_large_reuse_unit_loses_no_second_block(index):
    cached = []
    for n in (512, 1024, 2048, 4096, 8192):
        pool, known = made((index, "pool"), 40)
        Sequence(pool, known, range(n), 448).stop()
        cached.append(Sequence(pool, known, range(n), 448).cached)
    assert cached == [448, 896, 1792, 4032, 8064]


@every_kind
def test_an_idle_hit_is_not_counted_as_free_too(kind):
    """Five free, two of them the hits: six blocks are not to be had, and nothing changes."""
    pool, index = made(kind, 8)
    others = pool.allocate(3)
    Sequence(pool, index, range(32), 16).stop()
    before = (pool.num_free, pool.num_kept)
    assert before == (5, 2)
    with pytest.raises(OutOfBlocks, match="4 needed, 3 free"):
        Sequence(pool, index, range(96), 16)
    assert (pool.num_free, pool.num_kept) == before
    pool.free(others[:1])
    assert Sequence(pool, index, range(96), 16).cached == 32
    assert pool.num_free == 0


@both
def test_a_partly_filled_block_is_never_shared(index):
    pool, known = made((index, "pool"), 12)
    Sequence(pool, known, [1, 2, 3], 2).grow(4, 5)
    second, third = (Sequence(pool, known, [1, 2, 3, 4, 5], 2) for _ in range(2))
    assert (second.cached, third.cached) == (4, 4)
    second.grow(6)
    assert third.blocks[2] != second.blocks[2]


@both
def test_an_adapter_and_a_salt_of_one_spelling_share_nothing(index):
    pool, known = made((index, "pool"), 12)
    extras = ({"adapter": "A"}, {"salt": "A"}, {"adapter": "A"}, {})
    cached = [Sequence(pool, known, range(8), 4, extra).cached for extra in extras]
    assert cached == [0, 0, 4, 0]


@both
def test_a_prefix_of_one_token_is_found(index):
    pool, known = made((index, "pool"), 4)
    Sequence(pool, known, [7]).stop()
    assert len(known.find(TokenContent([7, 8], 1), 1)) == 1
    assert known.find(TokenContent([8, 7], 1), 1) == []


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind not in PARENTS_FIRST and kind[1] != "drop-all"],
    ids=lambda kind: f"{kind[0].__name__}-{kind[1]}",
)
def test_the_end_of_a_sequence_is_evicted_before_its_beginning(kind):
    for _ in range(3):
        pool, index = made(kind, 3)
        sequence = Sequence(pool, index, [1, 2, 3])
        sequence.stop()
        index.make_room(1)
        (taken,) = pool.allocate(1)
        assert taken == sequence.blocks[-1]
        assert index.find(TokenContent([1, 2, 3], 1), 3) == sequence.blocks[:2]


@every_kind
def test_no_more_is_evicted_than_is_lacking(kind):
    pool, index = made(kind, 12)
    for token in range(5):
        Sequence(pool, index, [token]).stop()
    index.make_room(10)
    pool.allocate(10)
    assert len(index) == (0 if kind[1] == "drop-all" else 2)


@both
@pytest.mark.parametrize("policy", ["pool", "LRU"])
def test_a_hit_makes_content_young_again(index, policy):
    pool, known = made((index, policy), 4)
    for token in (1, 2):
        Sequence(pool, known, [token, 0]).stop()
    Sequence(pool, known, [1, 0]).stop()
    Sequence(pool, known, [3, 0]).stop()
    heads = [len(known.find(TokenContent([token, 0], 1), 1)) for token in (1, 2, 3)]
    assert heads == [1, 0, 1]


@both
def test_a_preempted_sequence_finds_its_own_blocks(index):
    pool, known = made((index, "pool"), 6)
    Sequence(pool, known, range(600), 256).stop()
    again = Sequence(pool, known, range(600), 256)
    assert (again.cached, len(again.blocks)) == (512, 3)


@both
def test_a_block_is_not_two_blocks_of_one_text(index):
    """Though somebody holds it: its second content would be found where the first one is."""
    pool, known = made((index, "pool"), 6)
    (block,) = pool.allocate(1)
    with pytest.raises(ValueError, match=rf"a block is named twice among \[{block}, {block}\]"):
        known.insert(TokenContent([1, 2], 1), [block, block])
    assert len(known) == 0
    known.check()


@both
def test_a_second_copy_stays_private(index):
    pool, known = made((index, "pool"), 6)
    first, second = Sequence(pool, known, [1, 2], 2), Sequence(pool, known, [1, 2], 2)
    assert first.blocks != second.blocks and len(known) == 1
    second.stop()
    assert known.find(first.content, 1) == first.blocks
    first.stop()
    assert pool.num_kept == 1


def test_behind_a_second_copy_the_hash_index_may_keep_what_it_cannot_find():
    """It is found again when the block before has come back, and never wrongly."""
    pool, index = made((HashIndex, "pool"), 5)
    first, second = Sequence(pool, index, [1]), Sequence(pool, index, [1])
    second.grow(2)
    first.stop()
    index.make_room(3)
    others = pool.allocate(3)
    assert index.find(second.content, 2) == [] and len(index) == 1
    pool.free(others)
    Sequence(pool, index, [1])
    assert len(index.find(second.content, 2)) == 2


class TestTheWalkThroughOfVLLM:
    """Ten blocks of 4. Source: vLLM, docs/design/prefix_caching.md, section "Example".

    Since that page was written vLLM hands out blocks without content first, whenever freed
    (`block_pool.py`, version 0.33.0). So do we: at the last step the page evicts block 3 although
    block 6 is empty; here nothing is lost.
    """

    def test_step_by_step(self):
        pool, index = made((HashIndex, "pool"), 10)
        shared = list(range(100, 110))
        # Time 1: four blocks, three of them full and known, the fourth holds 3 tokens.
        zero = Sequence(pool, index, [*shared, 110, 111, 112, 113, 114], 4)
        assert (zero.blocks, len(index)) == ([0, 1, 2, 3], 3)
        # The next (the page's "Time 3"): block 3 is full and known, block 4 is new.
        assert (zero.grow(115), zero.grow(116), zero.blocks) == (1, 0, [0, 1, 2, 3, 4])
        # Then 14 tokens, 10 of them the same: only the first 2 blocks hit.
        one = Sequence(pool, index, [*shared, 1, 2, 3, 4], 4)
        assert (one.cached, one.blocks) == (8, [0, 1, 5, 6])
        # Request 0 ends: 2 and 3 are free and known, 4 is empty; 0 and 1 are still in use.
        zero.stop()
        assert (pool.num_free, pool.num_kept) == (6, 2)
        assert [pool.ref_count(block) for block in range(5)] == [1, 1, 0, 0, 0]
        # Request 1 ends: everything is free.
        one.stop()
        assert (pool.num_free, pool.num_kept, len(index)) == (10, 5, 5)
        # 29 tokens, 12 of them those of request 0: the hits leave the line before it is drawn from.
        two = Sequence(pool, index, [*shared, 110, 111, *range(17)], 4)
        assert (two.cached, two.blocks[:3], len(two.blocks)) == (12, [0, 1, 2], 8)
        assert set(two.blocks[3:]) == {6, 4, 7, 8, 9} and pool.num_kept == 2
        # What stays goes in the page's order: 3, then 5.
        assert pool.allocate(2) == [3, 5]

    def test_what_was_freed_longest_ago_goes_first_and_the_tail_before_the_root(self):
        pool, index = made((HashIndex, "pool"), 10)
        zero = Sequence(pool, index, range(100, 116), 4)
        one = Sequence(pool, index, [*range(100, 110), 1, 2, 3, 4, 5, 6], 4)
        assert one.blocks == [0, 1, 4, 5]
        zero.stop()
        one.stop()
        assert pool.allocate(10)[-6:] == [3, 2, 5, 4, 1, 0]


@every_kind
@given(tokens=st.lists(TOKENS, min_size=2, max_size=6))
def test_the_first_block_known_keeps_its_place(kind, tokens):
    """`find` gives the same blocks until they are evicted, whoever else inserts the same."""
    pool, index = made(kind, 99)
    contents = []
    for each in tokens:
        sequence = Sequence(pool, index, each)
        contents.append((sequence.content, index.find(sequence.content, 9)))
        assert len(contents[-1][1]) == len(each)
    for content, found in contents:
        assert index.find(content, 9) == found
    for (_, a), (_, b) in pairwise(contents):
        assert (a[0] == b[0]) == (a[:1] == b[:1])
