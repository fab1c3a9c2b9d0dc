"""Times reading, copying and multiplying, then steps of the real model: measure/bandwidth.py.

A set that fits a processor's cache is read faster than memory can deliver, so sets of several
sizes are read in turns; only the largest says what memory does. Then decode and prefill steps, each
with the bytes it must read and the operations it must do, in turns with the two speeds that bound
them, so that a busy machine slows all alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

import kvlib
from first_cache import smollm2_shape
from kvlib.catalog import model as published
from kvlib.roofline import attention_flops, prefill_flops
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.llama import Llama
from record import interleaved, write

REPEATS = 9
# 1 MiB fits a core's own cache; the last is larger than any cache by a wide margin.
SET_BYTES = (2**20, 2**24, 2**27, 2**29, 3 * 2**29)
AT_LEAST_BYTES = 2**28  # a small set is read so often that a timing is long enough
DECODES = ((1, 128), (1, 2048), (8, 128), (8, 2048))  # batch, context
PREFILL_TOKENS = 256


def wait(device: torch.device) -> None:
    """Waits until the device has done what it was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speeds(times: dict[str, float], amount: float) -> dict[str, float]:
    """Turns seconds for an amount into amount a second; the slow quartile becomes the low one."""
    pairs = {"median": times["median"], "q1": times["q3"], "q3": times["q1"]}
    return {name: float(f"{amount / seconds:.4g}") for name, seconds in pairs.items()}


def repeated(work: Callable[[], object], times: int, device: torch.device) -> Callable[[], None]:
    """Returns a call that does the work several times and waits once."""

    def run() -> None:
        for _ in range(times):
            work()
        wait(device)

    return run


def memory_speeds(size: int, device: torch.device) -> dict[str, object]:
    """Reads a set of `size` bytes three ways in turns: summed, times a vector, and copied."""
    data = torch.ones(size // 4, device=device).reshape(-1, 1024)
    vector, target = torch.ones(1024, device=device), torch.empty_like(data)
    passes = max(1, AT_LEAST_BYTES // size)
    ways = {
        "sum_gb_s": (data.sum, size),
        "matvec_gb_s": (lambda: data @ vector, size),
        "copy_gb_s": (lambda: target.copy_(data), 2 * size),  # read and written
    }
    calls = {name: repeated(work, passes, device) for name, (work, _) in ways.items()}
    times = interleaved(calls, REPEATS)
    moved = {name: passes * each / 1e9 for name, (_, each) in ways.items()}
    return {"set_bytes": size, **{name: speeds(times[name], moved[name]) for name in ways}}


class Decoding:
    """A batch of sequences of `context - 1` tokens, ready to decode one more again and again.

    The past is drawn at random: its values do not change the time, and a real prefill of the
    longest batch would take longer than all the rest. It must be written: memory that nobody wrote
    is not there yet, and reading it measures nothing.
    """

    def __init__(self, model: Llama, batch: int, context: int) -> None:
        self.model, self.batch, self.context = model, batch, context
        place = {"dtype": model.dtype, "device": model.device}
        self.cache = ContiguousKVCache(model.kv_shape, batch, context, **place)
        self.cache.store.keys.normal_()
        self.cache.store.values.normal_()
        for seq_id in range(batch):
            self.cache.add(seq_id)
        with self.cache.step({seq_id: [0] * (context - 1) for seq_id in range(batch)}):
            pass  # the lengths advance, the bytes are there
        self.tokens = torch.arange(batch, device=model.device)

    def step(self) -> None:
        """Decodes one token of each sequence and takes it back."""
        with self.cache.step({seq_id: [seq_id] for seq_id in range(self.batch)}) as plan:
            self.model(self.tokens, self.cache, plan)
        wait(self.model.device)
        for seq_id in range(self.batch):
            self.cache.truncate(seq_id, self.context - 1)

    def kv_bytes(self) -> int:
        """Returns the bytes of keys and values that one step reads, as the cache counts them."""
        before = self.cache.counters.snapshot()
        self.step()
        return self.cache.counters.since(before).bytes_read


def prefill_call(model: Llama) -> Callable[[], None]:
    """Returns a call that prefills a prompt into an empty row."""
    place = {"dtype": model.dtype, "device": model.device}
    cache = ContiguousKVCache(model.kv_shape, 1, PREFILL_TOKENS, **place)
    cache.add("prompt")
    tokens = torch.arange(PREFILL_TOKENS, device=model.device)

    def run() -> None:
        with cache.step({"prompt": [0] * PREFILL_TOKENS}) as plan:
            model(tokens, cache, plan)
        wait(model.device)
        cache.truncate("prompt", 0)

    return run


def limits(device: torch.device) -> dict[str, tuple[Callable[[], None], float]]:
    """Returns the machine's bounds as calls, each with how much it does in giga-units.

    Processors differ in which way of reading and which shape of product is the fastest, so there
    are several of each; a name begins with what it bounds.
    """
    data = torch.ones(SET_BYTES[-1] // 4, device=device)
    bounds = {"read, summed": (repeated(data.sum, 1, device), data.nbytes / 1e9)}
    for width in (512, 1024, 8192):
        matrix, vector = data.view(-1, width), torch.ones(width, device=device)
        read = repeated(lambda m=matrix, v=vector: m @ v, 1, device)
        bounds[f"read, {width} wide"] = read, data.nbytes / 1e9
    for rows, inner in ((1024, 1024), (PREFILL_TOKENS, 1536), (2048, 2048)):
        left, right = torch.ones(rows, inner, device=device), torch.ones(inner, inner).to(device)
        multiply = repeated(lambda x=left, y=right: x @ y, 4, device)
        bounds[f"matmul, {rows} by {inner}"] = multiply, 4 * 2 * rows * inner**2 / 1e9
    return bounds


def peaks(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Returns of what the calls of `limits` reached the most, of reading and of multiplying."""
    both = {"read_gb_s": "read", "matmul_gflop_s": "matmul"}
    return {
        name: max(
            (speed for bound, speed in found.items() if bound.startswith(what)),
            key=lambda speed: speed["median"],
        )
        for name, what in both.items()
    }


def steps(model: Llama) -> dict[str, object]:
    """Times decode and prefill steps and the machine's two bounds, all in turns."""
    shape, numbers = published("SmolLM2-135M"), sum(weight.numel() for weight in model.parameters())
    weights = {"weight_bytes": sum(weight.nbytes for weight in model.parameters())}
    calls, rows = {}, []
    for batch, context in DECODES:
        decoding = Decoding(model, batch, context)
        calls[f"decode {batch} x {context}"] = decoding.step
        flops = batch * (2 * numbers + attention_flops(shape, context))
        work = {"kv_bytes": decoding.kv_bytes(), "flops": flops}
        rows.append({"phase": "decode", "batch": batch, "context": context, **weights, **work})
    calls["prefill"] = prefill_call(model)
    work = {"kv_bytes": PREFILL_TOKENS * shape.kv.bytes_per_token("float32")}
    head = model.config.vocab_size * model.config.hidden_size  # meets the last token only
    work["flops"] = prefill_flops(shape, PREFILL_TOKENS) - 2 * (PREFILL_TOKENS - 1) * head
    rows.append({"phase": "prefill", "batch": 1, "context": PREFILL_TOKENS, **weights, **work})
    bounds = limits(model.device)
    times = interleaved(calls | {name: call for name, (call, _) in bounds.items()}, REPEATS)
    found = {name: speeds(times[name], amount) for name, (_, amount) in bounds.items()}
    return {
        **peaks(found),
        "bounds": found,
        "steps": [row | {"step_s": times[name]} for row, name in zip(rows, calls, strict=True)],
    }


def main() -> None:
    """Writes the record `bandwidth.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device, chosen = kvlib.device(), "--random" in sys.argv
    if chosen:
        model = Llama.random(smollm2_shape(), seed=0, device=device)
    else:
        model, _ = kvlib.load_model(device=device)
    weights = "random weights of its shape" if chosen else "its weights"
    data = {
        "model": f"SmolLM2-135M, {weights}, float32",
        "repeats": REPEATS,
        "reads": [memory_speeds(size, device) for size in SET_BYTES],
        **steps(model),
    }
    code = tuple(f"kvlib/tensors/{name}.py" for name in ("caches", "contiguous", "step", "llama"))
    write("bandwidth", data, (*code, "measure/bandwidth.py"), device)


if __name__ == "__main__":
    main()
