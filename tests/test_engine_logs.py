"""A line of an engine's log says one thing, says nothing of the cache, or is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.engine_logs import LONGEST, LogError, parse
from kvlib.log_values import Size

# Formats as they were printed, the numbers are ours. Version and where the format was read:
KNOWN = {
    # vllm-project/vllm#2136 (0.2.3 to 0.2.5) and #10517 (0.5.4)
    "vLLM 0.2": (
        "INFO 12-15 10:00:00 llm_engine.py:222] # GPU blocks: 2880, # CPU blocks: 1310",
        ("pool", "12-15 10:00:00", "", {"blocks": 2880, "host_blocks": 1310}),
    ),
    "vLLM 0.6 weights": (
        "INFO 11-21 10:00:00 model_runner.py:1077] Loading model weights took 14.9596 GB",
        ("weights", "11-21 10:00:00", "", {"memory": Size(14.9596, "GB")}),
    ),
    "vLLM 0.6 concurrency": (
        "Maximum concurrency for 20000 tokens per request: 2.30x",
        ("pool", "", "", {"max_len": 20_000, "concurrency": 2.3}),
    ),
    # #6206 (a logger's date before the engine's), #2853
    "vLLM 0.5 load": (
        "[2024-07-08 15:17:34] INFO 07-08 07:17:34 metrics.py:334] Avg prompt throughput: 650.4 "
        "tokens/s, Avg generation throughput: 69.5 tokens/s, Running: 4 reqs, Swapped: 1 reqs, "
        "Pending: 3 reqs, GPU KV cache usage: 15.5%, CPU KV cache usage: 2.0%.",
        (
            *("load", "07-08 07:17:34", ""),
            {
                **{"prompt_tokens_s": 650.4, "output_tokens_s": 69.5, "running": 4},
                **{"swapped": 1, "waiting": 3, "used_share": 0.155, "host_share": 0.02},
            },
        ),
    ),
    # #11517: the logging module's own form
    "vLLM 0.6 load, logged by the application": (
        "2024-12-23 18:28:10 - vllm.engine.metrics - INFO - Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 45.5 tokens/s, Running: 1 reqs, Swapped: 0 reqs, Pending: 3 "
        "reqs, GPU KV cache usage: 3.0%, CPU KV cache usage: 0.0%",
        (
            *("load", "2024-12-23 18:28:10", ""),
            {
                **{"prompt_tokens_s": 0, "output_tokens_s": 45.5, "running": 1},
                **{"swapped": 0, "waiting": 3, "used_share": 0.03, "host_share": 0},
            },
        ),
    ),
    # #17954 (0.8, V0)
    "vLLM 0.8 hits": (
        "INFO 05-11 12:04:19 [metrics.py:502] Prefix cache hit rate: GPU: 12.50%, CPU: 0.00%",
        ("hits", "05-11 12:04:19", "", {"hit_rate": 0.125, "host_hit_rate": 0}),
    ),
    # GAIR-NLP/LIMO#29, #9342, #546
    "vLLM V0 preemption": (
        "WARNING 10-28 11:16:41 scheduler.py:1483] Sequence group chat-7e is preempted by "
        "PreemptionMode.SWAP mode because there is not enough KV cache space. This can affect the "
        "end-to-end performance. Increase gpu_memory_utilization or tensor_parallel_size to "
        "provide more KV cache memory. total_num_cumulative_preemption=151",
        ("preempted", "10-28 11:16:41", "", {"request": "chat-7e", "mode": "SWAP", "total": 151}),
    ),
    # #13596 (0.7.3), #14226
    "vLLM V1 pool": (
        "INFO 02-19 23:56:55 kv_cache_utils.py:524] GPU KV cache size: 46,080 tokens",
        ("pool", "02-19 23:56:55", "", {"tokens": 46_080}),
    ),
    "vLLM V1 memory": (
        "\x1b[1;36m(EngineCore_DP0 pid=1509)\x1b[0;0m INFO 02-12 08:34:25 [gpu_worker.py:360] "
        "Available KV cache memory: 5.62 GiB",
        ("pool", "02-12 08:34:25", "EngineCore_DP0 pid=1509", {"memory": Size(5.62, "GiB")}),
    ),
    "vLLM V1 weights": (
        "INFO 02-12 08:33:42 [gpu_model_runner.py:4216] Model loading took 14.96 GiB memory and "
        "19.4 seconds",
        ("weights", "02-12 08:33:42", "", {"memory": Size(14.96, "GiB")}),
    ),
    # #31353 (0.13), intel/llm-scaler#391
    "vLLM V1 load": (
        "api-1  | (APIServer pid=851) INFO 04-28 22:54:32 [loggers.py:257] Engine 001: Avg prompt "
        "throughput: 1,000.0 tokens/s, Avg generation throughput: 5.4 tokens/s, Running: 1 reqs, "
        "Waiting: 14 reqs, GPU KV cache usage: 76.5%, Prefix cache hit rate: 92.0%, External "
        "prefix cache hit rate: 7.5%",
        (
            *("load", "04-28 22:54:32", "Engine 001"),
            {
                **{"prompt_tokens_s": 1000, "output_tokens_s": 5.4, "running": 1, "waiting": 14},
                **{"used_share": 0.765, "hit_rate": 0.92, "external_hit_rate": 0.075},
            },
        ),
    ),
    # 0.33.0, v1/metrics/loggers.py: deferred and fetched are named when there are any
    "vLLM 0.33 load": (
        "(APIServer pid=7) INFO 11-02 08:30:10 [loggers.py:335] Engine 000: Avg prompt throughput: "
        "310.0 tokens/s, Avg generation throughput: 402.5 tokens/s, Running: 31 reqs, Waiting: 9 "
        "reqs, Deferred: 6 reqs, KV fetch: 1 waiting to start, 3 in progress, 2 completed waiting, "
        "Preemptions: 4, GPU KV cache usage: 97.5%, Prefix cache hit rate: 52.0%, External prefix "
        "cache hit rate: 11.0%, MM cache hit rate: 0.0%",
        (
            *("load", "11-02 08:30:10", "Engine 000"),
            {
                **{"prompt_tokens_s": 310, "output_tokens_s": 402.5, "running": 31, "waiting": 9},
                **{"deferred": 6, "preempted": 4, "used_share": 0.975, "hit_rate": 0.52},
                **{"external_hit_rate": 0.11},
            },
        ),
    ),
    # 0.33.0, the same file: several engines told together, on a device that is no GPU
    "vLLM 0.33 load, added up, on a processor": (
        "INFO 11-02 08:30:10 [loggers.py:335] 2 Engines Aggregated: Avg prompt throughput: 10.0 "
        "tokens/s, Avg generation throughput: 2.5 tokens/s, Running: 1 reqs, Waiting: 0 reqs, CPU "
        "KV cache usage: 3.5%",
        (
            *("load", "11-02 08:30:10", "2 Engines Aggregated"),
            {
                **{"prompt_tokens_s": 10, "output_tokens_s": 2.5, "running": 1, "waiting": 0},
                **{"used_share": 0.035},
            },
        ),
    ),
    # 0.33.0, v1/core/kv_cache_utils.py
    "vLLM 0.33 pool on another device": (
        "XPU KV cache size: 46,080 tokens, Maximum concurrency for 8,192 tokens per request: 5.62x",
        ("pool", "", "", {"tokens": 46_080, "max_len": 8192, "concurrency": 5.62}),
    ),
    # #54662 (2026-09, 22df3a3): size and concurrency on one line
    "vLLM 0.30 pool": (
        "GPU KV cache size: 46,080 tokens, Maximum concurrency for 8,192 tokens per request: 5.62x",
        ("pool", "", "", {"tokens": 46_080, "max_len": 8192, "concurrency": 5.62}),
    ),
    # sgl-project/sglang#393 (2024-04)
    "SGLang 2024-04": (
        "#running-req: 5, #token: 1938, token usage: 0.24, #queue-req: 0",
        ("load", "", "", {"running": 5, "used_tokens": 1938, "used_share": 0.24, "waiting": 0}),
    ),
    # #1612 (2024-10)
    "SGLang 0.3 prefill": (
        "[16:43:29 TP0] Prefill batch. #new-seq: 4, #new-token: 8192, #cached-token: 292, cache "
        "hit rate: 2.75%, token usage: 0.04, #running-req: 1, #queue-req: 38",
        (
            *("prefill", "16:43:29", "TP0"),
            {
                **{"new_requests": 4, "new_tokens": 8192, "cached_tokens": 292},
                **{"hit_rate": 0.0275, "used_share": 0.04, "running": 1, "waiting": 38},
            },
        ),
    ),
    # #3909 (2025-02), #22331 (2026-04)
    "SGLang 0.4 load": (
        "[2025-02-27 04:46:39 TP0] Decode batch. #running-req: 8, #token: 62531, token usage: "
        "0.12, gen throughput (token/s): 186.50, #queue-req: 0",
        (
            *("load", "2025-02-27 04:46:39", "TP0"),
            {
                **{"running": 8, "used_tokens": 62_531, "used_share": 0.12},
                **{"output_tokens_s": 186.5, "waiting": 0},
            },
        ),
    ),
    # 0.5.23, managers/scheduler_components/metrics_reporter.py and pool_stats_observer.py
    "SGLang 0.5.23, full and windowed layers": (
        "[2026-05-24 03:51:44 DP0 TP0] Decode batch [77], #running-req: 4, #full token: 264000, "
        "full token usage: 1.00, #swa token: 14592, swa token usage: 0.06, cuda graph: True, gen "
        "throughput (token/s): 429.50, #queue-req: 3, ",
        (
            *("load", "2026-05-24 03:51:44", "DP0 TP0"),
            {
                **{"running": 4, "used_tokens": 264_000, "used_share": 1.0},
                **{"output_tokens_s": 429.5, "waiting": 3},
            },
        ),
    ),
    # 0.5.23, mem_cache/memory_pool.py and managers/scheduler.py
    "SGLang 0.5.23 pool": (
        "[2026-05-24 03:51:00 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 46080, "
        "K size: 2.81 GB, V size: 2.81 GB",
        (
            *("pool", "2026-05-24 03:51:00", "TP0"),
            {"tokens": 46_080, "keys": Size(2.81, "GB"), "values": Size(2.81, "GB")},
        ),
    ),
    "SGLang 0.5 pool of a latent": (
        "KV Cache is allocated. #tokens: 60000, KV size: 3.93 GB",
        ("pool", "", "", {"tokens": 60_000, "memory": Size(3.93, "GB")}),
    ),
    "SGLang limits": (
        "max_total_num_tokens=46080, chunked_prefill_size=2048, max_prefill_tokens=16384, "
        "max_running_requests=33, context_len=8192, available_gpu_mem=0.87 GB",
        ("pool", "", "", {"tokens": 46_080, "max_running": 33, "max_len": 8192}),
    ),
    "SGLang weights": (
        "[2026-05-24 03:50:00] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail "
        "mem=6.61 GB, mem usage=14.96 GB.",
        ("weights", "2026-05-24 03:50:00", "", {"memory": Size(14.96, "GB")}),
    ),
    "SGLang retraction": (
        "[2026-05-24 03:51:50] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
        "#new_tokens_gained: 646, #new_token_ratio: 0.0980 -> 0.3487",
        ("preempted", "2026-05-24 03:51:50", "", {"count": 2, "ratio": (0.098, 0.3487)}),
    ),
}

LOAD = (
    "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 1 reqs,"
    " Waiting: 0 reqs, GPU KV cache usage: 15.0%"
)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_line_is_read_whole(name):
    line, said = KNOWN[name]
    entry = parse(line)
    assert (entry.kind, entry.stamp, entry.who, entry.facts) == said
    assert entry.engine == name.split()[0]


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        (
            "SGLang 0.5.23, full and windowed layers",
            ("#swa token", "swa token usage", "cuda graph"),
        ),
        ("SGLang retraction", ("#new_tokens_gained",)),
        ("vLLM V1 load", ()),
        ("vLLM 0.33 load", ("kv fetch", "mm cache hit rate")),
        ("SGLang weights", ("type", "dtype", "avail mem")),
    ],
)
def test_values_without_a_name_here_are_named_not_lost(name, unread):
    assert parse(KNOWN[name][0]).unread == unread


@pytest.mark.parametrize(
    "line",
    [
        "",
        'INFO:     127.0.0.1:32978 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "INFO 05-04 09:00:33 [logger.py:43] Received request r1: prompt: 'what is " + LOAD + "?'",
        "INFO 05-04 09:00:33 [loggers.py:118] The line 'Engine 000: " + LOAD + "' is new",
        "the line Decode batch. #running-req: 5, #token: 1938, token usage: 0.24, #queue-req: 0",
        "he wrote: INFO 05-04 09:00:33 [loggers.py:118] Engine 000: " + LOAD,
        "Loading weights took 0.21 seconds",
        "Model loading took a while",
        "KV cache pool is full.",
    ],
)
def test_a_line_that_speaks_of_something_else_or_quotes_is_not_known(line):
    assert parse(line) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (LOAD.replace("15.0%", "nan%"), "'gpu kv cache usage' has 'nan%'"),
        (LOAD.replace(" 2.0 tokens/s", " inf tokens/s"), "'avg generation throughput' has 'inf"),
        (LOAD.replace("15.0%", "115.0%"), "more than the whole"),
        (LOAD.replace("15.0%", "-1.0%"), "not a number of at least 0"),
        (LOAD.replace("Running: 1 reqs", "Running: 1.5 reqs"), "no whole number"),
        (LOAD.replace(" Waiting: 0 reqs,", ""), r"it lacks \['waiting'\]"),
        (LOAD[:60], "it lacks"),
        ("GPU KV cache size: tokens", "'gpu kv cache size' has 'tokens'"),
        ("Available KV cache memory: 5.62 GIB", "none of the units"),
        ("Available KV cache memory: 5.62", "'available kv cache memory' has '5.62'"),
        ("Maximum concurrency for many tokens per request: 2x", "it lacks"),
        ("KV Cache is allocated. K size: 1.00 GB, V size: 1.00 GB", r"it lacks \['tokens'\]"),
        ("Sequence group 7 is preempted by PreemptionMode.SWAP mode because", r"lacks \['total'\]"),
        ("KV cache pool is full. Retract requests. #retracted_reqs: two", "'#retracted_reqs' has"),
        (LOAD.replace("GPU KV", "CPU KV cache usage: 1.0%, XPU KV"), r"it lacks \['used_share'\]"),
        (LOAD.replace(" GPU", " Preemptions: some, GPU"), "'preemptions' has 'some'"),
        (LOAD.replace(" GPU", " Deferred: -1 reqs, GPU"), "'deferred' has '-1 reqs'"),
    ],
)
def test_a_known_line_that_cannot_be_read_is_one_clear_error(line, reason):
    with pytest.raises(LogError, match=reason) as error:
        parse(line)
    assert line[:50] in str(error.value)
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)


def test_units_are_kept_and_turned_into_bytes_only_when_asked():
    printed = parse("Available KV cache memory: 8.11 GiB").facts["memory"]
    assert printed == Size(8.11, "GiB")
    assert printed.nbytes() == round(8.11 * 2**30)
    assert Size(8.23, "GB").nbytes() == 8_230_000_000
    assert Size(8.23, "GB").nbytes("GiB") == round(8.23 * 2**30)
    assert Size(1.5, "MB").nbytes() == 1_500_000
    assert Size(1.5, "MiB").nbytes() == Size(1.5, "MB").nbytes("MiB") == 1_572_864


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("01-01 00:00:01", 1),
        ("03-01 00:00:00", 60 * 86_400),  # no year: the 29th of February is counted
        ("2001-03-01 00:00:00", (366 + 59) * 86_400),
        ("02:03:04", 2 * 3600 + 3 * 60 + 4),
    ],
)
def test_a_stamp_is_seconds_since_2000_or_since_midnight(stamp, seconds):
    assert parse(LOAD)._replace(stamp=stamp).seconds == seconds


def test_no_stamp_is_no_time_and_an_impossible_one_is_an_error():
    assert parse(LOAD).seconds is None
    with pytest.raises(LogError, match="'02-30 00:00:00' is no time"):
        _ = parse(LOAD)._replace(stamp="02-30 00:00:00").seconds


@given(st.text(max_size=300))
def test_any_text_is_unknown_known_or_refused_and_never_anything_else(text):
    for line in (text, LOAD + text, "INFO 05-04 09:00:33 [loggers.py:118] " + text):
        try:
            entry = parse(line)
        except LogError:
            continue
        assert entry is None or entry.facts


@given(st.integers(0, 10**7), st.integers(0, 4096), st.integers(0, 4096), st.integers(0, 1000))
def test_what_a_format_prints_is_what_is_read(tokens, running, waiting, permille):
    facts = parse(
        f"Engine 000: Avg prompt throughput: {tokens / 10:.1f} tokens/s, Avg generation throughput:"
        f" 0.0 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: "
        f"{permille / 10:.1f}%, Prefix cache hit rate: {permille / 10:.1f}%"
    ).facts
    assert facts["prompt_tokens_s"] == pytest.approx(tokens / 10)
    assert (facts["running"], facts["waiting"]) == (running, waiting)
    assert facts["used_share"] == facts["hit_rate"] == pytest.approx(permille / 1000)


def test_words_behind_a_value_that_is_known_are_named_and_do_not_spoil_it():
    assert parse(LOAD + ", idle").unread == ("idle",)
    assert parse(LOAD + ", news: 1 here, 2 there, Corrupted: 0 reqs").unread == (
        "news",
        "corrupted",
    )


def test_a_share_has_six_digits():
    assert parse(LOAD.replace("15.0%", "12.34567%")).facts["used_share"] == 0.123457


def test_what_stands_behind_the_concurrency_is_read_too():
    line = (
        "Maximum concurrency for 8,192 tokens per request: 5.62x, GPU KV cache size: 46,080 tokens"
    )
    assert parse(line).facts == {"max_len": 8192, "concurrency": 5.62, "tokens": 46_080}


def test_what_stands_behind_4096_characters_is_not_read():
    line = "GPU KV cache size: " + "46080".rjust(4097 - len("GPU KV cache size: "))
    assert parse(line).facts == {"tokens": 4608}


def test_a_very_long_line_is_looked_at_only_at_its_beginning():
    assert parse("x" * 10**7) is None
    assert parse(LOAD + ", Note: " + "y" * 10**6).facts["used_share"] == 0.15
    assert parse(" " * LONGEST + LOAD) is None
