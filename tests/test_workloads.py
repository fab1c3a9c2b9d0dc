"""Samples keep a trace's means, conversations share prefixes, and every file form reads alike."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib import trace_files, trace_lines, traces, workloads
from kvlib.workloads import conversations, load, sample

NAMES = traces.traces()
TIMED = ["azure-conv", "azure-code"]


def lengths(workload: workloads.Workload) -> list[tuple[int, int]]:
    return [(each.prompt_tokens, each.output_tokens) for each in workload]


def gaps_s(workload: workloads.Workload) -> list[float]:
    return [after.arrival_s - before.arrival_s for before, after in pairwise(workload)]


# Samples


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1000, 1501, 4000])
def test_means_are_within_two_percent_for_every_seed(name: str, n: int) -> None:
    known = traces.trace(name)
    for seed in range(12):
        drawn = sample(name, n, seed)
        assert fmean(each.prompt_tokens for each in drawn) == pytest.approx(
            known.mean_prompt_tokens, rel=0.02
        )
        assert fmean(each.output_tokens for each in drawn) == pytest.approx(
            known.mean_output_tokens, rel=0.02
        )


@given(name=st.sampled_from(NAMES), n=st.integers(1, 60), seed=st.integers())
def test_any_sample_is_reproducible_positive_and_within_the_traces_range(
    name: str, n: int, seed: int
) -> None:
    known, drawn = traces.trace(name), sample(name, n, seed)
    assert drawn == sample(name, n, seed)
    assert [each.request_id for each in drawn] == list(range(n))
    prompts, outputs = zip(*lengths(drawn), strict=True)
    assert known.prompt_tokens_permille[0] <= min(prompts)
    assert max(prompts) <= known.prompt_tokens_permille[-1]
    assert 1 <= known.output_tokens_permille[0] <= min(outputs)
    assert max(outputs) <= known.output_tokens_permille[-1]


def test_prompt_and_output_are_drawn_apart() -> None:
    drawn = lengths(sample("azure-conv", 2000, seed=5))
    prompts, outputs = zip(*drawn, strict=True)
    spread = pstdev(prompts) * pstdev(outputs)
    product = fmean(p * o for p, o in drawn)
    assert abs(product - fmean(prompts) * fmean(outputs)) / spread < 0.08
    assert lengths(sample("azure-conv", 2000, seed=6)) != drawn


def test_a_seed_draws_the_same_sample_on_every_host() -> None:
    drawn = sample("azure-code", 1000, seed=0)
    text = json.dumps([[each.arrival_s, each.prompt_tokens, each.output_tokens] for each in drawn])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "22859b4f46154e58"


@pytest.mark.parametrize("name", [name for name in NAMES if traces.trace(name).mean_gap_ms])
def test_poisson_arrivals_have_the_traces_rate_and_no_bursts(name: str) -> None:
    gaps = gaps_s(sample(name, 5000, seed=1))
    assert min(gaps) >= 0
    assert fmean(gaps) * 1000 == pytest.approx(traces.trace(name).mean_gap_ms, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("name", "cv"), [("azure-conv", 1.094), ("azure-code", 13.151)])
def test_gaps_from_the_trace_keep_rate_and_spread_and_say_so(name: str, cv: float) -> None:
    drawn = sample(name, 5000, seed=1, gaps="trace")
    gaps = gaps_s(drawn)
    assert fmean(gaps) * 1000 == pytest.approx(traces.trace(name).mean_gap_ms, rel=0.01)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.06)
    assert "gaps from the trace's own quantiles" in drawn.description
    assert "Poisson" in sample(name, 9, seed=1).description


@pytest.mark.parametrize("gaps", ["poisson", "trace"])
def test_rate_changes_the_pace_and_nothing_else(gaps: str) -> None:
    slow = sample("azure-code", 2000, seed=2, gaps=gaps)
    fast = sample("azure-code", 2000, seed=2, gaps=gaps, rate=100)
    assert lengths(slow) == lengths(fast) == lengths(sample("azure-code", 2000, seed=2))
    scale = 100 * traces.trace("azure-code").mean_gap_ms / 1000
    assert slow.requests[-1].arrival_s == pytest.approx(
        fast.requests[-1].arrival_s * scale, rel=1e-3
    )


@pytest.mark.parametrize("name", ["arxiv", "ragpulse"])
def test_a_trace_without_a_rate_has_no_arrivals_unless_one_is_given(name: str) -> None:
    assert {each.arrival_s for each in sample(name, 5, seed=0)} == {None}
    assert "no arrival times" in sample(name, 5, seed=0).description
    timed = sample(name, 2000, seed=0, rate=2)
    assert fmean(gaps_s(timed)) == pytest.approx(0.5, rel=0.06)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_says_that_it_is_one_and_whom_to_thank(name: str) -> None:
    drawn = sample(name, 10, seed=3)
    assert drawn.name == f"{name} sample (n=10, seed=3)"
    assert drawn.description.startswith("a seeded sample, not the trace: 10 requests")
    assert any(licence in drawn.source for licence in ("CC BY 4.0", "Apache-2.0", "MIT"))
    assert drawn.source.endswith("reduced to 1001 quantiles per column")


def test_the_mit_notices_travel_with_the_quantiles() -> None:
    facts = json.loads(traces._FACTS.read_text(encoding="utf-8"))
    for text, holder in (("MIT", "Microsoft Corporation"), ("MIT-RAGPulse", "zhengchao wang")):
        notice = facts["licence_texts"][text]
        assert "Permission is hereby granted" in notice
        assert holder in notice.splitlines()[2]
        assert any(
            f"licence_texts.{text} of" in each["licence"] for each in facts["traces"].values()
        )
    for known in facts["traces"].values():
        for column in ("prompt_tokens_permille", "output_tokens_permille", "gap_ms_permille"):
            permille = known[column]
            assert permille is None or (len(permille) == 1001 and permille == sorted(permille))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "azure_conv"}, "no trace 'azure_conv'; known: azure-conv, azure-code, arxiv"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"gaps": "uniform"}, "gaps are 'poisson' or 'trace', got 'uniform'"),
        ({"name": "arxiv", "gaps": "trace"}, "arxiv has no gap quantiles; azure-conv and azure"),
        ({"rate": 0}, "rate must be a positive number of requests per second, got 0"),
        ({"rate": float("nan")}, "got nan"),
    ],
)
def test_a_sample_that_cannot_be_drawn_says_why(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(**{"name": "azure-conv", "n": 3, "seed": 0, **arguments})


# Conversations


def test_every_turn_extends_the_turn_before_and_starts_with_a_shared_system_prompt() -> None:
    made = conversations(3, num_conversations=40, num_system_prompts=2, system_tokens=9)
    last: dict[int | None, tuple[int, ...]] = {}
    for each in made:
        assert len(each.token_ids) == each.prompt_tokens + each.output_tokens
        before = last.get(each.conversation_id, ())
        assert each.token_ids[: len(before)] == before
        last[each.conversation_id] = each.token_ids
    assert len(last) == 40
    assert len({each.token_ids[:9] for each in made}) == 2


def test_a_branch_goes_on_from_an_answer_that_was_gone_on_from() -> None:
    made = conversations(3, num_conversations=40, num_turns=4, branch_share=0.5)
    firsts = [
        each
        for each in made
        if each.turn
        and not any(
            other.conversation_id == each.conversation_id and other.turn < each.turn
            for other in made
        )
    ]
    assert 10 < len(firsts) < 30
    for first in firsts:
        parents = [
            other
            for other in made
            if other.turn == first.turn - 1
            and first.token_ids[: len(other.token_ids)] == other.token_ids
            and len(other.token_ids) < first.prompt_tokens
        ]
        assert len(parents) == 1
        assert parents[0].arrival_s < first.arrival_s
        assert [other.turn for other in made if other.conversation_id == first.conversation_id] == [
            *range(first.turn, 4)
        ]


@given(
    seed=st.integers(0, 2**32),
    num_conversations=st.integers(1, 6),
    num_turns=st.integers(1, 4),
    share=st.sampled_from([0, 0.5, 1]),
    vocab_size=st.integers(1, 50),
)
def test_any_conversations_are_in_order_of_arrival_and_within_the_vocabulary(
    seed: int, num_conversations: int, num_turns: int, share: float, vocab_size: int
) -> None:
    made = conversations(
        seed, num_conversations, num_turns, branch_share=share, vocab_size=vocab_size
    )
    arrivals = [each.arrival_s for each in made]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0
    assert [each.request_id for each in made] == list(range(len(made)))
    assert len(made) <= num_conversations * num_turns
    assert all(0 <= token < vocab_size for each in made for token in each.token_ids)
    if not share:
        assert len(made) == num_conversations * num_turns


def test_a_seed_makes_up_the_same_conversations_on_every_host() -> None:
    made = conversations(seed=0)
    text = json.dumps([[each.arrival_s, each.prompt_tokens, *each.token_ids] for each in made])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "d0f994f8d7f5ab7e"
    assert made.description.startswith("made up, not a trace")
    assert len(repr(made)) < 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_turns": 0}, "num_turns must be at least 1, got 0"),
        ({"branch_share": 1.5}, r"branch_share must be within \[0, 1\], got 1.5"),
    ],
)
def test_conversations_that_cannot_be_made_say_why(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conversations(0, **arguments)


def test_nothing_here_touches_the_callers_random_numbers() -> None:
    random.seed(1)
    state = random.getstate()
    sample("azure-conv", 10, seed=0)
    conversations(0)
    assert random.getstate() == state


# Files


def write(folder: Path, name: str, text: str, packed: bool = False) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


requests_ms = st.lists(
    st.tuples(st.integers(0, 10**8), st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1
).map(lambda rows: [(at - min(rows)[0], prompt, output) for at, prompt, output in sorted(rows)])


@given(rows=requests_ms, start_ticks=st.integers(0, 10**7 - 1), jitter=st.integers(-4999, 4999))
def test_azures_form_and_the_compact_one_give_equal_requests(
    tmp_path_factory: pytest.TempPathFactory, rows: list, start_ticks: int, jitter: int
) -> None:
    folder = tmp_path_factory.mktemp("azure")
    compact = "arrival_ms,context_tokens,generated_tokens\n"
    compact += "".join(f"{at},{prompt},{output}\n" for at, prompt, output in rows)
    published = "TIMESTAMP,ContextTokens,GeneratedTokens"
    for i, (at, prompt, output) in enumerate(rows):
        # Ticks of 100 ns; whatever is less than half a millisecond away rounds to the same one.
        ticks = start_ticks + at * 10_000 + (jitter if at else 0) * (i > 0)
        seconds, fraction = divmod(ticks, 10**7)
        stamp = datetime(2023, 11, 16, 23, 59, 59) + timedelta(seconds=seconds)
        published += f"\r\n{stamp}.{fraction:07d},{prompt},{output}"
    theirs = load(write(folder, "published.csv", published))
    ours = load(write(folder, "compact.csv.gz", compact, packed=True))
    assert theirs.requests == ours.requests
    assert [each.arrival_s for each in ours] == [at / 1000 for at, _, _ in rows]


def test_half_a_millisecond_goes_to_the_even_one(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:15:46.{ticks},1,1\n" for ticks in (6805900, 6820900, 6830900, 6840900)
    )
    arrivals = [each.arrival_s for each in load(write(tmp_path, "azure.csv", text))]
    assert arrivals == [0, 0.002, 0.002, 0.004]


def test_mooncakes_form_and_the_compact_one_give_equal_requests(tmp_path: Path) -> None:
    compact = "[0,1000,5,[[0,2]]]\n[0,1025,1,[[0,1],[7,2]]]\n[3000,512,9,[[0,1]]]\n"
    ids = [[0, 1], [0, 7, 8], [0]]
    published = "".join(
        json.dumps({"timestamp": t, "input_length": p, "output_length": o, "hash_ids": ids[i]})
        + "\n"
        for i, (t, p, o) in enumerate([(0, 1000, 5), (0, 1025, 1), (3000, 512, 9)])
    )
    ours = load(write(tmp_path, "compact.jsonl.gz", compact, packed=True))
    assert load(write(tmp_path, "published.jsonl", published)).requests == ours.requests
    assert [each.block_ids for each in ours] == [(0, 1), (0, 7, 8), (0,)]
    assert [each.arrival_s for each in ours] == [0, 0, 3]


def test_lengths_without_times_have_no_arrivals(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, "own.csv", "context_tokens,generated_tokens\n304,822\n"))
    assert loaded.requests == (workloads.Request(0, None, 304, 822),)
    assert loaded.name == "own.csv"
    assert "a file kvlib knows nothing more about, all 1 requests" in loaded.description


def test_a_byte_order_mark_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    plain = load(write(tmp_path, "plain.csv", AZURE + "0,1,2\n5,3,4\n"))
    marked = load(write(tmp_path, "marked.csv", "\ufeff" + AZURE + "0,1,2\r\n\r\n5,3,4\r\n\r\n"))
    assert marked.requests == plain.requests


AZURE = "arrival_ms,context_tokens,generated_tokens\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", None, "holds no request"),
        (AZURE, None, "holds no request"),
        ("a,b,c\n1,2,3\n", 1, "no known trace starts with 'a,b,c'"),
        (AZURE + "0,1,2\n1,5\n", 3, "a row has 3 fields, got 2"),
        (AZURE + "0,1,2\n1,5,x\n", 3, "'x' is no whole number"),
        (AZURE + "0,1,2\n1,5,1_0\n", 3, "'1_0' is no whole number"),
        (AZURE + "0,1,-2\n", 2, "'-2' is no whole number"),
        (AZURE + "0,0,2\n", 2, "at least 1 prompt token and 1 output token, got 0 and 2"),
        (AZURE + "9,1,2\n8,1,2\n", 3, "arrives at 8 ms, the row above at 9 ms"),
        (AZURE + f"0,{'9' * 20},2\n", 2, r"is no whole number from 0 to 2\*\*53"),
        (AZURE.replace("ms", "s"), 1, "no known trace starts with 'arrival_s,context_tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n18:15,1,2\n", 2, "Invalid isoformat string"),
        ('{"timestamp": 0, "input_length": 1}\n', 1, "the field 'hash_ids' is missing"),
        ("[0,1,1,[[0,1]]]\n[0,1]\n", 2, "a row is .timestamp_ms, input_length"),
        ("[0,1,1,[[0,1]]]\n{}\n", 2, "a row is .timestamp_ms, input_length"),
        ("[0,1,1,[[0,1]]]\n[0,1,1,[[0,1]]\n", 2, "Expecting"),
        ("[0,1.0,1,[[0,1]]]\n", 1, "1.0 is no whole number"),
        ("[0,true,1,[[0,1]]]\n", 1, "True is no whole number"),
        ("[5,1,1,[[0,1]]]\n[null,1,1,[[0,1]]]\n", 2, "None is no whole number"),
        ("[0,513,1,[[0,1]]]\n", 1, "513 prompt tokens have 2 block ids, got 1"),
        ("[0,512,1,[[0,2]]]\n", 1, "512 prompt tokens have 1 block ids, got 2"),
        ("[0,1,1,[[0,2],[9,-1]]]\n", 1, "-1 is no whole number"),
        ("[0,512000000000,1,[[0,1000000000]]]\n", 1, "block ids in the file: more than 5,000,000"),
        ("[" * 60_000, 1, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_malformed_row_is_refused_with_line_and_reason(
    text: str, line: int | None, reason: str, packed: bool, tmp_path: Path
) -> None:
    path = write(tmp_path, "bad.txt", text, packed)
    where = "bad.txt holds" if line is None else f"bad.txt, line {line}: "
    with pytest.raises(ValueError, match=reason) as refused:
        load(path)
    assert str(refused.value).startswith(where)
    assert len(str(refused.value)) < 300


def test_a_broken_gzip_stream_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress((AZURE + "0,1,2\n" * 5000).encode())
    for i, broken in enumerate((whole[:-20], whole[:60] + b"\0" * 20 + whole[80:])):
        path = tmp_path / f"broken{i}.csv.gz"
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=rf"broken{i}.csv.gz, line \d+: "):
            load(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(AZURE.encode() + b"0,1,2\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"bad\.csv, line 3: .*utf-8"):
        load(path)


@pytest.mark.parametrize(
    ("limit", "most", "text", "reason"),
    [
        (
            "MAX_LINE_BYTES",
            64,
            AZURE + "0,1," + "0" * 60 + "2",
            "line 2: bytes in the line: more th",
        ),
        ("MAX_FILE_BYTES", 100, AZURE + "0,1,2\n" * 50, "bytes in the file: more than 100"),
        ("MAX_ROWS", 10, AZURE + "0,1,2\n" * 10, "line 11: lines: more than 10"),
        ("MAX_BLOCK_IDS", 3, "[0,1024,1,[[0,2]]]\n" * 2, "line 2: block ids in the file: more"),
    ],
)
def test_a_file_that_grows_past_a_limit_is_refused(
    limit: str, most: int, text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "huge.gz", text, packed=True)
    assert load(path).requests
    module = trace_files if limit == "MAX_BLOCK_IDS" else trace_lines
    monkeypatch.setattr(module, limit, most)
    with pytest.raises(ValueError, match=reason):
        load(path)


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(b"0" * 2**20)
    with pytest.raises(ValueError, match="line 1: bytes in the line: more than 65,536"):
        load(path)


# Finding a trace


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("KVLIB_TRACES", raising=False)
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_name_is_found_in_the_named_folder_then_the_given_then_the_cache(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = traces.trace("azure-conv")
    cached = traces.cache_folder() / known.publisher_file
    given, named = nowhere / "given" / known.compact_file, nowhere / "named" / known.compact_file
    for path in (cached, given, named):
        path.parent.mkdir(parents=True)
        path.write_text(AZURE + "0,1,2\n")
    assert traces.find("azure-conv") == cached
    assert traces.find("azure-conv", [given.parent]) == given
    monkeypatch.setenv("KVLIB_TRACES", str(named.parent))
    assert traces.find("azure-conv", [given.parent]) == named
    loaded = load("azure-conv")
    assert loaded.name == load(str(cached)).name == "azure-conv"
    assert loaded.source == known.source
    assert loaded.description == (
        "the trace azure-conv (chat requests of an Azure service), "
        "all 1 requests read from azure2023_conv.csv.gz"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("azure-code", "python -m kvlib.fetch azure-code"),
        ("arxiv", r"traces; workloads\.sample\('arxiv', ...\) needs no file"),
    ],
)
def test_a_trace_that_is_nowhere_says_how_to_get_it(nowhere: Path, name: str, hint: str) -> None:
    with pytest.raises(FileNotFoundError, match=hint):
        load(name)


def test_a_wrong_name_and_a_wrong_path_are_told_apart(nowhere: Path) -> None:
    with pytest.raises(ValueError, match="no trace 'azure'; known: azure-conv, azure-code"):
        load("azure")
    with pytest.raises(FileNotFoundError, match=r"azure\.csv"):
        load(str(nowhere / "azure.csv"))
