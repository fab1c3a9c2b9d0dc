"""Copies between a device and its tiers that fail or are interrupted: nobody reads what is not so.

Each of these once ended with another text's keys and values in somebody's attention, or under a key
that was not theirs.
"""

import queue
import threading

import pytest
import torch

from kvlib.sizes import KVShape
from kvlib.tensors.copy_lane import Copy, CopyLane
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.pending_copies import PendingCopies
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tensors.transfer import receive_sequence, send_sequence
from kvlib.tier import Tier

SHAPE, SIZE = KVShape(num_layers=2, num_kv_heads=1, head_dim=2), 2
PROMPT = [5, 1, 4, 1, 5]


@pytest.fixture
def made():
    caches = []

    def make(num_blocks=8, place=None, **options):
        tiers = [(Tier("host", 10_000, 10), place or HostBlocks())]
        cache = TieredKVCache(SHAPE, num_blocks, SIZE, tiers=tiers, **options)
        cache.store.keys.fill_(torch.nan)
        cache.store.values.fill_(torch.nan)
        caches.append(cache)
        return cache

    yield make
    for cache in caches:
        cache.close()


def serve(cache, seq_id, tokens):
    """Each token's key is the token, in every layer."""
    held = cache.length(seq_id)
    x = torch.tensor(tokens[held:], dtype=torch.float32).view(-1, 1, 1).expand(-1, 1, 2)
    with cache.step({seq_id: tokens[held:]}) as plan:
        for layer in range(2):
            cache.write(layer, x + layer, x, plan)
            assert torch.isfinite(cache.attend(layer, x, plan)).all()


def known(made):
    """A cache whose host has two blocks of the prompt, and whose device has forgotten all."""
    cache = made()
    cache.add("first")
    serve(cache, "first", PROMPT)
    cache.free("first")
    cache.drain()
    cache.store.keys.fill_(torch.nan)
    cache.store.values.fill_(torch.nan)
    return cache


def breaks():
    raise MemoryError("a copy failed")


def without(cache, monkeypatch, lost_layer):
    """One layer of what comes up does not arrive."""
    send_up = cache._send_up

    def fails(layer, *rest):
        return cache.lane.submit(breaks) if layer == lost_layer else send_up(layer, *rest)

    monkeypatch.setattr(cache, "_send_up", fails)


@pytest.mark.parametrize("lost_layer", [0, 1])
def test_a_block_of_which_one_layer_did_not_arrive_is_never_taken_for_whole(
    made, monkeypatch, lost_layer
):
    cache = known(made)
    without(cache, monkeypatch, lost_layer)
    cache.add("again", PROMPT)
    assert cache.length("again") == 4
    cache.drain()
    cache.add("other")
    serve(cache, "other", [9])  # a step of somebody else's looks through what is done
    for use in (
        lambda: serve(cache, "again", PROMPT),
        lambda: cache.swap_out("again"),
    ):
        with pytest.raises(MemoryError, match="a copy failed"):
            use()
    cache.check()


def test_it_does_not_go_down_when_a_fork_that_shares_it_ends(made, monkeypatch):
    cache = known(made)
    host = cache.lower.places[0]
    without(cache, monkeypatch, 0)
    cache.add("again", PROMPT)
    monkeypatch.undo()
    for key in list(host._blocks):
        cache.lower.forget(key)
    cache.fork("again", "fork")
    cache.free("fork")  # its blocks are still held, and no copy of them is whole
    cache.drain()
    assert len(host) == 0
    cache.free("again")
    cache.drain()
    assert len(host) == 0 and not cache.pending
    cache.check()


@pytest.mark.parametrize("leave", ["free", "truncate", "reorder"])
def test_the_next_owner_of_its_blocks_hears_nothing_of_it(made, monkeypatch, leave):
    cache = known(made)
    without(cache, monkeypatch, 1)
    cache.add("again", PROMPT)
    monkeypatch.undo()
    if leave == "free":
        cache.free("again")
    elif leave == "truncate":
        cache.truncate("again", 0)
    else:
        cache.add("empty")
        cache.reorder({"again": "empty", "empty": "empty"})
    for i in range(3):
        cache.add(i)
        serve(cache, i, [7, 8, 9, 6])
    cache.check()


def test_whoever_is_interrupted_while_waiting_waits_again(made, monkeypatch):
    """A block that goes down is still read when its next owner is stopped and tries once more."""
    cache = made(num_blocks=1)
    gate = threading.Event()
    cache.add("a")
    serve(cache, "a", [1, 2])
    cache.lane.submit(gate.wait)
    cache.free("a")
    cache.add("b")
    plan = cache.plan({"b": [3]})
    x = torch.full((1, 1, 2), 3.0)

    def stopped(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Copy, "ended", stopped)
        with pytest.raises(KeyboardInterrupt):
            cache.write(0, x, x, plan)
    late = threading.Timer(0.05, gate.set)
    late.start()
    cache.write(0, x, x, plan)
    cache.write(1, x, x, plan)
    cache.commit(plan)
    cache.drain()
    k, v = cache.lower.places[0].get(cache.content([1, 2]).key(0))
    assert k[:, 0, :, 0].tolist() == [[1, 2], [2, 3]] and v[0, 0, :, 0].tolist() == [1, 2]


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_copy_that_cannot_even_be_handed_in_leaves_no_sequence(made, monkeypatch, after, error):
    cache = known(made)
    free, submit = cache.ledger.num_free, cache._send_up

    def refused(layer, *rest):
        if layer == after:
            raise error
        return submit(layer, *rest)

    cache.add("away")
    serve(cache, "away", [7, 7, 7])
    cache.swap_out("away")
    monkeypatch.setattr(cache, "_send_up", refused)
    with pytest.raises(error):
        cache.add("again", PROMPT)
    with pytest.raises(error):
        cache.swap_in("away")
    monkeypatch.undo()
    assert cache.ledger.seq_ids == () and cache.ledger.num_free == free
    assert cache.swapped == {"away": 3}
    cache.check()
    cache.add("again", PROMPT)
    serve(cache, "again", PROMPT)
    assert cache.swap_in("away") == 3


def test_a_swap_that_is_interrupted_pins_nothing(made, monkeypatch):
    cache = made()
    cache.add("a")
    serve(cache, "a", PROMPT)
    send_down = cache._send_down

    def stopped(key, block_id, filled):
        if filled < 5:
            raise KeyboardInterrupt
        send_down(key, block_id, filled)

    monkeypatch.setattr(cache, "_send_down", stopped)
    with pytest.raises(KeyboardInterrupt):
        cache.swap_out("a")
    assert cache.swapped == {} and cache.length("a") == 5
    assert not any(cache.lower.stack._books[0].pins.values())
    cache.check()


def test_a_place_that_does_not_let_go_does_not_stop_what_comes_after(made):
    class Holds(HostBlocks):
        def remove(self, key):
            raise OSError("a disk that is read only by now")

    host = Holds()
    cache = TieredKVCache(SHAPE, 8, SIZE, tiers=[(Tier("host", 2 * 64, 10), host)])
    for i in range(4):
        cache.add("a")
        serve(cache, "a", [i, i])
        cache.free("a")
    cache.check()
    assert len(cache.lower.stack) == 2 and len(host) == 4
    cache.close()


def test_pending_copies_know_what_arrives_in_too_few_layers():
    with CopyLane() as lane:
        pending = PendingCopies(num_layers=2)
        pending.arrive([3], [lane.submit(lambda: None)])
        with pytest.raises(AssertionError, match="block 3 arrives in 1 layers"):
            pending.check()


def test_a_lane_counts_what_was_handed_in_and_what_ended():
    with CopyLane() as lane:
        lane.submit(breaks)
        lane.check()
        lane._handed_in += 1
        with pytest.raises(AssertionError, match="copies handed in"):
            lane.check()


def test_host_blocks_share_no_byte():
    host = HostBlocks()
    k = torch.ones(1, 1, 2, 2)
    host.put(b"a", k, k)
    host.put(b"b", k, k)
    host.check()
    host._blocks[b"b"] = host._blocks[b"a"]
    with pytest.raises(AssertionError, match="two blocks in one place"):
        host.check()


# From one process to another


class Wire:
    """Two ends in one process, each as a group of ranks would be."""

    rank, sent_bytes = 0, 0

    def __init__(self):
        self.there, self.back = queue.Queue(), queue.Queue()

    def other(self):
        end = Wire()
        end.there, end.back, end.rank = self.back, self.there, 1
        return end

    def send(self, data, to):
        self.there.put(data.clone())

    def receive(self, shape, dtype, source):
        return self.back.get(timeout=10)

    def send_text(self, text, to):
        self.there.put(text)

    def receive_text(self, source):
        return self.back.get(timeout=10)

    def leave(self, why):
        self.there.put(why)


def handed_over(source, seq_id, target, tokens):
    here = Wire()
    there, got = here.other(), []
    receiver = threading.Thread(
        target=lambda: got.append(receive_sequence(there, 0, target, seq_id))
    )
    receiver.start()
    send_sequence(here, 1, source, seq_id, tokens)
    receiver.join(10)
    return got


def test_what_is_handed_over_is_named_by_its_tokens_and_by_no_others(made):
    """Its blocks go down when it ends; under placeholders another text would find them."""
    source, target = PagedKVCache(SHAPE, 8, 3), made()
    for cache in (source, target):
        cache.add("a")
    serve(source, "a", PROMPT)
    assert handed_over(source, "a", target, PROMPT) == [tuple(PROMPT)]
    target.free("a")
    target.drain()
    target.add("counts", [0, 1, 2, 3, 4])
    assert target.length("counts") == 0, "found under numbers that only stood for tokens"
    target.add("same", PROMPT)
    assert target.length("same") == 4
    serve(target, "same", PROMPT)
    target.check()


def test_what_is_still_on_its_way_up_is_not_sent_on(made, monkeypatch):
    cache = known(made)
    gate = threading.Event()
    send_up = cache._send_up

    def late(*what):
        cache.lane.submit(lambda: gate.wait(0.1))
        return send_up(*what)

    monkeypatch.setattr(cache, "_send_up", late)
    target = PagedKVCache(SHAPE, 8, 3)
    cache.add("a", PROMPT)
    target.add("a")
    assert handed_over(cache, "a", target, PROMPT[:4]) == [tuple(PROMPT[:4])]
    slots = torch.tensor(list(target.ledger._slots("a", range(4))))
    assert target.store.read(0, slots)[0][:, 0, 0].tolist() == PROMPT[:4]


def test_a_captured_step_waits_for_what_arrives(made, monkeypatch):
    """What is replayed asks for no layer, so all of it has to be there before."""
    from conftest import small_config
    from kvlib.tensors.graph import DecodeGraph
    from kvlib.tensors.llama import Llama

    sizes = {"num_layers": 2, "num_kv_heads": 1, "num_q_heads": 2, "head_dim": 2}
    model, cache = Llama.random(small_config(**sizes), seed=0), made()
    cache.add("a")
    drained = []
    monkeypatch.setattr(cache, "drain", lambda: drained.append(True))
    DecodeGraph(model, cache, num_seqs=1, max_blocks=2).step({"a": 5})
    assert drained


def test_a_model_of_transformers_names_blocks_by_its_tokens_whoever_made_the_cache():
    """Placeholders in their stead would be keys that another text has."""
    hf = pytest.importorskip("hf_models")
    from kvlib.tensors.hf_cache import SteppedCache

    model, host = hf.tiny("llama"), HostBlocks()
    model.set_attn_implementation("kvlib")

    def make(shape, *_):
        return TieredKVCache(shape, 12, SIZE, tiers=[(Tier("host", 10**6, 10), host)])

    cache = hf.HFCache(model, make)
    with torch.no_grad():
        model(torch.tensor([PROMPT]), cache=cache)
    kept = cache.groups[0].cache
    cache.check()
    cache.reset()
    kept.drain()
    assert kept.content(PROMPT).key(1) in host and kept.content([0] * 5).key(0) not in host
    cache.close()
    with torch.no_grad(), pytest.raises(ValueError, match="named by tokens"):
        model(torch.tensor([PROMPT]), cache=SteppedCache(model, make))
