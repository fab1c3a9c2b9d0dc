"""Recomputes from the trace files every figure of them that the library carries or the book prints.

The files are looked for in `$KVLIB_TRACES`, else `../shared/data/traces`, else the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from kvlib import traces
from kvlib.trace_ragpulse import KINDS
from kvlib.workloads import Request, Workload, load

NAMES = traces.traces()
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"


def whole(name: str) -> Workload:
    """The whole trace; without its file a visible skip, which fails where `CI=true`."""
    if traces.find(name, [BESIDE]) is None:
        reason = f"no file of the trace {name} on this machine (set KVLIB_TRACES)"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; with CI=true it has to be there")
        pytest.skip(reason)
    return _loaded(name)


@cache
def _loaded(name: str) -> Workload:
    return load(name, [BESIDE])


def prompts(workload: Workload) -> list[int]:
    return [each.prompt_tokens for each in workload]


def outputs(workload: Workload) -> list[int]:
    return [each.output_tokens for each in workload]


def totals(workload: Workload) -> list[int]:
    return [each.prompt_tokens + each.output_tokens for each in workload]


def quantile(values: list[int], u: float) -> float:
    """The `u` quantile, on the straight line between neighbouring order statistics."""
    ordered, place = sorted(values), u * (len(values) - 1)
    below = int(place)
    return ordered[below] + (ordered[min(below + 1, len(values) - 1)] - ordered[below]) * (
        place - below
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_facts_the_library_carries_are_the_traces(name: str) -> None:
    known, workload = traces.trace(name), whole(name)
    assert len(workload) == known.num_requests
    assert fmean(prompts(workload)) == pytest.approx(known.mean_prompt_tokens, abs=0.006)
    assert fmean(outputs(workload)) == pytest.approx(known.mean_output_tokens, abs=0.006)
    gaps_ms = [
        round(1000 * (after.arrival_s - before.arrival_s))
        for before, after in pairwise(workload)
        if before.arrival_s is not None
    ]
    if not gaps_ms or name == "ragpulse":  # a selection out of a week: its pace is nobody's load
        assert known.mean_gap_ms is None
    else:
        assert fmean(gaps_ms) == pytest.approx(known.mean_gap_ms, abs=0.0006)
    columns = {
        known.prompt_tokens_permille: prompts(workload),
        known.output_tokens_permille: outputs(workload),
        known.gap_ms_permille: gaps_ms,
    }
    for permille, values in columns.items():
        if permille is not None:
            ordered, n = sorted(values), len(values)
            assert permille == tuple(ordered[max(0, -(-p * n // 1000) - 1)] for p in range(1001))


# Rows, then p50, p95, p99 and the largest, of prompts and of outputs.
LENGTHS = {
    "azure-conv": (19_366, [1020, 4083, 4142, 14_050], [129, 451, 601, 1000]),
    "azure-code": (8_819, [1469, 7303, 7436, 7437], [13, 90, 251.5, 1899]),
    "arxiv": (28_257, [2730, 3813, 3933, 4054], [167, 736, 3271, 4056]),
    "apex-stories": (512, [309, 423, 566, 1232], [1106, 1807, 2341, 3501]),
    "mooncake-conv": (12_031, [6909, 39_550, 85_400, 126_195], [350, 698, 1118, 2000]),
    "mooncake-synthetic": (3_993, [11_587, 48_905, 66_456, 191_378], [69, 519, 768, 893]),
    "ragpulse": (7_106, [3140, 4425, 5438.3, 7712], [234, 670, 891, 2183]),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_rows_and_quantiles_are_the_published_ones(name: str) -> None:
    num_rows, of_prompts, of_outputs = LENGTHS[name]
    workload = whole(name)
    assert len(workload) == num_rows
    for values, expected in ((prompts(workload), of_prompts), (outputs(workload), of_outputs)):
        found = [quantile(values, u) for u in (0.5, 0.95, 0.99, 1)]
        assert found == pytest.approx(expected, abs=0.51)


@pytest.mark.parametrize(
    ("name", "median_prompt", "median_output"),
    [("azure-conv", 1020, 129), ("azure-code", 1469, 13)],
)
def test_the_medians_are_those_of_the_splitwise_paper(
    name: str, median_prompt: int, median_output: int
) -> None:
    workload = whole(name)
    assert quantile(prompts(workload), 0.5) == median_prompt
    assert quantile(outputs(workload), 0.5) == median_output


# Span in seconds, requests per second, spread of the gaps (standard deviation / mean).
ARRIVALS = {
    "azure-conv": (3501.7, 5.53, 1.09),
    "azure-code": (3435.9, 2.57, 13.15),
    "mooncake-conv": (3537.0, 3.40, 3.03),
    "mooncake-synthetic": (1022.0, 3.91, 1.01),
}


@pytest.mark.parametrize("name", ARRIVALS)
def test_span_rate_and_burstiness_are_the_published_ones(name: str) -> None:
    span_s, rate, spread = ARRIVALS[name]
    times = [each.arrival_s for each in whole(name)]
    gaps = [after - before for before, after in pairwise(times)]
    assert times[-1] == pytest.approx(span_s, abs=0.051)
    assert 1 / fmean(gaps) == pytest.approx(rate, abs=0.0051)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(spread, abs=0.0051)


@pytest.mark.parametrize(
    ("name", "fewest", "most", "silence_s"),
    [("azure-conv", 37, 507, 4), ("azure-code", 0, 632, 217)],
)
def test_azures_minutes_differ_as_published(
    name: str, fewest: int, most: int, silence_s: int
) -> None:
    times = [each.arrival_s for each in whole(name)]
    per_minute = Counter(int(time // 60) for time in times)
    counts = [per_minute[minute] for minute in range(max(per_minute) + 1)]
    assert (min(counts), max(counts)) == (fewest, most)
    assert int(max(after - before for before, after in pairwise(times))) == silence_s


def test_mooncakes_arrivals_come_in_ticks_of_three_seconds() -> None:
    times = [each.arrival_s for each in whole("mooncake-conv")]
    assert len(set(times)) == 1180
    assert all(abs(time - 3 * round(time / 3)) < 0.01 for time in times)


# Percent of the reserved slots that stay empty in last blocks, for blocks of 8, 16, ... 512 tokens.
TAIL_WASTE = {
    "azure-conv": [0.26, 0.54, 1.12, 2.21, 4.38, 8.02, 13.43],
    "azure-code": [0.17, 0.37, 0.73, 1.51, 3.04, 6.09, 11.53],
    "arxiv": [0.12, 0.26, 0.54, 1.08, 2.12, 4.12, 7.79],
    "mooncake-conv": [0.03, 0.06, 0.12, 0.25, 0.51, 1.01, 2.01],
}


@pytest.mark.parametrize("name", TAIL_WASTE)
def test_tail_waste_grows_with_the_block_as_published(name: str) -> None:
    lengths = totals(whole(name))
    found = []
    for block_size in (8, 16, 32, 64, 128, 256, 512):
        reserved = sum(-(-length // block_size) * block_size for length in lengths)
        found.append(100 * (1 - sum(lengths) / reserved))
    assert found == pytest.approx(TAIL_WASTE[name], abs=0.0051)


@pytest.mark.parametrize(
    ("name", "max_seq_len", "percent"),
    [
        ("azure-conv", 4096, 91.7),
        ("azure-conv", 8192, 99.99),
        ("azure-code", 4096, 85.7),
        ("azure-code", 8192, 100),
        ("arxiv", 4096, 100),
        ("mooncake-conv", 16_384, 76.5),
    ],
)
def test_a_fixed_maximum_covers_the_published_share(
    name: str, max_seq_len: int, percent: float
) -> None:
    lengths = totals(whole(name))
    covered = 100 * sum(length <= max_seq_len for length in lengths) / len(lengths)
    assert covered == pytest.approx(percent, abs=0.0051 if percent > 99 else 0.051)


# Blocks, different blocks, blocks seen once; percent found by prefix in an endless cache, of the
# prompt tokens, of the blocks, and per request on average.
REUSE = {
    "mooncake-conv": (288_500, 182_790, 138_646, 37.4, 36.6, 40.9),
    "mooncake-synthetic": (121_877, 43_924, 25_673, 65.1, 64.0, 43.2),
}


def cached_blocks(workload: Workload) -> list[int]:
    """For each request how many of its blocks, from the first on, an earlier one had."""
    seen: set[int] = set()
    found = []
    for each in workload:
        hits = [block_id in seen for block_id in each.block_ids]
        found.append(hits.index(False) if False in hits else len(hits))
        seen.update(each.block_ids)
    return found


def cached_tokens(request: Request, blocks: int) -> int:
    return min(blocks * 512, request.prompt_tokens)


@pytest.mark.parametrize("name", REUSE)
def test_mooncakes_prefix_reuse_is_the_published_one(name: str) -> None:
    workload = whole(name)
    num_blocks, num_different, num_once, *percents = REUSE[name]
    uses = Counter(block_id for each in workload for block_id in each.block_ids)
    assert (uses.total(), len(uses)) == (num_blocks, num_different)
    assert sum(count == 1 for count in uses.values()) == num_once
    blocks = cached_blocks(workload)
    tokens = [cached_tokens(each, hit) for each, hit in zip(workload, blocks, strict=True)]
    shares = [hit / each.prompt_tokens for each, hit in zip(workload, tokens, strict=True)]
    found = [sum(tokens) / sum(prompts(workload)), sum(blocks) / num_blocks, fmean(shares)]
    assert [100 * share for share in found] == pytest.approx(percents, abs=0.051)


@pytest.mark.parametrize("name", REUSE)
def test_mooncakes_published_file_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    known, workload = traces.trace(name), whole(name)
    place = tmp_path / known.publisher_file
    with place.open("w", encoding="utf-8", newline="\n") as file:
        for each in workload:
            row = {
                "timestamp": round(each.arrival_s * 1000),
                "input_length": each.prompt_tokens,
                "output_length": each.output_tokens,
                "hash_ids": each.block_ids,
            }
            file.write(json.dumps(row) + "\n")
    assert hashlib.sha256(place.read_bytes()).hexdigest() == known.sha256
    assert load(place).requests == workload.requests


@pytest.mark.parametrize("name", ["azure-conv", "azure-code"])
def test_azures_published_form_gives_the_same_requests(name: str, tmp_path: Path) -> None:
    workload = whole(name)
    place = tmp_path / traces.trace(name).publisher_file
    with place.open("w", encoding="utf-8", newline="") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens")
        for each in workload:
            minutes, ms = divmod(round(each.arrival_s * 1000) + 46_680, 60_000)
            hours, minutes = divmod(minutes + 15, 60)
            stamp = f"2023-11-16 {18 + hours}:{minutes:02d}:{ms // 1000:02d}.{ms % 1000:03d}5900"
            file.write(f"\r\n{stamp},{each.prompt_tokens},{each.output_tokens}")
    assert load(place).requests == workload.requests


def test_ragpulses_sessions_and_span_are_the_published_ones() -> None:
    workload = whole("ragpulse")
    turns = Counter(each.session_id for each in workload)
    assert (len(turns), max(turns)) == (3990, 3989)
    assert sum(count > 1 for count in turns.values()) == 1643
    assert workload.requests[-1].arrival_s == 604_603
    assert list(dict.fromkeys(each.session_id for each in workload)) == list(range(3990))


def test_ragpulse_reuses_content_more_than_twice_as_often_as_prefixes() -> None:
    contents: set[int] = set()
    prefixes: set[tuple[int, ...]] = set()
    by_content = by_prefix = total = 0
    for each in whole("ragpulse"):
        ids = tuple(piece.content_id for piece in each.pieces)
        for end, piece in enumerate(each.pieces, start=1):
            total += piece.num_tokens
            by_content += piece.num_tokens * (piece.content_id in contents)
            by_prefix += piece.num_tokens * (ids[:end] in prefixes)
        contents.update(ids)
        prefixes.update(ids[:end] for end in range(1, len(ids) + 1))
        # What no piece accounts for is the template around them.
        assert 6 <= each.prompt_tokens - sum(piece.num_tokens for piece in each.pieces) <= 12
    found = [100 * by_prefix / total, 100 * by_content / total]
    assert found == pytest.approx([31.5, 72.0], abs=0.051)


def test_ragpulses_published_files_give_the_same_requests(tmp_path: Path) -> None:
    workload, tables = whole("ragpulse"), {kind: {} for kind in KINDS}
    with (tmp_path / traces.trace("ragpulse").publisher_file).open("w") as file:
        for each in workload:
            ids = {kind.field: [] for kind in KINDS}
            for kind in KINDS:
                for piece in each.pieces:
                    if piece.kind == kind.name:
                        tables[kind][piece.content_id] = piece.num_tokens
                        ids[kind.field].append(piece.content_id)
            row = {
                "timestamp": str(round(each.arrival_s)),
                "input_length": each.prompt_tokens,
                "output_length": each.output_tokens,
                "hash_ids": ids,
                "session_id": f"s{each.session_id}",
            }
            file.write(json.dumps(row) + "\n")
    for kind, table in tables.items():
        rows = [json.dumps({kind.id_field: i, "token_length": n}) for i, n in table.items()]
        (tmp_path / kind.file).write_text("\n".join(rows))
    loaded = load(tmp_path / "0_trace.jsonl")
    assert loaded.name == "ragpulse"
    assert loaded.requests == workload.requests


def test_a_missing_trace_is_a_visible_skip_and_a_failure_where_ci_is_true(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KVLIB_TRACES", raising=False)
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path))
    monkeypatch.setattr(f"{__name__}.BESIDE", tmp_path)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no file of the trace arxiv"):
        whole("arxiv")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="with CI=true it has to be there"):
        whole("arxiv")
