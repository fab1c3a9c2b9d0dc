"""Which mutants there are, how they are tried, and that a test is missing for none of them."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvlib import measured

ROOT = Path(__file__).resolve().parents[1]
RECORD = measured.load("mutants.cpu")
REASONS = json.loads((ROOT / "measure/harmless_mutants.json").read_text())


@pytest.fixture
def text(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    return importlib.import_module("mutant_text")


def modules():
    return RECORD["data"]["modules"].items() if RECORD else ()


@pytest.mark.parametrize("module, found", modules(), ids=lambda each: each if "/" in each else "")
def test_of_each_module_19_mutants_of_20_are_killed_and_the_others_are_harmless(module, found):
    survivors = found["survivors"]
    assert found.get("of", 0) >= found["mutants"] == found["killed"] + len(survivors) > 0
    assert found["killed"] >= 0.95 * found["mutants"]
    assert not [each for each in survivors if not (each["harmless"] or "").strip()]


def test_the_record_covers_what_hands_out_memory_and_what_attends():
    done = {name for name, _ in modules()}
    asked = "allocator arena block_table blocks buddy eviction kv_memory ledger paged_ledger prefix"
    asked += " sequences slab tensors/attention tensors/store"
    assert {f"kvlib/{name}.py" for name in asked.split()} <= done


def test_a_reason_is_about_a_line_that_is_still_there(text):
    """Else it would be read for years beside code that nobody wrote it for."""
    for module, each_reason in REASONS.items():
        lines = [line.strip() for line in (ROOT / module).read_text().splitlines()]
        for each in each_reason:
            assert each["before"] in " ".join(lines), (module, each)
            assert each["before"] != each["after"] and len(each["reason"].split()) > 3
        names = [(each["function"], each["before"], each["after"]) for each in each_reason]
        assert len(set(names)) == len(names), f"a change of {module} has two reasons"


def test_a_larger_sample_of_mutants_holds_the_smaller_one(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    tried, text = importlib.import_module("mutants"), importlib.import_module("mutant_text")
    every = [text.Mutant(str(n), "f", n, "a", "b", "") for n in range(50)]
    few, more = tried.sample(every, 5), tried.sample(every, 20)
    assert len(few) == 5 and set(few) < set(more) and more == sorted(more, key=lambda m: m.line)
    assert tried.sample(every, 10**6) == every


def test_the_record_keeps_what_it_says_of_modules_that_have_not_changed(monkeypatch, tmp_path):
    """Whoever tries one more module need not try the others again."""
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    tried = importlib.import_module("mutants")
    record = json.loads(tried.RECORD.read_text())
    assert set(tried.recorded()) <= set(record["data"]["modules"])
    changed = next(iter(record["code"]))
    record["code"][changed] = "0" * 64
    record["code"]["kvlib/gone.py"] = "0" * 64
    record["data"]["modules"]["kvlib/gone.py"] = {"mutants": 1}
    monkeypatch.setattr(tried, "RECORD", tmp_path / "mutants.cpu.json")
    assert tried.recorded() == {}
    tried.RECORD.write_text(json.dumps(record))
    assert not {changed, "kvlib/gone.py"} & set(tried.recorded())


OLD = '''"""Doc."""

def f(a: int) -> int:
    """Doc."""
    assert a > 0, f"got {a}"
    if a > 9:
        raise ValueError(f"at most 9, got {a + 1}")
    return a + 1


class C:
    @property
    def g(self) -> int:
        x: int = 3
        return x
'''


@pytest.mark.parametrize(
    "before, after, same",
    [
        ("a: int)", "a: str)", True),
        ("-> int:", "-> float:", True),
        ('"""Doc."""', '"""Other."""', True),
        ('f"got {a}"', 'f"got {a + 1}"', True),
        ("{a + 1}", "{a - 1}", True),
        ("x: int", "x: str", True),
        ("a > 0", "a >= 0", False),
        ("a > 9", "a >= 9", False),
        ("return a + 1", "return a - 1", False),
        ("= 3", "= 4", False),
        ("    @property\n", "", False),
    ],
)
def test_texts_alone_make_no_mutant(text, before, after, same):
    changed = OLD.replace(before, after)
    assert changed != OLD
    assert (text.bare(OLD) == text.bare(changed)) == same


@pytest.mark.parametrize(
    "before, after, where",
    [
        ("a > 9", "a >= 9", (6, "if a > 9:", "if a >= 9:", "f")),
        ("return x\n", "return\n", (15, "return x", "return", "C.g")),
        ("    @property\n", "", (12, "@property", "def g(self) -> int:", "C.g")),
        ('"""Doc."""\n\n', "", (1, '"""Doc."""', "def f(a: int) -> int:", "module")),
    ],
)
def test_a_mutant_is_named_by_its_line_and_its_function(text, before, after, where):
    changed = OLD.replace(before, after, 1)
    line, *sides = text.changed_lines(OLD, changed)
    assert (line, *(side.split("  ")[0] for side in sides))[:1] == where[:1]
    assert sides[0].startswith(where[1]) and sides[1].startswith(where[2])
    assert text.function_at(OLD, line)[0] == where[3]


TRIED = """
import sys
sys.path.insert(0, "measure")
from mutant_run import Runner
runner = Runner("kvlib/percentiles.py", ["kvlib/percentiles.py"])
print(runner.start().status, bool(runner.durations))
text, runner.collect_s = runner.path.read_text(), 1.5
for tail in ("", "1 / 0", "raise SystemExit", "while True: pass"):

    print(runner.run(text + "\\n" + tail, "f").status)
broken = text.replace("return ", "return 0 and ")
outcome = runner.run(broken, "f")
print(outcome.status, outcome.by.split("::")[0], "kvlib" in sys.modules)
"""


def test_a_mutant_is_tried_in_a_process_of_its_own():
    """As it is, then failing at import in three ways and in a doctest; never changed on disk."""
    before = (ROOT / "kvlib/percentiles.py").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", TRIED], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "survived True",
        "survived",
        "killed",
        "killed",
        "timeout",
        "killed kvlib/percentiles.py False",
    ], done.stderr
    assert (ROOT / "kvlib/percentiles.py").read_bytes() == before


@pytest.mark.parametrize(
    "before, after, put_in",
    [
        ("a > 9", "a >= 9", True),
        ("return x", "return x + 1", True),
        ("a: int)", "a: int = 4)", False),
        ("    @property\n", "", False),
        ("class C", "LIMIT = 3\n\n\nclass C", False),
    ],
)
def test_a_function_is_given_its_new_code_and_nothing_else_is(
    text, tmp_path, monkeypatch, before, after, put_in
):
    change = importlib.import_module("mutant_code").change
    (tmp_path / "tried.py").write_text(OLD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tried", raising=False)
    tried = importlib.import_module("tried")
    f, c = tried.f, tried.C()
    found = change(tried, OLD.replace(before, after))
    assert (found is not None) == put_in
    assert (f(9), c.g) == (10, 3)
    if put_in:
        found()
        changed = "9" if "9" in after else "g"
        assert c.g == (4 if changed == "g" else 3)
        if changed == "9":
            with pytest.raises(ValueError):
                f(9)
