"""The copy lane and host blocks: order, waits, a link that is slower, errors that do not spread."""

import threading
import time

import pytest
import torch

from kvlib.tensors.copy_lane import CopyLane
from kvlib.tensors.host_blocks import HostBlocks
from kvlib.tensors.pending_copies import PendingCopies


@pytest.fixture
def lane(device):
    with CopyLane(device) as made:
        yield made


def test_work_is_done_in_the_order_in_which_it_was_handed_in(lane):
    seen = []
    copies = [lane.submit(lambda i=i: seen.append(i) or i) for i in range(20)]
    assert [copy.wait() for copy in copies] == list(range(20)) == seen


def test_it_runs_beside_the_caller_and_done_waits_for_nothing(lane):
    gate = threading.Event()
    copy = lane.submit(gate.wait)
    assert not copy.done
    gate.set()
    assert copy.wait() is True
    lane.drain()
    assert copy.done


def test_work_that_fails_raises_where_it_is_waited_for_and_the_lane_goes_on(lane):
    bad = lane.submit(lambda: 1 / 0)
    assert lane.submit(lambda: 5).wait() == 5
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            bad.wait()
    assert not bad.done


def test_a_copy_sees_what_was_computed_before_and_the_computation_what_was_copied(lane, device):
    """On CUDA both happen on streams of their own; each waits for the other, never the host."""
    side = torch.zeros(1 << 18, device=device)
    for i in range(1, 50):
        side += 1
        copy = lane.submit(side.clone)
        copied = copy.wait()
        assert (copied == i).all()


def test_a_slower_link_takes_its_time(device):
    with CopyLane(device, gb_s=0.1) as lane:
        begun = time.perf_counter()
        lane.submit(lambda: None, num_bytes=2_000_000).wait()
        assert time.perf_counter() - begun >= 0.02
        assert lane.busy_s >= 0.02


@pytest.mark.parametrize("gb_s", [0, -1.0, float("nan")])
def test_a_link_without_bandwidth_is_refused(gb_s):
    with pytest.raises(ValueError, match="more than 0 GB/s"):
        CopyLane(gb_s=gb_s)


def test_a_closed_lane_takes_nothing():
    lane = CopyLane()
    lane.close()
    with pytest.raises(RuntimeError):
        lane.submit(lambda: None)


def test_host_blocks_keep_copies(device):
    blocks = HostBlocks(pinned=device.type == "cuda")
    k = torch.ones(2, 1, 4, 2, device=device)
    blocks.put(b"a", k, 2 * k)
    torch.cuda.synchronize() if device.type == "cuda" else None
    k.zero_()
    mine, its = blocks.get(b"a")
    assert mine.unique().tolist() == [1] and its.unique().tolist() == [2] and mine.is_cpu
    assert b"a" in blocks and len(blocks) == 1 and blocks.nbytes == 2 * k.nbytes
    blocks.remove(b"a")
    blocks.remove(b"a")
    assert mine.unique().tolist() == [1], "who holds a block keeps it"
    with pytest.raises(KeyError, match="no such block among 0 on the host"):
        blocks.get(b"a")
    with pytest.raises(ValueError, match="a block is k and v"):
        blocks.put(b"a", k, k[:1])
    assert not len(blocks)


def test_pinned_memory_without_cuda_is_an_error():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(RuntimeError, match="has none: pinned=False"):
        HostBlocks(pinned=True)


def test_a_write_waits_for_what_leaves_and_a_read_does_not(lane):
    pending, gate = PendingCopies(num_layers=2), threading.Event()
    pending.leave(3, lane.submit(gate.wait))
    pending.before_read({3}, layer=0)
    pending.before_write({4}, layer=0)
    assert len(pending) == 1
    threading.Timer(0.05, gate.set).start()
    pending.before_write({3}, layer=0)
    assert gate.is_set() and not len(pending)


def test_a_read_waits_for_its_layer_only(lane):
    pending, gate = PendingCopies(num_layers=2), threading.Event()
    pending.arrive([1, 2], [lane.submit(lambda: None), lane.submit(gate.wait)])
    pending.before_read({1, 2, 9}, layer=0)
    pending.before_write({1}, layer=0)
    assert not gate.is_set() and len(pending) == 2
    threading.Timer(0.05, gate.set).start()
    pending.before_read({2}, layer=1)
    assert gate.is_set() and len(pending) == 1
    pending.before_copy(src=1, dst=5)
    assert not len(pending)


@pytest.mark.parametrize("call", ["write", "copy from", "copy over"])
def test_who_writes_over_or_copies_what_arrives_waits_too(lane, call):
    pending, gate = PendingCopies(num_layers=2), threading.Event()
    pending.arrive([1], [lane.submit(lambda: None), lane.submit(gate.wait)])
    threading.Timer(0.05, gate.set).start()
    if call == "write":
        pending.before_write({1}, layer=1)
    else:
        pending.before_copy(*((1, 2) if call == "copy from" else (2, 1)))
    assert gate.is_set()


def test_a_copy_that_failed_is_never_forgotten(lane):
    pending = PendingCopies(num_layers=1)
    pending.arrive([1], [lane.submit(lambda: 1 / 0)])
    lane.drain()
    for _ in range(2):
        pending.forget_done()
        with pytest.raises(ZeroDivisionError):
            pending.before_read({1}, layer=0)


def test_what_was_made_in_inference_mode_may_be_written_to():
    with torch.inference_mode():
        made_inside = torch.zeros(2)
    made_outside = torch.zeros(2)
    with CopyLane() as lane:
        for target in (made_inside, made_outside):
            lane.submit(lambda target=target: target.copy_(torch.ones(2))).wait()
            assert target.tolist() == [1, 1]
    made_outside.add_(1)
    assert made_outside.tolist() == [2, 2]
