"""The bars are those of the record, and a card nobody had has none."""

from copy import deepcopy

import pytest

from kvlib import measured
from kvlib.show.drawings import find, kernel_records
from kvlib.show.drawings.kernel_records import DEVICES, MODELS, POINTS, WHAT, figures, rows


def test_the_drawing_has_each_record_that_there_is() -> None:
    found = {device for device in DEVICES if measured.load(f"kernel_variants.{device}")}
    assert set(rows()) == found, "run python measure/kernel_variants.py keep"


@pytest.mark.parametrize("device", rows())
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("point", POINTS)
def test_the_figures_are_those_of_the_record(model: str, point: str, device: str) -> None:
    record = measured.load(f"kernel_variants.{device}")
    assert record is not None
    row = next(r for r in record["data"]["rows"] if (r["model"], r["point"]) == (model, point))
    assert figures(model, point, "takes_times", device) == row["takes_times"]
    moved = figures(model, point, "bytes_moved", device)
    assert {n: round(v * row["kv_bytes"]) for n, v in moved.items()} == row["bytes_moved"]


def test_the_least_stands_first_and_each_bar_has_its_number() -> None:
    for what in WHAT:
        values = list(figures(MODELS[0], POINTS[1], what).values())
        assert values == sorted(values)
        svg = find("kernel_records")(what=what)
        assert all(f">{value:.3g}<" in svg for value in values)


def test_a_card_nobody_had_reads_no_record_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    only_cpu = {"cpu": rows()["cpu"]}
    monkeypatch.setattr(kernel_records, "rows", lambda: only_cpu)
    svg = find("kernel_records")(device="cuda")
    assert ">no record yet<" in svg and ">gather<" not in svg


def test_a_card_with_a_record_has_its_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"cpu": rows()["cpu"], "cuda": deepcopy(rows()["cpu"])}
    for row in both["cuda"]:
        row["takes_times"]["gather"] = 123.0
    monkeypatch.setattr(kernel_records, "rows", lambda: both)
    svg = find("kernel_records")(device="cuda")
    assert "no record yet" not in svg and ">gather<" in svg and ">123<" in svg
    assert ">123<" not in find("kernel_records")(device="cpu")
