"""Every reader of files is fed damaged ones for a while; `KVLIB_FUZZ_S` says for how long."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import fuzz_files
from file_damage import TEXT, damaged
from fuzz_files import Reader, one_case

SECONDS = float(os.environ.get("KVLIB_FUZZ_S") or 5)
SEED = int(os.environ.get("KVLIB_FUZZ_SEED") or 0)
ROOT = Path(__file__).resolve().parents[1]


def test_a_damaged_file_is_read_soundly_or_refused_in_few_words():
    command = ["tests/fuzz_files.py", "--seconds", str(SECONDS), "--seed", str(SEED)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=20 * SECONDS + 300,
    )
    last = done.stderr[-3000:]
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{last}"
    )
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"seed {SEED}, {SECONDS:g} s: {found['tried']}")
    assert set(found["tried"]) == set(fuzz_files.readers())
    outcomes = [outcome for tried in found["tried"].values() for outcome in tried]
    assert {"read", "refused"} <= set(outcomes), "damage that is always the same finds nothing"


def raising(error):
    def read(folder):
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("made.txt is no file"), "refused"),
        (ValueError("no file"), "an error that names no file: no file"),
        (ValueError("made.txt " * 200), "an error of 1800 letters"),
        (KeyError("field"), "KeyError: 'field'"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (MemoryError(), "MemoryError: "),
        (AssertionError("not sound"), "AssertionError: not sound"),
    ],
)
def test_whatever_else_a_reader_does_is_a_fault(tmp_path, error, said):
    reader = Reader({"made.txt": b"1"}, lambda random, name, data: data, raising(error))
    assert one_case(reader, Random(0), tmp_path / "given") == said


def test_a_reader_that_takes_long_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz_files, "CASE_S", 0.0)
    reader = Reader({"made.txt": b"1"}, lambda random, name, data: data, lambda folder: None)
    assert "then read" in one_case(reader, Random(0), tmp_path / "given")


def test_a_seed_makes_the_same_damage_and_another_makes_other():
    first, again, other = (
        [damaged(Random(f"{seed}/{i}"), b'{"a": [1, 2.5, "x"]}\n' * 3, TEXT) for i in range(50)]
        for seed in (0, 0, 1)
    )
    assert first == again and len(set(first)) > 40
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 10
