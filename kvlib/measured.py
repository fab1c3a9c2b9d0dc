"""Measured numbers, read back with the machine and the date they belong to.

The scripts of `measure/` write one JSON file a record into `chapters/measured/`; pages read them
here and never type a measured number by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "chapters" / "measured"
FIELDS = ("name", "date", "machine", "versions", "commit", "command", "data")


def load(name: str, folder: Path = FOLDER) -> dict[str, Any] | None:
    """Returns a record by name, or `None` where nobody has measured yet.

    Args:
        name: the file's name without `.json`, such as `first_cache.cpu`.
        folder: where the records lie.

    Raises:
        ValueError: the file is there but is no record: not JSON, or a field is missing.

    Example:
        >>> load("never-measured") is None
        True
    """
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is no measurement record: {error}") from error
    missing = [field for field in FIELDS if not isinstance(record, dict) or field not in record]
    if missing:
        raise ValueError(f"{path.name} lacks the fields {missing}; a record has {list(FIELDS)}")
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
