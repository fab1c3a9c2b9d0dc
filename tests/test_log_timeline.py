"""A whole log is read in bounded memory, and nothing in it is silently lost."""

import importlib
import json
import math
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.engine_logs import LogError
from kvlib.load_samples import STATES, Sample
from kvlib.log_timeline import OTHERS, one_request_share, read

ROOT = Path(__file__).resolve().parents[1]
KEPT = json.loads((files("kvlib") / "data" / "engine_logs.json").read_text(encoding="utf-8"))


def load(used=0.15, running=1, waiting=0, who="", stamp=""):
    start = f"INFO {stamp} [loggers.py:118] " if stamp else ""
    return (
        f"{start}{who}Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s,"
        f" Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {100 * used:.1f}%"
    )


def preempted(total):
    return (
        f"Sequence group {total} is preempted by PreemptionMode.RECOMPUTE mode because there is "
        f"not enough KV cache space. total_num_cumulative_preemption={total}"
    )


def test_every_line_is_counted_once():
    log = read(["", "hello", load(), "   ", preempted(1), load(), "bye"])
    assert (log.blank, log.unknown, sum(log.kinds.values())) == (2, 2, 3)
    assert log.kinds == {"load": 2, "preempted": 1}


def test_values_that_have_no_name_here_are_counted_by_name():
    line = "Decode batch, #running-req: 5, #token: 19, token usage: 0.24, #queue-req: 0, news: 3"
    assert read([line, line]).unread == {"news": 2}


def test_the_number_of_a_line_that_cannot_be_read_is_told():
    with pytest.raises(LogError, match=r"^line 3: a load line of vLLM"):
        read([load(), "hello", load().replace("15.0%", "much")])


def test_two_engines_in_one_log_are_not_mixed():
    lines = [load(who="Engine 000: "), load(0.5, who="Engine 001: ")]
    with pytest.raises(LogError, match="line 2: load of 'Engine 000' and 'Engine 001'"):
        read(lines)
    assert [s.used_share for s in read(lines, who="Engine 001").samples] == [0.5]
    with pytest.raises(LogError, match="line 2: a line of SGLang in a log of vLLM"):
        read([load(), "#running-req: 5, #token: 19, token usage: 0.24, #queue-req: 0"])


def test_what_was_said_of_the_pool_comes_together_and_the_last_one_holds():
    log = read(
        [
            "Available KV cache memory: 5.62 GiB",
            "GPU KV cache size: 46,080 tokens",
            "GPU KV cache size: 46,064 tokens",
            "Maximum concurrency for 8,192 tokens per request: 5.62x",
        ]
    )
    assert log.pool_tokens() == 46_064 and log.pool["memory"].unit == "GiB"
    assert log.pool_tokens() / log.pool["max_len"] == pytest.approx(5.62, abs=0.005)


def test_blocks_are_tokens_only_when_their_size_is_told():
    log = read(["# GPU blocks: 112, # CPU blocks: 1310"])
    assert (log.pool_tokens(), log.pool_tokens(block_size=32)) == (1792, 3584)
    assert read([]).pool_tokens() is None


def test_what_a_line_of_load_counts_itself_is_lost_memory_since_the_line_before():
    told = load().replace(" GPU", " Preemptions: 3, GPU")
    log = read([load(), told, preempted(2), told, load()])
    assert [s.preempted for s in log.samples] == [0, 3, 5, 0] and log.preempted == 8
    assert log.samples[1].state == "memory full" and log.samples[3].state == "room for more"


def test_what_another_engine_counts_is_not_ours():
    lines = [load(who=f"Engine 00{i}: ").replace(" GPU", f" Preemptions: {i}, GPU") for i in (1, 4)]
    assert read(lines, who="Engine 001").preempted == 1


def test_preemptions_are_those_since_the_sample_before():
    log = read([load(), preempted(1), preempted(51), load(), load(), preempted(101)])
    assert [s.preempted for s in log.samples] == [0, 51, 50]
    assert log.preempted == 101
    each = "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.1 -> 1"
    line = "#running-req: 5, #token: 1938, token usage: 0.24, #queue-req: 0"
    assert [s.preempted for s in read([each, line, each, each, line]).samples] == [3, 6]


@pytest.mark.parametrize(
    ("sample", "state"),
    [
        (Sample(0, 0, 0, 0, 0.0, 0), "idle"),
        (Sample(0, 0, 5, 0, 0.15, 0), "room for more"),
        (Sample(0, 0, 5, 0, 0.99, 0), "room for more"),
        (Sample(0, 0, 5, 1, 0.9, 0), "memory full"),
        (Sample(0, 0, 5, 0, 0.5, 1), "memory full"),
        (Sample(0, 0, 5, 1, 0.89, 0), "held back"),
        (Sample(0, 0, 0, 3, 0.0, 0), "held back"),
    ],
)
def test_memory_is_what_is_waited_for_only_where_it_is_full_or_was_taken_back(sample, state):
    assert sample.state == state and state in STATES


def test_what_was_found_of_prompts_is_added_up_or_kept_as_printed_last():
    prefill = "Prefill batch, #new-seq: 1, #new-token: {}, #cached-token: {}, #running-req: 1, "
    log = read([(prefill + "#queue-req: 0").format(*both) for both in ((100, 20), (30, 50))])
    assert (log.prompt_tokens, log.cached_tokens, log.hit_rate) == (200, 70, None)
    rates = [load() + f", Prefix cache hit rate: {rate}%" for rate in ("40.0", "60.0")]
    assert read([*rates, load()]).hit_rate == 0.6
    hits = "Prefix cache hit rate: GPU: 12.50%, CPU: 0.00%"
    assert read([load(), hits]).hit_rate == 0.125


def test_what_the_weights_take_is_kept_with_its_unit():
    log = read(["Loading model weights took 14.9596 GB"])
    assert log.weights["memory"].unit == "GB" and not log.pool


def test_times_count_from_the_first_load_line_and_pass_midnight_and_new_year():
    stamps = ["12-31 23:59:50", "12-31 23:59:55", "01-01 00:00:05"]
    times = [s.start_s for s in read([load(stamp=s) for s in stamps]).samples]
    assert times == [0, 5, 15]
    line = "[{}] #running-req: 5, #token: 1938, token usage: 0.24, #queue-req: 0"
    years = ("2026-12-31 23:59:50", "2027-01-01 00:00:05")
    assert [s.start_s for s in read(map(line.format, years)).samples] == [0, 15]
    clock = ("23:59:50", "00:00:05", "00:00:04", "00:00:10")
    assert [s.start_s for s in read(map(line.format, clock)).samples] == [0, 15, 15, 20]
    days = ("23:59:50", "00:00:05", "12:00:00", "23:59:55", "00:00:10", "12:00:00")
    times = [s.start_s for s in read(map(line.format, days)).samples]
    assert times == [0, 15, 43_210, 86_405, 86_420, 129_610]


@pytest.mark.parametrize(
    ("stamps", "times"),
    [
        # A year is in the stamp: nothing far back is a new one.
        (("2026-05-04 09:00:00", "2025-09-04 09:00:00", "2026-05-04 09:00:07"), [0, 0, 7]),
        (("2026-05-04 23:00:00", "2026-05-04 01:00:00"), [0, 0]),
        # Half a day or half a year back, and a little less.
        (("20:00:00", "08:00:01"), [0, 0]),
        (("20:00:00", "08:00:00"), [0, 0]),
        (("20:00:00", "07:59:59"), [0, 43_199]),
        (("09:00:10", "09:00:00", "09:00:20"), [0, 0, 10]),
    ],
)
def test_a_clock_that_is_set_back_stands_still(stamps, times):
    line = "[{}] #running-req: 5, #token: 1938, token usage: 0.24, #queue-req: 0"
    assert [s.start_s for s in read(map(line.format, stamps)).samples] == times


def test_an_engine_that_begins_anew_counts_anew():
    log = read([load(), preempted(101), load(), preempted(1), preempted(51), load()])
    assert [s.preempted for s in log.samples] == [0, 101, 51] and log.preempted == 152
    assert read([preempted(51), preempted(51)]).preempted == 51


def test_preemptions_behind_the_last_load_line_are_not_lost():
    assert [s.preempted for s in read([load(), load(), preempted(1)]).samples] == [0, 1]
    assert read([preempted(1)]).preempted == 1


def test_who_never_speaks_is_an_error_that_names_those_who_do():
    lines = [load(who=f"Engine {i:03}: ") for i in range(20)]
    with pytest.raises(
        LogError, match=r"nobody called 'Engine 7' speaks, but \['Engine 000', "
    ) as error:
        read(lines, who="Engine 7")
    assert str(error.value).endswith("'Engine 006', 'Engine 007'] do")
    assert not read(["hello"], who="Engine 7").samples


def test_what_is_not_text_is_refused_and_what_is_hostile_is_counted_or_refused():
    with pytest.raises(TypeError, match="a line of a log is text, got bytes"):
        read([load().encode()])
    binary = bytes(range(256)).decode("utf-8", "replace")
    log = read([binary, "\0" * 5000, "x" * 10**7, " " * 10**6, load()])
    assert (log.unknown, log.blank, len(log.samples)) == (3, 1, 1)
    with pytest.raises(LogError, match="line 1: '99:99:99' is no time"):
        read(["[99:99:99] #running-req: 5, #token: 19, token usage: 0.24, #queue-req: 0"])


def test_lines_without_a_time_are_one_apart():
    assert [s.start_s for s in read([load()] * 3).samples] == [0, 1, 2]
    timed = load(stamp="01-01 00:00:05")
    assert [s.start_s for s in read([load(), timed, load()]).samples] == [0, 5, 6]


def test_neighbours_are_joined_two_and_two():
    joined = {most: read([load()] * 9, most=most).samples for most in (2, 4, 8, 9)}
    spans = {most: [(s.start_s, s.end_s) for s in samples] for most, samples in joined.items()}
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 8)]
    assert spans == {
        2: [(0, 3), (4, 7), (8, 8)],
        4: [(0, 1), (2, 3), (4, 5), (6, 7), (8, 8)],
        8: pairs,
        9: [(i, i) for i in range(9)],
    }


SHARES = st.lists(st.integers(0, 1000), min_size=1, max_size=300)


@settings(max_examples=60)
@given(SHARES, st.integers(2, 9), st.data())
def test_a_thinned_log_keeps_its_peaks_and_all_preemptions(permille, most, data):
    lines, total = [], 0
    for share in permille:
        more = data.draw(st.sampled_from((0, 0, 0, 50)))
        total += more
        lines += [preempted(total)] * bool(more) + [load(share / 1000, share % 11, share % 7)]
    log = read(lines, most=most)
    assert 1 <= len(log.samples) <= most + 1
    assert max(s.used_share for s in log.samples) == max(permille) / 1000
    assert max(s.waiting for s in log.samples) == max(share % 7 for share in permille)
    assert max(s.running for s in log.samples) == max(share % 11 for share in permille)
    assert sum(s.preempted for s in log.samples) == log.preempted == total
    ends = [0.0, *(s.end_s for s in log.samples)]
    assert all(a <= s.start_s <= s.end_s for a, s in zip(ends, log.samples, strict=False))
    assert log.samples[0].start_s == 0 and log.samples[-1].end_s == len(permille) - 1
    # All stretches but the last are of the same number of lines, a power of two.
    spans = {s.end_s - s.start_s for s in log.samples[:-1]}
    assert len(spans) <= 1 and all(math.log2(span + 1).is_integer() for span in spans)


def test_a_log_of_any_length_takes_bounded_memory():
    code = (
        "import tracemalloc\n"
        "from kvlib.log_timeline import read\n"
        "line = '#running-req: 5, #token: 1938, token usage: 0.24, #queue-req: 0'\n"
        "def lines(n):\n"
        "    for i in range(n):\n"
        "        yield line\n"
        "        yield 'prompt ' + 'x' * 5000\n"
        "peaks = []\n"
        "for n in (500, 4000):\n"
        "    tracemalloc.start(); log = read(lines(n), most=64)\n"
        "    peaks.append(tracemalloc.get_traced_memory()[1]); tracemalloc.stop()\n"
        "    assert len(log.samples) <= 65 and log.unknown == n\n"
        "assert peaks[1] < 1.5 * peaks[0] + 50_000, peaks\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("most", "kind"), [(1, ValueError), (2.0, TypeError)])
def test_a_size_of_nothing_is_refused(most, kind):
    with pytest.raises(kind, match="most"):
        read([], most=most)


def test_a_request_holds_whole_blocks_of_the_pool():
    assert one_request_share(17, 320) == 0.1
    assert one_request_share(16, 320) == 0.05
    assert one_request_share(17, 340, block_size=1) == 0.05


@pytest.mark.parametrize("name", KEPT["logs"])
def test_the_samples_say_what_the_simulator_did(name):
    kept = KEPT["logs"][name]
    log = read(kept["lines"])
    assert len(log.samples) == len(kept["truth"]) >= 18
    for sample, (_, used, _kept) in zip(log.samples, kept["truth"], strict=True):
        assert abs(sample.used_share - used) <= 0.0051
    assert log.preempted <= kept["preempted"] < log.preempted + 50


def test_the_samples_are_what_the_script_writes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "measure")
    sample_logs = importlib.import_module("sample_logs")
    monkeypatch.setattr(sample_logs, "TARGET", tmp_path / "logs.json")
    sample_logs.main()
    assert json.loads((tmp_path / "logs.json").read_text(encoding="utf-8")) == KEPT


def test_names_that_never_end_are_counted_in_bounded_memory():
    line = "Decode batch, #running-req: 5, #token: 19, token usage: 0.24, #queue-req: 0"
    log = read(f"{line}, n{i}: 1" for i in range(1000))
    assert len(log.unread) == 257 and log.unread.total() == 1000
    assert log.unread[OTHERS] == 1000 - 256 and log.unread["n0"] == log.unread["n255"] == 1


class Endless:
    """A file whose second line has no end that anybody lives to see."""

    def __init__(self, num_bytes):
        self.lines, self.left, self.asked = [load() + "\n"], num_bytes, []

    def __iter__(self):
        raise AssertionError("read line by line, the second one fills the memory")

    def readline(self, most):
        self.asked.append(most)
        if self.lines:
            return self.lines.pop()
        part = min(most, self.left)
        self.left -= part
        return "x" * part


def test_a_line_without_end_is_read_in_pieces():
    file = Endless(5_000_000)
    log = read(file)
    assert (log.kinds["load"], log.unknown) == (1, 1)
    assert file.left == 0 and set(file.asked) == {4096}


def test_a_file_reads_as_its_lines_do(tmp_path):
    lines = [load(0.2), "", "x" * 10_000 + load(0.9), load(0.4) + ", z: " + "y" * 5000, "last"]
    path = tmp_path / "log"
    path.write_text("\n".join(lines))
    with path.open() as file:
        from_file = read(file)
    assert from_file == read(lines)
    assert (from_file.blank, from_file.unknown, len(from_file.samples)) == (1, 2, 2)
