"""Random traffic on an allocator of contiguous pieces, against cells that remember their owner."""

from copy import deepcopy

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvlib.plan import OutOfBlocks, SequenceTooLong


class CellsMachine(RuleBasedStateMachine):
    """Each cell holds its owner's name and offset; where a request fits is read off the cells."""

    # Mostly small, so that many fit; now and then one that cannot.
    SIZES = st.integers(1, 6) | st.integers(1, 26)

    def begin(self, arena):
        self.arena, self.cells = arena, [None] * arena.size
        self.live, self.named = {}, 0

    def starts(self, size):
        """Where a request may start now; of an allocator that says which, one place at most."""
        raise NotImplementedError

    def stays(self, old, size):
        """Whether a piece can be resized where it is."""
        raise NotImplementedError

    def wide(self, size):
        """The cells that a request takes."""
        return size

    def never(self, size):
        """Whether a request would not fit if everything were free."""
        return self.wide(size) > self.arena.size

    def refused(self, call, size):
        before = deepcopy(vars(self.arena))
        error = SequenceTooLong if self.never(size) else OutOfBlocks
        with pytest.raises(error, match=rf"asked for {size}(,| in one piece,)"):
            call()
        assert vars(self.arena) == before

    def fill(self, name, piece, size):
        assert piece.size == self.wide(size)
        assert self.cells[piece.start : piece.end] == [None] * piece.size
        self.cells[piece.start : piece.end] = [(name, i) for i in range(piece.size)]
        self.live[name] = (piece, size)

    def clear(self, name):
        piece, _ = self.live.pop(name)
        assert self.cells[piece.start : piece.end] == [(name, i) for i in range(piece.size)]
        self.cells[piece.start : piece.end] = [None] * piece.size
        return piece

    @rule(data=st.data())
    def allocate(self, data):
        size = data.draw(self.SIZES)
        starts = self.starts(size)
        assert self.arena.can_allocate(size) == bool(starts)
        if not starts:
            self.refused(lambda: self.arena.allocate(size), size)
            return
        piece = self.arena.allocate(size)
        assert piece.start in starts
        self.fill(self.named, piece, size)
        self.named += 1

    @rule(data=st.data())
    def free(self, data):
        if not self.live:
            return
        piece = self.clear(data.draw(st.sampled_from(sorted(self.live))))
        self.arena.free(piece)
        with pytest.raises(ValueError, match="not handed out"):
            self.arena.free(piece)

    @rule(data=st.data())
    def resize(self, data):
        if not self.live:
            return
        size = data.draw(self.SIZES)
        name = data.draw(st.sampled_from(sorted(self.live)))
        old, _ = self.live[name]
        stays = self.stays(old, size)
        if not stays and not self.starts(size):
            self.refused(lambda: self.arena.resize(old, size), size)
            return
        new = self.arena.resize(old, size)
        assert (new.start == old.start) == stays
        if not stays:
            assert self.cells[new.start : new.end] == [None] * new.size, "old and new exist at once"
        self.clear(name)
        self.fill(name, new, size)

    @invariant()
    def nothing_is_lost(self):
        self.arena.check()
        assert self.arena.num_free == self.cells.count(None)
        assert list(self.arena.pieces) == sorted(piece for piece, _ in self.live.values())
