"""Engines of today, each with what its sources say and the configuration made of it.

A fact has its version, its date and the place where it was read; an approximation says what the
configuration leaves out. Nothing here was measured on an engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

from kvlib.engine_configs import CONFIGURATIONS, Configuration
from kvlib.engine_settings import Scalar
from kvlib.scheduler import Scheduler
from kvlib.sizes import near

DATA = Path(__file__).resolve().parent / "data" / "engines.json"
NOT_KNOWN = "not known"


@dataclass(frozen=True)
class Fact:
    """What one version of an engine does unless told otherwise.

    Attributes:
        what: it is about.
        value: a number, or words.
        where: file and line, or `not known`.
        version: it was read in.
        date: of that version, or `not known`.
        sets: settings of a configuration that it decides, each with its value; see
            `kvlib.engine_settings`.
    """

    what: str
    value: Scalar
    where: str
    version: str
    date: str
    sets: Mapping[str, Scalar]

    def source(self, engine: Engine) -> str:
        """Returns the place, with the version where it is not the engine's."""
        other = self.version != engine.version
        return f"{self.where}; {self.version}" if other else self.where


@dataclass(frozen=True)
class Engine:
    """An engine, as far as it manages memory.

    Attributes:
        name: short, for a table.
        version: the version read.
        date: of it, or `not known`.
        read: how it was read, with the commit where there is one.
        files: that the facts come from, as far as they are named.
        unit: in which it hands out memory.
        facts: its defaults.
        approximations: what the configuration does otherwise.
        better: when it is the better choice.
        shown: the section of the atlas's page that shows so.
        no_clock: why times of it are left out; empty where they are not.
        configuration: its policies.
    """

    name: str
    version: str
    date: str
    read: str
    files: tuple[str, ...]
    unit: str
    facts: tuple[Fact, ...]
    approximations: tuple[str, ...]
    better: str
    shown: str
    no_clock: str
    configuration: Configuration

    def build(self, num_slots: int, max_seq_len: int, **options: Any) -> Scheduler:
        """Returns an idle scheduler with the engine's policies; see `Configuration.build`.

        Example:
            >>> engine("vLLM V0").build(num_slots=4096, max_seq_len=2048).admission.watermark
            0.01
        """
        return self.configuration.build(num_slots, max_seq_len, **options)

    def sheet(self) -> str:
        """Returns all that is known of the engine here, as text of at most 79 letters a line."""
        head = f"{self.name}, {self.version}, date {self.date}; {self.unit}"
        texts = [(head, ""), (f"read in: {self.read}", "  ")]
        texts += [(f"{f.what}: {f.value} [{f.source(self)}]", "  ") for f in self.facts]
        texts += [(f"here: {words}", "  ") for words in self.approximations]
        texts += [(f"no times: {self.no_clock}", "  ")] if self.no_clock else []
        texts += [(f"better for: {self.better} ({self.shown})", "  ")]
        return "\n".join(
            fill(text, 79, initial_indent=by, subsequent_indent=by + "    ") for text, by in texts
        )

    def fact(self, what: str) -> Fact:
        """Returns the first fact about something.

        Raises:
            ValueError: there is none; the message lists the near ones.
        """
        for fact in self.facts:
            if fact.what == what:
                return fact
        raise ValueError(near(what, [fact.what for fact in self.facts], "fact"))


@dataclass(frozen=True)
class StaleClaim:
    """What is often said of an engine and no longer true, or never was.

    Attributes:
        claim: what is said.
        now: what its source says.
        engine: whose version and date stand beside it.
    """

    claim: str
    now: str
    engine: Engine


@cache
def _table() -> dict[str, Any]:
    return json.loads(DATA.read_text(encoding="utf-8"))


@cache
def _engines() -> dict[str, Engine]:
    return {row["name"]: _engine(row) for row in _table()["engines"]}


def _engine(row: Mapping[str, Any]) -> Engine:
    facts = (_fact({"version": row["version"], "date": row["date"]} | f) for f in row["facts"])
    row = row | {name: tuple(row[name]) for name in ("files", "approximations")}
    return Engine(**(row | {"facts": tuple(facts), "configuration": CONFIGURATIONS[row["name"]]}))


def _fact(row: Mapping[str, Any]) -> Fact:
    sets = row.get("sets", {})
    return Fact(**(row | {"sets": {sets: row["value"]} if isinstance(sets, str) else sets}))


def engines() -> list[str]:
    """Lists the engines by name."""
    return list(_engines())


def engine(name: str) -> Engine:
    """Returns an engine by its exact name.

    Raises:
        ValueError: there is none; the message lists the near names.
    """
    if name not in _engines():
        raise ValueError(near(name, _engines(), "engine"))
    return _engines()[name]


def stale_claims() -> list[StaleClaim]:
    """Returns the claims that this book does not repeat, each with the engine it is about."""
    return [
        StaleClaim(row["claim"], row["now"], engine(row["engine"]))
        for row in _table()["stale_claims"]
    ]
