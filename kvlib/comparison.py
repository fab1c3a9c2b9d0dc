"""The same requests, served by one engine's configuration after another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from kvlib.catalog import GPU, ModelShape
from kvlib.clock import Clock
from kvlib.content import Content
from kvlib.engine_configs import Configuration
from kvlib.kv_memory import KVMemory
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.serving_run import ServingRun, Target
from kvlib.sizes import KVShape
from kvlib.slot_memory import SlotMemory


def slots_on(gpu: GPU, model: ModelShape, kept_percent: int = 10) -> int:
    """Returns for how many tokens a card has memory, beside the weights and what is kept free.

    Weights and cache in 2 bytes an element.

    Example:
        (24e9 x 0.9 - 16.06e9) / 131,072 = 42,266:

        >>> from kvlib import catalog
        >>> slots_on(catalog.gpu("L4"), catalog.model("Llama-3-8B"))
        42266
    """
    room = gpu.memory_bytes * (100 - kept_percent) // 100 - model.weight_bytes("bfloat16")
    return room // model.kv.bytes_per_token("bfloat16")


class OwnContent:
    """The content of a request whose tokens nobody knows: like its own, and like nobody else's.

    One that has lost its memory may find its own blocks again, as in an engine.

    Example:
        >>> a, b = (OwnContent(Request(i, None, 5, 3), block_size=4) for i in (0, 1))
        >>> a.num_blocks, a.key(1) == a.key(1), a.key(1) == b.key(1)
        (2, True, False)
    """

    namespace = None

    def __init__(self, request: Request, block_size: int) -> None:
        self._request_id, self.block_size = request.request_id, block_size
        self.num_blocks = (request.prompt_tokens + request.output_tokens) // block_size

    def block(self, i: int) -> Hashable:
        """Returns whose block it is, and which."""
        return self._request_id, i

    key = block


def content_for(scheduler: Scheduler, *, own: bool = False) -> Callable[[Request], Content | None]:
    """Returns what says to a scheduler what a request's tokens are, in blocks of its own size.

    Args:
        scheduler: idle.
        own: a request whose tokens are not known is like nobody else (`OwnContent`), and may find
            again what it has lost; else nothing is looked up for it.
    """
    memory = scheduler.memory
    if isinstance(memory, SlotMemory):
        return lambda request: content_of(request, block_size=1)
    if not (isinstance(memory, KVMemory) and memory.prefixes is not None):
        return lambda request: None
    size = memory.block_size
    if own:
        return lambda request: content_of(request, size) or OwnContent(request, size)
    return lambda request: content_of(request, size)


def compare(
    configurations: Mapping[str, Configuration],
    requests: Iterable[Request],
    num_slots: int,
    max_seq_len: int,
    *,
    limits: StepLimits | None = None,
    shape: KVShape | None = None,
    clock: Clock | None = None,
    target: Target | None = None,
) -> dict[str, ServingRun]:
    """Serves the same requests with each configuration, in as much memory.

    A request whose tokens are not known is like no other; with an index it finds its own blocks
    again if it lost them and they were not given away.

    Args:
        configurations: by name; `{name: engine(name).configuration}`, or your own.
        requests: served by each from the first on.
        num_slots: tokens of memory.
        max_seq_len: the longest request.
        limits: of a step, the same for all; None leaves each its own.
        shape: of the model's cache, for units that hang on it; None for Llama-3-8B's.
        clock: as in `kvlib.serving.serve`.
        target: likewise.

    Raises:
        TypeError, ValueError: as `Configuration.build` and `serve`.

    Example:
        >>> requests = [Request(i, None, 20, 12) for i in range(4)]
        >>> runs = compare({"mine": Configuration(block_size=8)}, requests, 96, 64)
        >>> runs["mine"].finished, runs["mine"].peak_running
        (4, 4)
    """
    requests, options = tuple(requests), {"shape": shape} if shape else {}

    def run(configuration: Configuration, own: bool) -> ServingRun:
        scheduler = configuration.build(num_slots, max_seq_len, limits=limits, **options)
        content = content_for(scheduler, own=own)
        return serve(requests, scheduler, clock, content=content, target=target)

    runs = {}
    for name, configuration in configurations.items():
        runs[name] = run(configuration, own=False)
        # Where nobody lost memory there is nothing of one's own to find, and the run is the same.
        if runs[name].preempted and configuration.index is not None:
            runs[name] = run(configuration, own=True)
    return runs
