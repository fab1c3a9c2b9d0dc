"""The tiered cache under a model: what comes back is verified, in time, and not forwarded again."""

import errno
import threading
import time

import pytest
import torch

from conftest import small_config
from exact_caches import poison
from kvlib.plan import OutOfBlocks
from kvlib.sizes import KVShape
from kvlib.tensors.block_files import BlockFiles
from kvlib.tensors.copy_lane import CopyLane
from kvlib.tensors.generate import generate
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.llama import Llama
from kvlib.tensors.pending_copies import PendingCopies
from kvlib.tensors.step import NoCache
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tier import Tier

SIZE = 3
PROMPT = (5, 1, 4, 1, 5, 9, 2, 7, 1, 8)
ROW_BYTES = 2 * 2 * 2 * 8 * 4  # of one token: keys and values, 2 layers, 2 heads of 8 numbers
BLOCK_BYTES = SIZE * ROW_BYTES


def on_host(num_blocks=32, pinned=False):
    return Tier("host", num_blocks * BLOCK_BYTES, 10), HostBlocks(pinned=pinned)


def on_disk(folder, num_blocks=64):
    return Tier("disk", num_blocks * BLOCK_BYTES, 1), BlockFiles(folder)


@pytest.fixture
def made(request):
    """Makes tiered caches, poisoned, and closes them at the end."""
    caches = []

    def make(model, tiers=None, num_blocks=16, **options):
        cuda = model.device.type == "cuda"
        tiers = [on_host(pinned=cuda)] if tiers is None else tiers
        place = {"device": model.device, "tiers": tiers}
        cache = poison(TieredKVCache(model.kv_shape, num_blocks, SIZE, **place, **options))
        caches.append(cache)
        return cache

    yield make
    for cache in caches:
        cache.close()


def answer(model, cache, prompt=PROMPT, steps=5):
    """Serves one request; returns its tokens and how many were forwarded for them."""
    before = cache.counters.tokens_forwarded
    cache.add("request", prompt)
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(forward(model, cache, "request", tokens))
    cache.free("request")
    return tokens[len(prompt) :], cache.counters.tokens_forwarded - before


def forward(model, cache, seq_id, tokens):
    """Forwards what the cache does not hold, compares with no cache; returns the next token."""
    logits = []
    alone = NoCache(model.device)
    for each, new in ((cache, tokens[cache.length(seq_id) :]), (alone, tokens)):
        with each.step({seq_id: new}) as plan:
            logits.append(model(torch.tensor(new, device=model.device), each, plan)[0])
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
    return int(logits[0].argmax())


def expected(model, prompt=PROMPT, steps=5):
    return list(generate(model, prompt, steps).tokens)


def test_the_same_tokens_and_what_came_up_was_not_forwarded(small_model, made, device):
    cache = made(small_model)
    cold = answer(small_model, cache)
    warm = answer(small_model, cache)
    assert cold[0] == warm[0] == expected(small_model)
    assert (cold[1], warm[1]) == (len(PROMPT) + 4, len(PROMPT) + 4 - 9)
    assert cache.moved.tokens_restored == 9 and cache.moved.blocks_up == 3
    assert cache.moved.blocks_down == (len(PROMPT) + 4) // SIZE
    cache.check()


def test_generate_runs_it_like_any_cache(small_model, made):
    cache = made(small_model)
    assert list(generate(small_model, PROMPT, 5, cache=cache).tokens) == expected(small_model)
    assert cache.moved.blocks_down == 4
    cache.check()


@pytest.mark.parametrize(
    ("length", "found"), [(1, 0), (SIZE, 0), (SIZE + 1, 3), (2 * SIZE, 3), (2 * SIZE + 1, 6)]
)
def test_whole_blocks_come_up_and_a_token_is_left_to_compute(small_model, made, length, found):
    cache = made(small_model)
    answer(small_model, cache, PROMPT[:length])
    cache.add("again", PROMPT[:length])
    assert cache.length("again") == found


def test_another_beginning_finds_nothing_and_a_shared_one_finds_its_blocks(small_model, made):
    cache = made(small_model)
    answer(small_model, cache)
    for prompt, found in (([6, *PROMPT[1:]], 0), ([*PROMPT[:7], 3, 3, 3], 6)):
        tokens, forwarded = answer(small_model, cache, prompt)
        assert tokens == expected(small_model, prompt)
        assert forwarded == len(prompt) + 4 - found


def test_other_extras_or_another_shape_share_nothing(small_model, made, tmp_path):
    answer(small_model, made(small_model, [on_disk(tmp_path)]))
    again = made(small_model, [on_disk(tmp_path)], extras={"model": "another"})
    assert answer(small_model, again)[1] == len(PROMPT) + 4
    half = Llama.random(small_config(num_kv_heads=3), seed=1)
    assert answer(half, made(half, [on_disk(tmp_path)]))[1] == len(PROMPT) + 4


def test_what_another_object_has_written_is_found_after_a_restart(small_model, made, tmp_path):
    first = made(small_model, [on_host(), on_disk(tmp_path)])
    answer(small_model, first)
    first.drain()
    again = made(small_model, [on_host(), on_disk(tmp_path)])
    assert answer(small_model, again) == (expected(small_model), len(PROMPT) + 4 - 9)
    again.check()


@pytest.mark.parametrize("policy", ["write_through", "write_back", "selective"])
def test_a_small_host_pushes_down_to_the_disk_and_gets_it_back(small_model, made, tmp_path, policy):
    cache = made(small_model, [on_host(2), on_disk(tmp_path)], policy=policy, min_uses=1)
    answer(small_model, cache)
    assert answer(small_model, cache) == (expected(small_model), len(PROMPT) + 4 - 9)
    cache.check()


def test_a_full_device_restores_as_much_as_it_has_room_for(small_model, made):
    cache = made(small_model, num_blocks=6)
    answer(small_model, cache)
    cache.add("other")
    forward(small_model, cache, "other", PROMPT[:7])  # takes 3 of 6 blocks
    cache.add("again", PROMPT)
    assert cache.length("again") == 9
    cache.free("again")
    forward(small_model, cache, "other", [*PROMPT[:7], *PROMPT[:5]])  # a fourth
    cache.add("again", PROMPT)
    assert cache.length("again") == 6
    cache.check()


# TI-1


def naive(cache, *names):
    """The same cache without one of the two waits, or with nobody waiting at all."""
    for name in names:
        setattr(cache.pending, name, lambda *_: None)
    return cache


def ti_1(cache, rounds=100):
    """Two device blocks; returns what the first sequence reads in each round."""
    k = torch.ones(SIZE, 1, 2, device=cache.device)
    seen = []
    for i in range(rounds):
        cache.add("first")
        with cache.step({"first": [i] * SIZE}) as plan:
            cache.write(0, k, k, plan)
        gate = threading.Event()
        cache.lane.submit(gate.wait)  # the lane has something else to do, this time
        cache.swap_out("first")
        threading.Timer(0.001, gate.set).start()
        cache.add("second")
        with cache.step({"second": [200] * 2 * SIZE}) as plan:
            nine = torch.cat([9 * k, 9 * k])
            cache.write(0, nine, nine, plan)
        gate.set()
        cache.free("second")
        cache.swap_in("first")
        with cache.step({"first": [7]}) as plan:
            cache.write(0, k[:1], k[:1], plan)
            seen.append(round(cache.attend(0, k[:1], plan).mean().item(), 3))
        cache.free("first")
    return seen


def two_blocks(device):
    shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=2)
    tier = Tier("host", 4096, 10), HostBlocks(pinned=device.type == "cuda")
    return TieredKVCache(shape, 2, SIZE, tiers=[tier], device=device)


def test_TI_1_the_first_sequence_always_reads_what_it_wrote(device):
    cache = two_blocks(device)
    assert ti_1(cache) == [1.0] * 100
    cache.check()
    cache.close()


def test_TI_1_fails_without_the_wait_of_the_writer():
    cache = naive(two_blocks(torch.device("cpu")), "before_write")
    assert max(ti_1(cache, rounds=3)) > 8
    cache.close()


def test_attention_waits_for_what_arrives_and_only_for_its_layer(small_model, made):
    """The lane is held after the first layer: the model gets as far as the second, no farther."""
    cache = made(small_model)
    answer(small_model, cache)
    cache.drain()
    gate, reached = threading.Event(), []
    send_up = cache._send_up

    def held(layer, *rest):
        if layer == 1:
            cache.lane.submit(gate.wait)
        return send_up(layer, *rest)

    write = TieredKVCache.write
    cache._send_up = held
    cache.write = lambda layer, *rest: (reached.append(layer), write(cache, layer, *rest))
    cache.add("again", PROMPT)
    thread = threading.Thread(target=forward, args=(small_model, cache, "again", PROMPT))
    thread.start()
    deadline = time.monotonic() + 30
    while len(reached) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    thread.join(0.1)
    waits = thread.is_alive()
    gate.set()
    thread.join()
    assert waits and reached == [0, 1] and cache.length("again") == len(PROMPT)


def test_without_the_wait_of_the_reader_attention_reads_what_has_not_arrived(small_model, made):
    cache = made(small_model)
    answer(small_model, cache)
    naive(cache, "before_read", "before_write")
    cache.drain()
    poison(cache)
    gate = threading.Event()
    cache.lane.submit(gate.wait)
    cache.lower.fetch = lambda key: cache.lower.places[0].get(key)  # not in the lane's order
    cache.add("again", PROMPT)
    try:
        with pytest.raises(AssertionError):
            forward(small_model, cache, "again", PROMPT)
    finally:
        gate.set()


# What is lost is recomputed


def damaged(path, how):
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(how(data))


DAMAGE = {
    "torn": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "a number": lambda data: data[:-40] + b"\x7f" + data[-39:],
    "magic": lambda data: b"GGUF" + data[4:],
    "gone": "gone",
}


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_block_and_all_behind_it_are_recomputed(small_model, made, tmp_path, how, which):
    cache = made(small_model, [on_disk(tmp_path)])
    tokens, _ = answer(small_model, cache)
    cache.drain()
    content = cache.content(PROMPT)
    damaged(cache.lower.places[0].path(content.key(which)), DAMAGE[how])
    again = answer(small_model, cache)
    assert again == (tokens, len(PROMPT) + 4 - which * SIZE)
    assert cache.moved.blocks_lost == 1
    cache.check()
    assert answer(small_model, cache) == (tokens, len(PROMPT) + 4 - 9), "it was put down again"


def test_torn_at_any_byte_it_never_reaches_attention(tmp_path):
    """Every length and every flipped byte of a block's file; NaN would show in the output."""
    shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=2)
    tier = Tier("disk", 1 << 20, 1), BlockFiles(tmp_path)
    cache = TieredKVCache(shape, 4, 2, tiers=[tier])
    text, row = [7, 8, 9], torch.ones(3, 1, 2)

    def serve():
        cache.add("a", text)
        held = cache.length("a")
        with cache.step({"a": text[held:]}) as plan:
            cache.write(0, row[held:], row[held:], plan)
            out = cache.attend(0, row[held:], plan)
        cache.free("a")
        cache.drain()
        assert out[-1].tolist() == [[1.0, 1.0]]
        return held

    assert (serve(), serve()) == (0, 2)
    path = next(tmp_path.glob("*.safetensors"))
    whole = path.read_bytes()
    cuts = [whole[:n] for n in range(len(whole))]
    flips = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for i, data in enumerate(cuts + flips, 1):
        path.write_bytes(data)
        fill(cache, float("nan"))
        assert serve() == 0 and cache.moved.blocks_lost == i
    assert serve() == 2
    cache.close()


def fill(cache, value):
    cache.store.keys.fill_(value)
    cache.store.values.fill_(value)


def test_another_models_block_under_this_key_is_lost(small_model, made):
    cache = made(small_model)
    tokens, _ = answer(small_model, cache)
    cache.drain()
    host, key = cache.lower.places[0], cache.content(PROMPT).key(0)
    for other in (torch.zeros(2, 3, SIZE, 8), torch.zeros(2, 2, SIZE, 8).half()):
        host.put(key, other, other)
        assert answer(small_model, cache) == (tokens, len(PROMPT) + 4)
        cache.check()
    assert cache.moved.blocks_lost == 2


class FullDisk(HostBlocks):
    """Takes so many blocks and no more."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def put(self, key, k, v):
        if len(self) >= self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().put(key, k, v)


@pytest.mark.parametrize("room", [0, 1, 3])
def test_a_full_disk_means_less_is_found_and_nothing_wrong_is(small_model, made, room):
    cache = made(small_model, [(on_host()[0], FullDisk(room))])
    tokens, _ = answer(small_model, cache)
    assert answer(small_model, cache) == (tokens, len(PROMPT) + 4 - room * SIZE)
    assert cache.moved.blocks_unwritten >= 4 - room
    cache.check()


def test_a_full_lower_tier_loses_nothing_that_the_upper_one_holds(small_model, made):
    cache = made(small_model, [on_host(), (on_disk_tier(), FullDisk(0))])
    tokens, _ = answer(small_model, cache)
    assert answer(small_model, cache) == (tokens, len(PROMPT) + 4 - 9)
    cache.check()


def on_disk_tier():
    return Tier("disk", 64 * BLOCK_BYTES, 1)


# Swapping


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_a_swapped_sequence_goes_on_as_if_it_had_stayed(small_model, made, length):
    cache = made(small_model)
    cache.add("a", PROMPT[:length])
    tokens = list(PROMPT[:length])
    tokens.append(forward(small_model, cache, "a", tokens))
    cache.swap_out("a")
    assert cache.ledger.num_free == 16 and cache.swapped == {"a": length}
    cache.add("b")
    forward(small_model, cache, "b", [9, 9, 9, 9, 9])
    assert cache.swap_in("a") == length
    before = cache.counters.tokens_forwarded
    for _ in range(4):
        tokens.append(forward(small_model, cache, "a", tokens))
    assert tokens[length:] == expected(small_model, PROMPT[:length])
    assert cache.counters.tokens_forwarded - before == 4
    cache.check()


def test_what_lay_behind_its_tokens_does_not_leave_the_device(small_model, made):
    cache = made(small_model)  # poisoned: unwritten slots are NaN
    cache.add("a")
    forward(small_model, cache, "a", PROMPT[:4])
    cache.swap_out("a")
    cache.drain()
    host = cache.lower.places[0]
    assert all(torch.isfinite(host.get(key)[0]).all() for key in cache.lower.stack.keys(0))


def test_a_shared_block_is_copied_once_it_has_arrived(small_model, made):
    """A fork writes into a block that is still on its way up: copy-on-write waits for it."""
    cache = made(small_model)
    cache.add("a")
    forward(small_model, cache, "a", PROMPT[:5])
    cache.swap_out("a")
    cache.drain()
    fill(cache, 7.0)
    send_up = cache._send_up
    cache._send_up = lambda *args: (cache.lane.submit(lambda: time.sleep(0.05)), send_up(*args))[1]
    cache.swap_in("a")
    cache.fork("a", "b")
    forward(small_model, cache, "b", PROMPT[:6])
    forward(small_model, cache, "a", PROMPT[:6])
    cache.check()


def test_the_tail_of_a_swapped_sequence_is_let_go(small_model, made):
    cache = made(small_model)
    cache.add("a")
    forward(small_model, cache, "a", PROMPT[:4])
    for end in (cache.swap_in, cache.free):
        cache.swap_out("a")
        end("a")
        cache.check()
        cache.drain()
        assert len(cache.lower.places[0]) == 1 == len(cache.lower.stack)


def test_two_of_one_origin_swap_independently(small_model, made):
    cache = made(small_model)
    cache.add("a")
    forward(small_model, cache, "a", PROMPT[:4])
    cache.fork("a", "b")
    for seq_id in "ab":
        cache.swap_out(seq_id)
    assert cache.swap_in("a") == 4
    cache.free("a")
    assert cache.swap_in("b") == 4
    cache.check()


def test_a_swapped_block_that_is_lost_shortens_the_sequence(small_model, made, tmp_path):
    cache = made(small_model, [on_disk(tmp_path)])
    cache.add("a")
    tokens = list(PROMPT)
    tokens.append(forward(small_model, cache, "a", tokens))
    cache.swap_out("a")
    cache.drain()
    damaged(cache.lower.places[0].path(cache.content(PROMPT).key(1)), DAMAGE["torn"])
    assert cache.swap_in("a") == SIZE
    for _ in range(4):
        tokens.append(forward(small_model, cache, "a", tokens))
    assert tokens[len(PROMPT) :] == expected(small_model)
    cache.check()


def test_no_room_below_is_one_clear_error_and_changes_nothing(small_model, made):
    cache = made(small_model, [on_host(2)])
    cache.add("a")
    forward(small_model, cache, "a", PROMPT)
    with pytest.raises(OutOfBlocks, match="asked for room for 1 block, 2 of host all pinned"):
        cache.swap_out("a")
    assert cache.length("a") == 10 and cache.swapped == {}
    assert not any(cache.lower.stack._books[0].pins.values()), "a pin is left behind"
    cache.check()
    cache.truncate("a", 5)
    cache.swap_out("a")
    cache.add("b")
    forward(small_model, cache, "b", [9] * 8)
    cache.free("b")  # finds no room below, which is no error
    assert cache.swap_in("a") == 5
    cache.check()


def test_no_room_above_is_one_clear_error_and_changes_nothing(small_model, made):
    cache = made(small_model, num_blocks=4)
    cache.add("a")
    forward(small_model, cache, "a", PROMPT)
    cache.swap_out("a")
    cache.add("b")
    forward(small_model, cache, "b", [3])
    with pytest.raises(OutOfBlocks, match="asked for 4 blocks, 3 free"):
        cache.swap_in("a")
    assert cache.swapped == {"a": 10}
    cache.free("a")
    assert cache.swapped == {}
    cache.check()


def test_wrong_calls_change_nothing(small_model, made):
    cache = made(small_model)
    for call in (cache.swap_out, cache.swap_in, cache.free):
        with pytest.raises(KeyError, match="no sequence 'x'"):
            call("x")
    cache.add("a")
    plan = cache.plan({"a": [1, 2]})
    for call in (cache.swap_out, cache.free):
        with pytest.raises(ValueError, match="open plan"):
            call("a")
    cache.abort(plan)
    forward(small_model, cache, "a", [1, 2])
    cache.swap_out("a")
    for call in (lambda: cache.add("a"), lambda: cache.fork("b", "a")):
        with pytest.raises((ValueError, KeyError)):
            call()
    assert cache.swapped == {"a": 2}
    with pytest.raises(TypeError):
        cache.add("new", ["no token"])
    assert cache.ledger.seq_ids == ()
    cache.check()


def test_pending_copies_are_asked_about_blocks_only(small_model, made):
    """A step without copies under way asks for nothing: the waits cost a plain step no time."""
    cache = made(small_model)
    cache.pending = PendingCopies(2)
    cache.pending.before_read = cache.pending.before_write = None  # would raise if called
    cache.add("a")
    forward(small_model, cache, "a", PROMPT)


def test_a_slow_link_changes_times_and_no_token(small_model, made, device):
    cache = made(small_model, lane=CopyLane(device, gb_s=0.002))
    assert answer(small_model, cache)[0] == answer(small_model, cache)[0] == expected(small_model)


def test_no_cache_agrees(small_model, made):
    """The baseline itself: the tests above compare with what it computes."""
    alone = NoCache(small_model.device)
    assert list(generate(small_model, PROMPT, 5, cache=alone).tokens) == expected(small_model)


def test_what_a_place_raises_that_is_no_loss_leaves_no_sequence_behind(small_model, made):
    cache = made(small_model)
    answer(small_model, cache)
    cache.add("away")
    forward(small_model, cache, "away", list(PROMPT))
    cache.swap_out("away")
    place, num_free = cache.lower.places[0], cache.ledger.num_free
    place.get, sound = lambda key: 1 / 0, place.get
    with pytest.raises(ZeroDivisionError):
        cache.add("new", PROMPT)
    with pytest.raises(ZeroDivisionError):
        cache.swap_in("away")
    assert cache.ledger.num_free == num_free and cache.swapped == {"away": len(PROMPT)}
    place.get = sound
    cache.check()
    cache.add("new", PROMPT)
    assert (cache.length("new"), cache.swap_in("away")) == (9, 10)


def test_closing_twice_is_no_error(small_model, made):
    cache = made(small_model)
    cache.close()
    cache.close()


def breaks(*_):
    raise MemoryError("no room for a copy")


def test_what_did_not_arrive_whole_goes_nowhere_and_its_blocks_serve_the_next(
    small_model, made, monkeypatch
):
    cache = made(small_model)
    answer(small_model, cache)
    kept = cache.moved.blocks_down
    monkeypatch.setattr(cache, "_send_up", lambda *_: cache.lane.submit(breaks))
    cache.add("broken", PROMPT)
    assert cache.length("broken") == 9
    for use in (
        lambda: forward(small_model, cache, "broken", list(PROMPT)),
        lambda: cache.swap_out("broken"),
    ):
        with pytest.raises(MemoryError):
            use()
    cache.free("broken")
    monkeypatch.undo()
    assert cache.moved.blocks_down == kept and not cache.pending
    assert answer(small_model, cache)[0] == expected(small_model)
    cache.check()


def test_a_copy_that_could_not_go_down_is_a_miss_and_no_error_for_the_next_owner(
    small_model, made, monkeypatch
):
    cache = made(small_model)
    monkeypatch.setattr(cache, "_read", breaks)
    assert answer(small_model, cache)[0] == expected(small_model)
    cache.lower.lane.drain()  # the lane may be behind; what it has not tried would succeed
    monkeypatch.undo()
    cache.check()
    assert cache.moved.blocks_unwritten == cache.moved.blocks_down == 4
    for _ in range(2):
        assert answer(small_model, cache)[0] == expected(small_model)
    assert cache.moved.tokens_restored == 9
    cache.check()
