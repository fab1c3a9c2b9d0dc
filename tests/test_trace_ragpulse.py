"""RAGPulse reads alike in both forms, and a hostile file is refused with its line and a reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kvlib import trace_files, trace_lines, trace_ragpulse
from kvlib.workloads import load


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


RAG_FILES = {
    "0_trace.jsonl": (
        '{"timestamp": "9", "input_length": 30, "output_length": 4, "hash_ids": {"sys_prompt": [5],'
        ' "passages_ids": [0, 1], "history": [6], "web_search": [7], "user_input": [8]},'
        ' "session_id": "late"}\n'
        '{"timestamp": "2", "input_length": 20, "output_length": 1, "hash_ids": {"sys_prompt": [5],'
        ' "passages_ids": [], "history": [], "web_search": [], "user_input": [8]},'
        ' "session_id": "early"}\n\n'
    ),
    "1_sys_prompt.jsonl": '{"sys_prompt_id": 5, "token_length": 12}\n',
    "2_passages.jsonl": "".join(
        f'{{"passage_id": {i}, "token_length": {i + 3}}}\n' for i in (0, 1)
    ),
    "3_history.jsonl": '{"history_id": 6, "token_length": 1}\n',
    "4_user_input.jsonl": '{"user_input_id": 8, "token_length": 2}\n',
    "5_web_search.jsonl": '{"web_search_id": 7, "token_length": 5}\n',
}
RAG = (
    '{"token_length":{"sys":[[5,12]],"passage":[[0,3],[1,4]],"history":[[6,1]],"web":[[7,5]],'
    '"user":[[8,2]]}}\n'
)
RAG_ROWS = "[2,20,1,0,[5],[],[],[],[8]]\n[9,30,4,1,[5],[0,1],[6],[7],[8]]\n"


def published_rag(folder: Path, **changed: str) -> Path:
    for name, text in (RAG_FILES | {f"{key}.jsonl": text for key, text in changed.items()}).items():
        write(folder, name, text)
    return folder / "0_trace.jsonl"


def test_ragpulses_six_files_and_the_compact_one_give_equal_requests(tmp_path: Path) -> None:
    ours = load(write(tmp_path, "compact.jsonl.gz", RAG + RAG_ROWS))
    assert load(published_rag(tmp_path)).requests == ours.requests
    first, last = ours
    assert (first.arrival_s, first.session_id, last.session_id) == (2, 0, 1)
    assert [piece.kind for piece in last.pieces] == [
        "sys",
        "passage",
        "passage",
        "history",
        "web",
        "user",
    ]
    assert [piece.num_tokens for piece in last.pieces] == [12, 3, 4, 1, 5, 2]
    assert last.pieces[0] is first.pieces[0]
    assert not last.block_ids


def test_a_trace_in_six_files_needs_all_six(tmp_path: Path) -> None:
    path = published_rag(tmp_path)
    (tmp_path / "3_history.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"six files in one folder; 3_history.jsonl is not"):
        load(path)
    bad = published_rag(tmp_path, **{"3_history": '{"history_id": 6}\n'})
    with pytest.raises(ValueError, match=r"3_history.jsonl, line 1: the field 'token_length'"):
        load(bad)
    bad = published_rag(tmp_path, **{"3_history": "[6, 1]\n"})
    with pytest.raises(ValueError, match=r"3_history.jsonl, line 1: a row is a JSON object"):
        load(bad)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (RAG, None, "holds no request"),
        (RAG[:40], 1, "Expecting|delimiter|Unterminated"),
        (RAG.replace("user", "users"), 1, "the field 'user' is missing"),
        (RAG.replace("[6,1]", "[6,-1]"), 1, "-1 is no whole number"),
        (RAG.replace("[6,1]", "[6]"), 1, "not enough values"),
        (RAG + RAG_ROWS[:40], 3, "Expecting"),
        (RAG + RAG_ROWS.replace("[0,1]", "[0,2]"), 3, "no length is given for passage 2"),
        (RAG + RAG_ROWS.replace("[0,1]", "[0,true]"), 3, "True is no whole number"),
        (RAG + RAG_ROWS.replace("[0,1]", "[0,[1]]"), 3, "is no whole number"),
        (RAG + RAG_ROWS.replace("[0,1]", "7"), 3, "not iterable"),
        (RAG + RAG_ROWS.replace("4,1,", '4,"a",'), 3, "'a' is no whole number"),
        (RAG + RAG_ROWS.replace("4,1,", "4,null,"), 3, "None is no whole number"),
        (RAG + RAG_ROWS.replace("[9,", '["9",'), 3, "'9' is no whole number"),
        (RAG + RAG_ROWS.replace("[9,", "[1,"), 3, "arrives at 1000 ms, the row above at 2000 ms"),
        (RAG + RAG_ROWS.replace("[9,30", "[9,26"), 3, "a prompt of 26 tokens with pieces of 27"),
        (RAG + "[2,20,1,0,[5]]\n", 2, r"a row is \[t_s, input_length, output_length, session"),
        (RAG + '"123456789"\n', 2, r"a row is \[t_s, input_length, output_length, session"),
    ],
)
def test_a_malformed_ragpulse_file_is_refused_with_line_and_reason(
    text: str, line: int | None, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        load(write(tmp_path, "bad.gz", text))
    assert str(refused.value).startswith("bad.gz holds" if line is None else f"bad.gz, line {line}")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"late"', "7", "line 1: a row is a JSON object whose session_id is a string"),
        ('"early"', "null", "line 2: a row is a JSON object whose session_id is a string"),
        ('"9"', '"-9"', "line 1: '-9' is no whole number"),
        ('"input_length": 30', '"input_length": "30"', "line 1: '30' is no whole number"),
        ("\n\n", "\n[1]\n", "line 3: a row is a JSON object whose session_id is a string"),
        ('"web_search"', '"web"', "line 1: the field 'web_search' is missing"),
    ],
)
def test_a_malformed_published_row_is_refused(
    old: str, new: str, reason: str, tmp_path: Path
) -> None:
    path = published_rag(tmp_path, **{"0_trace": RAG_FILES["0_trace.jsonl"].replace(old, new)})
    with pytest.raises(ValueError, match=reason):
        load(path)


def test_pieces_may_be_all_of_a_prompt(tmp_path: Path) -> None:
    text = RAG + RAG_ROWS.replace("[9,30", "[9,27")
    assert load(write(tmp_path, "rag.gz", text)).requests[1].prompt_tokens == 27


def test_a_table_has_200_000_pieces_at_most() -> None:
    """More than one line of the compact form can hold at six bytes for each."""
    assert trace_ragpulse.MAX_TABLE_PIECES == 200_000
    assert trace_lines.MAX_HEADER_BYTES < 6 * trace_ragpulse.MAX_TABLE_PIECES


def test_only_ragpulses_first_line_may_be_long_and_not_without_end(tmp_path: Path) -> None:
    long = RAG.replace("[[5,12]]", f"[[5,12]{',[5,12]' * 20_000}]")
    assert len(long) > trace_lines.MAX_LINE_BYTES
    ours = load(write(tmp_path, "long.gz", long + RAG_ROWS))
    assert ours.requests == load(write(tmp_path, "short", RAG + RAG_ROWS)).requests
    twice = write(tmp_path, "twice.gz", RAG + long)
    with pytest.raises(ValueError, match="line 2: bytes in the line: more than 65,536"):
        load(twice)
    path = tmp_path / "gigabyte.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(trace_lines.HEADER_START)
        for _ in range(100):
            file.write(b" " * 2**20)
    with pytest.raises(ValueError, match="line 1: bytes in the line: more than 1,048,576"):
        load(path)


@pytest.mark.parametrize("num_bytes", [2**16 - 1, 2**16, 2**16 + 1, 2**20])
def test_a_first_line_ends_where_it_ends(tmp_path: Path, num_bytes: int) -> None:
    first = RAG.strip()[:-1].ljust(num_bytes - 2) + "}\n"
    assert len(first) == num_bytes
    assert len(load(write(tmp_path, "rag", first + RAG_ROWS))) == 2


def test_a_first_line_of_more_than_a_mebibyte_is_refused(tmp_path: Path) -> None:
    first = RAG.strip()[:-1].ljust(2**20 - 1) + "}\n"
    with pytest.raises(ValueError, match="line 1: bytes in the line: more than 1,048,576"):
        load(write(tmp_path, "rag", first + RAG_ROWS))


def test_the_published_form_is_limited_before_it_is_put_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_files, "MAX_BLOCK_IDS", 5)
    # In order of time the first row would be line 2, with two pieces.
    with pytest.raises(ValueError, match="line 1: pieces in the file: more than 5"):
        load(published_rag(tmp_path))


def test_the_pieces_of_a_file_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "rag.gz", RAG + RAG_ROWS)
    monkeypatch.setattr(trace_files, "MAX_BLOCK_IDS", 7)
    with pytest.raises(ValueError, match="line 3: pieces in the file: more than 7"):
        load(path)
