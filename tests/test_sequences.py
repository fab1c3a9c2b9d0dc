"""What every ledger does alike: refusals with the same words, after which nothing has changed."""

import pytest

from kvlib.ledger import ContiguousLedger
from kvlib.paged_ledger import PagedLedger
from kvlib.rolling_ledger import RollingLedger
from kvlib.sequences import SequenceLedger

LEDGERS = {
    "rows": lambda: ContiguousLedger(num_seqs=4, max_seq_len=8),
    "rings": lambda: RollingLedger(num_seqs=4, window=8),
    "blocks": lambda: PagedLedger(num_blocks=8, block_size=3),
}


@pytest.fixture(params=LEDGERS)
def ledger(request):
    """ "a" has 4 tokens, "b" has 1, "gone" was freed."""
    ledger = LEDGERS[request.param]()
    for seq_id in ("a", "b", "gone"):
        ledger.add(seq_id)
    ledger.commit(ledger.plan({"a": [1] * 4, "b": [2]}))
    ledger.free("gone")
    return ledger


def state(ledger):
    lengths = [(s, ledger.length(s)) for s in ledger.seq_ids]
    return lengths, ledger.num_free, ledger.used_tokens, ledger.reserved_tokens


REFUSED = {
    "an id that is live": (lambda m: m.add("a"), ValueError, "needs a new id, got 'a'"),
    "the id of padding": (lambda m: m.add(None), ValueError, "needs a new id, got None"),
    "a child that is live": (lambda m: m.fork("a", "b"), ValueError, "needs a new id, got 'b'"),
    "a parent that is gone": (lambda m: m.fork("gone", "c"), KeyError, "no sequence 'gone'; 2 are"),
    "a length of nobody": (lambda m: m.length("gone"), KeyError, "no sequence 'gone'; 2 are live"),
    "freed before": (lambda m: m.free("gone"), KeyError, "no sequence 'gone'; 2 are live"),
    "nobody's tokens": (lambda m: m.truncate("gone", 0), KeyError, "no sequence 'gone'; 2 are"),
    "a step of nobody": (lambda m: m.plan({"a": [1], "gone": [1]}), KeyError, "'gone'; 2 are live"),
    "more than there is": (lambda m: m.truncate("a", 5), ValueError, "keeps 0 to 4 tokens of"),
    "fewer than none": (lambda m: m.truncate("a", -1), ValueError, "asked to keep -1"),
    "half a token": (lambda m: m.truncate("a", 1.5), TypeError, "whole number, got 1.5"),
    "a truth": (lambda m: m.truncate("a", True), TypeError, "whole number, got True"),
    "a beam of nobody": (lambda m: m.reorder({"a": "a", "gone": "a"}), KeyError, "'gone'"),
    "a source left out": (lambda m: m.reorder({"a": "b"}), ValueError, "not itself reordered"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_every_ledger_refuses_alike_and_changes_nothing(ledger, case):
    call, error, words = REFUSED[case]
    before = state(ledger)
    with pytest.raises(error, match=words):
        call(ledger)
    assert state(ledger) == before
    ledger.check()


@pytest.mark.parametrize("commit", [True, False])
def test_a_sequence_in_an_open_plan_is_left_alone(ledger, commit):
    step = ledger.plan({"a": [6]})
    before = state(ledger)
    for call in (
        lambda: ledger.plan({"b": [7], "a": [8]}),
        lambda: ledger.free("a"),
        lambda: ledger.truncate("a", 0),
        lambda: ledger.fork("a", "c"),
        lambda: ledger.reorder({"a": "a"}),
    ):
        with pytest.raises(ValueError, match="sequence 'a' is in an open plan"):
            call()
        assert state(ledger) == before
    (ledger.commit if commit else ledger.abort)(step)
    assert ledger.length("a") == 4 + commit
    for close in (ledger.commit, ledger.abort, ledger.require_open):
        with pytest.raises(ValueError, match="not open"):
            close(step)


def test_an_aborted_step_is_forgotten(ledger):
    before = state(ledger)
    ledger.abort(ledger.plan({"a": [6] * 3, "b": [7] * 2}))
    assert state(ledger) == before
    assert ledger.plan({"b": [], "a": [6]}).positions == (4,)


def test_the_rules_are_said_once():
    """A rule that a ledger said again for itself would sooner or later be another rule."""
    rules = {"length", "add", "commit", "abort", "fork", "reorder", "truncate", "free"}
    for made in LEDGERS.values():
        for name in rules:
            assert getattr(type(made()), name) is getattr(SequenceLedger, name)
