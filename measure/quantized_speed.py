"""Times decode attention over codes against blocks of numbers: measure/quantized_speed.py.

All kernels take turns on the same table in random order, on one thread. What each reads is put out
of the processor's caches before it, as in a real step, whose weights were read since. "dequantize"
is the plain way: all codes are written down as float32 first, in every layer of every step. A card
has no kernel over codes here, so there the plain way is what every format's name stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import kvlib
from kvlib.precision import Precision
from kvlib.sizes import KVShape
from kvlib.tensors.attention import contiguous_attention
from kvlib.tensors.code_store import CodeStore
from kvlib.tensors.codes import decode, encode
from kvlib.tensors.kernels import paged_cpu, paged_triton, quantized_cpu
from kvlib.tensors.way_choice import choose_way_over_codes
from out_of_cache import putting_out
from paged_speed import filled
from record import rounds, spread, times_faster, write

HEADS = ((9, 3, 64), (32, 8, 128))  # query heads, KV heads, head_dim
POINTS = ((1, 512), (1, 2048), (1, 8192), (8, 2048))  # sequences, tokens of each
BLOCK, REPEATS = 16, 9
FORMATS = {
    "int8": (Precision(8, along="channel"), Precision(8)),
    "int4": (Precision(4, along="channel"), Precision(4, 32)),
    "int2": (Precision(2, along="channel"), Precision(2, 32)),
    "fp8": (Precision(kind="fp8"), Precision(kind="fp8")),
}


class Setting:
    """One step of decode: a query for each sequence, blocks in random order."""

    def __init__(
        self, heads: tuple[int, int, int], batch: int, context: int, device: torch.device
    ) -> None:
        self.device = device
        self.num_q, self.num_kv, self.head_dim = heads
        self.batch, self.context = batch, context
        self.count = batch * context // BLOCK
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(self.count, generator=generator).to(torch.int32)
        self.table = order.view(batch, -1).to(device)
        rows = [range(batch), [0] * batch, [context] * batch]
        self.rows = torch.tensor(rows, dtype=torch.int32, device=device)
        self.q = torch.randn(batch, self.num_q, self.head_dim, generator=generator).to(device)

    def full(self, dtype: torch.dtype) -> tuple[Callable[[], object], list[Tensor]]:
        """The kernel on blocks of numbers, and what it reads."""
        shape = (self.count, self.num_kv, BLOCK, self.head_dim)
        sides, q = [filled(shape, dtype, self.device.type) for _ in range(2)], self.q.to(dtype)
        kernel, runs = (paged_cpu, 1) if self.device.type == "cpu" else (paged_triton, None)
        return lambda: kernel.attend_rows(q, *sides, self.table, self.rows, runs), sides

    def coded(
        self, formats: tuple[Precision, Precision]
    ) -> tuple[Callable, Callable, list[Tensor]]:
        """The kernel on codes, the plain way, and what both read."""
        shape = KVShape(1, self.num_kv, self.head_dim)
        store = CodeStore(shape, self.count, BLOCK, formats, device=self.device)
        few = torch.randn(min(self.count, 64), self.num_kv, BLOCK, self.head_dim).to(self.device)
        sides = [side[0] for side in store.sides]
        for side, precision in zip(sides, formats, strict=True):
            data = encode(few, precision)
            side.copy_(data.repeat(-(-self.count // len(few)), 1, 1)[: self.count])

        def plain() -> None:
            for s in range(self.batch):
                blocks = self.table[s].long()
                k, v = (
                    decode(side[blocks], f, self.head_dim, BLOCK).transpose(0, 1).flatten(1, 2)
                    for side, f in zip(sides, formats, strict=True)
                )
                contiguous_attention(self.q[s : s + 1], k, v)

        def kernel() -> None:
            quantized_cpu.attend_rows(self.q, *sides, formats, BLOCK, self.table, self.rows, 1)

        return kernel if self.device.type == "cpu" else plain, plain, sides


def row(
    heads: tuple[int, int, int], batch: int, context: int, device: torch.device
) -> dict[str, object]:
    """Times one setting; ratios are float32's time over each, round by round."""
    setting = Setting(heads, batch, context, device)
    ways, reads = {}, {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        ways[name], reads[name] = setting.full(dtype)
    for name, formats in FORMATS.items():
        ways[name], plain, reads[name] = setting.coded(formats)
        if name == "int8" and batch == 1 and device.type == "cpu":
            ways["int8, dequantize"], reads["int8, dequantize"] = plain, reads[name]
    before = {name: _out(reads[name], ways[name]) for name in ways}
    times = rounds(ways, REPEATS, before=before)
    held = {name: sum(t.nbytes for t in tensors) for name, tensors in reads.items()}
    return {
        "heads": heads,
        "batch": batch,
        "context": context,
        "bytes_of_float32": {n: float(f"{b / held['float32']:.3g}") for n, b in held.items()},
        "float32_s": spread(times["float32"]),
        "times_faster": {n: times_faster(times["float32"], t) for n, t in times.items()},
    }


def _out(tensors: Sequence[Tensor], work: Callable[[], object]) -> Callable[[], None]:
    return putting_out(*tensors, after=lambda: work())


def whole_step(context: int, device: torch.device) -> dict[str, object]:
    """Times a decode step of the real model on each kind of cache, in turns."""
    model, _ = kvlib.load_model(device=device)
    model.one_call = False  # which only an exact cache has; so all go layer by layer
    shape, blocks = model.kv_shape, context // BLOCK + 2
    caches = {"float32": kvlib.PagedKVCache(shape, blocks, BLOCK, device=device)}
    caches["int8"] = _quantized(shape, blocks, None, device)
    if device.type == "cpu":
        caches["int8, dequantize"] = _quantized(shape, blocks, "dequantize", device)
    for cache in caches.values():
        cache.add("text")
        for first in range(0, context, 512):
            new = [1] * min(512, context - first)
            with cache.step({"text": new}) as plan:
                kv = torch.randn(2, len(new), shape.num_kv_heads, shape.head_dim, device=device)
                for layer in range(shape.num_layers):
                    cache.write(layer, *kv, plan)

    def step(cache: object) -> Callable[[], None]:
        def run() -> None:
            with cache.step({"text": [1]}) as plan:
                model(torch.tensor([1], device=device), cache, plan)
            cache.truncate("text", context)

        return run

    times = rounds({name: step(cache) for name, cache in caches.items()}, REPEATS)
    return {
        "context": context,
        "nbytes": {name: cache.nbytes for name, cache in caches.items()},
        "float32_s": spread(times["float32"]),
        "times_faster": {n: times_faster(times["float32"], t) for n, t in times.items()},
    }


def _quantized(shape: KVShape, blocks: int, way: str | None, device: torch.device) -> object:
    from kvlib.tensors.quantized import QuantizedKVCache

    sides = dict(zip(("keys", "values"), FORMATS["int8"], strict=True))
    return QuantizedKVCache(shape, blocks, BLOCK, **sides, num_seqs=1, way=way, device=device)


def main() -> None:
    """Writes the record `quantized_speed.<device>`."""
    torch.set_num_threads(1)
    device, rows = kvlib.device(), []
    for heads in HEADS:
        for batch, context in POINTS:
            rows.append(row(heads, batch, context, device))
            print(rows[-1]["heads"], batch, context, rows[-1]["times_faster"], file=sys.stderr)
    steps = [whole_step(context, device) for context in (512, 4096)]
    data = {"block_size": BLOCK, "repeats": REPEATS, "rows": rows, "steps": steps}
    way = choose_way_over_codes(None, device, torch.float32)
    data = {"codes_are_read": {"cpu": "by the kernel", "dequantize": "as float32"}[way], **data}
    kernel = (
        *("quantized_cpu.cpp", "quantized_cpu.py", "paged_cpu.cpp"),
        *("codes.h", "heads.h", "vectors.h", "work_items.h"),
    )
    code = tuple(f"kernels/{name}" for name in kernel)
    measured = (
        *(
            f"kvlib/tensors/{path}"
            for path in (*code, "quantized.py", "quantized_store.py", "codes.py")
        ),
    )
    write("quantized_speed", data, (*measured, "measure/quantized_speed.py"), device)


if __name__ == "__main__":
    main()
