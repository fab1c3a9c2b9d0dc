"""Public cases about notebooks, widgets and the build; and no case of the file is forgotten."""

import json
from pathlib import Path

import pytest

import public_cases_pages  # noqa: F401
import test_public_cases  # noqa: F401
from public_cases import CASES, NOT_APPLICABLE, PAGES

FILE = Path(__file__).resolve().parents[2] / "shared/cases/cases.json"


@pytest.mark.parametrize("name", PAGES)
def test_a_public_case_about_pages_comes_out_right(name):
    PAGES[name]()


@pytest.mark.skipif(not FILE.exists(), reason="the file of public cases is not here")
def test_every_case_is_tried_or_has_a_reason():
    ids = {case["id"] for case in json.loads(FILE.read_text(encoding="utf-8"))}
    tried = {*CASES, *PAGES}
    assert tried.isdisjoint(NOT_APPLICABLE)
    assert tried | set(NOT_APPLICABLE) == ids
    assert all(reason.strip() for reason in NOT_APPLICABLE.values())
