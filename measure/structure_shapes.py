"""What a compiler asks of a structure: with how many shapes a step runs, and whether it waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvlib.sizes import KVShape
from kvlib.tensors.graph import DecodeGraph
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig


class Shapes(TorchDispatchMode):
    """Notes for every tensor operation its name and the shapes of what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Runs the operation and notes it."""
        shapes = [tuple(a.shape) for a in args if isinstance(a, Tensor)]
        self.ops.append(f"{func} {shapes}")
        return func(*args, **(kwargs or {}))


def small_model(device: str | torch.device = "cpu") -> Llama:
    """Returns a random model with SmolLM2's heads, small otherwise."""
    sizes = {"num_q_heads": 9, "num_kv_heads": 3, "head_dim": 64, "num_layers": 1}
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, max_position_embeddings=1024, **sizes
    )
    return Llama.random(config, seed=0, device=device)


def shapes_of(make: Callable[[], Any], context: int, *, fixed: bool) -> int:
    """Returns in how many different ways, by operations and shapes, 32 decode steps ran.

    Args:
        make: allocates the cache.
        context: tokens before the first of them.
        fixed: whether the steps go through `DecodeGraph`, which pads them.
    """
    model, cache, seen = small_model(), make(), set()

    def noted(*args: Any) -> Tensor:
        with Shapes() as shapes:
            logits = model(*args)
        seen.add(tuple(shapes.ops))
        return logits

    cache.add("a")
    with torch.no_grad():
        with cache.step({"a": [1] * context}) as plan:
            model(torch.ones(context, dtype=torch.int64), cache, plan)
        graph = DecodeGraph(noted, cache, 1, 64) if fixed else None
        for _ in range(32):
            if graph is not None:
                graph.step({"a": 1})
                continue
            with cache.step({"a": [1]}) as plan:
                noted(torch.ones(1, dtype=torch.int64), cache, plan)
    return len(seen)


def waits(make: Callable[[KVShape, str], Any]) -> bool:
    """Answers whether a decode step makes the host wait for the device: one without bytes tells.

    Args:
        make: allocates the cache of a shape on a device.

    Raises:
        RuntimeError, NotImplementedError: it failed for another reason.
    """
    config = small_model().config
    with torch.device("meta"):
        model = Llama(config)
    cache = make(model.kv_shape, "meta")
    cache.add("a")
    try:
        # Two steps go over every budget; the third is the decode step.
        for n in (100, 100, 1):
            with cache.step({"a": [0] * n}) as plan:
                model(torch.empty(n, dtype=torch.int64, device="meta"), cache, plan)
    except (RuntimeError, NotImplementedError) as error:
        if "meta tensor" not in str(error):
            raise
        return True
    return False
