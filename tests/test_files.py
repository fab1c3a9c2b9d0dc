"""Files are read to a known end and understood in one way, and written whole or not at all."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib import files
from kvlib.files import open_file, parse_json, read, read_json, write

ROOT = Path(__file__).resolve().parents[1]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@settings(max_examples=30)
@given(VALUES)
def test_json_reads_as_it_was_written(value):
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("1 2", "Extra data"),
        ('{"a": 1, "b": 2, "a": 1}', "'a' stands twice"),
        ('[{"x": {"a": 1, "a": 2}}]', "'a' stands twice"),
        ("NaN", "NaN is no finite number"),
        ("[-Infinity]", "-Infinity is no finite number"),
        ("1e999", "1e999 is no finite number"),
        ("-1e999", "-1e999 is no finite number"),
        ("9" * 5000, "digits"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        (b"\xff\xfe", "utf-8"),
        ('{"a": 1}'.encode("utf-16"), "utf-8"),
        ("\ufeff1", "Expecting value"),
    ],
)
def test_what_could_be_two_things_or_is_none_is_no_json(text, said):
    with pytest.raises(ValueError, match=said) as refused:
        parse_json(text)
    assert len(str(refused.value)) < 300


def test_a_mark_at_the_beginning_and_other_ends_of_lines_change_nothing():
    assert parse_json(b'\xef\xbb\xbf{"a":\r\n 1}\r\n') == {"a": 1}


def test_many_names_are_read_in_linear_time():
    """A search through all names for each would take minutes."""
    names = ",".join(f'"{i}":0' for i in range(200_000))
    with pytest.raises(ValueError, match="'0' stands twice"):
        parse_json(f'{{{names},"0":0}}')


def test_a_long_name_is_cut_in_the_error():
    name = json.dumps("x" * 10_000)
    with pytest.raises(ValueError) as refused:
        parse_json(f"{{{name}: 1, {name}: 1}}")
    assert len(str(refused.value)) < 120


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read(path, 5) == b"12345" and read_json(path, 5) == 12345
    with pytest.raises(ValueError, match="5 bytes, at most 4 are read"):
        read(path, 4)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none", 5)


@pytest.fixture
def impatient():
    """Whatever waits for longer than five seconds fails."""

    def late(*_):
        raise TimeoutError("still waiting")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_json_is_read_up_to_16_mib_unless_said_otherwise(tmp_path):
    path = tmp_path / "f.json"
    path.write_bytes(b"7".ljust(16 * 2**20))
    assert read_json(path) == 7
    path.write_bytes(b"7".ljust(16 * 2**20 + 1))
    with pytest.raises(ValueError, match="16,777,217 bytes, at most 16,777,216 are read"):
        read_json(path)


def test_where_opening_always_waits_files_are_read_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"12345")
    monkeypatch.delattr(files.os, "O_NONBLOCK", raising=False)
    assert read(tmp_path / "f", 5) == b"12345"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_refused_and_does_not_block(tmp_path, impatient):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="only a plain file is read"):
        open_file(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/dev/random"])
def test_a_device_is_refused(name):
    if not Path(name).exists():
        pytest.skip(f"no {name} on this system")
    with pytest.raises(OSError, match="only a plain file is read"):
        read(Path(name), 10)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(OSError):
        open_file(tmp_path)


@pytest.mark.parametrize("after", [b"123456", b"1"])
def test_a_file_that_changes_under_the_reader_is_an_error(tmp_path, monkeypatch, after):
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    fstat, seen = os.fstat, []

    def before(handle):
        found = fstat(handle)
        seen.append(found)
        if len(seen) == 2:  # the first look is at what it is, the second at its size
            path.write_bytes(after)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fstat", before)
        with pytest.raises(OSError, match="had 5 bytes and changed"):
            read(path, 10)


def test_a_file_is_written_in_the_place_of_another(tmp_path):
    path = tmp_path / "f.json"
    write(path, "ä\n")
    write(path, "ö\n")
    write(tmp_path / "b", b"\0")
    assert path.read_bytes() == "ö\n".encode()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b", "f.json"]


def test_it_is_all_on_its_way_when_it_is_forced_to_the_disk(tmp_path, monkeypatch):
    forced = []
    monkeypatch.setattr(files.os, "fsync", lambda handle: forced.append(os.fstat(handle).st_size))
    write(tmp_path / "f", "five\n")
    assert forced == [5]


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace", "open"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, failing, error):
    path = tmp_path / "f"
    write(path, "old")

    def fails(*_, **__):
        raise error

    where, _, name = failing.rpartition(".")
    with monkeypatch.context() as patch:
        patch.setattr(getattr(files, where) if where else files, name, fails, raising=bool(where))
        with pytest.raises(type(error)):
            write(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def child(code, *arguments):
    """Runs a few lines in a process of their own; returns its exit status and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


FULL = """
import resource, sys
from pathlib import Path
from kvlib.files import write
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    write(Path(sys.argv[1]), b"n" * 200_000)
except OSError as error:
    print(error)
"""


def test_a_disk_that_is_full_in_the_middle_keeps_the_old_file(tmp_path):
    """The system itself refuses the hundred thousand and first byte."""
    pytest.importorskip("resource")
    path = tmp_path / "f"
    path.write_text("old")
    status, said = child(FULL, path)
    assert status == 0 and "too large" in said, said
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from kvlib import files
setattr(files.os, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
files.write(Path(sys.argv[1]), "new" * 100_000)
"""


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_process_that_is_killed_in_the_middle_leaves_the_old_file(tmp_path, at):
    path = tmp_path / "f"
    path.write_text("old")
    status, _ = child(KILLED, path, at)
    assert status == -signal.SIGKILL
    assert path.read_text() == "old"
    write(path, "new")
    assert path.read_text() == "new"
