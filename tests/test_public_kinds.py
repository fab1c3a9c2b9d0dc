"""Every kind of public fault has tests that look for its siblings, and those tests exist."""

import ast
import json
from pathlib import Path

import pytest

from public_kinds import KINDS

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT.parent / "shared/cases/cases.json"


def defined(path):
    """The test functions and the machines (classes) of a file."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, kinds)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_of_a_kind_exist(kind):
    assert KINDS[kind], f"no test looks for siblings of {kind!r}"
    for name in KINDS[kind]:
        path, _, test = name.partition("::")
        assert test in defined(ROOT / path), f"{name} does not exist"


@pytest.mark.skipif(not CASES.exists(), reason="the file of public cases is not here")
def test_no_kind_is_left_out():
    kinds = {case["kind"] for case in json.loads(CASES.read_text(encoding="utf-8"))}
    missing = kinds - set(KINDS)
    assert not missing, f"no test looks for siblings of {sorted(missing)}"
