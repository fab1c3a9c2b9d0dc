"""What an engine's desk refuses, and what its check notices."""

import pytest

from engine_cases import TEXT, Sevens
from kvlib.engine_desk import one_at_a_time
from kvlib.engine_refusals import EngineFull
from kvlib.plan import SequenceTooLong
from kvlib.scheduled_step import StepLimits


def test_max_seq_len_is_what_model_and_memory_hold():
    assert Sevens().scheduler.max_seq_len == 64
    assert Sevens(context_len=20).scheduler.max_seq_len == 20
    assert Sevens(num_blocks=3).scheduler.max_seq_len == 12
    assert Sevens(context_len=20, max_seq_len=20).scheduler.max_seq_len == 20
    desk = Sevens(context_len=20)
    desk.ask(TEXT, new=11)
    with pytest.raises(SequenceTooLong, match="asked for 9 prompt and 12 new tokens, 6 blocks"):
        desk.ask(TEXT, new=12)
    desk.run()


@pytest.mark.parametrize(
    "wrong",
    [
        {"context_len": 20, "max_seq_len": 21},
        {"max_seq_len": 0},
        {"max_waiting": 0},
        {"swap_tokens": -1},
        {"num_blocks": 0},
    ],
)
def test_a_number_out_of_its_range_is_refused(wrong):
    with pytest.raises(ValueError, match=next(reversed(wrong))):
        Sevens(**wrong)


def test_no_more_wait_than_may():
    desk = Sevens(max_waiting=2)
    desk.ask(samples=4)
    desk.ask()
    with pytest.raises(EngineFull, match="behind 2 requests, max_waiting is 2; 0 run, 16 of 16"):
        desk.ask()
    assert len(desk.run()) == 5


def test_samples_behind_a_prompt_that_fills_a_step_need_chunks():
    whole = dict(limits=StepLimits(max_tokens=9, chunked_prefill=False))
    with pytest.raises(SequenceTooLong, match="samples behind a prompt of 9 tokens"):
        Sevens(**whole).ask(samples=2)
    for prompt, samples in ((TEXT[:8], 2), (TEXT, 1)):
        desk = Sevens(**whole)
        desk.ask(prompt, samples=samples)
        assert len(desk.run()) == samples
    desk = Sevens(limits=StepLimits(max_tokens=9))
    desk.ask(samples=2)
    assert len(desk.run()) == 2


def test_no_step_runs_inside_of_a_step_and_one_that_failed_is_over():
    desk = Sevens()
    request = desk.ask()
    request.choose = lambda logits: desk.step()
    with pytest.raises(RuntimeError, match="asked for a step while one runs"):
        desk.step()
    request.choose = lambda logits: 7
    assert desk.run() == [request] and Sevens.step.__name__ == "step"
    stepping = one_at_a_time(lambda desk: desk.stepping)
    assert [stepping(desk), desk.stepping, stepping(desk)] == [True, False, True]


def without_request(desk, first, second):
    desk.live.clear()


def of_another(desk, first, second):
    desk.live.update({first.job: second, second.job: first})


def ended_alone(desk, first, second):
    first.finish_reason = "length"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_request, "a job without its request"),
        (of_another, "a request of another job"),
        (ended_alone, "an ended request holds memory"),
    ],
)
def test_a_broken_desk_is_noticed(spoil, said):
    desk = Sevens()
    first, second = desk.ask(), desk.ask()
    desk.step()
    desk.check()
    spoil(desk, first, second)
    with pytest.raises(AssertionError, match=said):
        desk.check()


def test_memory_that_nobody_holds_is_noticed():
    desk = Sevens()
    desk.check()
    job = desk.ask().job
    desk.memory.start(job, 9)
    desk.scheduler.waiting.remove(job)
    desk.scheduler.waiting_tokens = 0
    desk.live.clear()
    with pytest.raises(AssertionError, match="memory is held by nobody"):
        desk.check()
