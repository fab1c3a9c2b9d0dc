"""Measured numbers, read back with the machine and the date they belong to.

The scripts of `measure/` write one JSON file a record into `chapters/measured/`; pages read them
here and never type a measured number by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Any

from kvlib.files import read_json

FOLDER = Path(__file__).resolve().parents[1] / "chapters" / "measured"
_CHIEF = Path(__file__).parent / "data" / "columns.json"
FIELDS = ("name", "date", "machine", "versions", "commit", "command", "data")
_SECONDS = ((1, "s"), (1e3, "ms"), (1e6, "µs"))
_TEXTS = ("name", "date", "machine", "commit", "command")


def load(name: str, folder: Path = FOLDER) -> dict[str, Any] | None:
    """Returns a record by name, or `None` where nobody has measured yet.

    Args:
        name: the file's name without `.json`, such as `first_cache.cpu`.
        folder: where the records lie.

    Raises:
        ValueError: the name leads to another folder; or the file is there but is no record: not
            JSON, of more than 16 MiB, a field is missing, or of the wrong kind.
        OSError: it cannot be read.

    Example:
        >>> load("never-measured") is None
        True
    """
    if Path(name).name != name:
        raise ValueError(f"a record is named without a folder, got {name!r:.60}")
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    try:
        record = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path.name} is no measurement record: {error}") from error
    missing = [field for field in FIELDS if not isinstance(record, dict) or field not in record]
    if missing:
        raise ValueError(f"{path.name} lacks the fields {missing}; a record has {list(FIELDS)}")
    wrong = [field for field in _TEXTS if not isinstance(record[field], str)]
    if wrong or not isinstance(record.get("code", {}), dict):
        raise ValueError(f"{path.name} has no text in {wrong or 'code'}, a record has")
    return record


def provenance(record: dict[str, Any] | None) -> str:
    """Returns what stands under every measured number: the machine, and below it date and commit.

    Example:
        >>> provenance(None)
        'no record yet'
    """
    if record is None:
        return "no record yet"
    return f"measured on {record['machine']},\n{record['date']}, commit {record['commit']}"


def columns(name: str, folder: Path = FOLDER) -> str:
    """Returns a measurement's chief figures as a table, one column for each kind of device.

    Which those are stands in `data/columns.json`: words, and the way to the figure in the record's
    data. Of a figure with its spread, or of several runs, the median is shown.

    Args:
        name: of the records without their device, such as `first_cache`.
        folder: where they lie.

    Raises:
        KeyError, IndexError: no figures are named for it, or a record has none at that place.

    Example:
        >>> print(columns("first_cache", Path("nothing-measured-here")))
                                               CPU             GPU
        longest, with a cache        no record yet   no record yet
        longest, without             no record yet   no record yet
        times faster                 no record yet   no record yet
    """
    records = [load(f"{name}.{device}", folder) for device in ("cpu", "cuda")]
    lines = [f"{'':26}{'CPU':>16}{'GPU':>16}"]
    for words, path in read_json(_CHIEF)[name].items():
        shown = ("no record yet" if r is None else _figure(r["data"], path) for r in records)
        lines.append(f"{words:26}" + "".join(f"{each:>16}" for each in shown))
    return "\n".join(lines)


def _figure(data: Any, path: list[str | int]) -> str:
    for key in path:
        data = data[key] if data is not None else None
    value = data["median"] if isinstance(data, dict) else data
    if isinstance(value, list):
        value = median(value)
    if isinstance(value, str) or value is None:
        return value or "not measured"
    names = [key for key in path if isinstance(key, str)]
    unit = next((key for key in reversed(names) if re.search("(^|_)s$|^seconds$", key)), "")
    if unit.endswith("_gb_s"):
        return f"{value:,.4g} GB/s"
    if unit:
        factor, sign = next(((f, s) for f, s in _SECONDS if value * f >= 1), _SECONDS[-1])
        return f"{value * factor:.3g} {sign}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
