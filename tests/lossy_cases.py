"""What the tests of the lossy caches share: a text of random numbers, and masked attention."""

import math

import torch

from kvlib.sizes import KVShape
from kvlib.tensors.heavy_hitters import HeavyHitterKVCache
from kvlib.tensors.sink_window import SinkWindowKVCache
from kvlib.tensors.snap import SnapKVCache

SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=8)
NUM_Q_HEADS = 6
GROUP = NUM_Q_HEADS // SHAPE.num_kv_heads
BUDGET = 6


def sink_window(budget=BUDGET, num_seqs=2, **changes):
    return SinkWindowKVCache(SHAPE, num_seqs, 2, budget - 2, **changes)


def heavy_hitters(budget=BUDGET, num_seqs=2, **changes):
    return HeavyHitterKVCache(SHAPE, num_seqs, budget, recent=2, **changes)


def snap(budget=BUDGET, num_seqs=2, **changes):
    return SnapKVCache(SHAPE, num_seqs, budget, observe=2, kernel=3, **changes)


LOSSY = {made.__name__: made for made in (sink_window, heavy_hitters, snap)}


class Text:
    """Queries, keys and values of a text in every layer, and what a cache makes of them."""

    def __init__(self, num_tokens, seed=0, device="cpu"):
        generator = torch.Generator().manual_seed(seed)
        self.q, self.k, self.v = (
            torch.randn(SHAPE.num_layers, num_tokens, heads, 8, generator=generator).to(device)
            for heads in (NUM_Q_HEADS, 2, 2)
        )
        self.device = device

    def steps(self, cache, chunks, seq_id="a", start=0):
        """Yields for each chunk its rows, its outputs [L, T, Hq, D], and who was seen."""
        for size in chunks:
            rows = slice(start, start + size)
            before = held(cache, seq_id)
            with cache.step({seq_id: [0] * size}) as plan:
                out = self.attend(cache, plan, rows)
            yield rows, out, before
            start += size

    def attend(self, cache, plan, rows):
        outs = []
        for layer in range(SHAPE.num_layers):
            cache.write(layer, self.k[layer, rows], self.v[layer, rows], plan)
            outs.append(cache.attend(layer, self.q[layer, rows], plan))
        return torch.stack(outs)

    def reference(self, rows, seen):
        """Float64 attention of some queries; `seen(layer, head, query)` lists the positions."""
        out = torch.empty(SHAPE.num_layers, rows.stop - rows.start, NUM_Q_HEADS, 8).double()
        for layer in range(SHAPE.num_layers):
            for head in range(NUM_Q_HEADS):
                for at, query in enumerate(range(rows.start, rows.stop)):
                    keys = seen(layer, head // GROUP, query)
                    weights = self.weights(layer, head, query, keys)
                    values = self.v[layer, keys, head // GROUP].double().cpu()
                    out[layer, at, head] = weights @ values
        return out

    def weights(self, layer, head, query, keys):
        """One query head's attention on some positions, float64."""
        k = self.k[layer, keys, head // GROUP].double().cpu()
        scores = k @ self.q[layer, query, head].double().cpu() / math.sqrt(8)
        return torch.softmax(scores, dim=0)


def held(cache, seq_id="a"):
    """Returns the positions held, [layer][head]."""
    heads = range(SHAPE.num_kv_heads)
    if isinstance(cache, SinkWindowKVCache):
        return [[cache.positions(seq_id) for _ in heads]] * SHAPE.num_layers
    layers = range(SHAPE.num_layers)
    return [[cache.positions(seq_id, layer, head) for head in heads] for layer in layers]


def seen_by(cache, before, rows):
    """Says what each query of a step sees, from what was held before it and the step's tokens."""

    def seen(layer, head, query):
        keys = [*before[layer][head], *range(rows.start, query + 1)]
        if isinstance(cache, SinkWindowKVCache):
            window = cache.ledger.window
            keys = [key for key in keys if key < cache.ledger.sinks or key > query - window]
        return keys

    return seen


def state(cache, seq_id="a"):
    """Returns all that a failed step must leave as it was; slots nobody owns do not count."""
    row = cache.ledger.row(seq_id)
    num_held = len(held(cache, seq_id)[0][0])
    sides = [side[:, row, :, :num_held].clone() for side in (cache.store.keys, cache.store.values)]
    scores = getattr(cache, "_scores", None)
    if scores is not None:
        sides.append(scores[:, row, :, :num_held].clone())
    return cache.length(seq_id), held(cache, seq_id), [side.tolist() for side in sides]
