"""Random forwards, failures, crops, beams and resets: kvlib's cache does as transformers' own."""

from random import Random

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hf_models import tiny, transformers
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.tensors.hf import HFCache

BLOCKS = 24


class Failed(Exception):
    pass


class Machine(RuleBasedStateMachine):
    """Two caches get the same calls; only kvlib's meets failures between layers."""

    kind = "llama"

    def __init__(self):
        super().__init__()
        self.model = tiny(self.kind)
        self.ours, self.theirs = HFCache.paged(self.model, BLOCKS, 4), None
        self.rows, self.mask = 0, None

    @rule(tokens=st.lists(st.integers(1, 88), min_size=1, max_size=6), rows=st.integers(1, 3))
    def forward(self, tokens, rows):
        ids = self._ids(tokens, rows)
        before = self.ours.get_seq_length()
        self.model.set_attn_implementation("kvlib")
        try:
            with torch.no_grad():
                got = self.model(ids, cache=self.ours).logits
        except (OutOfBlocks, SequenceTooLong):
            assert self.ours.get_seq_length() == before and self.ours.batch_size in (-1, self.rows)
            return
        self.theirs = self.theirs or transformers.DynamicCache(config=self.model.config)
        self.model.set_attn_implementation("sdpa")
        with torch.no_grad():
            want = self.model(ids, cache=self.theirs).logits
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)
        self.rows = len(ids)

    @rule(
        tokens=st.lists(st.integers(1, 88), min_size=1, max_size=6),
        rows=st.integers(1, 3),
        layer=st.integers(0, 1),
    )
    def forward_that_fails(self, tokens, rows, layer):
        """In front of a layer's attention, with the layers before it done."""
        ids = self._ids(tokens, rows)
        before = self.ours.get_seq_length()

        def fail(*_):
            raise Failed

        attention = self.model.model.layers[layer].self_attn
        hook = attention.q_proj.register_forward_pre_hook(fail)
        self.model.set_attn_implementation("kvlib")
        try:
            with torch.no_grad():
                self.model(ids, cache=self.ours)
        except (Failed, OutOfBlocks, SequenceTooLong):
            pass
        finally:
            hook.remove()
        assert self.ours.get_seq_length() == before

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def reorder(self, data):
        rows = st.integers(0, self.rows - 1)
        beams = torch.tensor(data.draw(st.lists(rows, min_size=self.rows, max_size=self.rows)))
        self.ours.reorder_cache(beams)
        self.theirs.reorder_cache(beams)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def select(self, data):
        chosen = data.draw(st.lists(st.integers(0, self.rows - 1), min_size=1, max_size=3))
        self.ours.batch_select_indices(torch.tensor(chosen))
        self.theirs.batch_select_indices(torch.tensor(chosen))
        self.rows = len(chosen)

    @precondition(lambda self: self.rows and self.kind == "llama")
    @rule(data=st.data())
    def crop(self, data):
        away = data.draw(st.integers(0, self.ours.get_seq_length() - 1))
        self.ours.crop(-away)
        self.theirs.crop(-away)

    @rule()
    def reset(self):
        self.ours.reset()
        self.theirs, self.rows = None, 0

    @invariant()
    def every_block_is_accounted_for(self):
        self.ours.check()
        length = self.theirs.get_seq_length() if self.theirs else 0
        assert self.ours.get_seq_length() == length
        for group in self.ours.groups:
            ledger = group.cache.ledger
            tables = [ledger.table(row) for row in self.ours.rows]
            held = {b for table in tables for b in table if b != ledger.pool.null_block_id}
            open_step = self.ours._step is not None
            assert open_step or ledger.num_free == BLOCKS - len(held)

    def teardown(self):
        self.ours.reset()
        self.ours.check()
        assert all(group.cache.ledger.num_free == BLOCKS for group in self.ours.groups)

    def _ids(self, tokens, rows):
        rows = self.rows or rows
        return torch.tensor([[(t + 7 * row) % 88 + 1 for t in tokens] for row in range(rows)])


class Hybrid(Machine):
    """Layers with a window beside layers without: two caches that must stay in step."""

    kind = "gemma3"


TestLlama = Machine.TestCase
TestHybrid = Hybrid.TestCase
TestLlama.settings = TestHybrid.settings = settings(max_examples=20, stateful_step_count=15)


def test_a_row_of_pads_alone_waits_and_rows_read_as_they_would_alone():
    model = tiny("llama")
    model.set_attn_implementation("kvlib")
    draw = Random(8)
    for _ in range(2):
        pads = [draw.randint(0, 6) for _ in range(3)] + [7]
        ids = torch.tensor([[0] * p + [draw.randint(2, 88) for _ in range(7 - p)] for p in pads])
        mask = torch.tensor([[0] * p + [1] * (7 - p) for p in pads])
        cache = HFCache.paged(model, 60, 4)
        where = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            many = model(ids, attention_mask=mask, position_ids=where, cache=cache).logits
            for row, p in enumerate(pads[:3]):
                alone = model(ids[row : row + 1, p:], cache=HFCache.paged(model, 60, 4)).logits
                torch.testing.assert_close(many[row, p:], alone[0], rtol=1e-4, atol=1e-4)
        assert [cache.groups[0].cache.length(row) for row in cache.rows] == [7 - p for p in pads]
        cache.check()
