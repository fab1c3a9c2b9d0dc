"""A trace file that means harm costs one error: soon, in little memory, with line and reason."""

import gzip
import os
import time
import zlib

import pytest

from kvlib import trace_lines, trace_ragpulse
from kvlib.workloads import load
from test_trace_ragpulse import RAG, RAG_ROWS, published_rag

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
OWN = b"arrival_ms,context_tokens,generated_tokens\n"
MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [7]}\n'


def refused(path, most_s=3.0):
    """The error that a file gets; its cost is counted in this process's own time."""
    start = time.process_time()
    with pytest.raises(ValueError) as error:
        load(path)
    assert time.process_time() - start < most_s
    assert len(str(error.value)) < 300
    return str(error.value)


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize(
    ("stamp", "said"),
    [
        ("2023-11-16 18:15:46.6805900x", "'6805900x' is no whole number"),
        ("2023-11-16 18:15:46.6805900,5", "a row has 3 fields, got 4"),
        ("2023-11-16 18:15:46.-805900", "is no whole number"),
        ("2023-11-16 18:15:46." + "1" * 5000, "digits"),
        ("2023-11-16T18:15:46+01:00", "offset-naive and offset-aware"),
        ("2023-02-30 18:15:46.6805900", "day is out of range"),
        ("2023-11-16 18:15:46.68٣5900", "is no whole number"),
    ],
)
def test_a_time_that_is_none_is_refused_to_its_last_letter(tmp_path, stamp, said):
    row = f"{stamp},374,44\n"
    message = refused(write(tmp_path / "azure.csv", AZURE + row))
    assert message.startswith("azure.csv, line 2: ") and said in message


def test_more_digits_than_a_tick_has_are_cut(tmp_path):
    rows = [f"2023-11-16 18:15:46.{ticks},1,1\n" for ticks in ("68059", "690590099", "7")]
    arrivals = [each.arrival_s for each in load(write(tmp_path / "a.csv", AZURE + "".join(rows)))]
    assert arrivals == [0, 0.01, 0.019]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"input_length": 5',
            '"input_length": 5, "input_length": 9',
            "'input_length' stands twice",
        ),
        ("[7]", "[NaN]", "NaN is no finite number"),
        ("[7]", "[1e999]", "1e999 is no finite number"),
        ("[7]", "9" * 5000, "digits"),
        ("[7]", "[" * 5000, "nested too deeply"),
        ("[7]", '{"7": 7}', "'7' is no whole number"),
        ("[7]", '"7"', "'7' is no whole number"),
        ("[7]", "null", "not iterable"),
        ("[7]", '["\\ud800"]', "is no whole number"),
        ('"timestamp": 0', '"timestamp": 1e3', "1000.0 is no whole number"),
        ("5", str(2**53 + 1), "is no whole number from 0"),
    ],
)
def test_a_row_that_says_two_things_or_none_is_refused(tmp_path, old, new, said):
    message = refused(write(tmp_path / "m.jsonl", MOONCAKE * 2 + MOONCAKE.replace(old, new)))
    assert message.startswith("m.jsonl, line 3: ") and said in message


def test_a_published_time_that_is_a_number_is_refused_where_it_stands(tmp_path):
    path = published_rag(tmp_path)
    path.write_text(path.read_text().replace('"9"', "9"))
    assert refused(path) == "0_trace.jsonl, line 1: 9 is no whole number"


def test_a_piece_has_one_length(tmp_path):
    path = write(tmp_path / "rag", RAG.replace("[6,1]", "[6,1],[6,2]") + RAG_ROWS)
    assert "history 6 has one length, got 1 and 2" in refused(path)
    table = '{"history_id": 6, "token_length": 1}\n{"history_id": 6, "token_length": 2}\n'
    path = published_rag(tmp_path, **{"3_history": table})
    assert "3_history.jsonl, line 2: history 6 has one length" in refused(path)


def test_an_entry_of_a_table_is_refused_where_it_stands(tmp_path):
    table = '{"history_id": 6, "token_length": 1}\n{"history_id": 7, "token_length": -1}\n'
    path = published_rag(tmp_path, **{"3_history": table})
    assert "3_history.jsonl, line 2: -1 is no whole number" in refused(path)


def test_tables_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_ragpulse, "MAX_TABLE_PIECES", 1)
    assert "pieces of the kind passage: more than 1" in refused(published_rag(tmp_path))


def padded(member):
    """A gzip file with as many zeros behind it as a file may have."""
    return member + bytes(trace_lines.MAX_FILE_BYTES - len(member))


def with_a_name():
    """A gzip file with a name in front of what it holds, that never ends."""
    head = bytes([0x1F, 0x8B, 8, 8, 0, 0, 0, 0, 0, 3])
    return head + b"n" * (trace_lines.MAX_FILE_BYTES - len(head))


EMPTY = gzip.compress(b"", 1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (padded(gzip.compress(OWN)), "holds no request"),
        (with_a_name(), "cut short"),
        (EMPTY * (trace_lines.MAX_GZIP_MEMBERS + 1), "gzip members: more than 10,000"),
        (EMPTY * 3 + b"rest", "incorrect header"),
        (gzip.compress(OWN)[:-3], "cut short"),
        (gzip.compress(OWN)[:-8] + bytes(8), "incorrect data check"),
        (gzip.compress(OWN)[:-4] + bytes(4), "incorrect length check"),
        (b"\x1f\x8b", "cut short"),
    ],
    ids=["padding", "name", "members", "rest", "cut", "checksum", "length", "two bytes"],
)
def test_a_hostile_gzip_file_is_refused_in_time(tmp_path, data, said):
    """Python's own reader takes padding and names one byte at a time: a minute for these."""
    assert said in refused(write(tmp_path / "t.gz", data))


def test_ten_thousand_members_are_read(tmp_path):
    data = gzip.compress(OWN + b"0,1,2\n") + EMPTY * (trace_lines.MAX_GZIP_MEMBERS - 1)
    assert len(load(write(tmp_path / "t.gz", data))) == 1


def test_a_file_in_several_members_with_padding_is_read(tmp_path):
    rows = [OWN + b"0,1,2\n", b"", b"5,3,4\n", b"6,", b"7,8\n"]
    data = b"".join(gzip.compress(row) + bytes(3) for row in rows)
    plain = load(write(tmp_path / "plain.csv", b"".join(rows)))
    assert load(write(tmp_path / "t.gz", data)).requests == plain.requests
    assert len(plain) == 3


def test_any_split_into_members_and_pieces_gives_the_same_rows(tmp_path, monkeypatch):
    rows = OWN + b"".join(b"%d,%d,1\n" % (i, 1 + i * i) for i in range(3000))
    plain = load(write(tmp_path / "plain.csv", rows)).requests
    for at, size in ((1, 1), (500, 7), (len(rows), 4096)):
        monkeypatch.setattr(trace_lines, "_PACKED_BYTES", size)
        data = gzip.compress(rows[:at]) + gzip.compress(rows[at:], 9)
        assert load(write(tmp_path / "t.gz", data)).requests == plain


def test_a_bomb_of_many_lines_is_refused_when_its_limit_is_passed(tmp_path):
    packer = zlib.compressobj(9, wbits=31)
    data = b"".join(packer.compress(b"\n" * 2**20) for _ in range(3)) + packer.flush()
    assert "lines: more than 1,000,000" in refused(write(tmp_path / "t.gz", data))


def test_a_file_that_is_too_long_is_refused_before_it_is_read(tmp_path):
    path = write(tmp_path / "t.csv", OWN + b"0,1,2\n")
    with path.open("r+b") as file:
        file.truncate(10 * 2**30)
    assert refused(path, 0.5).startswith("t.csv, line 1: bytes in the file: more than 67,108,864")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_no_trace(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    with pytest.raises(OSError, match="only a plain file is read"):
        load(tmp_path / "t.csv")


def test_one_bad_row_at_the_end_of_many_is_found(tmp_path):
    rows = b"".join(b"%d,7,1\n" % i for i in range(20_000))
    message = refused(write(tmp_path / "t.csv", OWN + rows + b"19999,7,0\n"), 10)
    assert message == (
        "t.csv, line 20002: a request has at least 1 prompt token and 1 output token, got 7 and 0"
    )
