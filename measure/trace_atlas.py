"""Every engine of the atlas on the same requests: python measure/trace_atlas.py.

Stretches of two traces and made-up conversations, short enough to be run again by a test;
`engine_atlas.py` has the whole traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from kvlib import atlas, catalog
from kvlib.clock import RooflineClock
from kvlib.comparison import compare, slots_on
from kvlib.comparison_rows import row
from kvlib.engine_configs import Configuration
from kvlib.request import Request
from kvlib.scheduled_step import StepLimits
from kvlib.serving_run import Target
from kvlib.workloads import conversations
from whole_traces import load, record_figures

TRACES = ("azure-conv", "mooncake-conv")
TARGET = Target(ttft_s=5.0, tpot_s=0.1)


class Server(NamedTuple):
    """One card with one model, the longest request and the limits of a step."""

    gpu: str
    model: str
    max_seq_len: int
    limits: StepLimits

    @property
    def num_slots(self) -> int:
        """Tokens of memory."""
        return slots_on(catalog.gpu(self.gpu), catalog.model(self.model))

    @property
    def clock(self) -> RooflineClock:
        """The time of its steps."""
        return RooflineClock(catalog.gpu(self.gpu), catalog.model(self.model))

    def described(self) -> dict[str, Any]:
        """Returns it as a record holds it."""
        steps = {"step_tokens": self.limits.max_tokens, "at_once": self.limits.max_running}
        named = {"gpu": self.gpu, "model": self.model, "max_seq_len": self.max_seq_len}
        return named | steps | {"num_slots": self.num_slots}


SMALL = Server("L4", "Llama-3-8B", 8192, StepLimits(2048, 256))
FASTER = Server("A100 40GB", "Llama-3-8B", 8192, StepLimits(2048, 256))
LARGE = Server("H200 SXM", "Qwen2.5-7B", 131_072, StepLimits(8192, 1024))


class Load(NamedTuple):
    """Requests on a server; `least_block` where a trace does not know what smaller blocks hold."""

    server: Server
    about: str
    max_new_tokens: int
    requests: tuple[Request, ...]
    least_block: int = 1


def paced(requests: Iterable[Request], stretch: float, max_new_tokens: int) -> tuple[Request, ...]:
    """Returns the requests with a longest output, and their times multiplied."""
    return tuple(
        replace(r, arrival_s=r.arrival_s * stretch, max_new_tokens=max_new_tokens) for r in requests
    )


def loads() -> dict[str, Load]:
    """Returns what is served, by name."""
    chat, long = (load(name).requests for name in TRACES)
    talk = conversations(
        0, 40, num_system_prompts=3, system_tokens=700, user_tokens=60, output_tokens=150
    )
    first, begin = "the first {} requests of {}", "all at once"
    about = first.format(400, "azure-conv")
    at_once, spread = paced(chat[:400], 0, 1024), paced(chat[:400], 5, 1024)
    pages = first.format(300, "mooncake-conv") + ", at the trace's pace"
    return {
        "chat, all at once": Load(SMALL, f"{about}, {begin}", 1024, at_once),
        "chat, below saturation": Load(SMALL, f"{about}, five times as slowly", 1024, spread),
        "chat on a faster card": Load(FASTER, f"{about}, {begin}", 1024, at_once),
        "long prompts": Load(LARGE, pages, 2048, paced(long[:300], 1, 2048), 16),
        "conversations": Load(
            SMALL, f"{talk.description}; four times as fast", 300, paced(talk, 0.25, 300)
        ),
    }


def adapted(configuration: Configuration, least_block: int) -> Configuration:
    """Returns a configuration whose blocks are as large as a trace needs them."""
    size = configuration.block_size
    small = isinstance(size, int) and size < least_block
    return replace(configuration, block_size=least_block) if small else configuration


def served(load: Load, names: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Returns a row for each engine, of one load."""
    found, server = {}, load.server
    for name in names or atlas.engines():
        engine = atlas.engine(name)
        run = compare(
            {name: adapted(engine.configuration, load.least_block)},
            load.requests,
            server.num_slots,
            server.max_seq_len,
            limits=server.limits,
            shape=catalog.model(server.model).kv,
            clock=server.clock,
            target=TARGET,
        )[name]
        found[name] = row(run, timed=not engine.no_clock)
    return found


def described(load: Load) -> dict[str, Any]:
    """Returns what a record says of a load."""
    fields: Mapping[str, Any] = {
        "about": load.about,
        "num_requests": len(load.requests),
        "mean_prompt": round(sum(r.prompt_tokens for r in load.requests) / len(load.requests)),
        "max_new_tokens": load.max_new_tokens,
        "least_block": load.least_block,
    }
    return {**fields, **load.server.described()}


def figures() -> dict[str, Any]:
    """Returns everything the record holds of the traces."""
    return {
        "target": asdict(TARGET),
        "sources": {name: load(name).source for name in TRACES},
        "loads": {
            name: described(each) | {"engines": served(each)} for name, each in loads().items()
        },
    }


CODE = (
    *("kvlib/scheduler.py", "kvlib/admission.py", "kvlib/kv_memory.py", "kvlib/prefix.py"),
    "kvlib/hash_index.py",
    *("kvlib/radix.py", "kvlib/retention.py", "kvlib/clock.py", "kvlib/engine_configs.py"),
    *("kvlib/running_batch.py", "kvlib/scheduled_step.py"),
    *("kvlib/comparison.py", "kvlib/comparison_rows.py"),
)

if __name__ == "__main__":
    record_figures("trace_atlas", figures, TRACES, (*CODE, "measure/trace_atlas.py"))
