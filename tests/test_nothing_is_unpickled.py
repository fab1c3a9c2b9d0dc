"""No file can make this code run anything: nothing is unpickled, evaluated, or put where it says.

What is left is listed with its reason; a line that no longer holds fails as well.
"""

import ast
import json
from pathlib import Path

import pytest

from kvlib.files import parse_json

ROOT = Path(__file__).resolve().parents[1]
CODE = sorted(
    path
    for pattern in (
        "kvlib/**/*.py",
        "measure/*.py",
        "tools/*.py",
        "book/_ext/*.py",
        "exercises/*.py",
    )
    for path in ROOT.glob(pattern)
)
MODULES = {
    *("pickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "runpy"),
    *("pandas", "tarfile"),
}
CALLS = {
    *("eval", "exec", "__import__", "torch.load", "numpy.load", "np.load", "os.system"),
    *("torch.hub.load", "torch.jit.load", "literal_eval", "ast.literal_eval"),
}
METHODS = {"extractall", "extract", "unpack_archive", "read_pickle"}
ALLOWED = {
    # What ranks return comes from processes that this one started itself, through a folder that
    # only its own user may enter.
    ("kvlib/tensors/processes.py", "pickle"),
    # What the reader has typed, at the reader's own machine or in their own browser.
    ("kvlib/exercises.py", "exec"),
    ("kvlib/show/tryit.py", "exec"),
    ("kvlib/show/tryit.py", "eval"),
    # An engine that its author hands in to be run, in a process of its own.
    ("kvlib/tensors/capstone_file.py", "exec"),
    # A notebook of this repository, run cell by cell.
    ("tools/run_notebook.py", "exec"),
    ("tools/run_notebook.py", "eval"),
    # Two files of this repository, by the reader that makes plain values only (`safe_load`).
    ("book/_ext/study.py", "yaml"),
    # A text of the exercise itself.
    ("exercises/beat-the-preallocator.py", "exec"),
}
# Who reads JSON with Python's own reader, in the library: its own data, and two texts that come
# from no file. The controls of a picture, from the page that shows it; a header of 256 bytes, from
# a rank of the same group.
OWN_JSON = {"atlas", "catalog", "overheads", "traces", "live", "transfer"}


def dotted(node):
    """A name such as `torch.load`, as far as it is one."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def dangers(tree):
    """Yields what a file imports or calls that could run what it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ({each.name.split(".")[0] for each in node.names} & MODULES)
        elif isinstance(node, ast.ImportFrom):
            yield from ({(node.module or "").split(".")[0]} & MODULES)
            yield from ({f"{node.module}.{each.name}" for each in node.names} & CALLS)
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            yield from ({name} & CALLS | {name.rpartition(".")[2]} & METHODS)
            for word in node.keywords:
                value = getattr(word.value, "value", None)
                if word.arg in ("shell", "allow_pickle", "trust_remote_code") and value is True:
                    yield word.arg
                if word.arg == "weights_only":
                    yield word.arg


def test_nothing_that_is_read_can_be_run():
    found = {
        (path.relative_to(ROOT).as_posix(), each)
        for path in CODE
        for each in dangers(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import os, marshal",
        "from pickle import loads",
        "def f():\n    import dill as d",
        "import torch\ntorch.load('x')",
        "torch.load('x', weights_only=True)",
        "from torch import load\nload('x', weights_only=False)",
        "import numpy as np\nnp.load('x')",
        "numpy.load(p, allow_pickle=True)",
        "archive.extractall('.')",
        "zipfile.ZipFile(p).extract('m')",
        "eval('1')",
        "subprocess.run('ls', shell=True)",
        "from yaml import safe_load",
    ],
)
def test_the_search_finds_what_it_is_for(line):
    assert list(dangers(ast.parse(line)))


@pytest.mark.parametrize(
    "line", ["model.eval()", "json.load(f)", "re.compile('x')", "load_file(p)"]
)
def test_the_search_leaves_the_rest_alone(line):
    assert not list(dangers(ast.parse(line)))


def test_files_from_outside_are_read_by_one_strict_reader():
    """`kvlib.files` says no to NaN, to names that stand twice, and to what nests without end."""
    pythons = set()
    for path in (ROOT / "kvlib").rglob("*.py"):
        calls = (
            node
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call)
        )
        if {dotted(call.func) for call in calls} & {"json.load", "json.loads"}:
            pythons.add(path)
    drawings = ROOT / "kvlib/show/drawings"
    assert {path.stem for path in pythons if path.parent != drawings} == OWN_JSON
    for path in pythons:
        if path.parent == drawings:
            assert 'files("kvlib")' in path.read_text("utf-8"), "a drawing reads the package's data"


@pytest.mark.parametrize(
    "path",
    sorted(
        (
            *ROOT.glob("kvlib/data/*.json"),
            *ROOT.glob("chapters/measured/*.json"),
            *ROOT.glob("chapters/*/*.ipynb"),
        )
    ),
    ids=lambda path: path.name,
)
def test_every_json_file_of_the_repository_says_one_thing(path):
    text = path.read_bytes()
    assert parse_json(text) == json.loads(text)
