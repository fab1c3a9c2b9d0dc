"""Requests one after another find what they find on a scheduler, and hold nothing afterwards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.arena import Arena
from kvlib.contiguous_memory import ContiguousMemory
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.one_by_one import begin, compute, serve_alone
from kvlib.plan import OutOfBlocks, SequenceTooLong
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.request_content import content_of
from kvlib.scheduler import Scheduler
from kvlib.serving import serve
from kvlib.slot_memory import SlotMemory

MEMORIES = {
    "chain": lambda: KVMemory(8, 4, HashIndex),
    "tree": lambda: KVMemory(32, 1, RadixTree),
    "no index": lambda: KVMemory(8, 4),
    "rows": lambda: SlotMemory(2, 32),
    "pieces": lambda: ContiguousMemory(Arena(32)),
}


def request(tokens, output=1, number=0, **more):
    """A request whose last `output` tokens are its answer."""
    prompt = len(tokens) - output
    return Request(number, None, prompt, output, token_ids=tuple(tokens), **more)


@pytest.fixture(params=MEMORIES)
def memory(request):
    return MEMORIES[request.param]()


TEXTS = st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=20), min_size=1, max_size=8)


@given(name=st.sampled_from(sorted(MEMORIES)), texts=TEXTS, data=st.data())
def test_each_finds_what_it_finds_on_a_scheduler_that_serves_one_at_a_time(name, texts, data):
    memory, theirs = MEMORIES[name](), MEMORIES[name]()
    size = getattr(theirs, "block_size", 1)
    for i, text in enumerate(texts):
        asked = request(text, data.draw(st.integers(1, len(text) - 1)), i)
        scheduler = Scheduler(theirs, max_seq_len=32)
        served = serve([asked], scheduler, content=lambda r: content_of(r, size))
        assert serve_alone(memory, asked) == served.cached_tokens
        memory.check()
        assert (memory.num_held, memory.num_kept) == (0, theirs.num_kept)


def test_a_request_that_has_begun_has_computed_nothing_but_what_it_found(memory):
    serve_alone(memory, request(range(9)))
    job = begin(memory, request([*range(9), 9], number=7))
    assert job.num_computed == job.num_cached and (job.num_tokens, job.order) == (9, 7)
    assert job.room >= 9 and job.limit == memory.most
    compute(memory, job, 9)
    memory.check()
    assert (job.num_computed, job.num_tokens) == (9, 9)


def test_a_part_of_a_prompt_can_be_computed_and_an_answer_makes_tokens_known():
    memory = KVMemory(8, 4, HashIndex)
    job = begin(memory, request(range(12), output=3))
    compute(memory, job, 5)
    assert (job.num_computed, job.num_tokens, job.num_indexed, job.room) == (5, 9, 1, 12)
    compute(memory, job, 13)
    assert (job.num_computed, job.num_tokens, job.num_indexed, job.room) == (13, 13, 3, 16)


def test_memory_that_cannot_grow_is_asked_at_once_for_all_a_request_may_hold():
    memory = ContiguousMemory(Arena(32))
    job = begin(memory, request(range(9), max_new_tokens=10))
    assert (job.room, job.limit) == (18, 18)
    compute(memory, job, 18)
    with pytest.raises(OutOfBlocks):
        compute(memory, job, 19)


@pytest.mark.parametrize(
    "num_tokens, error, words",
    [
        (7, ValueError, "request 3 has 8 tokens computed, asked to compute up to 7"),
        (0, ValueError, "num_tokens must be at least 1, got 0"),
        (9.0, TypeError, "num_tokens must be a whole number, got 9.0"),
        (33, OutOfBlocks, "asked for"),
    ],
)
def test_what_cannot_be_computed_is_refused_and_nothing_changes(memory, num_tokens, error, words):
    job = begin(memory, request(range(9), number=3))
    compute(memory, job, 8)
    before = job.num_tokens, job.num_computed, job.room, memory.num_free
    with pytest.raises(error, match=words):
        compute(memory, job, num_tokens)
    assert (job.num_tokens, job.num_computed, job.room, memory.num_free) == before
    compute(memory, job, 8)  # the same again is no step back
    memory.check()


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(memory):
    with pytest.raises(SequenceTooLong, match="leaves no room for an answer"):
        serve_alone(memory, request(range(33)))
    assert memory.num_free == memory.size
    memory.check()


def test_an_answer_ends_where_the_memory_does(memory):
    assert serve_alone(memory, request(range(60), output=40)) == 0
    kept = 28 if isinstance(memory, KVMemory) and memory.block_size == 4 else 31
    if getattr(memory, "prefixes", None) is None and not isinstance(memory, SlotMemory):
        kept = 0
    assert memory.num_kept == kept
    memory.check()


def test_who_finds_no_room_on_its_way_holds_nothing_afterwards():
    memory = KVMemory(4, 4, HashIndex)
    begin(memory, request(range(100, 109)))
    with pytest.raises(OutOfBlocks):
        serve_alone(memory, request(range(12), output=8))
    assert memory.num_free == 8
    memory.check()
