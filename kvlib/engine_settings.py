"""How a configuration of policies is set, read back from a scheduler that it builds."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from kvlib.contiguous_memory import ContiguousMemory
from kvlib.engine_configs import Configuration
from kvlib.kv_memory import KVMemory
from kvlib.retention import DropAll
from kvlib.slot_memory import SlotMemory

Scalar = str | int | float | None


def settings(
    configuration: Configuration, num_slots: int = 4096, max_seq_len: int = 2048
) -> dict[str, Scalar]:
    """Returns how a configuration is set, read from a scheduler that it builds.

    Example:
        >>> from kvlib.engine_configs import CONFIGURATIONS
        >>> found = settings(CONFIGURATIONS["SGLang"])
        >>> found["block_size"], found["index"], found["admission.floor"], found["victim"]
        (1, 'RadixTree', 0.14, 'fewest_outputs')
    """
    scheduler = configuration.build(num_slots, max_seq_len)
    memory, retention = scheduler.memory, configuration.retention
    found: dict[str, Any] = {"memory": memory, "index": None, "retention": None}
    if isinstance(memory, KVMemory):
        found |= {"block_size": memory.block_size, "index": memory.prefixes}
        found["retention"] = policy = retention() if retention else None
        if isinstance(policy, DropAll):
            found["retention.margin"] = policy.margin
    elif isinstance(memory, SlotMemory):
        found["memory.similarity"] = memory.similarity
    elif isinstance(memory, ContiguousMemory):
        found["allocator"] = memory.allocator
    found["victim"] = scheduler.victim.__name__
    for name in ("admission", "limits"):
        policy = getattr(scheduler, name)
        found |= {name: policy} | {
            f"{name}.{each.name}": getattr(policy, each.name) for each in fields(policy)
        }
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Scalar:
    named = is_dataclass(value) or not isinstance(value, str | int | float | None)
    return type(value).__name__ if named else value
