"""The house keeps its shape: two halves, arrows that point down, few lines, exact pins."""

import ast
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MEMORY = sorted(p for p in (ROOT / "kvlib").glob("*.py") if p.name != "fetch.py")
DRAWINGS = sorted((ROOT / "kvlib/show/drawings").glob("*.py"))
TENSORS = sorted((ROOT / "kvlib/tensors").rglob("*.py"))
SHOW = sorted((ROOT / "kvlib/show").rglob("*.py"))
TOOLS_OF_DRAWING = {"__init__", "controls", "homes", "palette", "registry", "svg"}
PICTURES = [path for path in DRAWINGS if path.stem not in TOOLS_OF_DRAWING]
GLUE = [path for path in SHOW if path not in PICTURES]
PYTHON = sorted(
    path
    for folder in ("kvlib", "measure", "tools", "book/_ext")
    for path in (ROOT / folder).rglob("*.py")
)
CORE = [
    *(ROOT / "kvlib" / f"{name}.py" for name in ("sizes", "plan", "ledger")),
    *(
        ROOT / "kvlib/tensors" / f"{name}.py"
        for name in ("aligned", "store", "caches", "contiguous", "step", "attention")
    ),
]


def lines_of_code(path):
    """The lines that hold code: not blank, not a comment, not a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docs.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    skip = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    with path.open("rb") as file:
        tokens = [t for t in tokenize.tokenize(file.readline) if t.type not in skip]
    lines = {n for t in tokens for n in range(t.start[0], t.end[0] + 1) if t.string}
    return lines - docs - {0}


def code_lines(path):
    return len(lines_of_code(path))


def functions(path):
    """Each function of a file with its lines of code, those of functions within it included."""
    lines = lines_of_code(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, len(lines.intersection(range(node.lineno, node.end_lineno + 1)))


def imports(path):
    """Every module a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize(
    "part, files, most",
    [
        ("memory half", MEMORY, 9600),
        ("tensor half", TENSORS, 7350),
        ("show", GLUE, 850),
        ("core", CORE, 1200),
    ],
)
def test_each_part_stays_small(part, files, most):
    lines = sum(map(code_lines, files))
    assert files
    assert lines <= most, f"the {part} has {lines} lines of code, {most} are allowed"


@pytest.mark.parametrize("path", PICTURES, ids=lambda p: p.stem)
def test_a_picture_takes_less_than_two_screens(path):
    lines = code_lines(path)
    assert lines <= 140, f"{path.name} has {lines} lines of code, 140 are allowed"


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_file_is_one_idea_and_a_function_one_thought(path):
    """Whatever is longer is two of them: move the second to a home of its own."""
    code, whole = code_lines(path), len(path.read_text(encoding="utf-8").splitlines())
    assert code <= 200 and whole <= 300, f"{code} lines of code of 200, {whole} in all of 300"
    for function, lines in functions(path):
        # A kernel of Triton is compiled whole, and nothing but a GPU can try it in pieces.
        jit = any(ast.unparse(each) == "triton.jit" for each in function.decorator_list)
        assert jit or lines <= 40, f"{function.name} has {lines} lines of code, 40 are allowed"


def test_the_line_counter_counts_code_alone(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(
        '"""Doc.\n\nMore.\n"""\n\n# why\nx = [\n    1,\n]\n\n\ndef f():\n    """Doc."""\n'
        "\n    # why\n    def g():\n        return 1\n\n    return g\n\n\n"
        'class C:\n    """Doc."""\n\n    async def h(self):\n        """Doc.\n\n        More."""\n'
    )
    assert code_lines(path) == 3 + 4 + 2
    assert {function.name: lines for function, lines in functions(path)} == {"f": 4, "g": 2, "h": 1}


@pytest.mark.parametrize("path", [*MEMORY, *DRAWINGS], ids=lambda p: p.stem)
def test_the_memory_half_imports_the_standard_library_only(path):
    below = ("kvlib.show.drawings",) if path in DRAWINGS else ()
    for module in imports(path):
        top = module.split(".")[0]
        allowed = top in sys.stdlib_module_names or top == "kvlib"
        upward = module.startswith(("kvlib.tensors", "kvlib.show")) and not module.startswith(below)
        assert allowed, f"{path.name} imports {module}"
        assert not upward or module == "kvlib.show", f"{path.name} imports {module}, which is above"


@pytest.mark.parametrize("path", TENSORS, ids=lambda p: p.stem)
def test_the_tensor_half_does_not_import_the_face(path):
    assert not [m for m in imports(path) if m.startswith("kvlib.show")]


def python(code, *flags):
    return subprocess.run(
        [sys.executable, *flags, "-c", code], cwd=ROOT, capture_output=True, text=True
    )


def test_import_kvlib_needs_nothing_installed():
    """-S leaves site-packages out: only the standard library and this folder can be found."""
    code = (
        "import sys, kvlib; from kvlib.show import live\n"
        "print(len(live.render('kv_size_explorer')) > 500, 'torch' in sys.modules)\n"
        "print(kvlib.KVShape(32, 8, 128).bytes_per_token('bfloat16'))"
    )
    done = python(code, "-S", "-W", "error")
    assert done.stdout.split() == ["True", "False", "131072"], done.stderr


def test_without_torch_a_cache_says_in_one_line_what_to_install():
    code = "import kvlib\ntry: kvlib.ContiguousKVCache\nexcept ImportError as e: print(e)"
    said = python(code, "-S").stdout.strip()
    assert said.startswith("kvlib.ContiguousKVCache needs torch: pip install")
    assert len(said.splitlines()) == 1


def test_an_unknown_name_lists_the_known_ones():
    done = python("import kvlib\nkvlib.PagedCash", "-S")
    assert "kvlib has no 'PagedCash'" in done.stderr


def test_every_public_name_exists():
    import kvlib

    for name in kvlib.__all__:
        assert getattr(kvlib, name) is not None


def pins(name):
    lines = (ROOT / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(
    "name", [f"requirements{part}.txt" for part in ("", "-book", "-test", "-mutants")]
)
def test_every_requirement_is_pinned_exactly(name):
    for line in pins(name):
        assert line == "-e ." or re.fullmatch(r"[\w.-]+==[\w.]+( *;.*)?", line), line


def test_the_books_requirements_are_the_first_part_of_all():
    book, whole = pins("requirements-book.txt"), pins("requirements.txt")
    assert whole[: len(book)] == book
    assert len(set(whole)) == len(whole)
    assert "torch" not in {line.split("==")[0] for line in book}
    assert {"torch==2.13.0", "jupyter-book==1.0.4.post1", "sphinx==7.4.7", "-e ."} < {
        line.lower() for line in whole
    }


def test_the_environment_is_the_one_that_is_pinned():
    """What the tests ran against is what a reader gets."""
    from importlib.metadata import version

    for line in (*pins("requirements.txt"), *pins("requirements-test.txt")):
        if line != "-e ." and ";" not in line:
            name, wanted = line.split("==")
            assert version(name).split("+")[0] == wanted, name
