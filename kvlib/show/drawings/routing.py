"""Several instances with a cache each, and a router: what is found, and who is busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from kvlib.catalog import gpu, model
from kvlib.clock import RooflineClock
from kvlib.conversations import conversations
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.router import LeastLoaded, PrefixAffinity, RoundRobin, Router, TwoChoices
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.serving_run import ServingRun
from kvlib.show.drawings.controls import Choice, Slider
from kvlib.show.drawings.registry import drawing
from kvlib.show.drawings.svg import MARGIN, ROOM, WIDTH, Canvas

BLOCK_SIZE, NUM_BLOCKS, INSTANCES = 16, 1000, 4
ROUTERS: dict[str, Callable[[float], Router]] = {
    "round robin": lambda cap: RoundRobin(),
    "least loaded": lambda cap: LeastLoaded(),
    "two choices": lambda cap: TwoChoices(seed=0),
    "prefix, whatever the load": lambda cap: PrefixAffinity(inf),
    "prefix, with a cap": PrefixAffinity,
}
_ROW = 42


@dataclass
class Tally:
    """A router that notes how many prompt tokens each instance was sent."""

    router: Router
    sent: list[int]

    def choose(self, request: Request, instances: list) -> int:
        """Asks the router, and notes its answer."""
        which = self.router.choose(request, instances)
        self.sent[which] += request.prompt_tokens
        return which


@cache
def requests_of(num_systems: int, pace: int) -> tuple[Request, ...]:
    """Returns the requests of 40 conversations of 4 turns, `pace` times as fast as people are."""
    made = conversations(
        0,
        num_conversations=40,
        num_turns=4,
        num_system_prompts=num_systems,
        system_tokens=400,
        user_tokens=80,
        output_tokens=80,
    )
    return tuple(replace(r, arrival_s=r.arrival_s / pace) for r in made)


@cache
def routed(name: str, num_systems: int, pace: int, cap: float) -> tuple[ServingRun, list[int]]:
    """Serves the conversations on four instances; returns the run and the tokens sent to each."""
    tally = Tally(ROUTERS[name](cap), [0] * INSTANCES)
    instances = [Scheduler(KVMemory(NUM_BLOCKS, BLOCK_SIZE, HashIndex)) for _ in range(INSTANCES)]
    run = serve(
        requests_of(num_systems, pace),
        instances,
        RooflineClock(gpu("A10"), model("Llama-3-8B")),
        content=lambda request: content_of(request, BLOCK_SIZE),
        router=tally,
    )
    return run, tally.sent


@drawing(
    router=Choice(list(ROUTERS), "prefix, with a cap", "router"),
    systems=Slider([1, 2, 4, 8], 1, "different system prompts"),
    pace=Slider([20, 60, 150, 400], 60, "pace (times as fast as people)"),
    cap=Slider([1.0, 1.25, 1.5, 2.0, 4.0], 1.5, "cap (times the mean load)"),
)
def routing(router: str, systems: int, pace: int, cap: float) -> str:
    """Draws the prompt tokens sent to each of four instances, the hit rate and the waiting."""
    run, sent = routed(router, systems, pace, cap if router.endswith("cap") else 1.0)
    most, mean = max(sent), sum(sent) / len(sent)
    tail = run.ttft_s.percentile(99)
    figures = (
        f"{100 * run.prefix_hit_rate:.0f} % of the prompt tokens were found in a cache.",
        f"The busiest instance was sent {most / mean:.1f} times the mean.",
        f"First token, simulated: {run.ttft_s.percentile(50):.2f} s in the median, {tail:.2f} s at"
        " the 99th percentile.",
    )
    capped = f"; cap {cap:g}" if router.endswith("cap") else ""
    canvas = Canvas(
        "routing",
        176 + _ROW * INSTANCES,
        f"Router: {router}",
        f"Prompt tokens sent to each instance: {', '.join(f'{n:,}' for n in sent)}. "
        f"{' '.join(figures)}",
        under=f"{len(requests_of(systems, pace))} requests, {INSTANCES} instances, "
        f"an A10 each{capped}",
    )
    for i, tokens in enumerate(sent):
        y = 84 + _ROW * i
        canvas.text(MARGIN, y, f"instance {i}")
        canvas.text(WIDTH - MARGIN, y, f"{tokens:,} tokens", "end")
        canvas.rect(MARGIN, y + 8, ROOM, 14, "paper", "faint")
        canvas.rect(MARGIN, y + 8, ROOM * tokens / sum(sent), 14, "prefill", "faint")
    y = 92 + _ROW * INSTANCES
    for i, words in enumerate(figures):
        y = canvas.paragraph(y, words, bold=i == 0) + 4
    return canvas.svg()
