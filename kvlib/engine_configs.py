"""Engines as combinations of policies: each a few lines, all on one scheduler.

What an engine's own sources say is in `data/engines.json`; a test holds each line here to them.
`kvlib.atlas` puts the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvlib.admission import (
    Admission,
    AdmitAboveMargin,
    AdmitDiscounted,
    AdmitPredictedPeak,
    AdmitPrompt,
    AdmitReserved,
)
from kvlib.blocks import BlockPool
from kvlib.buddy import BuddyArena
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.memory import Memory
from kvlib.preemption import Victim, fewest_outputs, lowest_priority, newest
from kvlib.prefix import PrefixIndex
from kvlib.priority import PriorityPolicy, Retain
from kvlib.radix import RadixTree
from kvlib.reservation import ReserveMaximum, ReserveOracle, ReservePowerOfTwo
from kvlib.retention import DropAll, RankedLRU, RankedPolicy
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.sizes import KVShape, whole_number
from kvlib.slot_memory import SlotMemory

# Keys and values of a token in one of Llama-3-8B's layers: 8 heads of 128.
LLAMA_3_8B = KVShape(num_layers=32, num_kv_heads=8, head_dim=128)


@dataclass(frozen=True)
class Configuration:
    """The policies that make an engine, or one that you make up.

    Attributes:
        block_size: tokens of a block, or what gives it for a model's shape.
        index: finds prefixes; None shares none.
        retention: what the index gives up first; None leaves it to the pool, the least recently
            used block, of a sequence the last one first.
        admission: for the longest request, who may begin.
        victim: who loses memory.
        limits: of one step, as far as the engine's sources give them.
        other_memory: for a number of slots and the longest request, a memory without blocks.

    Raises:
        ValueError: an index for a memory that has no blocks, or an order of retention for none.

    Example:
        >>> mine = Configuration(16, HashIndex, admission=lambda longest: AdmitPrompt(0.05))
        >>> scheduler = mine.build(num_slots=1000, max_seq_len=500)
        >>> scheduler.memory.size, scheduler.admission.watermark
        (992, 0.05)
    """

    block_size: int | Callable[[KVShape], int] = 16
    index: Callable[..., PrefixIndex] | None = None
    retention: Callable[[], RankedPolicy] | None = None
    admission: Callable[[int], Admission] = lambda longest: AdmitPrompt()
    victim: Victim = newest
    limits: StepLimits = field(default_factory=StepLimits)
    other_memory: Callable[[int, int], Memory] | None = None

    def __post_init__(self) -> None:
        if self.index is not None and self.other_memory is not None:
            raise ValueError("a prefix index shares whole blocks, and this memory has none")
        if self.retention is not None and self.index is None:
            raise ValueError("an order in which content is given up needs an index that knows it")

    def build(
        self,
        num_slots: int,
        max_seq_len: int,
        *,
        limits: StepLimits | None = None,
        shape: KVShape = LLAMA_3_8B,
    ) -> Scheduler:
        """Returns an idle scheduler with these policies.

        Args:
            num_slots: tokens of memory; what is left over of the last block is not used.
            max_seq_len: the longest request, prompt and output.
            limits: of one step, in place of the engine's own.
            shape: of the model's cache, for engines whose unit hangs on it.

        Raises:
            TypeError, ValueError: a size is not a whole number of at least 1, or the memory cannot
                hold the longest request.
        """
        whole_number("num_slots", num_slots)
        whole_number("max_seq_len", max_seq_len)
        return Scheduler(
            self._memory(num_slots, max_seq_len, shape),
            limits=limits or self.limits,
            admission=self.admission(max_seq_len),
            victim=self.victim,
            max_seq_len=max_seq_len,
        )

    def _memory(self, num_slots: int, max_seq_len: int, shape: KVShape) -> Memory:
        if self.other_memory is not None:
            return self.other_memory(num_slots, max_seq_len)
        size = self.block_size if isinstance(self.block_size, int) else self.block_size(shape)
        if num_slots < size:
            raise ValueError(f"{num_slots} slots are less than one block of {size}")
        return KVMemory(num_slots // size, size, self._make_index if self.index else None)

    def _make_index(self, pool: BlockPool) -> PrefixIndex:
        return self.index(pool, self.retention()) if self.retention else self.index(pool)


def _buddy(num_slots: int, longest: int) -> Memory:
    return ContiguousMemory(BuddyArena(num_slots))


def _rows(num_slots: int, longest: int) -> Memory:
    if num_slots < longest:
        raise ValueError(f"{num_slots} slots are less than one row of {longest}")
    return SlotMemory(num_slots // longest, longest)


def _default_priority() -> RankedPolicy:
    return PriorityPolicy(lambda content, i: Retain(), clock=lambda: 0.0)


def pages_of_2_mib(shape: KVShape) -> int:
    """Returns the tokens whose keys fill 2 MiB in one layer, at 2 bytes an element.

    Example:
        >>> pages_of_2_mib(LLAMA_3_8B)
        1024
    """
    return 2 * 2**20 // (2 * shape.num_kv_heads * shape.head_dim)


def fastgen_block(shape: KVShape) -> int:
    """Returns DeepSpeed-FastGen's block: 128 tokens for heads of 64 and less, else 64."""
    return 128 if shape.head_dim <= 64 else 64


CONFIGURATIONS: dict[str, Configuration] = {
    "vLLM V1": Configuration(16, HashIndex, limits=StepLimits(2048, 256)),
    "vLLM V0": Configuration(
        16,
        admission=lambda longest: AdmitPrompt(watermark=0.01),
        limits=StepLimits(chunked_prefill=False, prefill_first=True),
    ),
    "SGLang": Configuration(
        1,
        RadixTree,
        RankedLRU,
        admission=lambda longest: AdmitDiscounted(0.7, 0.14, 600, 4096, 20),
        victim=fewest_outputs,
    ),
    "TensorRT-LLM no-evict": Configuration(
        32, RadixTree, _default_priority, admission=lambda longest: AdmitReserved()
    ),
    "TensorRT-LLM max-util": Configuration(32, RadixTree, _default_priority),
    "LMDeploy TurboMind": Configuration(64, victim=lowest_priority),
    "LightLLM": Configuration(
        1, RadixTree, RankedLRU, admission=lambda longest: AdmitPredictedPeak(1024, 1.1)
    ),
    "TGI": Configuration(1, RadixTree, RankedLRU, admission=lambda longest: AdmitReserved()),
    "transformers": Configuration(
        256,
        HashIndex,
        lambda: DropAll(margin=0.15),
        admission=lambda longest: AdmitAboveMargin(watermark=0.15),
    ),
    "llama.cpp": Configuration(
        admission=lambda longest: AdmitReserved(ReserveMaximum(longest)), other_memory=_rows
    ),
    "DeepSpeed-FastGen": Configuration(fastgen_block, limits=StepLimits(768, 512)),
    "MLC-LLM": Configuration(16, RadixTree, RankedLRU),
    "ExLlamaV3": Configuration(256, HashIndex, admission=lambda longest: AdmitReserved()),
    "vAttention": Configuration(pages_of_2_mib),
    "Orca Max": Configuration(
        admission=lambda longest: AdmitReserved(ReserveMaximum(longest)), other_memory=_buddy
    ),
    "Orca Pow2": Configuration(
        admission=lambda longest: AdmitReserved(ReservePowerOfTwo(longest)), other_memory=_buddy
    ),
    "Orca Oracle": Configuration(
        admission=lambda longest: AdmitReserved(ReserveOracle(longest)), other_memory=_buddy
    ),
}
