"""Times the parts of a prefill and of a decode step: python measure/step_profile.py.

The same step of the real model three ways: a prompt; one token, layer by layer as the model is
written; one token with all layers in one call. Each is timed as it is, and once more under torch's
profiler, which slows what it watches: so the record has the seconds of the first and the shares of
the second. What no operator accounts for is Python. On a card the shares are those of the
processor, which starts the work there; the seconds are waited for.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

import kvlib
from bandwidth import limits, peaks
from first_cache import smollm2_shape
from kvlib.catalog import model as published
from kvlib.roofline import attention_flops, prefill_flops
from kvlib.tensors import decode_step
from kvlib.tensors.llama import Llama
from record import rounds, spread, write

PROMPT, REPEATS, PROFILED = 512, 15, 5
BATCHES = (1, 8)
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
NAMED = ("attention", "write", "head", "all layers")


class ByLayer(kvlib.PagedKVCache):
    """A paged cache with methods of its own: asked layer by layer, and they can be watched."""

    def write(self, *arguments: object) -> None:
        """Writes as any paged cache does."""
        super().write(*arguments)

    def attend(self, *arguments: object) -> torch.Tensor:
        """Attends as any paged cache does."""
        return super().attend(*arguments)


def named(name: str, work: Callable) -> Callable:
    """Returns the same work, under a name that a profiler sees."""

    def run(*arguments: object) -> object:
        with record_function(name):
            return work(*arguments)

    return run


@contextmanager
def watched(model: Llama) -> Iterator[None]:
    """Gives writing, attending, the head and the one call names; takes them away at the end."""
    write, attend = ByLayer.write, ByLayer.attend
    layers, head = decode_step.all_layers, model._logits
    decode_step.all_layers, model._logits = named("all layers", layers), named("head", head)
    ByLayer.write, ByLayer.attend = named("write", write), named("attention", attend)
    try:
        yield
    finally:
        decode_step.all_layers = layers
        ByLayer.write, ByLayer.attend = write, attend
        del model._logits


def stepper(model: Llama, kind: type, batch: int, new: int, past: int) -> Callable[[], None]:
    """Returns a step of `new` tokens of each sequence behind `past` ones, to be made many times."""
    blocks = batch * (-(-(past + new) // 16))
    cache = kind(model.kv_shape, blocks, 16, device=model.device)
    cache.store.keys.normal_()  # what nobody wrote is not in memory yet
    cache.store.values.normal_()
    for seq_id in range(batch):
        cache.add(seq_id)
    with cache.step({seq_id: [0] * past for seq_id in range(batch)}):
        pass
    tokens = torch.arange(batch * new, device=model.device)

    def run() -> None:
        with cache.step({seq_id: [0] * new for seq_id in range(batch)}) as plan:
            model(tokens, cache, plan)
        for seq_id in range(batch):
            cache.truncate(seq_id, past)

    return run


def part(event: FunctionEvent) -> str:
    """Returns which part of a step an operator belongs to: the named one around it, if any."""
    outer = event
    while outer is not None:
        if outer.name in NAMED:
            return outer.name
        outer = outer.cpu_parent
    return "products" if event.name in PRODUCTS else "small operators"


def parts(run: Callable[[], None]) -> dict[str, object]:
    """Returns the share of each part of a profiled step, and how many operators Python called."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(PROFILED):
            with record_function("step"):
                run()
    events = [event for event in found.events() if event.name != "step"]
    whole = sum(event.cpu_time_total for event in found.events() if event.name == "step")
    times: Counter[str] = Counter()
    for event in events:
        times[part(event)] += event.self_cpu_time_total
    calls = sum(
        event.name.startswith("aten::")
        and not (event.cpu_parent and event.cpu_parent.name.startswith("aten::"))
        for event in events
    )
    times["Python"] = whole - sum(times.values())
    shares = {name: float(f"{time / whole:.3g}") for name, time in times.items()}
    return {"shares": shares, "operators": calls // PROFILED}


def phases(model: Llama) -> dict[str, tuple[Callable[[], None], dict[str, object]]]:
    """Returns each phase as a call, with the bytes it must read and the operations it must do."""
    shape, numbers = published("SmolLM2-135M"), sum(w.numel() for w in model.parameters())
    weights, token = 4 * numbers, model.kv_shape.bytes_per_token("float32")
    found = {}
    for batch in BATCHES:
        work = {"batch": batch, "bytes": weights + batch * PROMPT * token}
        work["flops"] = batch * (2 * numbers + attention_flops(shape, PROMPT))
        for name, kind in (("by layer", ByLayer), ("in one call", kvlib.PagedKVCache)):
            run = stepper(model, kind, batch, 1, PROMPT - 1)
            found[f"decode {batch}, {name}"] = (run, work)
    head = model.config.vocab_size * model.config.hidden_size  # meets the last token only
    flops = prefill_flops(shape, PROMPT) - 2 * (PROMPT - 1) * head
    work = {"batch": 1, "bytes": weights + PROMPT * token, "flops": flops}
    return {"prefill": (stepper(model, ByLayer, 1, PROMPT, 0), work), **found}


def main() -> None:
    """Writes the record `step_profile.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device, chosen = kvlib.device(), "--random" in sys.argv
    weights = "random weights of its shape" if chosen else "its weights"
    if chosen:
        model = Llama.random(smollm2_shape(), seed=0, device=device)
    else:
        model, _ = kvlib.load_model(device=device)
    made, bounds = phases(model), limits(device)
    calls = {name: call for name, (call, _) in {**made, **bounds}.items()}
    times = rounds(calls, REPEATS)
    rows = {}
    with watched(model):
        for name, (call, work) in made.items():
            rows[name] = {**work, "step_s": spread(times[name]), **parts(call)}
    limit = peaks(
        {name: spread([amount / t for t in times[name]]) for name, (_, amount) in bounds.items()}
    )
    data = {"model": f"SmolLM2-135M, {weights}, float32", "tokens": PROMPT, **limit, "phases": rows}
    files = (
        *("llama", "decode_step", "step", "kernels/few_rows"),
        *("paged", "paged_attention", "paged_context"),
    )
    code = [*(f"kvlib/tensors/{name}.py" for name in files), "kvlib/tensors/kernels/few_rows.cpp"]
    write("step_profile", data, (*code, "measure/step_profile.py"), device)


if __name__ == "__main__":
    main()
