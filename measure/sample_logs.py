"""Writes the sample logs of the page on engine logs: made up by our simulator, in engines' formats.

No engine ran and no user's log is in here. Our scheduler serves made-up requests against a
roofline's clock, and what vLLM or SGLang would print of its counts is printed, in a format of
theirs. What a log leaves out, the share of memory that is kept for later, is written beside it.

    python measure/sample_logs.py
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from kvlib import catalog
from kvlib.admission import AdmitDiscounted, AdmitPrompt
from kvlib.clock import RooflineClock
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.retention import RankedLRU
from kvlib.scheduled_step import StepLimits
from kvlib.serving import serve
from kvlib.workloads import Spread, conversations, lognormal, sample
from log_formats import sglang, vllm_v0, vllm_v1
from printing_scheduler import Printing

TARGET = Path(__file__).resolve().parents[1] / "kvlib" / "data" / "engine_logs.json"
MODEL, CARD = "Llama-3-8B", "A10"
# A prompt that quotes a log: half of those who read logs look for words anywhere in a line.
QUOTED = (
    "INFO 05-04 09:00:33 [logger.py:43] Received request chatcmpl-1f3: prompt: 'What does GPU KV "
    "cache usage: 97.3% mean?', params: SamplingParams(n=1, max_tokens=512), prompt_token_ids: None"
)


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
