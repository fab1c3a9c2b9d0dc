"""Blocks on disk: whole or not there, verified at every read, safe for two processes."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvlib.tensors import block_files
from kvlib.tensors.block_bytes import LostBlock
from kvlib.tensors.block_files import BlockFiles

KEY = b"name"


def block(fill=1.0):
    k = torch.full((1, 1, 2, 2), fill)
    return k, -k


@pytest.fixture
def blocks(tmp_path):
    return BlockFiles(tmp_path / "blocks")


def names(blocks):
    return sorted(path.name for path in blocks.folder.iterdir() if path.name != "salt")


def test_put_get_remove(blocks):
    assert KEY not in blocks
    with pytest.raises(KeyError, match=f"no block {blocks.name(KEY).hex()[:8]} among 0"):
        blocks.get(KEY)
    blocks.put(KEY, *block())
    k, v = blocks.get(KEY)
    assert torch.equal(k, block()[0]) and torch.equal(v, block()[1]) and len(blocks) == 1
    blocks.remove(KEY)
    blocks.remove(KEY)
    assert KEY not in blocks and names(blocks) == []


def test_a_second_object_finds_what_the_first_has_written(blocks):
    blocks.put(KEY, *block(7))
    assert BlockFiles(blocks.folder).get(KEY)[0].unique().tolist() == [7]


def test_torn_at_any_length_it_is_lost_and_gone(blocks):
    blocks.put(KEY, *block())
    data = blocks.path(KEY).read_bytes()
    for length in range(len(data)):
        blocks.path(KEY).write_bytes(data[:length])
        with pytest.raises(LostBlock):
            blocks.get(KEY)
        assert names(blocks) == []


def test_any_byte_changed_and_it_is_lost_and_gone(blocks):
    blocks.put(KEY, *block())
    data = blocks.path(KEY).read_bytes()
    for at in range(len(data)):
        blocks.path(KEY).write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(LostBlock):
            blocks.get(KEY)
        assert names(blocks) == []


def test_a_file_that_was_renamed_is_not_taken_for_another_block(blocks):
    blocks.put(b"a", *block())
    blocks.path(b"a").rename(blocks.path(b"b"))
    short = {key: blocks.name(key).hex()[:8] for key in (b"a", b"b")}
    said = f"asked for block {short[b'b']}, these bytes are block {short[b'a']}"
    with pytest.raises(LostBlock, match=said):
        blocks.get(b"b")


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace", "tempfile.mkstemp", "open"])
def test_a_full_disk_is_one_clear_error_and_leaves_what_was_there(blocks, monkeypatch, failing):
    blocks.put(KEY, *block(1))
    before = names(blocks)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    where, _, name = failing.rpartition(".")
    target = getattr(block_files, where) if where else block_files
    with monkeypatch.context() as patch:
        patch.setattr(target, name, full, raising=bool(where))
        with pytest.raises(
            OSError, match=r"whole or not at all: asked for 2.. bytes, No space"
        ) as e:
            blocks.put(KEY, *block(2))
        with pytest.raises(OSError, match="whole or not at all"):
            blocks.put(b"other", *block(2))
    assert e.value.errno == errno.ENOSPC
    assert names(blocks) == before and blocks.get(KEY)[0].unique().tolist() == [1]


def test_a_killed_writer_leaves_no_block_and_its_half_is_swept_later(blocks, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(block_files.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        blocks.put(KEY, *block())
    assert names(blocks) == []
    half = blocks.folder / "x.part"
    half.write_bytes(b"half")
    BlockFiles(blocks.folder)
    assert names(blocks) == ["x.part"], "somebody may be writing it"
    os.utime(half, (0, 0))
    BlockFiles(blocks.folder)
    assert names(blocks) == []


def test_a_reader_of_a_torn_file_does_not_remove_the_sound_one_that_replaced_it(
    blocks, monkeypatch
):
    blocks.put(KEY, *block(1))
    blocks.path(KEY).write_bytes(b"torn")
    unpack = block_files.unpack

    def meanwhile(key, data):
        monkeypatch.setattr(block_files, "unpack", unpack)
        BlockFiles(blocks.folder).put(KEY, *block(2))  # another process
        return unpack(key, data)

    monkeypatch.setattr(block_files, "unpack", meanwhile)
    with pytest.raises(LostBlock):
        blocks.get(KEY)
    assert blocks.get(KEY)[0].unique().tolist() == [2] and len(names(blocks)) == 1


def test_a_file_that_cannot_be_read_is_lost(blocks, monkeypatch):
    blocks.put(KEY, *block())

    def broken(key, data):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(block_files, "unpack", broken)
    with pytest.raises(LostBlock, match=r"cannot be read.*Input"):
        blocks.get(KEY)
    assert KEY not in blocks


def test_a_file_that_cannot_be_opened_is_lost(blocks):
    blocks.path(KEY).mkdir()  # whoever runs the tests may be allowed to open any file
    with pytest.raises(LostBlock, match=r"cannot be opened"):
        blocks.get(KEY)


def test_a_writer_may_finish_while_another_process_starts(blocks, monkeypatch):
    (blocks.folder / "x.part").write_bytes(b"")
    found = list(blocks.folder.glob("*.part"))
    found[0].unlink()
    monkeypatch.setattr(Path, "glob", lambda *_: iter(found))
    BlockFiles(blocks.folder)


WRITER = """
import sys, torch
from kvlib.tensors.block_files import BlockFiles
blocks = BlockFiles(sys.argv[1])
for i in range(60):
    k = torch.full((2, 2, 4, 8), float(i % 7))
    blocks.put(bytes([i % 3]), k, -k)
"""


def test_two_processes_may_write_the_same_blocks_while_a_third_reads(blocks):
    path = {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, blocks.folder], env={**os.environ, **path})
        for _ in range(2)
    ]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        for key in (b"\0", b"\1", b"\2"):
            if key in blocks:
                k, v = blocks.get(key)  # never LostBlock: a file appears whole
                assert torch.equal(k, -v) and len(k.unique()) == 1
                seen += 1
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen and len(blocks) == 3 and len(names(blocks)) == 3


def test_a_folder_that_cannot_be_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        BlockFiles(tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_in_the_place_of_a_block_is_lost_and_does_not_block(blocks):
    os.mkfifo(blocks.path(KEY))
    with pytest.raises(LostBlock, match="only a plain file is read"):
        blocks.get(KEY)
    assert names(blocks) == []


def test_a_link_in_the_place_of_a_block_leads_to_nothing_and_only_the_link_goes(blocks, tmp_path):
    aim = tmp_path / "aim"
    aim.write_text("somebody's")
    blocks.path(KEY).symlink_to(aim)
    with pytest.raises(LostBlock):
        blocks.get(KEY)
    assert names(blocks) == [] and aim.read_text() == "somebody's"
    blocks.path(KEY).symlink_to(aim)
    blocks.put(KEY, *block(3))
    assert aim.read_text() == "somebody's" and blocks.get(KEY)[0].unique().tolist() == [3]


def test_a_folder_that_was_in_a_blocks_place_does_not_stop_the_next_process(blocks):
    blocks.path(KEY).mkdir()
    with pytest.raises(LostBlock):
        blocks.get(KEY)
    for left in blocks.folder.iterdir():
        os.utime(left, (0, 0))
    again = BlockFiles(blocks.folder)
    again.put(KEY, *block(4))
    assert again.get(KEY)[0].unique().tolist() == [4]


KILLED = """
import os, signal, sys, torch
from kvlib.tensors import block_files

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

blocks = block_files.BlockFiles(sys.argv[1])
for name in ("fsync", "replace"):
    if not (child := os.fork()):
        setattr(block_files.os, name, killed)
        blocks.put(b"name", torch.full((1, 1, 2, 2), 2.0), torch.zeros(1, 1, 2, 2))
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_writer_that_is_killed_leaves_the_block_that_was_there(blocks):
    blocks.put(KEY, *block(1))
    path = {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, blocks.folder],
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["9", "9"], done.stderr
    assert blocks.get(KEY)[0].unique().tolist() == [1] and len(blocks) == 1


def test_half_written_files_are_swept_after_an_hour_and_not_before(blocks, monkeypatch):
    half = blocks.folder / "x.part"
    half.write_bytes(b"half")
    os.utime(half, (1000, 1000))
    for now, left in ((4600, ["x.part"]), (4600.5, [])):
        monkeypatch.setattr(block_files.time, "time", lambda now=now: now)
        BlockFiles(blocks.folder)
        assert names(blocks) == left


def test_the_folder_is_made_with_those_above_it_for_its_owner_alone(tmp_path):
    folder = tmp_path / "a" / "b"
    BlockFiles(str(folder)).put(KEY, *block())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert BlockFiles(folder).path(KEY).stat().st_mode & 0o777 == 0o600


def test_bytes_are_forced_to_the_disk_before_the_name_and_the_name_after_them(blocks, monkeypatch):
    seen, fsync, replace = [], os.fsync, os.replace

    def forced(handle):
        status = os.fstat(handle)
        is_folder = os.path.samestat(status, blocks.folder.stat())
        seen.append("folder" if is_folder else status.st_size)
        fsync(handle)

    monkeypatch.setattr(block_files.os, "fsync", forced)
    monkeypatch.setattr(block_files.os, "replace", lambda *a: seen.append("name") or replace(*a))
    open_before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    blocks.put(KEY, *block())
    assert seen == [blocks.path(KEY).stat().st_size, "name", "folder"]
    if open_before:
        assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_name_that_cannot_be_forced_leaves_the_block_there(blocks, monkeypatch, error):
    fsync = os.fsync

    def fails(handle):
        if os.path.samestat(os.fstat(handle), blocks.folder.stat()):
            raise error
        fsync(handle)

    monkeypatch.setattr(block_files.os, "fsync", fails)
    try:
        blocks.put(KEY, *block(5))
    except KeyboardInterrupt:
        assert isinstance(error, KeyboardInterrupt)
    assert blocks.get(KEY)[0].unique().tolist() == [5] and len(names(blocks)) == 1


def test_a_file_of_just_the_most_bytes_is_read(blocks, monkeypatch):
    blocks.put(KEY, *block())
    monkeypatch.setattr(block_files, "MAX_PACKED_BYTES", blocks.path(KEY).stat().st_size)
    assert torch.equal(blocks.get(KEY)[0], block()[0])


def test_a_file_of_one_byte_more_is_lost_before_it_is_read(blocks, monkeypatch):
    blocks.put(KEY, *block())
    size = blocks.path(KEY).stat().st_size
    monkeypatch.setattr(block_files, "MAX_PACKED_BYTES", size - 1)
    said = f"at most {size - 1} bytes: the file of {blocks.name(KEY).hex()[:8]} has {size}$"
    with pytest.raises(LostBlock, match=said):
        blocks.get(KEY)
    assert names(blocks) == []


def test_a_disk_that_does_not_answer_has_no_block(blocks, monkeypatch):
    blocks.put(KEY, *block())

    def silent(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", silent)
        assert KEY not in blocks
    assert KEY in blocks
