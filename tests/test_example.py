"""The book's one example: budget, requests, conversation, and that it returns throughout."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from kvlib.example import BUDGET_SLOTS, CONVERSATION, THREE, conversation, three_requests
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.one_by_one import serve_alone
from kvlib.scheduled_step import StepLimits
from kvlib.scheduler import Scheduler
from kvlib.serving import serve

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted(path.name for path in (ROOT / "chapters").glob("0*"))


def test_the_budget_is_the_papers_and_runs_seven():
    assert (BUDGET_SLOTS, BUDGET_SLOTS // 2048) == (15_728, 7)


def test_the_three_fill_ten_eight_and_seven_slots():
    assert [ask.prompt + ask.answer for ask in THREE.values()] == [10, 8, 7]


def test_the_texts_have_the_prompts_lengths(real_model):
    _, tokenizer = real_model
    lengths = {name: len(tokenizer.encode(ask.text)) for name, ask in THREE.items()}
    assert lengths == {name: ask.prompt for name, ask in THREE.items()}


def test_in_twenty_slots_one_of_the_three_loses_its_memory():
    limits = StepLimits(max_tokens=8)
    run = serve(three_requests(), Scheduler(KVMemory(5, 4), limits=limits))
    assert (run.computed_tokens, run.recomputed_tokens, run.peak_running) == (27, 5, 3)


def test_a_client_may_allow_more_than_it_gets():
    assert {request.max_new_tokens for request in three_requests(8)} == {8}


def test_each_turn_finds_the_whole_blocks_of_the_one_before():
    memory = KVMemory(16, 4, HashIndex)
    assert [serve_alone(memory, turn) for turn in conversation()] == [0, 8, 16]


def test_a_turn_is_all_said_before_and_four_new_tokens():
    turns = conversation(gap_s=2.0)
    assert [turn.arrival_s for turn in turns] == [0, 2, 4]
    for before, turn in pairwise(turns):
        assert turn.token_ids[: len(before.token_ids)] == before.token_ids
        assert turn.prompt_tokens - len(before.token_ids) == 4
    assert [turn.prompt_tokens for turn in turns] == list(CONVERSATION)
    assert len(turns[-1].token_ids) == 26


@pytest.mark.parametrize("what", ["budget", "three", "conversation"])
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_example_returns_in_every_chapter(chapter, what):
    pages = [*(ROOT / "chapters" / chapter).glob("*.ipynb")]
    named = re.compile(rf"\(the-{what}\)=|<the-{what}>")
    assert any(named.search(page.read_text(encoding="utf-8")) for page in pages)
