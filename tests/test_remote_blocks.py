"""A block store behind a socket: what comes back is what was put, or it is lost and says so."""

import socket
import struct
from contextlib import suppress
from threading import Thread
from time import monotonic, sleep

import pytest
import torch

from conftest import small_config
from kvlib.tensors import block_server
from kvlib.tensors.block_bytes import LostBlock, pack
from kvlib.tensors.block_server import (
    ANSWER,
    HAS,
    OK,
    PUT,
    REFUSED,
    REMOVE,
    REQUEST,
    BlockServer,
)
from kvlib.tensors.generate import generate
from kvlib.tensors.llama import Llama
from kvlib.tensors.remote_blocks import RemoteBlocks
from kvlib.tensors.tiered import TieredKVCache
from kvlib.tensors.workers import greedy
from kvlib.tier import Tier

KEY = b"k" * 32


def block(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2, 3, 4, 5, generator=generator).unbind()


@pytest.fixture
def server():
    with BlockServer(capacity_bytes=100_000) as made:
        yield made


@pytest.fixture
def remote(server):
    made = RemoteBlocks(server.address, timeout_s=5.0)
    yield made
    made.close()


def wait_until(true, most_s=5.0):
    end = monotonic() + most_s
    while not true():
        assert monotonic() < end
        sleep(0.01)


def equal(got, wanted):
    return all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_what_one_puts_another_gets(server, remote):
    other = RemoteBlocks(server.address)
    remote.put(KEY, *block())
    assert KEY in other and b"x" not in other
    assert equal(other.get(KEY), block())
    assert server.nbytes == len(pack(KEY, *block())) + len(KEY)
    assert other.received_bytes > server.nbytes - len(KEY)
    with pytest.raises(KeyError, match=f"no block {other.name(b'x').hex()[:8]}"):
        other.get(b"x")
    other.remove(KEY)
    other.remove(KEY)
    assert KEY not in remote and server.nbytes == 0
    other.close()


def test_bfloat16_travels(remote):
    k, v = (side.to(torch.bfloat16) for side in block())
    remote.put(KEY, k, v)
    assert equal(remote.get(KEY), (k, v))


def test_the_first_bytes_under_a_key_stay(remote, server):
    remote.put(KEY, *block())
    size = server.nbytes
    remote.put(KEY, *block(1))
    assert equal(remote.get(KEY), block()) and server.nbytes == size


def test_what_is_no_block_is_not_sent(remote):
    with pytest.raises(ValueError, match="a block is k and v"):
        remote.put(KEY, torch.zeros(2), torch.zeros(2))
    assert remote.sent_bytes == 0


@pytest.mark.parametrize("at", [0, 8, 60, 300, -1])
def test_a_byte_that_changed_in_the_server_is_found(server, remote, at):
    remote.put(KEY, *block())
    data = bytearray(server._blocks[remote.name(KEY)])
    data[at] ^= 4
    server._blocks[remote.name(KEY)] = bytes(data)
    with pytest.raises(LostBlock):
        remote.get(KEY)
    assert KEY not in remote, "offered to nobody again"


def test_a_block_under_anothers_key_is_lost(server, remote):
    remote.put(KEY, *block())
    other = remote.name(b"other")
    server._blocks[other] = server._blocks[remote.name(KEY)]
    with pytest.raises(LostBlock, match=f"asked for block {other.hex()[:8]}"):
        remote.get(b"other")


def test_a_full_server_drops_what_was_read_longest_ago(remote):
    size = len(pack(KEY, *block())) + 32
    with BlockServer(capacity_bytes=2 * size) as small:
        client = RemoteBlocks(small.address)
        for key in (b"a" * 32, b"b" * 32):
            client.put(key, *block())
        client.get(b"a" * 32)
        client.put(b"c" * 32, *block())
        assert [key in client for key in (b"a" * 32, b"b" * 32, b"c" * 32)] == [True, False, True]
        assert small.nbytes == 2 * size
        client.close()


def test_a_block_larger_than_the_server_is_refused_and_the_connection_lives():
    with BlockServer(capacity_bytes=100) as small:
        client = RemoteBlocks(small.address)
        with pytest.raises(OSError, match=r"asked to keep \d+ bytes, 100 at most"):
            client.put(KEY, *block())
        assert KEY not in client and small.nbytes == 0
        line = client._line
        assert b"x" not in client and client._line is line is not None
        client.close()


def test_a_half_sent_block_is_not_kept(server, remote):
    name = remote.name(KEY)
    data = pack(name, *block())
    for end in (0, 5, REQUEST.size + 7, REQUEST.size + 32, REQUEST.size + 40, -1):
        request = (REQUEST.pack(PUT, len(name), len(data)) + name + data)[:end]
        with socket.create_connection(server.address) as half:
            half.sendall(request)
    assert KEY not in remote and server.nbytes == 0


def test_keys_take_room_too():
    with BlockServer(capacity_bytes=100) as small:
        for i in range(9):
            assert small.answer(PUT, b"%031d" % i, b"")[0] == OK
        assert small.nbytes == 93
        line = socket.create_connection(small.address, 5)
        with line:
            line.sendall(REQUEST.pack(PUT, 101, 0) + b"k" * 101)
            assert line.recv(9)[:1] == REFUSED
    assert small.answer(REMOVE, b"%031d" % 8, b"")[0] == OK and small.nbytes == 62


def test_a_client_that_announces_too_much_and_leaves_is_let_go(server):
    """Its session must not read on for 2^48 times at the end of the stream."""
    with socket.create_connection(server.address) as line:
        line.sendall(REQUEST.pack(PUT, 0, 2**64 - 1))
    wait_until(lambda: not server._tcp.sessions)


def test_a_client_that_stalls_in_a_request_is_let_go_and_an_idle_one_is_not(
    server, remote, monkeypatch
):
    monkeypatch.setattr(block_server, "STALLED_S", 0.1)
    remote.put(KEY, *block())
    with socket.create_connection(server.address, 5) as line:
        line.sendall(REQUEST.pack(PUT, 2, 2) + b"k")
        assert line.recv(1) == b""
    assert len(server._tcp.sessions) == 1
    assert KEY in remote


def test_close_hangs_up_on_one_that_was_accepted_last(monkeypatch):
    """However late its thread begins."""
    handle = block_server._Session.handle

    def late(session):
        sleep(0.3)
        handle(session)

    monkeypatch.setattr(block_server._Session, "handle", late)
    server = BlockServer(capacity_bytes=1000)
    with socket.create_connection(server.address, 5) as line:
        wait_until(lambda: server._tcp.sessions)
        server.close()
        with suppress(OSError):
            line.sendall(REQUEST.pack(HAS, 1, 0) + b"k")
            assert line.recv(1) == b""
    server.close()


def test_only_this_machine_can_call(server):
    assert server.address[0] == "127.0.0.1"


def test_nonsense_is_hung_up_on(server, remote):
    with socket.create_connection(server.address, 5) as line:
        line.sendall(struct.pack("!cHQ", b"?", 0, 0))
        assert line.recv(1) == b""
    assert KEY not in remote


def test_a_server_that_is_gone_has_no_block_and_costs_one_wait(server):
    remote = RemoteBlocks(server.address, timeout_s=1.0)
    remote.put(KEY, *block())
    server.close()
    with pytest.raises(LostBlock, match="out of reach"):
        remote.get(KEY)
    start = monotonic()
    assert KEY not in remote
    with pytest.raises(LostBlock, match="lost a moment ago"):
        remote.get(KEY)
    with pytest.raises(OSError):
        remote.put(KEY, *block())
    remote.remove(KEY)
    assert monotonic() - start < 0.5


def test_a_server_that_is_back_is_found_after_a_while(server):
    remote = RemoteBlocks(server.address, retry_s=0.0)
    remote.put(KEY, *block())
    server.close()
    assert KEY not in remote
    with BlockServer(capacity_bytes=100_000) as again:
        remote.address = again.address
        remote.put(KEY, *block())
        assert equal(remote.get(KEY), block())
        remote.close()


def answering(reply):
    """A server that reads something, answers these bytes and hangs up; returns its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        line, _ = listener.accept()
        with line, listener:
            line.recv(4096)
            line.sendall(reply)
            if not reply:
                line.recv(1)  # silent until the client gives up

    Thread(target=serve, daemon=True).start()
    return listener.getsockname()


def test_a_silent_server_is_given_up_in_time():
    remote = RemoteBlocks(answering(b""), timeout_s=0.2)
    start = monotonic()
    with pytest.raises(LostBlock, match="timed out"):
        remote.get(KEY)
    assert 0.1 < monotonic() - start < 5


@pytest.mark.parametrize(
    ("announced", "said"),
    [(2**30, "timed out"), (2**30 + 1, "announced"), (2**64 - 1, "announced")],
)
def test_an_answer_that_only_trickles_is_given_up_in_time(announced, said):
    """One byte at a time keeps any single read alive; nor is room made for what is announced."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        line, _ = listener.accept()
        with line, listener, suppress(OSError):
            line.sendall(ANSWER.pack(OK, announced))
            for _ in range(400):
                line.sendall(b"x")
                sleep(0.02)

    thread = Thread(target=serve, daemon=True)
    thread.start()
    with RemoteBlocks(listener.getsockname(), timeout_s=0.3) as remote:
        start = monotonic()
        with pytest.raises(LostBlock, match=said):
            remote.get(KEY)
        assert monotonic() - start < 5
    thread.join(5)
    assert not thread.is_alive()


def test_an_interrupted_request_leaves_no_answer_for_the_next(remote, monkeypatch):
    remote.put(KEY, *block())

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(remote, "_exactly", interrupted)
        with pytest.raises(KeyboardInterrupt):
            KEY in remote  # noqa: B015
    assert b"x" not in remote
    assert equal(remote.get(KEY), block())


def test_threads_share_one_line(server, remote):
    """A lane copies while the computation asks."""
    keys = [bytes([i]) * 32 for i in range(4)]
    wrong = []

    def work(i):
        for _ in range(40):
            remote.put(keys[i], *block(i))
            if keys[i] not in remote or not equal(remote.get(keys[i]), block(i)):
                wrong.append(i)

    threads = [Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("end", [0, 1, 8, 9, 20, 200, -1])
def test_an_answer_cut_off_anywhere_is_lost(end):
    data = pack(KEY, *block())
    reply = (ANSWER.pack(OK, len(data)) + data)[:end]
    remote = RemoteBlocks(answering(reply or b"K"), timeout_s=2.0)
    with pytest.raises(LostBlock, match="were to come"):
        remote.get(KEY)


def instance(model, server, **options):
    """A cache of 8 blocks over a store that it shares with others."""
    remote = RemoteBlocks(server.address, timeout_s=2.0)
    tiers = [(Tier("shared", 100_000, read_gb_s=1.0), remote)]
    return TieredKVCache(model.kv_shape, 8, 4, tiers=tiers, **options), remote


def served(model, cache, prompt):
    """Text after a prompt, and how many tokens were forwarded for it."""
    before = cache.counters.tokens_forwarded
    cache.add("a", prompt)
    text = greedy(model, cache, "a", prompt, 5)
    cache.free("a")
    cache.drain()
    return text, cache.counters.tokens_forwarded - before


def test_two_instances_share_a_store_and_a_lost_one_means_recompute(server):
    model = Llama.random(small_config(tie_word_embeddings=False), seed=1)
    prompt = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    right = generate(model, prompt, 5).tokens
    (first, line_1), (second, line_2) = (instance(model, server) for _ in range(2))
    third, line_3 = instance(model, server)
    assert served(model, first, prompt) == (right, 15)
    assert served(model, second, prompt) == (right, 7), "two blocks of four came from the first"
    _, damaged, _ = server._blocks  # used longest ago first: the answer's block, then the prompt's
    server._blocks[damaged] = server._blocks[damaged][:-1] + b"!"
    text, forwarded = served(model, third, prompt)
    assert (text, forwarded) == (right, 11), "the block before the damage"
    server.close()
    fourth, line_4 = instance(model, server)
    assert served(model, fourth, prompt) == (right, 15)
    for cache, line in zip(
        (first, second, third, fourth), (line_1, line_2, line_3, line_4), strict=True
    ):
        cache.close()
        line.close()


def test_models_of_other_weights_or_tenants_share_nothing(server):
    models = [Llama.random(small_config(), seed=seed) for seed in (1, 2)]
    prompt = list(range(11))
    for i, model in enumerate(models):
        cache, line = instance(model, server, extras={"model": str(i)})
        assert served(model, cache, prompt)[1] == 15
        cache.close()
        line.close()
