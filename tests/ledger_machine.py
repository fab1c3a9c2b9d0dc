"""Random operations on a ledger, against a plain list of tokens for each sequence."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


class LedgerMachine(RuleBasedStateMachine):
    """What is done to sequences that live; how one begins and takes a step, the subclass says."""

    def begin(self, ledger):
        self.ledger, self.tokens = ledger, {}
        self.ids = iter(range(10**6))

    def can_fork(self):
        """Whether there is a place for one more sequence."""
        return True

    def copied(self, copies):
        """Looks at the copies that a reorder asks for."""

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.tokens)))

    def pick_some(self, data):
        return data.draw(st.lists(st.sampled_from(sorted(self.tokens)), unique=True))

    def close(self, plan, new, commit):
        (self.ledger.commit if commit else self.ledger.abort)(plan)
        if commit:
            for seq_id, tokens in new.items():
                self.tokens[seq_id] = self.tokens[seq_id] + tokens

    @precondition(lambda self: self.tokens and self.can_fork())
    @rule(data=st.data())
    def fork(self, data):
        parent, child = self.pick(data), next(self.ids)
        self.ledger.fork(parent, child)
        self.tokens[child] = self.tokens[parent]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def truncate(self, data):
        seq_id = self.pick(data)
        keep = data.draw(st.integers(0, len(self.tokens[seq_id])))
        self.ledger.truncate(seq_id, keep)
        self.tokens[seq_id] = self.tokens[seq_id][:keep]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def reorder(self, data):
        sources = {seq_id: self.pick(data) for seq_id in sorted(self.tokens)}
        self.copied(self.ledger.reorder(sources))
        self.tokens = {s: self.tokens[source] for s, source in sources.items()}

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free(self, data):
        seq_id = self.pick(data)
        self.ledger.free(seq_id)
        del self.tokens[seq_id]

    @invariant()
    def lengths_agree_and_nothing_is_lost(self):
        self.ledger.check()
        found = {s: self.ledger.length(s) for s in self.ledger.seq_ids}
        assert found == {s: len(tokens) for s, tokens in self.tokens.items()}
