"""Writes the sample logs of the page on engine logs: made up by our simulator, in engines' formats.

No engine ran and no user's log is in here. Our scheduler serves made-up requests against a
roofline's clock, and what vLLM or SGLang would print of its counts is printed, in a format of
theirs. What a log leaves out, the share of memory that is kept for later, is written beside it.

    python measure/sample_logs.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from kvlib import catalog
from kvlib.admission import AdmitDiscounted, AdmitPrompt
from kvlib.clock import RooflineClock
from kvlib.content import TokenContent
from kvlib.kv_memory import KVMemory
from kvlib.prefix import HashIndex
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.retention import RankedLRU
from kvlib.scheduler import Scheduler, Step, StepLimits
from kvlib.served import ServedRequest
from kvlib.serving import serve
from kvlib.workloads import Spread, conversations, lognormal, sample

TARGET = Path(__file__).resolve().parents[1] / "kvlib" / "data" / "engine_logs.json"
MODEL, CARD = "Llama-3-8B", "A10"
TOKEN_BYTES = 131_072
# A prompt that quotes a log: half of those who read logs look for words anywhere in a line.
QUOTED = (
    "INFO 05-04 09:00:33 [logger.py:43] Received request chatcmpl-1f3: prompt: 'What does GPU KV "
    "cache usage: 97.3% mean?', params: SamplingParams(n=1, max_tokens=512), prompt_token_ids: None"
)
START = datetime(2026, 5, 4, 9, 0, 0)


class Counts:
    """What happened since a line was printed last."""

    def __init__(self) -> None:
        self.prompt_tokens = self.output_tokens = self.new = self.cached = self.requests = 0


class Printing(Scheduler):
    """A scheduler that prints a line of load now and then, as an engine does."""

    def every(self, seconds: float, write: Callable[..., None]) -> None:
        """Prints every so many seconds of the clock."""
        self.seconds, self.write, self.due, self.counts = seconds, write, seconds, Counts()
        self.truth: list[list[float]] = []
        self.preempted = self.asked = self.found = 0
        self.now_s = 0.0

    def schedule(self) -> Step:
        """Schedules a step, and prints what is due."""
        step = super().schedule()
        if step.num_preempted:
            self.preempted += step.num_preempted
            self.write(self, "preempted", step.num_preempted)
        # After scheduling: who came between two steps has had its chance to begin.
        while self.now_s >= self.due:
            memory = self.memory
            shares = [round(part / memory.size, 4) for part in (memory.num_held, memory.num_kept)]
            self.truth.append([self.due, *shares])
            self.write(self, "load", self.due)
            self.due += self.seconds
            self.counts = Counts()
        return step

    def report(self, step: Step, now_s: float = 0.0) -> list[ServedRequest]:
        """Notes what a step has computed and found."""
        counts, before = self.counts, {job: job.num_outputs for job, _ in step.work}
        self.now_s = now_s
        for job, n in step.work:
            if not job.num_outputs and job.num_computed == job.num_cached:
                counts.requests += 1
                counts.cached += job.num_cached
                self.asked += job.request.prompt_tokens
                self.found += job.num_cached
            counts.new += n if not job.num_outputs else 0
        done = super().report(step, now_s)
        for job, made in before.items():
            counts.output_tokens += job.num_outputs - made
            counts.prompt_tokens += job.request.prompt_tokens * (made == 0 < job.num_outputs)
        return done


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
            # The first of every fifty is told.
            first = engine.preempted - int(value)
            for nth in range(first, engine.preempted):
                if nth % 50 == 0:
                    put(
                        engine.now_s,
                        f"scheduler.py:1483] Sequence group {nth} is preempted by "
                        "PreemptionMode.RECOMPUTE mode because there is not enough KV cache "
                        "space. This can affect the end-to-end performance. Increase "
                        "gpu_memory_utilization or tensor_parallel_size to provide more KV cache "
                        f"memory. total_num_cumulative_preemption={nth + 1}",
                        "WARNING",
                    )
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


def sglang(lines: list[str], tokens: int, max_len: int) -> Callable[..., None]:
    """Starts a log in the format of SGLang 0.5, and returns who writes on."""
    form, half = "%Y-%m-%d %H:%M:%S", tokens * TOKEN_BYTES / 2 / 2**30

    def put(seconds: float, text: str) -> None:
        lines.append(f"[{stamp(seconds, form)}] {text}")

    put(
        -28,
        "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=6.61 GB, "
        "mem usage=14.96 GB.",
    )
    put(
        -27,
        f"KV Cache is allocated. #tokens: {tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB",
    )
    put(
        -9,
        f"max_total_num_tokens={tokens}, chunked_prefill_size=2048, max_prefill_tokens=16384, "
        f"max_running_requests=2048, context_len={max_len}, available_gpu_mem=0.87 GB",
    )

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


def serve_and_print(
    requests: list[Request], scheduler: Printing, seconds: float, block_size: int
) -> None:
    """Serves until nobody is to come and nobody waits."""
    clock = RooflineClock(catalog.gpu(CARD), catalog.model(MODEL))

    def content(request: Request) -> TokenContent | None:
        known = request.token_ids
        return None if known is None else TokenContent(known, block_size)

    scheduler.seconds = seconds
    serve(requests, scheduler, clock, content=content, drain=False)


def quiet() -> tuple[str, Printing, list[str]]:
    """Returns a chat whose users come back, in more memory than it asks for."""
    lines: list[str] = []
    scheduler = Printing(KVMemory(2880, 16, HashIndex), limits=StepLimits(2048, 256))
    scheduler.every(10.0, vllm_v1(lines, 2880, 8192))
    talk = conversations(5, 60, 5, 2, 900, 60, 220, branch_share=0.0)
    requests = [replace(r, arrival_s=r.arrival_s / 3) for r in talk]
    serve_and_print(requests, scheduler, 10.0, 16)
    lines.insert(9, QUOTED)
    return "vLLM 0.9 to 0.10 (V1)", scheduler, lines


def capped() -> tuple[str, Printing, list[str]]:
    """Returns a server that may run eight requests at a time."""
    lines: list[str] = []
    scheduler = Printing(KVMemory(2880, 16), limits=StepLimits(2048, 8))
    scheduler.every(10.0, vllm_v1(lines, 2880, 8192))
    requests = list(sample("azure-conv", 220, 1, rate=1.6))
    serve_and_print(requests, scheduler, 10.0, 16)
    return "vLLM 0.9 to 0.10 (V1)", scheduler, lines


def full() -> tuple[str, Printing, list[str]]:
    """Returns long answers in a memory that runs out again and again."""
    lines: list[str] = []
    limits = StepLimits(chunked_prefill=False, prefill_first=True)
    scheduler = Printing(KVMemory(983, 16), limits=limits, admission=AdmitPrompt(0.01))
    scheduler.every(5.0, vllm_v0(lines, 983, 4096))
    made = lognormal(300, 3, Spread(160, 1.0), Spread(340, 0.9), 2048)
    requests = [replace(r, arrival_s=i / 3) for i, r in enumerate(made)]
    serve_and_print(requests, scheduler, 5.0, 16)
    return "vLLM 0.6 (V0)", scheduler, lines


def cautious() -> tuple[str, Printing, list[str]]:
    """Returns clients who allow 4,096 tokens of answer and get a tenth, under a careful rule."""
    lines: list[str] = []
    scheduler = Printing(
        KVMemory(46_080, 1, lambda pool: RadixTree(pool, RankedLRU())),
        limits=StepLimits(2048, 2048),
        admission=AdmitDiscounted(0.7, 0.14, 600, 4096, 20),
    )
    scheduler.every(6.0, sglang(lines, 46_080, 8192))
    made = sample("azure-conv", 260, 4, rate=3.0)
    requests = [replace(r, max_new_tokens=4096) for r in made]
    serve_and_print(requests, scheduler, 6.0, 1)
    return "SGLang 0.5", scheduler, lines


def main() -> None:
    logs = {}
    for make in (quiet, capped, full, cautious):
        form, scheduler, lines = make()
        logs[make.__name__] = {
            "what": make.__doc__.removeprefix("Returns ").rstrip("."),
            "format": form,
            "preempted": scheduler.preempted,
            "lines": lines,
            "truth": scheduler.truth,
        }
    note = "made up by measure/sample_logs.py: no engine ran; truth is [seconds, used, kept]"
    data = {"note": note, "model": MODEL, "card": CARD, "logs": logs}
    TARGET.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
