"""What a trained model loses when its keys are made to share: python measure/shared_heads.py.

The weights of SmolLM2-135M stay as they were trained. Its three KV heads are merged into one, its
layers are made to read the keys and values of the layer before, or keys and values are squeezed
through one narrow latent. Nothing is trained and nothing is timed.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

import kvlib
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import DevicePlan
from kvlib.tensors.tokenizer import Tokenizer
from record import write
from window_loss import losses, perplexity

RANKS = (256, 192, 128)
TEXT_SEEDS, CALIBRATION_SEEDS = (0, 1), (10, 11)
WRITTEN_TOKENS = 480
SIDES = ("k_proj", "v_proj")


class SharedLayers:
    """A cache in which several layers read the keys and values of one.

    Args:
        homes: for each layer of the model the layer whose keys and values it reads; its own index
            where it keeps its own. A home keeps its own and stands before those that read it.
        make: makes the cache from the number of layers that keep something.

    Example:
        >>> cache = SharedLayers([0, 0, 2], lambda n: kvlib.ContiguousKVCache(
        ...     kvlib.KVShape(n, 1, 2), 1, 4))
        >>> cache.nbytes == kvlib.ContiguousKVCache(kvlib.KVShape(2, 1, 2), 1, 4).nbytes
        True
    """

    def __init__(self, homes: Sequence[int], make: Callable[[int], Any]) -> None:
        if any(home > layer or homes[home] != home for layer, home in enumerate(homes)):
            raise ValueError(f"a layer reads itself or an owner before it, got {list(homes)}")
        owners = sorted(set(homes))
        self.homes, self.rows = homes, [owners.index(home) for home in homes]
        self.cache = make(len(owners))
        self.counters, self.nbytes = self.cache.counters, self.cache.nbytes

    def add(self, seq_id: str) -> None:
        """Adds a sequence."""
        self.cache.add(seq_id)

    def step(self, new: Mapping[str, Sequence[int]]) -> AbstractContextManager[DevicePlan]:
        """Plans a step of the cache within."""
        return self.cache.step(new)

    def write(self, layer: int, k: Tensor, v: Tensor, plan: DevicePlan) -> None:
        """Stores what an owner brings, and nothing else."""
        if self.homes[layer] == layer:
            self.cache.write(self.rows[layer], k, v, plan)

    def attend(self, layer: int, q: Tensor, plan: DevicePlan) -> Tensor:
        """Attends to the keys and values of the layer's owner."""
        return self.cache.attend(self.rows[layer], q, plan)


def merged(
    model: Llama,
    layers: Iterable[int],
    sides: Sequence[str] = SIDES,
    head: int | None = None,
) -> Llama:
    """Returns a copy whose KV heads are all equal in some layers: their mean, or one of them."""
    changed = copy.deepcopy(model)
    config = model.config
    with torch.no_grad():
        for layer in layers:
            for side in sides:
                weight = getattr(changed.model.layers[layer].self_attn, side).weight
                heads = weight.view(config.num_kv_heads, config.head_dim, -1)
                heads.copy_(
                    (heads.mean(0) if head is None else heads[head].clone()).expand_as(heads)
                )
    return changed


def reordered(model: Llama) -> Llama:
    """Returns a copy whose KV heads, with their query heads, stand in another order: the control.

    It is the same function, so its perplexity must be that of the model.
    """
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for layer in changed.model.layers:
            attention = layer.self_attn
            for name in ("q_proj", *SIDES):
                weight = getattr(attention, name).weight
                parts = weight.unflatten(0, (model.config.num_kv_heads, -1))
                weight.copy_(parts.roll(1, 0).flatten(0, 1))
            out = attention.o_proj.weight
            parts = out.unflatten(1, (model.config.num_kv_heads, -1))
            out.copy_(parts.roll(1, 1).flatten(1, 2))
    return changed


def inputs_of_attention(model: Llama, tokens: Sequence[int]) -> list[Tensor]:
    """Returns what each layer's projections read for a text, [T, hidden_size] a layer."""
    seen: list[Tensor] = []
    hooks = [
        layer.self_attn.q_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        for layer in model.model.layers
    ]
    losses(model, tokens, kvlib.NoCache(model.device))
    for hook in hooks:
        hook.remove()
    return seen


def keys_and_values(model: Llama, layer: int) -> Tensor:
    """Returns what makes the keys and values of all heads, [2 Hkv D, hidden_size] in float64."""
    attention = model.model.layers[layer].self_attn
    return torch.cat([getattr(attention, side).weight.detach() for side in SIDES]).double()


def directions(model: Llama, inputs: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Returns for each layer the directions of its keys and values, those that matter most first.

    What matters is the size of the weights, or, given what the layers read for a text, of the keys
    and values of that text.
    """
    found = []
    for layer in range(model.config.num_layers):
        target = keys_and_values(model, layer)
        if inputs is not None:
            x = inputs[layer].double()
            # A little of every direction, or those the text never takes would be lost whole.
            square = x.T @ x / len(x) + 1e-4 * x.square().mean() * torch.eye(x.shape[1]).to(x)
            target = target @ torch.linalg.cholesky(square)
        found.append(torch.linalg.svd(target, full_matrices=False)[0])
    return found


def squeezed(model: Llama, rank: int, along: Sequence[Tensor]) -> Llama:
    """Returns a copy whose keys and values of all heads come from one latent of `rank` numbers.

    Keys are rebuilt before they are rotated.
    """
    changed = copy.deepcopy(model)
    for layer, basis in enumerate(along):
        low = basis[:, :rank] @ (basis[:, :rank].T @ keys_and_values(model, layer))
        attention = changed.model.layers[layer].self_attn
        with torch.no_grad():
            for side, part in zip(SIDES, low.chunk(2), strict=True):
                getattr(attention, side).weight.copy_(part)
    return changed


def written(model: Llama, tokenizer: Tokenizer, seeds: Sequence[int]) -> list[list[int]]:
    """Returns texts that the model wrote itself, one a seed, drawn at temperature 1."""
    texts = [list(tokenizer.encode("The")) for _ in seeds]
    choosers = [kvlib.Sampling(temperature=1.0, seed=seed).chooser() for seed in seeds]
    cache = kvlib.ContiguousKVCache(model.kv_shape, len(seeds), WRITTEN_TOKENS, device=model.device)
    for index in range(len(seeds)):
        cache.add(index)
    while len(texts[0]) < WRITTEN_TOKENS:
        new = {index: text[cache.length(index) :] for index, text in enumerate(texts)}
        with cache.step(new) as plan:
            ids = [token for tokens in new.values() for token in tokens]
            logits = model(torch.tensor(ids, device=model.device), cache, plan).cpu()
        for text, choose, row in zip(texts, choosers, logits, strict=True):
            text.append(choose(row))
    return texts


def spread_of(by_layer: Mapping[int, float]) -> dict[str, float]:
    """Returns the least, the middle and the greatest, and the layer that has the greatest."""
    values = list(by_layer.values())
    found = {"least": min(values), "median": statistics.median(values), "most": max(values)}
    return {name: float(f"{value:.4g}") for name, value in found.items()} | {
        "most_at": max(by_layer, key=by_layer.__getitem__)
    }


class Trials:
    """Runs a changed model over all texts and keeps the perplexities by name."""

    def __init__(self, model: Llama, texts: Sequence[Sequence[int]]) -> None:
        self.model, self.texts, self.rows = model, texts, {}

    def on(self, model: Llama, tokens: Sequence[int], homes: Sequence[int] | None = None) -> float:
        """Returns the perplexity of one text."""
        config = self.model.config

        def make(num_layers: int) -> kvlib.ContiguousKVCache:
            shape = kvlib.KVShape(num_layers, config.num_kv_heads, config.head_dim)
            return kvlib.ContiguousKVCache(shape, 1, len(tokens), device=model.device)

        cache = SharedLayers(homes or list(range(config.num_layers)), make)
        return perplexity(losses(model, tokens, cache))

    def add(
        self, name: str, share: float, model: Llama | None = None, homes: list[int] | None = None
    ) -> None:
        """Notes the perplexity of every text under `name`, with the share of the bytes kept."""
        found = [self.on(model or self.model, tokens, homes) for tokens in self.texts]
        self.rows[name] = {"bytes_percent": round(100 * share, 1), "perplexity": found}
        print(f"{name:40}{100 * share:6.1f} %", *found)


def heads_and_layers(trials: Trials) -> None:
    """The heads of a layer merged, and the layers of the model made to share."""
    model, layers = trials.model, range(trials.model.config.num_layers)
    trials.add("one head: the mean", 1 / 3, merged(model, layers))
    for head in range(model.config.num_kv_heads):
        trials.add(f"one head: number {head}", 1 / 3, merged(model, layers, head=head))
    for side, name in zip(SIDES, ("keys", "values"), strict=True):
        trials.add(f"one head for {name} only: the mean", 2 / 3, merged(model, layers, (side,)))
    for start, name in ((0, "first"), (10, "middle"), (20, "last")):
        ten = merged(model, range(start, start + 10))
        trials.add(f"one head in the {name} ten layers", 7 / 9, ten)
    for group in (2, 3):
        homes = [layer // group * group for layer in layers]
        trials.add(f"every {group} layers share", 1 / group, homes=homes)
    trials.add("the last 15 layers share", 16 / 30, homes=[min(layer, 15) for layer in layers])


def latents(trials: Trials, calibration: Sequence[Sequence[int]]) -> None:
    """Keys and values from one latent: of the weights alone, and with the model's own texts."""
    model, width = trials.model, 2 * trials.model.config.num_kv_heads * trials.model.config.head_dim
    ways = {"by the weights": directions(model)}
    for seed, text in zip(CALIBRATION_SEEDS, calibration, strict=True):
        found = directions(model, inputs_of_attention(model, text))
        ways[f"by a text of its own, seed {seed}"] = found
    for rank in RANKS:
        for way, along in ways.items():
            trials.add(f"latent of {rank}, {way}", rank / width, squeezed(model, rank, along))


def one_at_a_time(trials: Trials) -> dict[str, dict[str, float]]:
    """One layer changed, all others as trained, on the first text."""
    model, text = trials.model, trials.texts[0]
    layers = range(model.config.num_layers)
    heads = {layer: trials.on(merged(model, [layer]), text) for layer in layers}
    pairs = {
        layer: trials.on(model, text, [i - (i == layer) for i in layers]) for layer in layers[1:]
    }
    return {
        "one head in one layer": spread_of(heads),
        "one layer reads the one before": spread_of(pairs),
    }


def main() -> None:
    """Writes the record `shared_heads.<device>`."""
    torch.set_num_threads(1)
    device = kvlib.device()
    model, tokenizer = kvlib.load_model(device=device)
    passage = (files("kvlib") / "data" / "passage.txt").read_text(encoding="utf-8").strip()
    own = written(model, tokenizer, [*TEXT_SEEDS, *CALIBRATION_SEEDS])
    texts = [tokenizer.encode(passage), *own[: len(TEXT_SEEDS)]]
    trials = Trials(model, texts)
    trials.add("as trained", 1)
    trials.add("control: heads in another order", 1, reordered(model))
    alone = [kvlib.RollingKVCache(model.kv_shape, 1, 1, device=device) for _ in texts]
    blind = [perplexity(losses(model, t, c)) for t, c in zip(texts, alone, strict=True)]
    trials.rows["control: no token looks back"] = {"bytes_percent": 0.0, "perplexity": blind}
    heads_and_layers(trials)
    latents(trials, own[len(TEXT_SEEDS) :])
    data = {
        "model": "SmolLM2-135M, its weights, float32",
        "texts": [
            f"kvlib/data/passage.txt, {len(texts[0])} tokens",
            *(f"written by the model, seed {seed}, {WRITTEN_TOKENS} tokens" for seed in TEXT_SEEDS),
        ],
        "vocabulary": model.config.vocab_size,
        "rows": trials.rows,
        "one_at_a_time": one_at_a_time(trials),
    }
    names = ("attention", "caches", "contiguous", "llama")
    code = ("data/passage.txt", *(f"tensors/{name}.py" for name in names))
    scripts = ("measure/shared_heads.py", "measure/window_loss.py")
    write("shared_heads", data, (*(f"kvlib/{path}" for path in code), *scripts), device)


if __name__ == "__main__":
    main()
