"""Measured numbers, read back with the machine and the date they belong to.

The scripts of `measure/` write one JSON file a record into `chapters/measured/`; pages read them
here and never type a measured number by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvlib.files import read_json

FOLDER = Path(__file__).resolve().parents[1] / "chapters" / "measured"
FIELDS = ("name", "date", "machine", "versions", "commit", "command", "data")
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
    """Returns the line that stands under every measured number.

    Example:
        >>> provenance(None)
        'no record yet'
    """
    if record is None:
        return "no record yet"
    return f"measured on {record['machine']}, {record['date']}, commit {record['commit']}"
