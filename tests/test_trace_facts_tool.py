"""What the tool prints of a trace's file is what the library carries of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvlib import traces
from kvlib.traces import Trace

ROOT = Path(__file__).resolve().parents[1]
ROWS = "arrival_ms,context_tokens,generated_tokens\n0,7,2\n10,5,4\n30,6,9\n"


def printed(*given):
    command = [sys.executable, str(ROOT / "tools/trace_facts.py"), *map(str, given)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_an_entry_is_whole_but_for_what_only_its_publisher_can_say(tmp_path):
    (tmp_path / "toy.csv").write_text(ROWS)
    found = printed("toy-chat", tmp_path / "toy.csv")
    assert found.returncode == 0, found.stderr
    entry = json.loads("{" + found.stdout + "}")["toy-chat"]
    known = Trace("toy-chat", **entry)
    assert (known.num_requests, known.mean_prompt_tokens, known.mean_output_tokens) == (3, 6, 5)
    assert known.mean_gap_ms == 15 and len(known.sha256) == 64
    assert [known.prompt_tokens_permille[p] for p in (0, 333, 334, 1000)] == [5, 5, 6, 7]
    assert len(known.output_tokens_permille) == len(known.gap_ms_permille) == 1001
    fields = json.loads(traces._FACTS.read_text("utf-8"))["traces"]["azure-conv"]
    assert list(entry) == list(fields), "in the order of the file"
    assert len(found.stdout.splitlines()) == len(entry) + 2, "one line a field"


def test_a_file_without_times_has_no_gaps(tmp_path):
    (tmp_path / "toy.csv").write_text("context_tokens,generated_tokens\n7,2\n")
    entry = json.loads("{" + printed("toy", tmp_path / "toy.csv").stdout + "}")["toy"]
    assert entry["mean_gap_ms"] is None and entry["gap_ms_permille"] is None


@pytest.mark.parametrize(
    "name, rows, said",
    [("toy", "a,b\n", "no known trace starts with 'a,b'"), ("Toy_1", ROWS, "small letters")],
)
def test_what_cannot_be_told_is_one_line(tmp_path, name, rows, said):
    (tmp_path / "toy.csv").write_text(rows)
    found = printed(name, tmp_path / "toy.csv")
    assert found.returncode and said in found.stderr.splitlines()[-1] and not found.stdout


def test_no_entry_has_anything_left_to_write():
    assert "TODO" not in traces._FACTS.read_text("utf-8")
