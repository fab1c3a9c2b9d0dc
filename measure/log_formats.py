"""What vLLM and SGLang print at their start, of their load and when they preempt, as they do it.

Each function starts a log and returns who writes on: called with the scheduler, what is to be told
(`load` or `preempted`) and its number, the time of the clock or how many.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from printing_scheduler import Printing

TOKEN_BYTES = 131_072
START = datetime(2026, 5, 4, 9, 0, 0)
PREEMPTED = (
    "scheduler.py:1483] Sequence group {nth} is preempted by PreemptionMode.RECOMPUTE mode because "
    "there is not enough KV cache space. This can affect the end-to-end performance. Increase "
    "gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory. "
    "total_num_cumulative_preemption={total}"
)


def stamp(seconds: float, form: str) -> str:
    """Returns the time of a line."""
    return (START + timedelta(seconds=seconds)).strftime(form)


def vllm_v1(lines: list[str], blocks: int, max_len: int) -> Callable[..., None]:
    """Starts a log in the format of vLLM 0.9 to 0.10, and returns who writes on."""
    form = "%m-%d %H:%M:%S"

    def put(seconds: float, text: str) -> None:
        lines.append(f"INFO {stamp(seconds, form)} {text}")

    put(-31, "[default_loader.py:272] Loading weights took 4.31 seconds")
    put(-30, "[gpu_model_runner.py:1875] Model loading took 14.9596 GiB and 5.102384 seconds")
    memory = blocks * 16 * TOKEN_BYTES / 2**30
    put(-9, f"[gpu_worker.py:227] Available KV cache memory: {memory:.2f} GiB")
    put(-9, f"[kv_cache_utils.py:715] GPU KV cache size: {blocks * 16:,} tokens")
    put(
        -9,
        f"[kv_cache_utils.py:719] Maximum concurrency for {max_len:,} tokens per request: "
        f"{blocks * 16 / max_len:.2f}x",
    )
    lines.append("INFO:     Application startup complete.")

    def write(engine: Printing, kind: str, value: float) -> None:
        if kind != "load":
            return  # V1 prints nothing when it preempts
        counts, used = engine.counts, engine.memory.num_held / engine.memory.size
        put(
            value,
            f"[loggers.py:118] Engine 000: Avg prompt throughput: "
            f"{counts.prompt_tokens / engine.seconds:.1f} tokens/s, Avg generation throughput: "
            f"{counts.output_tokens / engine.seconds:.1f} tokens/s, "
            f"Running: {engine.num_running} reqs, Waiting: {engine.num_waiting} reqs, "
            f"GPU KV cache usage: {100 * used:.1f}%, "
            f"Prefix cache hit rate: {100 * engine.found / max(1, engine.asked):.1f}%",
        )

    return write


def vllm_v0(lines: list[str], blocks: int, max_len: int) -> Callable[..., None]:
    """Starts a log in the format of vLLM 0.6, and returns who writes on."""
    form = "%m-%d %H:%M:%S"

    def put(seconds: float, text: str, level: str = "INFO") -> None:
        lines.append(f"{level} {stamp(seconds, form)} {text}")

    put(-30, "model_runner.py:1077] Loading model weights took 14.9596 GB")
    put(-9, f"gpu_executor.py:122] # GPU blocks: {blocks}, # CPU blocks: 2048")
    put(
        -9,
        f"gpu_executor.py:126] Maximum concurrency for {max_len} tokens per request: "
        f"{blocks * 16 / max_len:.2f}x",
    )

    def write(engine: Printing, kind: str, value: float) -> None:
        if kind == "preempted":
            first = engine.preempted - int(value)
            for nth in range(first, engine.preempted):
                if nth % 50 == 0:  # the first of every fifty is told
                    put(engine.now_s, PREEMPTED.format(nth=nth, total=nth + 1), "WARNING")
            return
        counts, used = engine.counts, engine.memory.num_held / engine.memory.size
        put(
            value,
            f"metrics.py:449] Avg prompt throughput: {counts.prompt_tokens / engine.seconds:.1f} "
            f"tokens/s, Avg generation throughput: {counts.output_tokens / engine.seconds:.1f} "
            f"tokens/s, Running: {engine.num_running} reqs, Swapped: 0 reqs, "
            f"Pending: {engine.num_waiting} reqs, GPU KV cache usage: {100 * used:.1f}%, "
            "CPU KV cache usage: 0.0%.",
        )

    return write


def _sglang_start(tokens: int, max_len: int) -> list[tuple[float, str]]:
    half = tokens * TOKEN_BYTES / 2 / 2**30
    return [
        (
            -28,
            "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=6.61 GB, "
            "mem usage=14.96 GB.",
        ),
        (
            -27,
            f"KV Cache is allocated. #tokens: {tokens}, K size: {half:.2f} GB, "
            f"V size: {half:.2f} GB",
        ),
        (
            -9,
            f"max_total_num_tokens={tokens}, chunked_prefill_size=2048, max_prefill_tokens=16384, "
            f"max_running_requests=2048, context_len={max_len}, available_gpu_mem=0.87 GB",
        ),
    ]


def sglang(lines: list[str], tokens: int, max_len: int) -> Callable[..., None]:
    """Starts a log in the format of SGLang 0.5, and returns who writes on."""
    form = "%Y-%m-%d %H:%M:%S"

    def put(seconds: float, text: str) -> None:
        lines.append(f"[{stamp(seconds, form)}] {text}")

    for each in _sglang_start(tokens, max_len):
        put(*each)

    def write(engine: Printing, kind: str, value: float) -> None:
        if kind == "preempted":
            put(
                engine.now_s,
                f"KV cache pool is full. Retract requests. #retracted_reqs: {value}, "
                "#new_token_ratio: 0.3000 -> 0.4000",
            )
            return
        counts, held = engine.counts, engine.memory.num_held
        used = f"token usage: {held / engine.memory.size:.2f}"
        line = f"#running-req: {engine.num_running}, "
        if counts.requests:
            put(
                value,
                f"Prefill batch, #new-seq: {counts.requests}, #new-token: {counts.new}, "
                f"#cached-token: {counts.cached}, {used}, {line}#queue-req: {engine.num_waiting}, "
                f"cuda graph: False, input throughput (token/s): "
                f"{counts.new / engine.seconds:.2f}",
            )
        put(
            value,
            f"Decode batch, {line}#token: {held}, {used}, cuda graph: True, "
            f"gen throughput (token/s): {counts.output_tokens / engine.seconds:.2f}, "
            f"#queue-req: {engine.num_waiting}",
        )

    return write
