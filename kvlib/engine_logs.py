"""Reads what vLLM and SGLang print about their cache, one line at a time, over several versions.

A line is one of three: one whose meaning is known, one that is not about the cache, which is
counted and left alone, or one that begins like a known line and cannot be read: that is an error.
A line is known by how its *message* begins, behind level, time and file. So a prompt that quotes a
log line is not taken for one.

Source: formats as printed by vLLM 0.2 to 0.33 and SGLang of 2024 to 0.5.23; the page on engine logs
names the threads and files they were read in.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple

from kvlib.log_values import FIELDS

LONGEST = 4096  # characters of a line that are looked at; known lines have a few hundred


class LogError(ValueError):
    """A line that begins like a known one and cannot be read."""


class Entry(NamedTuple):
    """What one line says.

    Attributes:
        engine: "vLLM" or "SGLang".
        kind: "pool" (how large the cache is), "weights", "load" (who runs and waits, how much is
            used), "prefill" (what a step of prompts found), "hits" or "preempted".
        stamp: date and time as printed, "" if there are none. vLLM prints no year.
        who: the engine or rank that speaks, "" if the line does not say.
        facts: values by name; shares lie in [0, 1], speeds are tokens a second, sizes are a
            `kvlib.log_values.Size`.
        unread: names of further values on the line, kept so that a new version loses nothing.
    """

    engine: str
    kind: str
    stamp: str
    who: str
    facts: dict[str, Any]
    unread: tuple[str, ...]

    @property
    def seconds(self) -> float | None:
        """Seconds since 2000 began, or since midnight; a line without a year is taken for 2000."""
        if not self.stamp:
            return None
        try:
            day = "2000-01-01 " if "-" not in self.stamp else ""
            year = "2000-" if self.stamp[2:3] == "-" else ""
            when = datetime.fromisoformat(year + day + self.stamp)
        except ValueError as error:
            raise LogError(f"{self.stamp!r} is no time") from error
        return (when - datetime(2000, 1, 1)).total_seconds()


class _Format(NamedTuple):
    engine: str
    kind: str
    head: re.Pattern[str]  # how the message begins; named groups are values, the rest is a list
    needs: tuple[str, ...]


def _format(engine: str, kind: str, head: str, *needs: str) -> _Format:
    return _Format(engine, kind, re.compile(head), needs)


_LONGEST_REQUEST = r"Maximum concurrency for (?P<max_len>[\d,]+) tokens per request: "
_FORMATS = (
    _format("vLLM", "pool", r"(?=# (?:GPU|cuda) blocks: )", "blocks"),
    _format("vLLM", "pool", r"(?=[A-Z]{2,8} KV cache size: )", "tokens"),
    _format("vLLM", "pool", r"(?=Available KV cache memory: )", "memory"),
    _format("vLLM", "pool", r"(?=Maximum concurrency for )", "max_len", "concurrency"),
    _format(
        "vLLM",
        "weights",
        r"(?:Loading model weights|Model loading) took (?P<took>\S+ [GM]i?B)\b",
        "memory",
    ),
    _format(
        "vLLM",
        "load",
        r"(?:(?P<who>Engine \d+|\d+ Engines Aggregated): )?(?=Avg prompt throughput: )",
        *("prompt_tokens_s", "output_tokens_s", "running", "waiting", "used_share"),
    ),
    _format("vLLM", "hits", r"Prefix cache hit rate: (?=GPU: )", "hit_rate"),
    _format(
        "vLLM",
        "preempted",
        r"Sequence group (?P<request>\S+) is preempted by (?:PreemptionMode\.)?(?P<mode>\w+) mode "
        r"(?:.*total_num_cumulative_preemption=(?P<total>\S+))?",
        *("request", "mode", "total"),
    ),
    _format("SGLang", "weights", r"Load weight end\. "),
    _format("SGLang", "pool", r"KV Cache is allocated\. (?:dtype: [\w.]+, )?", "tokens"),
    _format("SGLang", "pool", r"(?=max_total_num_tokens=)", "tokens"),
    _format(
        "SGLang",
        "load",
        r"(?:Decode batch(?: \[\d+\])?[.,] )?(?=#running-req: )",
        *("running", "waiting", "used_share", "used_tokens"),
    ),
    _format(
        "SGLang",
        "prefill",
        r"Prefill batch(?: \[\d+\])?[.,] (?=#new-seq: )",
        *("new_requests", "new_tokens", "cached_tokens", "running", "waiting"),
    ),
    _format("SGLang", "preempted", r"KV cache pool is full\. Retract requests\. ", "count"),
)

_BEFORE = r"(?:[\w.-]+\s+\|\s+)?"  # the container, as docker compose puts it
_PREFIXES = tuple(
    re.compile(_BEFORE + pattern)
    for pattern in (
        r"(?:\((?P<who>[^()]{1,60} ?pid=\d+)\)\s+)?(?:\[[^][]{1,40}\]\s+)?(?:INFO|WARNING|ERROR)\s+"
        r"(?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d) \[?[\w./-]+:\d+\]?\s+",
        r"\[(?P<stamp>(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d)(?P<who>(?: [A-Z]{2}\d+)*)\]\s+",
        r"(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.\d]* - [\w.]+ - [A-Z]+ - ",
    )
)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_DEVICE = re.compile(r"[a-z]+ (?=kv cache (?:size|usage)$)")


def parse(line: str) -> Entry | None:
    """Returns what a line says of the cache, or None for a line that is not about it.

    Args:
        line: one line; of a very long one the beginning is looked at.

    Raises:
        LogError: it begins like a known line, and a value is missing or makes no sense. The message
            says which.

    Example:
        >>> entry = parse("INFO 05-22 02:21:04 [loggers.py:118] Engine 000: Avg prompt throughput: "
        ...     "80.0 tokens/s, Avg generation throughput: 12.5 tokens/s, Running: 1 reqs, "
        ...     "Waiting: 0 reqs, GPU KV cache usage: 15.0%, Prefix cache hit rate: 40.0%")
        >>> entry.kind, entry.who, entry.facts["used_share"], entry.facts["hit_rate"]
        ('load', 'Engine 000', 0.15, 0.4)
        >>> parse("INFO: 127.0.0.1 - 'POST /v1/chat/completions' 200 OK") is None
        True
    """
    text = _COLOUR.sub("", line[:LONGEST]).strip()
    stamp, who, message = "", "", text
    for prefix in _PREFIXES:
        if found := prefix.match(text):
            groups = found.groupdict()
            stamp, who = groups["stamp"], (groups.get("who") or "").strip()
            message = text[found.end() :]
            break
    for known in _FORMATS:
        if head := known.head.match(message):
            return _read(known, head, message, stamp, who)
    return None


def _read(known: _Format, head: re.Match[str], message: str, stamp: str, who: str) -> Entry:
    values = {name: text for name, text in head.groupdict().items() if text is not None}
    who = values.pop("who", who)
    if not values:  # else the head has said all
        values = _pairs(message[head.end() :])
    facts, unread = {}, []
    for name, text in _one_device(values).items():
        fact, reader = FIELDS.get(name, ("", str))
        if not fact:
            unread.append(name)
            continue
        try:
            facts[fact] = reader(text)
        except ValueError as error:
            said = f"{name!r:.60} has {text!r:.60}: {str(error)[:120]}"
            raise LogError(f"{_place(known, message)}: {said}") from error
    if missing := [name for name in known.needs if name not in facts]:
        raise LogError(f"{_place(known, message)}: it lacks {missing}")
    return Entry(known.engine, known.kind, stamp, who, facts, tuple(unread))


def _one_device(values: dict[str, str]) -> dict[str, str]:
    """Calls the device "gpu" where a line names a single one: vLLM also prints CPU, XPU or TPU."""
    if sum(1 for name in values if _DEVICE.match(name)) != 1:
        return values
    return {_DEVICE.sub("gpu ", name): text for name, text in values.items()}


def _place(known: _Format, message: str) -> str:
    return f"a {known.kind} line of {known.engine} that cannot be read, {message[:90]!r}"


def _pairs(body: str) -> dict[str, str]:
    """Returns the list `name: value, name: value` as a mapping; thousands have no space."""
    found: dict[str, str] = {}
    name = ""
    for part in body.rstrip(" ,.").split(", "):
        longest = re.match(_LONGEST_REQUEST, part)
        if longest:
            found |= {"max_len": longest["max_len"], "concurrency": part[longest.end() :]}
            continue
        before, mark, value = part.partition(": ")
        if not mark:
            before, mark, value = part.partition("=")
        if not mark and name and name not in FIELDS:  # a value that is a list itself
            found[name] += f", {part.strip()}"
            continue
        name = before.strip().lower()
        found[name] = value.strip()
    return found
