"""The paged ledger: steps all or nothing, blocks shared until written, nothing lost."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kvlib.paged_ledger import PagedLedger
from kvlib.plan import BlockCopy, OutOfBlocks, SequenceTooLong
from ledger_machine import LedgerMachine


@pytest.fixture
def ledger():
    """Blocks of 2: "a" has 3 tokens in blocks 0 and 1, "b" has 1 in block 2; 3 are free."""
    ledger = PagedLedger(num_blocks=6, block_size=2)
    ledger.add("a")
    ledger.add("b")
    ledger.commit(ledger.plan({"a": [1, 2, 3], "b": [4]}))
    return ledger


def state(ledger):
    return [(s, ledger.length(s), ledger.table(s)) for s in ledger.seq_ids], ledger.num_free


def test_the_plan_names_blocks_slots_and_lengths(ledger):
    step = ledger.plan({"b": [5, 6], "a": [7]})
    assert step.positions == (1, 2, 3)
    assert step.slot_mapping == (5, 6, 3)
    assert step.query_start == (0, 2, 3)
    assert step.context_lens == (3, 4)
    assert step.block_table == ((2, 3), (0, 1))
    assert step.block_size == 2 and step.copies == ()


def test_tables_of_one_step_are_padded_with_the_null_block(ledger):
    step = ledger.plan({"b": [], "a": [1, 2]})
    assert step.block_table == ((2, 6, 6), (0, 1, 3))


def test_a_step_that_does_not_fit_whole_changes_nothing(ledger):
    before = state(ledger)
    with pytest.raises(OutOfBlocks, match="asked for 4 blocks of 2, 3 free of 6"):
        ledger.plan({"b": [1] * 3, "a": [1] * 6})
    with pytest.raises(SequenceTooLong, match="10 more tokens after 3: 13 > 12, the whole pool"):
        ledger.plan({"b": [1], "a": [1] * 10})
    with pytest.raises(KeyError, match="'z'"):
        ledger.plan({"a": [1], "z": [1]})
    assert state(ledger) == before
    assert not ledger.can_plan({"b": 3, "a": 6}) and ledger.can_plan({"b": 3, "a": 3})


def test_abort_gives_every_block_back(ledger):
    before = state(ledger)
    ledger.fork("a", "c")
    step = ledger.plan({"c": [1, 2, 3], "b": [1, 2]})
    assert step.copies == (BlockCopy(1, 3, 1),)
    ledger.check()
    ledger.abort(step)
    ledger.free("c")
    assert state(ledger) == before


@pytest.mark.parametrize("count", [-1, -7, 1.5, True])
def test_a_number_of_new_tokens_is_a_whole_number_of_at_least_none(ledger, count):
    """A negative one would make room for the others: 6 and -3 tokens would seem to fit."""
    before = state(ledger)
    with pytest.raises((TypeError, ValueError), match="new tokens of sequence 'b' must be"):
        ledger.can_plan({"a": 6, "b": count})
    assert state(ledger) == before
    with pytest.raises(KeyError, match="no sequence 'z'; 2 are live"):
        ledger.can_plan({"z": 1})


def test_a_step_may_take_the_last_free_block_and_no_token_takes_none(ledger):
    assert ledger.can_add()
    assert ledger.can_plan({"b": 3, "a": 5}) and not ledger.can_plan({"b": 3, "a": 6})
    ledger.commit(ledger.plan({"b": [1] * 3, "a": [1] * 5}))
    assert ledger.num_free == 0 and ledger.can_plan({"a": 0})
    assert ledger.fork("a", "c") == []


def test_who_takes_part_without_a_token_leaves_no_block_to_others(ledger):
    """Then "c" would write into the block that "a" still reads."""
    ledger.fork("a", "c")
    step = ledger.plan({"a": [], "c": [9]})
    assert step.copies == (BlockCopy(1, 3, 1),)
    ledger.commit(step)
    assert (ledger.table("a"), ledger.table("c")) == ((0, 1), (0, 3))


def test_behind_a_window_of_two_in_blocks_of_one_nobody_goes_back_to_one_token():
    ledger = PagedLedger(num_blocks=4, block_size=1, window=2)
    ledger.add("a")
    for _ in range(3):
        ledger.commit(ledger.plan({"a": [0]}))
    with pytest.raises(ValueError, match="go back to 1 tokens a window of 2 needs position 0"):
        ledger.truncate("a", 1)
    assert ledger.length("a") == 3


def pool_state(ledger):
    pool = ledger.pool
    return list(pool._refs), list(pool._marked), list(pool._empty), list(pool._kept)


def test_abort_leaves_the_pool_exactly_as_it_was(ledger):
    """Its lines of free blocks in their order, and content that was worth keeping."""
    lost = []
    ledger.pool._on_evict = lost.append
    ledger.commit(ledger.plan({"b": [5]}))
    ledger.pool.mark(2)
    ledger.truncate("b", 1)  # into the middle of a block with content
    ledger.fork("a", "c")
    before = state(ledger), pool_state(ledger)
    step = ledger.plan({"c": [1, 2], "b": [3]})
    assert {copy.src for copy in step.copies} == {1, 2}
    ledger.check()
    ledger.abort(step)
    assert (state(ledger), pool_state(ledger)) == before
    ledger.free("b")
    assert (lost, ledger.pool.num_kept) == ([], 1)


def test_content_survives_those_who_go_on_from_its_middle(ledger):
    """Both sharers copy, though the last of them would be alone in it."""
    ledger.commit(ledger.plan({"b": [5]}))
    ledger.pool.mark(2)
    ledger.fork("b", "c")
    for seq_id in "bc":
        ledger.truncate(seq_id, 1)
    assert ledger.can_plan({"b": 1, "c": 1})
    step = ledger.plan({"b": [6], "c": [7]})
    assert [copy.src for copy in step.copies] == [2, 2]
    ledger.commit(step)
    ledger.check()
    assert ledger.pool.has_content(2) and ledger.pool.num_kept == 1


def test_lengths_move_at_commit_and_a_plan_closes_once(ledger):
    step = ledger.plan({"a": [1]})
    assert ledger.length("a") == 3
    for call in (
        lambda: ledger.plan({"a": [1]}),
        lambda: ledger.free("a"),
        lambda: ledger.truncate("a", 0),
        lambda: ledger.fork("a", "c"),
        lambda: ledger.reorder({"a": "a"}),
    ):
        with pytest.raises(ValueError, match="open plan"):
            call()
    ledger.commit(step)
    assert ledger.length("a") == 4
    for close in (ledger.commit, ledger.abort, ledger.require_open):
        with pytest.raises(ValueError, match="not open"):
            close(step)


def test_four_samples_in_one_step_copy_three_blocks(ledger):
    for child in "cde":
        ledger.fork("a", child)
    assert ledger.num_free == 3
    step = ledger.plan({s: [9] for s in "acde"})
    assert [copy.src for copy in step.copies] == [1, 1, 1]
    assert len(set(step.slot_mapping)) == 4
    ledger.commit(step)
    ledger.check()
    assert ledger.num_free == 0


def test_shared_blocks_are_counted_once(ledger):
    ledger.fork("a", "c")
    assert (ledger.used_tokens, ledger.reserved_tokens) == (7, 6)


def test_reordered_beams_share_instead_of_copying(ledger):
    assert ledger.reorder({"a": "b", "b": "b"}) == []
    assert ledger.table("a") == ledger.table("b") == (2,)
    assert (ledger.length("a"), ledger.num_free) == (1, 5)
    with pytest.raises(ValueError, match="not itself reordered"):
        ledger.reorder({"a": "z"})
    ledger.check()


def test_a_freed_sequence_is_unknown_and_its_blocks_are_back(ledger):
    ledger.free("a")
    assert ledger.num_free == 5
    for call in (ledger.free, ledger.length, ledger.table):
        with pytest.raises(KeyError, match="no sequence 'a'"):
            call("a")
    for seq_id in ("b", None):
        with pytest.raises(ValueError, match="new id"):
            ledger.add(seq_id)


def test_a_window_keeps_its_blocks_and_gives_the_others_back():
    ledger = PagedLedger(num_blocks=4, block_size=2, window=4)
    ledger.add("a")
    for position in range(30):
        step = ledger.plan({"a": [0]})
        assert step.positions == (position,)
        ledger.commit(step)
        ledger.check()
        assert ledger.pool.num_held <= 3
    ledger.truncate("a", 29)
    with pytest.raises(ValueError, match="go back to 20 tokens a window of 4 needs position 17"):
        ledger.truncate("a", 20)
    ledger.truncate("a", 0)
    assert ledger.num_free == 4


@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4])
def test_the_longest_sequence_is_as_long_as_it_says(num_blocks, window):
    """Token by token, in blocks of 2, until it is refused or 50 tokens long."""
    ledger = PagedLedger(num_blocks, block_size=2, window=window)
    ledger.add("a")
    stored = 0
    try:
        while stored < 50:
            ledger.commit(ledger.plan({"a": [0]}))
            stored += 1
    except SequenceTooLong as error:
        assert "in pieces" not in str(error)  # nothing would help
    assert ledger.max_seq_len == (stored if stored < 50 else None)


def test_what_a_window_gave_back_is_not_used_any_more():
    ledger = PagedLedger(num_blocks=4, block_size=2, window=3)
    ledger.add("a")
    for _ in range(8):
        ledger.commit(ledger.plan({"a": [0]}))
    assert ledger.length("a") == 8
    assert (ledger.used_tokens, ledger.reserved_tokens) == (4, 4)


def test_behind_a_window_the_newest_token_can_always_be_taken_back():
    """It would fail if `commit` kept only what the next token sees: one token fewer."""
    ledger = PagedLedger(num_blocks=4, block_size=2, window=3)
    ledger.add("a")
    for length in range(1, 12):
        ledger.commit(ledger.plan({"a": [0]}))
        ledger.truncate("a", length - 1)
        ledger.commit(ledger.plan({"a": [0]}))


def test_the_last_of_three_sharers_spares_what_any_of_them_would_find_again():
    """In place it would overwrite the third token of "a", which `abort` must bring back."""
    ledger = PagedLedger(num_blocks=6, block_size=4)
    ledger.add("a")
    ledger.commit(ledger.plan({"a": [0] * 3}))
    for child in "bc":
        ledger.fork("a", child)
        ledger.truncate(child, 2)
    step = ledger.plan({s: [9] for s in "abc"})
    assert [copy.num_tokens for copy in step.copies] == [3, 2, 2]
    ledger.abort(step)
    ledger.check()


def test_a_pool_is_shared_with_others_and_has_the_size_that_was_asked_for():
    one = PagedLedger(4, 2)
    two = PagedLedger(4, 2, pool=one.pool)
    two.add("a")
    two.commit(two.plan({"a": [1, 2, 3]}))
    one.pool.allocate(1)
    two.check()
    assert two.num_free == one.num_free == 1
    with pytest.raises(AssertionError, match="block 0: 1 references, in 0 tables"):
        one.check()
    with pytest.raises(ValueError, match="the pool has 4 blocks, num_blocks is 5"):
        PagedLedger(5, 2, pool=one.pool)


def test_a_chunk_larger_than_the_pool_never_fits_but_its_pieces_may():
    """A refusal that says "later" would make a scheduler wait for ever."""
    ledger = PagedLedger(num_blocks=4, block_size=4, window=4)
    ledger.add("a")
    with pytest.raises(
        SequenceTooLong, match="40 more tokens after 0: 40 > 16, the whole pool: in"
    ):
        ledger.plan({"a": [0] * 40})
    for _ in range(5):
        ledger.commit(ledger.plan({"a": [0] * 8}))
    assert ledger.length("a") == 40
    ledger.check()


@pytest.mark.parametrize("options", [{"block_size": 0}, {"num_blocks": 0}, {"window": 0}])
def test_sizes_are_positive(options):
    with pytest.raises(ValueError, match="must be at least 1"):
        PagedLedger(**{"num_blocks": 2, "block_size": 2, **options})


class PagedMachine(LedgerMachine):
    """Random steps on a memory of slots: each sequence finds exactly the tokens it was given."""

    def __init__(self):
        super().__init__()
        self.begin(PagedLedger(num_blocks=7, block_size=3))
        self.memory = {}
        self.fresh = iter(range(10**6))

    def holds(self, seq_id, tokens):
        table = self.ledger.table(seq_id)
        found = [self.memory[table[i // 3] * 3 + i % 3] for i in range(len(tokens))]
        assert found == tokens

    @rule()
    def add(self):
        seq_id = next(self.ids)
        self.ledger.add(seq_id)
        self.tokens[seq_id] = []

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), commit=st.booleans())
    def step(self, data, commit):
        sizes = {seq_id: data.draw(st.integers(0, 4)) for seq_id in self.pick_some(data)}
        new = {seq_id: [next(self.fresh) for _ in range(n)] for seq_id, n in sizes.items()}
        before = state(self.ledger)
        try:
            plan = self.ledger.plan(new)
        except (OutOfBlocks, SequenceTooLong):
            assert state(self.ledger) == before
            return
        assert len(set(plan.slot_mapping)) == plan.num_tokens, "two tokens in one slot"
        for src, dst, n in plan.copies:
            for offset in range(n):
                self.memory[dst * 3 + offset] = self.memory[src * 3 + offset]
        written = [token for tokens in new.values() for token in tokens]
        self.memory.update(zip(plan.slot_mapping, written, strict=True))
        for seq_id, tokens in new.items():
            self.holds(seq_id, self.tokens[seq_id] + tokens)
        self.ledger.check()
        self.close(plan, new, commit)

    @invariant()
    def everybody_finds_their_own(self):
        for seq_id, tokens in self.tokens.items():
            self.holds(seq_id, tokens)
        held = {block for s in self.tokens for block in self.ledger.table(s)}
        assert self.ledger.num_free + len(held) == 7


TestPagedMachine = PagedMachine.TestCase
