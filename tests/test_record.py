"""A record reads back as it was written, and its lists of numbers stand on one line each."""

import importlib
import json
from pathlib import Path

import pytest
import torch

from kvlib import files

ROOT = Path(__file__).resolve().parents[1]


def test_a_record_is_compact_and_loses_nothing(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "measure")
    import record

    monkeypatch.setenv("KVLIB_RECORDS", str(tmp_path))
    monkeypatch.setenv("KVLIB_COMMIT", "abc")
    data = {
        "rows": [[1, -2.5, 3e-7], [4]],
        "words": ["a", "[\n 1,\n 2\n]"],
        "mixed": [1, None, "x"],
        "none": [],
    }
    path = record.write("made", data, ["measure/record.py"], torch.device("cpu"))
    text = path.read_text(encoding="utf-8")
    assert json.loads(text)["data"] == data
    assert "   [1, -2.5, 3e-07],\n   [4]\n" in text
    assert '"[\\n 1,\\n 2\\n]"' in text


@pytest.fixture
def record(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "measure")
    monkeypatch.setenv("KVLIB_RECORDS", str(tmp_path))
    monkeypatch.setenv("KVLIB_COMMIT", "abc")
    return importlib.import_module("record")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_refused_and_nothing_is_left(bad, record, tmp_path):
    """JSON has no such number; what a browser reads would be no record at all."""
    for data in (bad, [1.5, bad], {"a": {"b": [bad]}}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            record.write("made", data, [], torch.device("cpu"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_record_that_was_there(failing, record, monkeypatch, tmp_path):
    path = record.write("made", [1], [], torch.device("cpu"))
    before = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        record.write("made", [2], [], torch.device("cpu"))
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


def test_a_command_is_named_alike_from_wherever_it_was_given(record, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    crooked = ROOT / "tools" / ".." / "measure" / "growth.py"
    assert record.command(crooked, []) == "python measure/growth.py"
    tried = record.command(ROOT / "measure" / "bandwidth.py", ["--random"])
    assert tried == "python measure/bandwidth.py --random"
    assert record.command(tmp_path / "own.py", ["7"]) == "python own.py 7"


def test_a_measurement_without_arguments_refuses_them_before_it_measures(record):
    with pytest.raises(SystemExit, match=r"growth\.py takes no arguments, got --help"):
        record.command(ROOT / "measure" / "growth.py", ["--help"])


def test_no_record_was_made_by_a_crooked_command():
    for path in (ROOT / "chapters" / "measured").glob("*.json"):
        words = json.loads(path.read_text(encoding="utf-8"))["command"].split()
        assert words[1].startswith("measure/") and "--help" not in words, path.name


def test_what_drawings_keep_changes_with_the_books_records_and_no_others(record, monkeypatch):
    assert not record.for_the_book()
    monkeypatch.setenv("KVLIB_RECORDS", str(ROOT / "tests" / ".." / "chapters" / "measured"))
    assert record.for_the_book()  # as `make gpu` names it
    monkeypatch.delenv("KVLIB_RECORDS")
    assert record.for_the_book()


def test_every_script_that_keeps_something_for_a_drawing_asks_for_which_records():
    for path in (ROOT / "measure").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert path.name == "record.py" or "KVLIB_RECORDS" not in source, path.name
        if "keep_for_the_drawing(" in source:
            assert "for_the_book()" in source, path.name
