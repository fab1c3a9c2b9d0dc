"""One suite over every ledger, every allocator and every exact cache: random operations, one law.

Free and used make the total, no slot has two owners, none is lost, a refused call changes nothing,
and a cache attends to exactly what was stored, with NaN in every slot that was not.
"""

from collections import Counter

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exact_caches import EXACT, ROWS, poison
from kvlib.arena import Arena, best_fit
from kvlib.buddy import BuddyArena
from kvlib.ledger import ContiguousLedger
from kvlib.paged_ledger import PagedLedger
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.sizes import KVShape
from kvlib.slab import SlabPool
from kvlib.tensors.attention import reference_attention

OPERATIONS = Counter()
MANY = settings(max_examples=40, stateful_step_count=50, deadline=None)

ALLOCATORS = {
    "first fit": lambda: Arena(24),
    "best fit": lambda: Arena(24, best_fit),
    "buddy": lambda: BuddyArena(32),
    "buddy of no power": lambda: BuddyArena(27),
    "slab": lambda: SlabPool(24, 5),
}


class AllocatorMachine(RuleBasedStateMachine):
    """An allocator against a list of cells, each of which remembers its owner."""

    subject = ""

    def __init__(self):
        super().__init__()
        self.allocator = ALLOCATORS[self.subject]()
        self.cells = [None] * self.allocator.size
        self.live, self.gone = [], []

    def state(self):
        return self.allocator.holes, self.allocator.pieces

    def refused(self, call, *errors):
        before = self.state()
        with pytest.raises(errors):
            call()
        assert self.state() == before, "a refused call changed something"

    def own(self, piece):
        assert self.cells[piece.start : piece.end] == [None] * piece.size, "a cell with two owners"
        self.cells[piece.start : piece.end] = [piece] * piece.size
        self.live.append(piece)

    def disown(self, piece):
        self.live = [mine for mine in self.live if mine is not piece]
        self.cells[piece.start : piece.end] = [None] * piece.size
        self.gone.append(piece)

    @rule(size=st.integers(1, 12))
    def allocate(self, size):
        OPERATIONS[self.subject] += 1
        if not self.allocator.can_allocate(size):
            self.refused(lambda: self.allocator.allocate(size), OutOfBlocks, SequenceTooLong)
            return
        piece = self.allocator.allocate(size)
        assert piece.size >= size
        self.own(piece)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        OPERATIONS[self.subject] += 1
        piece = data.draw(st.sampled_from(self.live))
        self.allocator.free(piece)
        self.disown(piece)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), size=st.integers(1, 14))
    def resize(self, data, size):
        OPERATIONS[self.subject] += 1
        old, before = data.draw(st.sampled_from(self.live)), self.state()
        try:
            new = self.allocator.resize(old, size)
        except (OutOfBlocks, SequenceTooLong):
            assert self.state() == before, "a refused call changed something"
            return
        assert new.size >= size
        self.disown(old)
        self.own(new)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def free_again(self, data):
        OPERATIONS[self.subject] += 1
        piece = data.draw(st.sampled_from(self.gone))
        if not any(piece is mine for mine in self.live):
            self.refused(lambda: self.allocator.free(piece), ValueError)

    @rule(size=st.sampled_from([0, -1, 1.5, True]))
    def nonsense(self, size):
        OPERATIONS[self.subject] += 1
        self.refused(lambda: self.allocator.allocate(size), TypeError, ValueError)

    @invariant()
    def every_cell_has_one_owner_and_none_is_lost(self):
        self.allocator.check()
        handed_out = sum(piece.size for piece in self.live)
        assert self.allocator.num_free + handed_out == self.allocator.size
        assert self.allocator.num_free == self.cells.count(None)
        assert sorted(self.live) == list(self.allocator.pieces)
        parts = self.allocator.split(next_size=4)
        assert parts.total == self.allocator.size
        assert parts.used + parts.internal_fragmentation == handed_out


class SequenceMachine(RuleBasedStateMachine):
    """A ledger, or a cache on its ledger, against a plain list of tokens for each sequence."""

    subject = ""
    rows, most = 3, 11

    def __init__(self):
        super().__init__()
        self.tokens: dict[int, list] = {}
        self.freed: list[int] = []
        self.next_id = 0
        self.subject_under_test()

    def subject_under_test(self):
        initial = {"fixed ledger": None, "growing ledger": 2}[self.subject]
        self.holder = self.ledger = ContiguousLedger(self.rows, self.most, initial)

    def same_rows(self, before):
        """Rows may have grown, and stay grown."""
        return self.state()[:2] == before[:2]

    def new_tokens(self, count):
        return [self.next_id] * count

    def run(self, plan, new):
        """Does the step's work; a cache overrides it."""

    def copied(self, copies):
        """Notes what a fork or a reorder copied; a cache overrides it."""

    def is_full(self):
        return len(self.tokens) == self.rows

    def fits(self, new):
        return all(len(self.tokens[s]) + len(t) <= self.most for s, t in new.items())

    def blocks(self, seq_id):
        """The blocks that the sequence alone may write into now."""
        return {self.ledger.row(seq_id)}

    def state(self):
        ledger = self.ledger
        lengths = [(s, ledger.row(s), ledger.length(s)) for s in ledger.seq_ids]
        return lengths, ledger.num_free, ledger.row_len

    def refused(self, call, *errors):
        before = self.state()
        with pytest.raises(errors):
            call()
        assert self.state() == before, "a refused call changed something"

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.tokens)))

    @rule()
    def add(self):
        OPERATIONS[self.subject] += 1
        self.next_id += 1
        if self.is_full():
            self.refused(lambda: self.holder.add(self.next_id), OutOfBlocks)
        else:
            assert self.holder.can_add()
            self.holder.add(self.next_id)
            self.tokens[self.next_id] = []

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), commit=st.booleans())
    def step(self, data, commit):
        OPERATIONS[self.subject] += 1
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.tokens)), unique=True))
        new = {s: self.new_tokens(data.draw(st.integers(0, 5))) for s in chosen}
        if not self.fits(new):
            self.refused(lambda: self.holder.plan(new), SequenceTooLong, OutOfBlocks)
            return
        before = self.state()
        plan = self.holder.plan(new)
        host = getattr(plan, "host", plan)
        assert len(set(host.slot_mapping)) == host.num_tokens, "two tokens in one slot"
        for i, seq_id in enumerate(chosen):
            written = host.slot_mapping[host.query_start[i] : host.query_start[i + 1]]
            inside = {slot // host.block_size for slot in written} <= self.blocks(seq_id)
            assert inside, "a slot of somebody else's block"
        self.run(plan, new)
        self.holder.check()
        (self.holder.commit if commit else self.holder.abort)(plan)
        assert commit or self.same_rows(before), "an aborted step left something behind"
        self.refused(lambda: self.holder.commit(plan), ValueError) if new else None
        if commit:
            for s, t in new.items():
                self.tokens[s] = self.tokens[s] + list(t)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free(self, data):
        OPERATIONS[self.subject] += 1
        seq_id = self.pick(data)
        self.holder.free(seq_id)
        del self.tokens[seq_id]
        self.freed.append(seq_id)

    @precondition(lambda self: self.freed)
    @rule(data=st.data())
    def free_again(self, data):
        OPERATIONS[self.subject] += 1
        seq_id = data.draw(st.sampled_from(self.freed))
        self.refused(lambda: self.holder.free(seq_id), KeyError)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def fork(self, data):
        OPERATIONS[self.subject] += 1
        parent = self.pick(data)
        self.next_id += 1
        if self.is_full():
            self.refused(lambda: self.holder.fork(parent, self.next_id), OutOfBlocks)
        else:
            self.holder.fork(parent, self.next_id)
            self.tokens[self.next_id] = self.tokens[parent]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def truncate(self, data):
        OPERATIONS[self.subject] += 1
        seq_id = self.pick(data)
        keep = data.draw(st.integers(-1, len(self.tokens[seq_id]) + 1))
        if not 0 <= keep <= len(self.tokens[seq_id]):
            self.refused(lambda: self.holder.truncate(seq_id, keep), ValueError)
            return
        self.holder.truncate(seq_id, keep)
        self.tokens[seq_id] = self.tokens[seq_id][:keep]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def reorder(self, data):
        OPERATIONS[self.subject] += 1
        live = sorted(self.tokens)
        sources = {s: self.pick(data) for s in live}
        self.holder.reorder(sources)
        self.tokens = {s: self.tokens[source] for s, source in sources.items()}

    @invariant()
    def every_place_has_an_owner_and_none_is_lost(self):
        self.holder.check()
        assert {s: self.ledger.length(s) for s in self.ledger.seq_ids} == {
            s: len(t) for s, t in self.tokens.items()
        }
        assert self.ledger.used_tokens == sum(map(len, self.tokens.values()))
        self.count_places()

    def count_places(self):
        assert self.ledger.num_free + len(self.tokens) == self.rows
        assert self.ledger.reserved_tokens == self.ledger.row_len * len(self.tokens)


class CacheMachine(SequenceMachine):
    """An exact cache full of NaN against attention over the tokens it was given, in float64."""

    shape = KVShape(num_layers=2, num_kv_heads=2, head_dim=4)

    def subject_under_test(self):
        changes = {"num_seqs": self.rows, "max_seq_len": self.most}
        self.holder = poison(EXACT[self.subject](self.shape, **changes))
        self.ledger = self.holder.ledger
        self.random = torch.Generator().manual_seed(7)

    def draw(self, *size):
        return torch.randn(*size, generator=self.random)

    def new_tokens(self, count):
        """A token is its own keys and values: [2 layers, k and v, Hkv, D]."""
        return list(self.draw(count, 2, 2, 2, 4))

    def run(self, plan, new):
        fresh = [token for tokens in new.values() for token in tokens]
        if not fresh:
            return
        packed, q = torch.stack(fresh), self.draw(len(fresh), 4, 4)
        for layer in range(2):
            self.holder.write(layer, packed[:, layer, 0], packed[:, layer, 1], plan)
            out, start = self.holder.attend(layer, q, plan), 0
            for seq_id, tokens in new.items():
                rows = slice(start, start + len(tokens))
                start = rows.stop
                if tokens:
                    whole = torch.stack([*self.tokens[seq_id], *tokens])[:, layer]
                    expected, _ = reference_attention(q[rows], whole[:, 0], whole[:, 1])
                    torch.testing.assert_close(out[rows].double(), expected, rtol=1e-5, atol=1e-5)


class InBlocks:
    """What differs where sequences share the blocks of a pool, as many as you like.

    A block is written into by the one sequence that has it in its table.
    """

    def is_full(self):
        return False

    def fits(self, new):
        return self.ledger.can_plan({s: len(t) for s, t in new.items()})

    def blocks(self, seq_id):
        others = [self.ledger.table(s) for s in self.ledger.seq_ids if s != seq_id]
        return set(self.ledger.table(seq_id)).difference(*others)

    def state(self):
        ledger, pool = self.ledger, self.ledger.pool
        tables = [(s, ledger.table(s), ledger.length(s)) for s in ledger.seq_ids]
        return tables, pool._refs[:], list(pool._empty)

    def same_rows(self, before):
        return self.state() == before

    def count_places(self):
        held = {block for s in self.ledger.seq_ids for block in self.ledger.table(s)}
        assert self.ledger.num_free + len(held) == self.ledger.pool.num_blocks
        assert self.ledger.reserved_tokens == self.ledger.block_size * len(held)


class PagedLedgerMachine(InBlocks, SequenceMachine):
    """Blocks of three tokens, few enough that they run out."""

    def subject_under_test(self):
        self.holder = self.ledger = PagedLedger(num_blocks=7, block_size=3)


class PagedCacheMachine(InBlocks, CacheMachine):
    """The paged cache against the same attention, while sequences share what is the same."""


def machine(base, subject):
    made = type(f"{base.__name__} {subject}", (base,), {"subject": subject})
    made.TestCase.settings = MANY
    return made.TestCase


SUBJECTS = {
    **dict.fromkeys(ALLOCATORS, AllocatorMachine),
    **dict.fromkeys(("fixed ledger", "growing ledger"), SequenceMachine),
    "paged ledger": PagedLedgerMachine,
    **dict.fromkeys(ROWS, CacheMachine),
    "paged": PagedCacheMachine,
}


def test_no_exact_cache_is_left_out():
    assert set(EXACT) <= set(SUBJECTS)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_random_operations_keep_the_law(subject):
    machine(SUBJECTS[subject], subject)().runTest()


def test_ten_thousand_operations_were_tried():
    """Counts after the machines of this file; a part of them says nothing of the whole."""
    if set(OPERATIONS) != set(SUBJECTS):
        pytest.skip("not all machines of this file ran")
    assert min(OPERATIONS.values()) >= 500
    assert OPERATIONS.total() >= 10_000
