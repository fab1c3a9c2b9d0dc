"""One workload on many configurations: what each is given, and what it looks for."""

import pytest

from kvlib.admission import AdmitPrompt
from kvlib.catalog import gpu, model
from kvlib.comparison import OwnContent, compare, content_for, slots_on
from kvlib.engine_configs import CONFIGURATIONS, Configuration
from kvlib.hash_index import HashIndex
from kvlib.request import Request
from kvlib.scheduled_step import StepLimits
from kvlib.serving_run import Target
from kvlib.sizes import KVShape

UNKNOWN = Request(3, None, 20, 13)
KNOWN = Request(4, None, 20, 13, token_ids=tuple(range(33)))
PROMPT = AdmitPrompt()
INDEXED = Configuration(8, HashIndex)


class Second:
    """Every step takes a second."""

    def seconds(self, step):
        return 1.0


def test_slots_are_what_weights_and_the_share_kept_free_leave():
    """(24e9 - 16.06e9) / 131,072 = 60,577.4, and with 80 % of the card 23,956.3."""
    card, llama = gpu("L4"), model("Llama-3-8B")
    assert [slots_on(card, llama, percent) for percent in (0, 20)] == [60_577, 23_956]
    assert slots_on(card, llama) == slots_on(card, llama, 10) == 42_266


def test_what_is_ones_own_counts_prompt_and_answer_in_whole_blocks():
    own = OwnContent(UNKNOWN, block_size=8)
    assert (own.block_size, own.num_blocks, own.namespace) == (8, 4, None)
    assert own.block(2) == own.key(2) == OwnContent(UNKNOWN, 8).key(2) is not None
    assert len({own.key(0), own.key(1), OwnContent(KNOWN, 8).key(0)}) == 3


@pytest.mark.parametrize(
    "configuration, own, known, unknown",
    [
        (INDEXED, False, ("TokenContent", 8, 4), None),
        (INDEXED, True, ("TokenContent", 8, 4), ("OwnContent", 8, 4)),
        (Configuration(8), True, None, None),
        (CONFIGURATIONS["llama.cpp"], True, ("TokenContent", 1, 33), None),
        (CONFIGURATIONS["Orca Max"], True, None, None),
    ],
    ids=["indexed", "own", "no index", "rows", "pieces"],
)
def test_content_is_told_where_a_memory_looks_for_it(configuration, own, known, unknown):
    scheduler = configuration.build(4096, 64)
    told = content_for(scheduler, own=own)
    for request, expected in ((KNOWN, known), (UNKNOWN, unknown)):
        found = told(request)
        shown = found and (type(found).__name__, found.block_size, found.num_blocks)
        assert shown == expected
    if configuration is INDEXED and not own:
        assert content_for(scheduler)(UNKNOWN) is None, "not its own unless asked for"


def test_each_configuration_gets_the_same_requests_limits_and_shape():
    seen = []

    def unit(shape):
        seen.append(shape)
        return 8

    shape, requests = KVShape(2, 3, 5), (Request(i, None, 20, 12) for i in range(4))
    kinds = {"first": Configuration(unit), "second": Configuration(8, limits=StepLimits(999, 3))}
    runs = compare(kinds, requests, 400, 64, limits=StepLimits(999, 2), shape=shape)
    assert seen == [shape] and list(runs) == ["first", "second"]
    assert [(run.finished, run.peak_running) for run in runs.values()] == [(4, 2), (4, 2)]
    again = [Request(i, None, 20, 12) for i in range(4)]
    runs = compare(kinds, again, 400, 64)
    assert [run.peak_running for run in runs.values()] == [4, 3], "each has its own limits"
    assert seen[1] == KVShape(32, 8, 128), "Llama-3-8B's"


def test_clock_and_target_are_those_of_serving():
    requests = [Request(i, float(i), 20, 3) for i in range(2)]
    for ttft_s, good in ((1.0, 2), (0.5, 0)):
        target = Target(ttft_s, 1.0)
        run = compare({"a": INDEXED}, requests, 400, 64, clock=Second(), target=target)["a"]
        assert (run.good, run.now_s, run.timed) == (good, 4.0, True)


def test_only_who_lost_memory_looks_for_its_own_blocks():
    """Four blocks each; 17 hold four of eight requests, so that who grows pushes another out.

    Some end a step before the others: by then an index has what it would keep of them.
    """
    requests = [Request(i, None, 20, 12 - i % 2) for i in range(8)]
    built = []
    kinds = {
        name: Configuration(8, index, admission=lambda _, name=name: built.append(name) or PROMPT)
        for name, index in (("indexed", HashIndex), ("blind", None))
    }
    wide, tight = (compare(kinds, requests, slots, 64) for slots in (400, 136))
    assert built == ["indexed", "blind", "indexed", "indexed", "blind"], "once, where that will do"
    assert [run.preempted > 0 for run in (*wide.values(), *tight.values())] == [0, 0, 1, 1]
    kept = [run.kept_s > 0 for run in (*wide.values(), *tight.values())]
    assert kept == [False, False, True, False], "what nobody can find again is not kept"
    assert tight["indexed"].recomputed_tokens < tight["blind"].recomputed_tokens
