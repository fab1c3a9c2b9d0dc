"""Times the engine against Hugging Face transformers: python measure/engine_speed.py.

The same weights, dtype and number of threads, in turns in one process. First the next token of one
text: `kvlib.stream` on a paged cache against `generate` with a static cache that is no longer than
the text needs, and the ceiling that reading the weights and the keys and values once sets at the
bandwidth measured in the same rounds. Then whole runs, prefill and all, of requests of mixed
length: the engine against `generate_batch` (continuous batching) and against `generate` on a
left-padded batch.

llama.cpp is timed beside them where there is one (`llama_cpp_times.py`): the outer mark, on
four-bit weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch

import kvlib
from kvlib.scheduled_step import StepLimits
from kvlib.tensors.engine import Engine
from kvlib.tensors.generate import stream
from kvlib.tensors.llama import Llama
from kvlib.tensors.model_cache import cached_model
from llama_cpp_times import reads_of_a_token, token_times
from record import rounds, spread, times_faster, write

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
import transformers

THREADS, BLOCK_SIZE, NEW_TOKENS = 2, 16, 32
CONTEXTS, STEPS, REPEATS = (128, 512, 2048), 25, 7
REQUESTS, PROMPT_TOKENS, BATCH_REPEATS = (8, 32), (20, 200), 5
STEP_TOKENS = (256, 1024, 8192)  # of `generate_batch`: whichever is fastest for it is taken
TARGETS = {"single": 1.2, "ceiling": 0.65, "batch": 2.0, "padded": 1.5}
READ_BYTES = 3 * 2**29  # larger than any cache of a processor
Times = list[float]


def drawn(count: int, seed: int) -> list[int]:
    """Returns random token ids, none of the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 49000, (count,), generator=generator).tolist()


class Stamps:
    """A streamer that notes when each token comes; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: Times = []

    def put(self, value: torch.Tensor) -> None:
        """Notes the time."""
        self.times.append(perf_counter())

    def end(self) -> None:
        """Does nothing."""


def gaps(times: Times) -> Times:
    """Returns the seconds between one token and the next."""
    return [b - a for a, b in pairwise(times)]


def our_steps(model: Llama, prompt: list[int]) -> Times:
    """Returns the seconds of each decode step of ours."""
    blocks = -(-(len(prompt) + STEPS) // BLOCK_SIZE)
    cache = kvlib.PagedKVCache(model.kv_shape, blocks, BLOCK_SIZE)
    return gaps([perf_counter() for _ in stream(model, prompt, STEPS + 1, cache=cache)])


def their_steps(model: torch.nn.Module, prompt: list[int]) -> Times:
    """Returns the seconds of each decode step of `generate` with a tight static cache."""
    stamps = Stamps()
    model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        generation_config=greedy(STEPS + 1),
        cache_implementation="static",
        streamer=stamps,
    )
    return gaps(stamps.times[1:])


def greedy(new_tokens: int) -> transformers.GenerationConfig:
    """Returns a configuration that takes the best token, so many times, and never stops early."""
    return transformers.GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, pad_token_id=0, eos_token_id=None
    )


def read_seconds(data: torch.Tensor, vector: torch.Tensor) -> dict[str, float]:
    """Reads a set far larger than any cache twice: summed, and times a vector."""
    found = {}
    for name, read in (("sum", data.sum), ("matvec", lambda: data @ vector)):
        start = perf_counter()
        read()
        found[name] = perf_counter() - start
    return found


def single_stream(ours: Llama, theirs: torch.nn.Module) -> dict[str, object]:
    """Times the next token at each context, in turns with reading memory."""
    data, vector = torch.ones(READ_BYTES // 4096, 1024), torch.ones(1024)
    llama_cpp = token_times(THREADS, STEPS + 1)
    ways = {"ours": lambda p: our_steps(ours, p), "static": lambda p: their_steps(theirs, p)}
    ways |= {"llama_cpp": lambda p: gaps(llama_cpp(p))} if llama_cpp else {}
    reads, rows = [], []
    for context in CONTEXTS:
        prompt = drawn(context, seed=context)
        found: dict[str, Times] = {name: [] for name in ways}
        for repeat in range(-1, REPEATS):  # the first round warms up
            for name, way in ways.items():
                steps = way(prompt)
                found[name] += [median(steps)] if repeat >= 0 else []
            reads.append(read_seconds(data, vector))
        rows.append((context, found))
    speeds = {name: data.nbytes / median(read[name] for read in reads) for name in reads[0]}
    best = max(speeds.values())
    weights = sum(weight.nbytes for weight in ours.parameters())
    token = ours.kv_shape.bytes_per_token("float32")
    return {
        "read_gb_s": {name: float(f"{speed / 1e9:.4g}") for name, speed in speeds.items()},
        "weight_bytes": weights,
        "kv_bytes_per_token": token,
        **({"llama_cpp": reads_of_a_token(token // 2)} if llama_cpp else {}),
        "contexts": [row(*each, (weights + each[0] * token) / best) for each in rows],
    }


def row(context: int, found: dict[str, Times], ceiling_s: float) -> dict[str, object]:
    """Returns the seconds of a step each way, and the two ratios that have a target."""
    return {
        "context": context,
        "ceiling_s": float(f"{ceiling_s:.4g}"),
        **{f"{name}_s": spread(times) for name, times in found.items()},
        "of_static": times_faster(found["static"], found["ours"]),
        "of_ceiling": float(f"{ceiling_s / median(found['ours']):.3g}"),
    }


def our_run(model: Llama, prompts: list[list[int]]) -> list[list[int]]:
    """Serves all requests to the end with the engine."""
    blocks = sum(-(-(len(prompt) + NEW_TOKENS) // BLOCK_SIZE) for prompt in prompts)
    limits = StepLimits(max_tokens=8192, max_running=len(prompts))
    engine = Engine(model, blocks, BLOCK_SIZE, limits=limits, max_waiting=len(prompts))
    handles = [engine.submit(prompt, NEW_TOKENS) for prompt in prompts]
    engine.run()
    return [handle.tokens for handle in handles]


def their_continuous_run(
    model: torch.nn.Module, prompts: list[list[int]], step_tokens: int = STEP_TOKENS[-1]
) -> list[list[int]]:
    """Serves all requests with transformers' continuous batching, as much memory as we have."""
    blocks = sum(-(-(len(prompt) + NEW_TOKENS) // BLOCK_SIZE) for prompt in prompts)
    config = transformers.ContinuousBatchingConfig(
        page_size=BLOCK_SIZE, num_blocks=blocks + 16, max_batch_tokens=step_tokens
    )
    made = model.generate_batch(
        prompts,
        generation_config=greedy(NEW_TOKENS),
        continuous_batching_config=config,
        warmup=False,
    )
    model.set_attn_implementation("sdpa")  # it leaves its own paged one behind
    in_order = sorted(made.values(), key=lambda each: int(each.request_id.rsplit("_", 1)[-1]))
    return [list(each.generated_tokens) for each in in_order]


def their_padded_run(model: torch.nn.Module, prompts: list[list[int]]) -> list[list[int]]:
    """Serves all requests as one batch, padded on the left to the longest."""
    longest = max(map(len, prompts))
    padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    made = model.generate(
        torch.tensor(padded),
        attention_mask=torch.tensor(mask),
        generation_config=greedy(NEW_TOKENS),
    )
    return made[:, longest:].tolist()


def concurrent(ours: Llama, theirs: torch.nn.Module, count: int) -> dict[str, object]:
    """Times whole runs of so many requests of mixed length, the three ways in turns."""
    low, high = PROMPT_TOKENS
    lengths = torch.randint(low, high + 1, (count,), generator=torch.Generator().manual_seed(count))
    prompts = [drawn(n, seed=i) for i, n in enumerate(lengths.tolist())]
    found: dict[str, list[list[int]]] = {}
    tries = {n: partial(their_continuous_run, theirs, prompts, n) for n in STEP_TOKENS}
    once = rounds(tries, 1, warm_up=False)
    best = min(once, key=lambda n: once[n][0])

    def kept(name: str, run: Callable, model: torch.nn.Module) -> Callable[[], None]:
        return lambda: found.update({name: run(model, prompts)})

    ways = {
        "ours": kept("ours", our_run, ours),
        "batch": kept("batch", partial(their_continuous_run, step_tokens=best), theirs),
        "padded": kept("padded", their_padded_run, theirs),
    }
    times = rounds(ways, BATCH_REPEATS)
    tokens = count * NEW_TOKENS
    assert all(sum(map(len, made)) == tokens for made in found.values()), "a run is too short"
    return {
        "requests": count,
        "prompt_tokens": sum(map(len, prompts)),
        "output_tokens": tokens,
        "batch_step_tokens": best,
        **{f"{name}_s": spread(seconds) for name, seconds in times.items()},
        **{f"of_{name}": times_faster(times[name], times["ours"]) for name in ("batch", "padded")},
        **{f"same_as_{name}": same(found["ours"], found[name]) for name in ("batch", "padded")},
    }


def same(ours: list[list[int]], theirs: list[list[int]]) -> int:
    """Returns how many requests got the same tokens; padding and order of sums change rounding."""
    return sum(a == b for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    """Writes the record `engine_speed.cpu`."""
    torch.set_num_threads(THREADS)
    transformers.logging.set_verbosity_error()
    ours, _ = kvlib.load_model(device="cpu")
    folder = cached_model("smollm2-135m")
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "transformers": transformers.__version__,
        "targets": TARGETS,
        "single": single_stream(ours, theirs),
        "concurrent": [concurrent(ours, theirs, count) for count in REQUESTS],
    }
    parts = (
        *("llama", "decode_step", "kernels/few_rows", "engine"),
        *("paged", "paged_attention", "paged_context"),
    )
    code = [f"kvlib/tensors/{part}.py" for part in parts]
    kernels = [f"kvlib/tensors/kernels/{name}.cpp" for name in ("few_rows", "paged_cpu")]
    own = [f"measure/{name}.py" for name in ("engine_speed", "llama_cpp_times")]
    write("engine_speed", data, (*code, *kernels, *own), torch.device("cpu"))


if __name__ == "__main__":
    main()
