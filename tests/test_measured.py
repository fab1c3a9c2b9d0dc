"""Records of measurements: absent is None, broken is an error, and each says where it came from."""

import json
from pathlib import Path

import pytest

from kvlib import measured

ROOT = Path(__file__).resolve().parents[1]


def write(folder, **fields):
    record = dict.fromkeys(measured.FIELDS, "x") | fields
    (folder / "r.json").write_text(json.dumps(record))


def test_no_record_is_none(tmp_path):
    assert measured.load("r", tmp_path) is None
    assert measured.provenance(None) == "no record yet"


def test_a_record_names_machine_date_and_commit(tmp_path):
    write(tmp_path, machine="a laptop", date="2026-11-29", commit="abc1234")
    line = measured.provenance(measured.load("r", tmp_path))
    assert line == "measured on a laptop,\n2026-11-29, commit abc1234"


def test_a_device_has_a_column_and_one_without_a_record_says_so(tmp_path, monkeypatch):
    steps = [{"step_s": {"median": 0.5}}, {"step_s": {"median": 2.5e-5}}]
    data = {"steps": steps, "read_gb_s": 12.5, "asks": 4096, "of_first": 0.123, "launch_s": "none"}
    ways = [["steps", 0, "step_s"], ["steps", -1, "step_s"], ["read_gb_s"], ["asks"], ["of_first"]]
    figures = {str(i): way for i, way in enumerate([*ways, ["launch_s"]])}
    (tmp_path / "columns.json").write_text(json.dumps({"r": figures, "x": {"0": ["nothing"]}}))
    monkeypatch.setattr(measured, "_CHIEF", tmp_path / "columns.json")
    for device in ("cpu", "cuda"):
        record = dict.fromkeys(measured.FIELDS, "x") | {"data": data}
        (tmp_path / f"r.{device}.json").write_text(json.dumps(record))
        (tmp_path / f"x.{device}.json").write_text(json.dumps(record))
        lines = measured.columns("r", tmp_path).splitlines()
        shown = ["500 ms", "25 µs", "12.5 GB/s", "4,096", "0.123", "none"]
        assert [line[26:42].strip() for line in lines[1:]] == shown
        if device == "cpu":
            assert all(line.endswith("no record yet") for line in lines[1:])
            data["steps"][0]["step_s"]["median"], data["launch_s"] = 0.004, [3e-6, 1e-6, 2e-6]
            shown_on_card = ["4 ms", *shown[1:5], "2 µs"]
    assert [line[42:].strip() for line in lines[1:]] == shown_on_card
    with pytest.raises(KeyError):
        measured.columns("x", tmp_path)


def test_every_measurement_of_time_has_columns_and_a_page_that_shows_them():
    text = (ROOT / "kvlib" / "data" / "columns.json").read_text(encoding="utf-8")
    pages = [p.read_text(encoding="utf-8") for p in (ROOT / "chapters").glob("*/*.ipynb")]
    for name, figures in json.loads(text).items():
        lines = measured.columns(name).splitlines()
        assert len(lines) == len(figures) + 1 and max(map(len, lines)) <= 72
        assert "no record yet" not in " ".join(line[:42] for line in lines)
        assert any(f'measured.columns(\\"{name}\\")' in page for page in pages), name


def test_a_card_fills_every_column_once_it_has_written_its_records(tmp_path):
    text = (ROOT / "kvlib" / "data" / "columns.json").read_text(encoding="utf-8")
    for name in json.loads(text):
        record = measured.load(f"{name}.cpu")
        for device in ("cpu", "cuda"):
            path = tmp_path / f"{name}.{device}.json"
            path.write_text(json.dumps(record | {"name": f"{name}.{device}"}), encoding="utf-8")
        lines = measured.columns(name, tmp_path).splitlines()[1:]
        assert lines and all(line[26:42] == line[42:] for line in lines), name


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "r"}'])
def test_a_broken_record_is_an_error(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"r\.json"):
        measured.load("r", tmp_path)


def test_every_committed_record_is_whole():
    paths = [*measured.FOLDER.glob("*.json")]
    assert "mutants.cpu.json" in {path.name for path in paths}
    for path in paths:
        assert measured.load(path.stem)["name"] == path.stem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff\xfe", "utf-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"data": NaN}', "NaN is no finite number"),
        (b'{"data": 1, "data": 2}', "'data' stands twice"),
        (b" " * (16 * 2**20 + 1), "at most 16,777,216 are read"),
        (b"3", "lacks the fields"),
        (b"", "Expecting value"),
    ],
    ids=["bytes", "deep", "nan", "twice", "long", "number", "empty"],
)
def test_a_record_that_means_harm_is_one_error_with_its_name(tmp_path, text, said):
    (tmp_path / "r.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"^r\.json ") as error:
        measured.load("r", tmp_path)
    assert said in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("field", ["machine", "date", "commit", "command", "name", "code"])
@pytest.mark.parametrize("value", [3, None, ["x"]])
def test_a_field_of_another_kind_is_named(tmp_path, field, value):
    write(tmp_path, **{field: value})
    with pytest.raises(ValueError, match=rf"r\.json has no text in .*{field}"):
        measured.load("r", tmp_path)


@pytest.mark.parametrize("name", ["../r", "/etc/passwd", "a/b", "x/../../r"])
def test_a_name_does_not_lead_out_of_the_folder(tmp_path, name):
    write(tmp_path)
    (tmp_path / "inner").mkdir()
    with pytest.raises(ValueError, match="named without a folder"):
        measured.load(name, tmp_path / "inner")
