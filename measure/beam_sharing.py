"""What beams and samples of the real model share: python measure/beam_sharing.py.

Five questions as people ask them, answered by parallel samples and by beam search, all answers
equally long. After every step the blocks held are counted, and the blocks that the same sequences
would hold alone. Nothing is timed.
"""

from __future__ import annotations

import torch
from torch import Tensor

import kvlib
from kvlib.tensors.llama import Llama
from record import write

QUESTIONS = (
    "Suggest a name for a small grey cat that sleeps all day.",
    "Write a short poem about rain.",
    "Explain in two sentences why the sky is blue.",
    "List three uses of a paper clip.",
    "Rewrite this so that it sounds friendly: Your parcel is late and we do not know why.",
)
WIDTHS, ANSWER_TOKENS, BLOCK_SIZE = (2, 4, 6), 58, 16


class Counted:
    """A paged cache of some sequences, and what was held after each step.

    Args:
        model: whose keys and values the cache holds.
        width: sequences that continue one prompt.
    """

    def __init__(self, model: Llama, width: int) -> None:
        self.model, self.width = model, width
        self.cache = kvlib.PagedKVCache(
            model.kv_shape, 64, BLOCK_SIZE, way="gather", dtype=model.dtype, device=model.device
        )
        self.held = self.alone = self.cloned_tokens = 0

    def start(self, prompt: list[int]) -> Tensor:
        """Reads the prompt once and forks; returns the logits after it."""
        self.cache.add(0)
        logits = self.forward({0: prompt})
        for child in range(1, self.width):
            self.cache.fork(0, child)
        self.cloned_tokens += (self.width - 1) * len(prompt)
        return logits

    def forward(self, new: dict[int, list[int]]) -> Tensor:
        """Forwards new tokens of each sequence; returns the logits after them."""
        packed = [token for tokens in new.values() for token in tokens]
        with self.cache.step(new) as plan:
            ids = torch.tensor(packed, device=self.model.device)
            logits = self.model(ids, self.cache, plan).cpu()
        if len(new) == self.width:
            ledger = self.cache.ledger
            self.held += ledger.pool.num_held
            self.alone += sum(len(ledger.table(s)) for s in range(self.width))
        return logits

    def reorder(self, sources: list[int]) -> None:
        """Lets beams go on from others; rows would copy a whole past for each further child."""
        self.cloned_tokens += (self.width - len(set(sources))) * self.cache.length(0)
        self.cache.reorder(dict(enumerate(sources)))

    def found(self) -> dict[str, float]:
        """Returns the share of blocks saved, mean over the steps, and the tokens copied."""
        per_token = self.cache.store.bytes_per_token
        return {
            "saved_percent": round(100 * (1 - self.held / self.alone), 1),
            "copied_tokens": self.cache.counters.bytes_copied // per_token,
            "cloned_tokens": self.cloned_tokens,
        }


def sample(run: Counted, prompt: list[int], stops: list[int]) -> None:
    """Draws an answer for each sequence."""
    draws = [kvlib.Sampling(0.8, top_k=20, seed=seed).chooser() for seed in range(run.width)]
    logits = run.start(prompt).repeat(run.width, 1)
    for _ in range(ANSWER_TOKENS):
        logits[:, stops] = float("-inf")
        tokens = [draw(row) for draw, row in zip(draws, logits, strict=True)]
        logits = run.forward({s: [token] for s, token in enumerate(tokens)})


def search(run: Counted, prompt: list[int], stops: list[int]) -> None:
    """Searches with as many beams as sequences."""
    logits = run.start(prompt)
    scores = torch.zeros(1)
    for step in range(ANSWER_TOKENS):
        logits[:, stops] = float("-inf")
        ranked = (scores[:, None] + logits.log_softmax(-1)).flatten().topk(run.width)
        scores, vocab_size = ranked.values, logits.shape[1]
        if step:
            run.reorder((ranked.indices // vocab_size).tolist())
        tokens = (ranked.indices % vocab_size).tolist()
        logits = run.forward({beam: [token] for beam, token in enumerate(tokens)})


def main() -> None:
    """Writes the record `beam_sharing.<device>`."""
    torch.set_num_threads(1)
    device = kvlib.device()
    model, tokenizer = kvlib.load_model(device=device)
    stops, rows = list(tokenizer.eos_ids), []
    for question in QUESTIONS:
        prompt = tokenizer.encode(tokenizer.chat(question))
        for width in WIDTHS:
            runs = {"samples": sample, "beams": search}
            found = {}
            for name, work in runs.items():
                run = Counted(model, width)
                work(run, prompt, stops)
                found[name] = run.found()
            rows.append({"prompt_tokens": len(prompt), "width": width} | found)
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "answer_tokens": ANSWER_TOKENS,
        "block_size": BLOCK_SIZE,
        "runs": rows,
    }
    code = ("paged_ledger.py", "block_table.py", "tensors/paged.py", "tensors/llama.py")
    files = (*(f"kvlib/{path}" for path in code), "measure/beam_sharing.py")
    write("beam_sharing", data, files, device)


if __name__ == "__main__":
    main()
