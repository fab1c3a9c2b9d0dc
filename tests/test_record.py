"""A record reads back as it was written, and its lists of numbers stand on one line each."""

import json
from pathlib import Path

import pytest
import torch

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


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_stays_as_it_was(bad, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "measure")
    import record

    monkeypatch.setenv("KVLIB_RECORDS", str(tmp_path))
    monkeypatch.setenv("KVLIB_COMMIT", "abc")
    path = record.write("made", [1.5, bad], [], torch.device("cpu"))
    assert str(json.loads(path.read_text(encoding="utf-8"))["data"]) == str([1.5, bad])
