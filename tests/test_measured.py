"""Records of measurements: absent is None, broken is an error, and each says where it came from."""

import json

import pytest

from kvlib import measured


def write(folder, **fields):
    record = dict.fromkeys(measured.FIELDS, "x") | fields
    (folder / "r.json").write_text(json.dumps(record))


def test_no_record_is_none(tmp_path):
    assert measured.load("r", tmp_path) is None
    assert measured.provenance(None) == "no record yet"


def test_a_record_names_machine_date_and_commit(tmp_path):
    write(tmp_path, machine="a laptop", date="2026-11-29", commit="abc1234")
    line = measured.provenance(measured.load("r", tmp_path))
    assert line == "measured on a laptop, 2026-11-29, commit abc1234"


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "r"}'])
def test_a_broken_record_is_an_error(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"r\.json"):
        measured.load("r", tmp_path)


def test_every_committed_record_is_whole():
    for path in measured.FOLDER.glob("*.json"):
        assert measured.load(path.stem)["name"] == path.stem
