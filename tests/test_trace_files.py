"""Every form of a trace file reads alike, and a malformed one is refused with line and reason."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib import trace_files, trace_lines, workloads
from kvlib.workloads import load


def write(folder: Path, name: str, text: str, packed: bool = False) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


requests_ms = st.lists(
    st.tuples(st.integers(0, 10**8), st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1
).map(lambda rows: [(at - min(rows)[0], prompt, output) for at, prompt, output in sorted(rows)])


@given(rows=requests_ms, start_ticks=st.integers(0, 10**7 - 1), jitter=st.integers(-4999, 4999))
def test_azures_form_and_the_compact_one_give_equal_requests(
    tmp_path_factory: pytest.TempPathFactory, rows: list, start_ticks: int, jitter: int
) -> None:
    folder = tmp_path_factory.mktemp("azure")
    compact = "arrival_ms,context_tokens,generated_tokens\n"
    compact += "".join(f"{at},{prompt},{output}\n" for at, prompt, output in rows)
    published = "TIMESTAMP,ContextTokens,GeneratedTokens"
    for i, (at, prompt, output) in enumerate(rows):
        # Ticks of 100 ns; whatever is less than half a millisecond away rounds to the same one.
        ticks = start_ticks + at * 10_000 + (jitter if at else 0) * (i > 0)
        seconds, fraction = divmod(ticks, 10**7)
        stamp = datetime(2023, 11, 16, 23, 59, 59) + timedelta(seconds=seconds)
        published += f"\r\n{stamp}.{fraction:07d},{prompt},{output}"
    theirs = load(write(folder, "published.csv", published))
    ours = load(write(folder, "compact.csv.gz", compact, packed=True))
    assert theirs.requests == ours.requests
    assert [each.arrival_s for each in ours] == [at / 1000 for at, _, _ in rows]


def test_half_a_millisecond_goes_to_the_even_one(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:15:46.{ticks},1,1\n" for ticks in (6805900, 6820900, 6830900, 6840900)
    )
    arrivals = [each.arrival_s for each in load(write(tmp_path, "azure.csv", text))]
    assert arrivals == [0, 0.002, 0.002, 0.004]


def test_mooncakes_form_and_the_compact_one_give_equal_requests(tmp_path: Path) -> None:
    compact = "[0,1000,5,[[0,2]]]\n[0,1025,1,[[0,1],[7,2]]]\n[3000,512,9,[[0,1]]]\n"
    ids = [[0, 1], [0, 7, 8], [0]]
    published = "".join(
        json.dumps({"timestamp": t, "input_length": p, "output_length": o, "hash_ids": ids[i]})
        + "\n"
        for i, (t, p, o) in enumerate([(0, 1000, 5), (0, 1025, 1), (3000, 512, 9)])
    )
    ours = load(write(tmp_path, "compact.jsonl.gz", compact, packed=True))
    assert load(write(tmp_path, "published.jsonl", published)).requests == ours.requests
    assert [each.block_ids for each in ours] == [(0, 1), (0, 7, 8), (0,)]
    assert [each.arrival_s for each in ours] == [0, 0, 3]


def test_lengths_without_times_have_no_arrivals(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, "own.csv", "context_tokens,generated_tokens\n304,822\n"))
    assert loaded.requests == (workloads.Request(0, None, 304, 822),)
    assert loaded.name == "own.csv"
    assert "a file kvlib knows nothing more about, all 1 requests" in loaded.description


def test_a_byte_order_mark_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    plain = load(write(tmp_path, "plain.csv", AZURE + "0,1,2\n5,3,4\n"))
    marked = load(write(tmp_path, "marked.csv", "\ufeff" + AZURE + "0,1,2\r\n\r\n5,3,4\r\n\r\n"))
    assert marked.requests == plain.requests


AZURE = "arrival_ms,context_tokens,generated_tokens\n"
MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [7]}\n'


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", None, "holds no request"),
        (AZURE, None, "holds no request"),
        ("a,b,c\n1,2,3\n", 1, "no known trace starts with 'a,b,c'"),
        (AZURE + "0,1,2\n1,5\n", 3, "a row has 3 fields, got 2"),
        (AZURE + "0,1,2\n1,5,x\n", 3, "'x' is no whole number"),
        (AZURE + "0,1,2\n1,5,1_0\n", 3, "'1_0' is no whole number"),
        (AZURE + "0,1,-2\n", 2, "'-2' is no whole number"),
        (AZURE + "0,0,2\n", 2, "at least 1 prompt token and 1 output token, got 0 and 2"),
        (AZURE + "9,1,2\n8,1,2\n", 3, "arrives at 8 ms, the row above at 9 ms"),
        (AZURE + f"0,{'9' * 20},2\n", 2, r"is no whole number from 0 to 2\*\*53"),
        (AZURE.replace("ms", "s"), 1, "no known trace starts with 'arrival_s,context_tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n18:15,1,2\n", 2, "Invalid isoformat string"),
        ('{"timestamp": 0, "input_length": 1}\n', 1, "the field 'hash_ids' is missing"),
        ("[0,1,1,[[0,1]]]\n[0,1]\n", 2, "a row is .timestamp_ms, input_length"),
        ("[0,1,1,[[0,1]]]\n{}\n", 2, "a row is .timestamp_ms, input_length"),
        ("[0,1,1,[[0,1]]]\n[0,1,1,[[0,1]]\n", 2, "Expecting"),
        ('[0,1,1,[[0,1]]]\n"0111"\n', 2, "a row is .timestamp_ms, input_length"),
        ('x,"session_id"\n', 1, "no known trace starts with 'x,"),
        (MOONCAKE.replace("0,", "null,", 1), 1, "None is no whole number"),
        (MOONCAKE + "[]\n", 2, "a row is a JSON object, like the first one"),
        ("[0,1.0,1,[[0,1]]]\n", 1, "1.0 is no whole number"),
        ("[0,true,1,[[0,1]]]\n", 1, "True is no whole number"),
        ("[5,1,1,[[0,1]]]\n[null,1,1,[[0,1]]]\n", 2, "None is no whole number"),
        ("[0,513,1,[[0,1]]]\n", 1, "513 prompt tokens have 2 block ids, got 1"),
        ("[0,512,1,[[0,2]]]\n", 1, "512 prompt tokens have 1 block ids, got 2"),
        ("[0,1,1,[[0,2],[9,-1]]]\n", 1, "-1 is no whole number"),
        ("[0,512000000000,1,[[0,1000000000]]]\n", 1, "block ids in the file: more than 5,000,000"),
        ("[" * 60_000, 1, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_malformed_row_is_refused_with_line_and_reason(
    text: str, line: int | None, reason: str, packed: bool, tmp_path: Path
) -> None:
    path = write(tmp_path, "bad.txt", text, packed)
    where = "bad.txt holds" if line is None else f"bad.txt, line {line}: "
    with pytest.raises(ValueError, match=reason) as refused:
        load(path)
    assert str(refused.value).startswith(where)
    assert len(str(refused.value)) < 300


def test_a_long_reason_is_cut_after_200_letters(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "x" * 300 + ",1,2\n"
    with pytest.raises(ValueError) as refused:
        load(write(tmp_path, "a", text))
    reason = str(refused.value).removeprefix("a, line 2: ")
    assert reason.startswith("Invalid isoformat string") and len(reason) == 200


def test_a_broken_gzip_stream_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress((AZURE + "0,1,2\n" * 5000).encode())
    for i, broken in enumerate((whole[:-20], whole[:60] + b"\0" * 20 + whole[80:])):
        path = tmp_path / f"broken{i}.csv.gz"
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=rf"broken{i}.csv.gz, line \d+: "):
            load(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(AZURE.encode() + b"0,1,2\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"bad\.csv, line 3: .*utf-8"):
        load(path)


@pytest.mark.parametrize(
    ("limit", "most", "text", "reason"),
    [
        (
            "MAX_LINE_BYTES",
            64,
            AZURE + "0,1," + "0" * 60 + "2",
            "line 2: bytes in the line: more th",
        ),
        ("MAX_FILE_BYTES", 100, AZURE + "0,1,2\n" * 50, "bytes in the file: more than 100"),
        ("MAX_ROWS", 10, AZURE + "0,1,2\n" * 10, "line 11: lines: more than 10"),
        ("MAX_BLOCK_IDS", 3, "[0,1024,1,[[0,2]]]\n" * 2, "line 2: block ids in the file: more"),
    ],
)
def test_a_file_that_grows_past_a_limit_is_refused(
    limit: str, most: int, text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "huge.gz", text, packed=True)
    assert load(path).requests
    module = trace_files if limit == "MAX_BLOCK_IDS" else trace_lines
    monkeypatch.setattr(module, limit, most)
    with pytest.raises(ValueError, match=reason):
        load(path)


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(b"0" * 2**20)
    with pytest.raises(ValueError, match="line 1: bytes in the line: more than 65,536"):
        load(path)
