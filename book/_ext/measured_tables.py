"""The `measured-records` directive: every record of `chapters/measured/` as tables on one page.

A record that names the code it measured (`code`: path to SHA-256) is marked stale as soon as one
of those files reads differently today; so is each notebook's page that shows it, at its end.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
MOST_COLUMNS = 8  # of named rows; more would break every word on a page
EMPTY = {"cpu": "No record yet.", "gpu": "Not yet run on a GPU."}


def records(folder: Path) -> list[dict[str, Any]]:
    """Every record of a folder in order of name; a broken one raises and so fails the build."""
    from kvlib import measured

    found = (measured.load(path.stem, folder) for path in sorted(folder.glob("*.json")))
    return [record for record in found if record is not None]


def device(record: dict[str, Any]) -> str:
    """On which kind of device it was measured: a name ends in `.cpu`, `.cuda` or nothing (cpu)."""
    return "gpu" if record["name"].rsplit(".", 1)[-1] in ("cuda", "gpu", "rocm") else "cpu"


def about(record: dict[str, Any]) -> str:
    """What it holds: figures of `traces`, counts over `tests`, or, as most do, `times`."""
    if record["name"].startswith("trace_"):
        return "traces"
    return "tests" if record["name"].split(".")[0] in ("mutants", "operations") else "times"


def changed(record: dict[str, Any], root: Path = ROOT) -> list[str]:
    """Which of the files it measured are gone or read differently now."""

    def same(name: str, digest: str) -> bool:
        path = root / name
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest

    return [name for name, digest in record.get("code", {}).items() if not same(name, digest)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    # `__init__` would be read as bold; code in backticks is taken as it is.
    text = str(value) if "`" in str(value) else str(value).replace("__", r"\_\_")
    return text.replace("|", "\\|").replace("\n", " ")


def _fits_a_cell(value: Any) -> bool:
    """Whether a value can be read in one cell: nothing is nested in what it holds."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not any(isinstance(item, dict | list) for item in held)


def _table(header: list[str], rows: list[list[Any]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in ([header] + [[*map(_cell, r)] for r in rows])]
    return ["", lines[0], "|" + " --- |" * len(header), *lines[1:], ""]


def _data(label: str, data: Any) -> list[str]:
    """Rows of equal keys, named or not, become one table; nesting gets one caption each."""
    if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        header = list(dict.fromkeys(key for row in data for key in row))
        return ["", label, *_table(header, [[row.get(key, "") for key in header] for row in data])]
    if not isinstance(data, dict):
        return ["", f"{label} {_cell(data)}"]
    rows = [item for item in data.values() if isinstance(item, dict)]
    header = max(rows, key=len, default={})
    alike = len(rows) == len(data) > 1 and all(row.keys() <= header.keys() for row in rows)
    if alike and all(_fits_a_cell(item) for row in rows for item in row.values()):
        if len(header) > MOST_COLUMNS:
            return ["", label, *_table(["what", "values"], [[*each] for each in data.items()])]
        named = [[name, *(row.get(key, "") for key in header)] for name, row in data.items()]
        return ["", label, *_table(["what", *header], named)]
    nested = {key: item for key, item in data.items() if isinstance(item, dict | list)}
    flat = [[key, item] for key, item in data.items() if key not in nested]
    lines = ["", label, *_table(["what", "value"], flat)] if flat else []
    for key, item in nested.items():
        lines += _data(f"*{key}*", item)
    return lines


def markdown(record: dict[str, Any]) -> list[str]:
    """One record as Markdown: what, where, when, by which command, still current or not."""
    stale = changed(record)
    state = (
        f"**stale**: {', '.join(f'`{name}`' for name in stale)} changed since"
        if stale
        else ("current" if record.get("code") else "names no code, so it is not checked")
    )
    facts = [
        ["measured on", record["machine"]],
        ["date", record["date"]],
        ["commit", f"`{record['commit']}`"],
        ["versions", record["versions"]],
        ["command", f"`{record['command']}`"],
        ["state", state],
    ]
    head = [f"```{{rubric}} {record['name']}", "```"]
    return [*head, *_table(["what", "value"], facts), *_data("", record["data"])]


class MeasuredRecords(SphinxDirective):
    """`measured-records`: the records of one device, `cpu` or `gpu`.

    With `:kind: traces` those that are figures of real traces, with `:kind: tests` what was counted
    over tests; without it the others.
    """

    required_arguments = 1
    option_spec: ClassVar = {"kind": lambda word: directives.choice(word, ("traces", "tests"))}

    def run(self) -> list[nodes.Node]:
        """Returns the tables, or the line that says there is nothing to show."""
        kind = directives.choice(self.arguments[0], tuple(EMPTY))
        folder = Path(self.env.srcdir) / "chapters" / "measured"
        asked = self.options.get("kind", "times")
        chosen = [
            record
            for record in records(folder)
            if device(record) == kind and about(record) == asked
        ]
        _depend(self.env, chosen)
        _listing(self.env)[self.env.docname] = _names(folder)
        lines = [line for record in chosen for line in markdown(record)] or [EMPTY[kind]]
        box = nodes.container(classes=["measured"])
        self.state.nested_parse(StringList(lines, source="chapters/measured"), 0, box)
        for paragraph in box.findall(nodes.paragraph):
            paragraph["support_smartquotes"] = False  # a value is shown letter by letter
        return [box]


def used(text: str, folder: Path) -> list[dict[str, Any]]:
    """The records that a page's text names, such as `"lengths.cpu"` or `f"lengths.{device}"`."""
    return [each for each in records(folder) if f'"{each["name"].split(".")[0]}.' in text]


def note(stale: list[dict[str, Any]]) -> nodes.Element:
    """What a page says of the records it shows whose code has changed since they were taken."""
    words = nodes.paragraph()
    words += nodes.strong("", "Measured on earlier code.")
    words += nodes.Text(" The code behind these records has changed since they were taken: ")
    for each in stale:
        words += [nodes.literal("", each["name"]), nodes.Text(", ")]
    words[-1] = nodes.Text(". The measurements at the back name the files.")
    return nodes.note("", words, classes=["stale-records"])


def _depend(env: BuildEnvironment, shown: list[dict[str, Any]]) -> None:
    """A page is read again when a record or its code changes; code that is gone counts once."""
    for record in shown:
        for name in (f"chapters/measured/{record['name']}.json", *record.get("code", {})):
            if (ROOT / name).is_file():
                env.note_dependency(str(ROOT / name))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.json"))


def _listing(env: BuildEnvironment) -> dict[str, list[str]]:
    """Which records there were when a page that lists all of them was read."""
    if not hasattr(env, "kvlib_listed_records"):
        env.kvlib_listed_records = {}
    return env.kvlib_listed_records


def _outdated(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """A new record is no dependency of a page that was read before it came."""
    now = _names(Path(app.srcdir) / "chapters" / "measured")
    return [page for page, then in _listing(env).items() if then != now and page in env.all_docs]


def _mark_stale(app: Sphinx, document: nodes.document) -> None:
    env, folder = app.env, Path(app.srcdir) / "chapters" / "measured"
    path = Path(env.doc2path(env.docname))
    if path.suffix != ".ipynb":
        return
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    shown = used(code, folder)
    _depend(env, shown)
    if stale := [record for record in shown if changed(record)]:
        next(document.findall(nodes.section)).append(note(stale))


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive, and the repository to the path so that autodoc finds kvlib unbuilt."""
    sys.path.insert(0, str(ROOT))
    app.connect("doctree-read", _mark_stale)
    app.connect("env-get-outdated", _outdated)
    app.add_directive("measured-records", MeasuredRecords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
