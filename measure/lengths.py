"""Times one decode step at every length, inside a reservation and past it: measure/lengths.py.

The rows reserve 2,048 tokens and grow by doubling. At each length a step of the real model and the
attention-shaped read alone: every layer's query over all that its row holds. At the two lengths
where the row is full, the three ways on: refuse the token, grow and copy, or compute the whole text
again in a longer row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

import kvlib
from bandwidth import speeds, wait
from first_cache import smollm2_shape
from kvlib.plan import SequenceTooLong
from kvlib.tensors.attention import contiguous_attention
from kvlib.tensors.contiguous import ContiguousKVCache
from kvlib.tensors.llama import Llama
from record import interleaved, rounds, spread, times_faster, write

RESERVED = 2048
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
FULL = (2048, 4096)  # where the next token outgrows its row
REPEATS, CROSSINGS = 7, 3


class Text:
    """One sequence of `length` tokens in a row of `row_len`, which may grow to 8,192.

    The past is drawn at random, and written: memory that nobody wrote is not there to be read.
    """

    def __init__(self, model: Llama, length: int, row_len: int, max_seq_len: int) -> None:
        self.model, self.length = model, length
        options = {"dtype": model.dtype, "device": model.device, "initial_seq_len": row_len}
        self.cache = ContiguousKVCache(model.kv_shape, 1, max_seq_len, **options)
        for side in (self.cache.store.keys, self.cache.store.values):
            side.normal_()
        self.cache.add("text")
        with self.cache.step({"text": [0] * length}):
            pass  # the length advances, the bytes are there

    def step(self, new: int = 1) -> None:
        """Forwards so many tokens, waits, and takes them back."""
        with self.cache.step({"text": [0] * new}) as plan:
            self.model(
                torch.zeros(new, dtype=torch.int64, device=self.model.device), self.cache, plan
            )
        wait(self.model.device)
        self.cache.truncate("text", self.cache.length("text") - new)

    def attend(self) -> None:
        """Reads all keys and values as attention does: one query a layer."""
        heads = self.model.config.num_q_heads, self.model.config.head_dim
        q = torch.ones(1, *heads, dtype=self.model.dtype, device=self.model.device)
        for layer in range(self.model.config.num_layers):
            contiguous_attention(q, *self.cache.store.view(layer, 0, self.length))
        wait(self.model.device)


def at_lengths(model: Llama) -> list[dict[str, object]]:
    """Times a step and its attention-shaped read at every length, all lengths in turns."""
    # A step attends to the new token too, so the text before it is one token shorter.
    rows = {n: max(n, RESERVED) for n in LENGTHS}
    texts = {n: Text(model, n - 1, row_len, row_len) for n, row_len in rows.items()}
    steps = rounds({str(n): text.step for n, text in texts.items()}, REPEATS)
    reads = interleaved({str(n): text.attend for n, text in texts.items()}, REPEATS)
    found = []
    for n, text in texts.items():
        kv_bytes = (n - 1) * text.cache.store.bytes_per_token
        row = {"length": n, "row_len": rows[n], "kv_bytes": kv_bytes}
        row |= {"step_s": spread(steps[str(n)]), "attend_s": reads[str(n)]}
        row["attend_gb_s"] = speeds(reads[str(n)], kv_bytes / 1e9)
        row["step_over_shortest"] = times_faster(steps[str(n)], steps[str(LENGTHS[0])])
        found.append(row)
    return found


def refused(text: Text) -> Callable[[], None]:
    """Returns a call that asks a full row for one token more."""

    def run() -> None:
        try:
            text.cache.plan({"text": [0]})
        except SequenceTooLong:
            return
        raise AssertionError("a full row took a token")

    return run


def grown(text: Text) -> Callable[[], None]:
    """Returns a call that plans one token more, for which the row grows, and puts the row back."""
    ledger, short, row_len = text.cache.ledger, text.cache.store, text.cache.row_len

    def run() -> None:
        text.cache.abort(text.cache.plan({"text": [0]}))
        wait(text.model.device)
        text.cache.store, ledger.row_len = short, row_len

    return run


def crossing(model: Llama, length: int) -> dict[str, object]:
    """Times what the token after a full row of `length` costs, three ways and a usual step."""
    inside, full = Text(model, length - 1, length, length), Text(model, length, length, length)
    growing, again = Text(model, length, length, 2 * length), Text(model, 0, 2 * length, 2 * length)
    calls = {
        "step": inside.step,
        "refuse": refused(full),
        "grow": grown(growing),
        "recompute": lambda: again.step(length + 1),
    }
    for name in ("step", "refuse", "grow"):
        calls[name]()  # warms up; computing again takes far too long to need it
    times = rounds(calls, CROSSINGS, warm_up=False)
    return {
        "length": length,
        "copied_bytes": length * growing.cache.store.bytes_per_token,
        **{f"{name}_s": spread(seconds) for name, seconds in times.items()},
        "grow_over_step": times_faster(times["grow"], times["step"]),
        "recompute_over_step": times_faster(times["recompute"], times["step"]),
    }


def main() -> None:
    """Writes the record `lengths.<device>`."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device, chosen = kvlib.device(), "--random" in sys.argv
    if chosen:
        model = Llama.random(smollm2_shape(), seed=0, device=device)
    else:
        model, _ = kvlib.load_model(device=device)
    weights = "random weights of its shape" if chosen else "its weights"
    data = {
        "model": f"SmolLM2-135M, {weights}, float32",
        "reserved": RESERVED,
        "repeats": {"lengths": REPEATS, "crossings": CROSSINGS},
        "lengths": at_lengths(model),
        "crossings": [crossing(model, length) for length in FULL],
    }
    names = ("caches", "contiguous", "step", "attention")
    code = tuple(f"kvlib/tensors/{name}.py" for name in names)
    write("lengths", data, (*code, "kvlib/tensors/llama.py", "measure/lengths.py"), device)


if __name__ == "__main__":
    main()
