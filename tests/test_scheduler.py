"""Who runs in a step, by hand: order, chunks, limits, refusals, steps that fail or come twice."""

import pytest

from kvlib.admission import AdmitPrompt, AdmitReserved
from kvlib.content import TokenContent
from kvlib.hash_index import HashIndex
from kvlib.kv_memory import KVMemory
from kvlib.plan import SequenceTooLong
from kvlib.request import Request
from kvlib.reservation import ReserveMaximum
from kvlib.scheduled_step import Step, StepLimits
from kvlib.scheduler import Scheduler
from kvlib.waiting import FirstComeLine


def scheduler(num_blocks=100, block_size=1, rows=(), index=None, **options):
    """A scheduler with requests of so many prompt and output tokens in line."""
    made = Scheduler(KVMemory(num_blocks, block_size, index), **options)
    for i, (prompt, output) in enumerate(rows):
        made.add(Request(i, None, prompt, output))
    return made


def one_step(served):
    """Runs a step; returns what it computed, by order of arrival."""
    step = served.schedule()
    served.check()
    work = [(job.order, n) for job, n in step.work]
    served.report(step)
    return work


def played(served):
    steps = []
    while served.has_work:
        steps.append(one_step(served))
        assert len(steps) < 1000
    return steps


def test_whoever_came_first_begins_first_and_nobody_overtakes():
    """B needs 6 of the 5 tokens that A leaves; C would fit, and waits behind it."""
    served = scheduler(8, rows=[(3, 3), (6, 1), (1, 1)])
    assert played(served) == [[(0, 3)], [(0, 1)], [(0, 1)], [(1, 6), (2, 1)]]


def test_prompts_are_cut_into_chunks_and_decode_goes_first():
    """Four tokens a step. A (5 + 3) makes its outputs in steps 1, 2 and 3; B (10 + 2) fills up."""
    served = scheduler(rows=[(5, 3), (10, 2)], limits=StepLimits(max_tokens=4))
    assert played(served) == [
        [(0, 4)],
        [(0, 1), (1, 3)],
        [(0, 1), (1, 3)],
        [(0, 1), (1, 3)],
        [(1, 1)],
        [(1, 1)],
    ]


def test_without_chunks_a_prompt_waits_until_a_step_can_hold_it():
    """Seven tokens a step: B's six do not fit beside A's two, then beside A's one."""
    limits = StepLimits(max_tokens=7, chunked_prefill=False)
    served = scheduler(rows=[(2, 2), (6, 1), (1, 1)], limits=limits)
    assert played(served) == [[(0, 2)], [(0, 1), (1, 6)], [(2, 1)]]
    with pytest.raises(SequenceTooLong, match="prompt of 8 tokens, a step computes 7 and prompts"):
        served.add(Request(3, None, 8, 1))
    assert not served.has_work


def test_a_request_that_outgrew_a_step_is_computed_again_in_one_of_its_own():
    """A and B (4 + 4) share 12 tokens. B loses 5, knows 6, and gets a step of its own for them."""
    limits = StepLimits(max_tokens=5, chunked_prefill=False)
    served = scheduler(12, rows=[(4, 4), (4, 4)], limits=limits)
    steps = played(served)
    assert steps[0] == [(0, 4)]
    assert steps[1] == [(0, 1), (1, 4)]
    assert [(1, 6)] in steps
    assert max(sum(n for _, n in step) for step in steps if step != [(1, 6)]) == 5


def test_prefill_first_lets_decode_wait():
    served = scheduler(rows=[(3, 3)], limits=StepLimits(prefill_first=True))
    assert one_step(served) == [(0, 3)]
    served.add(Request(1, None, 2, 2))
    assert one_step(served) == [(1, 2)]
    assert played(served) == [[(0, 1), (1, 1)], [(0, 1)]]


def test_where_prompts_go_first_whoever_finds_the_step_full_gets_nothing():
    """Four tokens a step. A decodes, B and C have half their prompts left when nobody waits."""
    limits = StepLimits(max_tokens=4, prefill_first=True)
    served = scheduler(rows=[(1, 4)], limits=limits)
    assert one_step(served) == [(0, 1)]
    for i in (1, 2):
        served.add(Request(i, None, 7, 1))
    assert [one_step(served) for _ in range(2)] == [[(1, 4)], [(2, 4)]]
    assert played(served) == [[(0, 1), (1, 3)], [(0, 1), (2, 3)], [(0, 1)]]


def test_the_last_token_of_a_step_begins_a_prompt():
    served = scheduler(rows=[(3, 1), (3, 1)], limits=StepLimits(max_tokens=4))
    assert played(served) == [[(0, 3), (1, 1)], [(1, 2)]]


def test_without_chunks_two_prompts_may_fill_a_step_to_its_last_token():
    limits = StepLimits(max_tokens=7, chunked_prefill=False)
    assert played(scheduler(rows=[(3, 1), (4, 1)], limits=limits)) == [[(0, 3), (1, 4)]]


def test_without_chunks_what_is_found_need_not_fit_into_a_step():
    """Nine tokens a step. Behind A's five only the last of B's nine is to be computed."""
    limits = StepLimits(max_tokens=9, chunked_prefill=False)
    served = scheduler(20, 4, index=HashIndex, limits=limits)
    served.add(Request(0, None, 9, 1), content=TokenContent(range(9), 4))
    played(served)
    served.add(Request(1, None, 5, 1))
    late = served.add(Request(2, None, 9, 1), content=TokenContent(range(9), 4))
    assert one_step(served) == [(1, 5), (2, 1)]
    assert (late.num_started, late.num_cached_first) == (1, 8)


def test_what_waits_and_what_runs_is_counted():
    served = scheduler(10, rows=[(6, 2), (7, 1), (2, 1)])
    assert (served.num_waiting, served.num_running, served.load_tokens) == (3, 0, 15)
    one_step(served)
    assert (served.num_waiting, served.num_running, served.load_tokens) == (2, 1, 6 + 9)


class Everybody(AdmitPrompt):
    """Lets everybody begin, whether there is room or not."""

    def admits(self, job, memory, running):
        return True


def test_where_a_rule_hopes_for_too_much_the_memory_decides():
    served = scheduler(8, rows=[(6, 1), (4, 1)], admission=Everybody())
    assert played(served) == [[(0, 6)], [(1, 4)]]


def test_who_asks_for_more_than_there_is_is_refused_with_the_numbers():
    served = scheduler(9, admission=AdmitReserved(ReserveMaximum(10)))
    with pytest.raises(SequenceTooLong, match="request 0 asked for 10 tokens, the memory holds 9"):
        served.add(Request(0, None, 2, 2))
    assert not served.has_work


class Nobody(AdmitPrompt):
    """Never lets anybody begin beside others, and writes down what it is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def admits(self, job, memory, running):
        assert job not in running
        return False

    def stepped(self, running, num_preempted):
        self.told.append(([job.order for job in running], num_preempted))


def test_a_rule_is_not_asked_while_nothing_runs_and_is_told_who_does():
    rule = Nobody()
    served = scheduler(rows=[(2, 2), (1, 1)], admission=rule)
    assert played(served) == [[(0, 2)], [(0, 1)], [(1, 1)]]
    assert rule.told == [([0], 0), ([], 0), ([], 0)]


def test_no_more_run_than_may():
    served = scheduler(rows=[(1, 2)] * 5, limits=StepLimits(max_running=2))
    assert [[order for order, _ in step] for step in played(served)] == [
        [0, 1],
        [0, 1],
        [2, 3],
        [2, 3],
        [4],
        [4],
    ]


def test_who_could_never_fit_is_refused_with_the_numbers_and_keeps_nobody_waiting():
    """49 blocks of 16; 1,002 tokens would need 63. Source: vllm-project/vllm#35541."""
    served = scheduler(49, 16, rows=[(5, 2)] * 10)
    before = (served.load_tokens, served.num_waiting)
    with pytest.raises(SequenceTooLong, match="prompt of 1002 tokens, max_seq_len 784"):
        served.add(Request(10, None, 1002, 1))
    assert (served.load_tokens, served.num_waiting) == before
    assert served.add(Request(11, None, 5, 2)).order == 10
    assert len(played(served)) == 2


def test_alone_a_request_is_cut_short_where_memory_ends():
    """Four blocks of 4, prompt 8, 30 wanted: 8 outputs. Source: vllm-project/vllm#39734."""
    served = scheduler(4, 4)
    job = served.add(Request(0, None, 8, 30))
    played(served)
    assert (job.num_outputs, job.num_preempted) == (8, 0)


@pytest.mark.parametrize(("allowed", "made"), [(None, 9), (3, 3), (9, 9), (20, 9)])
def test_clients_allow_so_many_outputs(allowed, made):
    served = scheduler()
    job = served.add(Request(0, None, 4, 9, max_new_tokens=allowed))
    played(served)
    assert job.num_outputs == made


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"prompt_tokens": 0}, ValueError, "prompt_tokens must be at least 1"),
        ({"output_tokens": 0}, ValueError, "output_tokens must be at least 1"),
        ({"prompt_tokens": 2.0}, TypeError, "prompt_tokens must be a whole number"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1"),
        ({"max_new_tokens": True}, TypeError, "max_new_tokens must be a whole number"),
        ({"prompt_tokens": 100}, SequenceTooLong, "max_seq_len 100 leaves no room"),
    ],
)
def test_a_request_that_cannot_be_is_refused(changes, error, message):
    served = scheduler()
    with pytest.raises(error, match=message):
        served.add(Request(**{"request_id": 0, "arrival_s": None} | LENGTHS | changes))
    assert not served.has_work


LENGTHS = {"prompt_tokens": 4, "output_tokens": 4}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_seq_len": 101}, ValueError, "max_seq_len is 101, the memory holds 100"),
        ({"max_seq_len": 0}, ValueError, "max_seq_len must be at least 1"),
        ({"max_seq_len": 5.0}, TypeError, "max_seq_len must be a whole number"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        scheduler(**options)


def test_the_longest_request_may_fill_the_memory():
    served = scheduler(rows=[(99, 9)], max_seq_len=100)
    assert [job.stop_at for job in served.waiting] == [100]


def test_all_of_memory_can_be_reserved_and_all_of_a_step_be_one_prompt():
    served = scheduler(8, admission=AdmitReserved())
    job = served.add(Request(0, None, 4, 99))
    assert one_step(served) == [(0, 4)] and job.room == 8
    served = scheduler(limits=StepLimits(max_tokens=7, chunked_prefill=False))
    served.add(Request(0, None, 7, 1))
    assert one_step(served) == [(0, 7)]


def test_a_step_that_failed_is_scheduled_again():
    """The model failed on the first two; nothing counts as computed, and the third is the same."""
    served = scheduler(rows=[(5, 2), (9, 1)], limits=StepLimits(max_tokens=8))
    first, second = served.schedule(), served.schedule()
    assert first.work == second.work
    with pytest.raises(ValueError, match="only the step that was scheduled last"):
        served.report(first)
    assert served.running.computed_tokens == 0
    assert one_step(served) == [(0, 5), (1, 3)]
    third = served.schedule()
    served.report(third)
    for step in (second, third):
        with pytest.raises(ValueError, match="and only once"):
            served.report(step)
    served.check()
    assert not served.has_work


def test_a_step_that_was_never_scheduled_is_not_reported():
    with pytest.raises(ValueError, match="only the step that was scheduled last"):
        scheduler().report(Step())


def test_a_request_has_the_times_it_was_told():
    served = scheduler(rows=[(2, 3)])
    job = served.add(Request(1, None, 2, 3), 0.25)
    for now in (1.0, 2.0, 4.0):
        assert job.finished_s is None
        served.report(served.schedule(), now)
    assert (job.arrived_s, job.first_token_s, job.finished_s) == (0.25, 1.0, 4.0)


def test_without_a_clock_all_happens_at_0():
    served = scheduler()
    job = served.add(Request(0, None, 2, 1))
    served.report(served.schedule())
    assert (job.arrived_s, job.first_token_s, job.finished_s) == (0.0, 0.0, 0.0)


def test_content_in_other_blocks_is_refused_when_it_arrives():
    served = scheduler(20, 4, index=HashIndex)
    with pytest.raises(ValueError, match="blocks of 8"):
        served.add(Request(0, None, 9, 1), content=TokenContent(range(9), 8))
    assert not served.has_work
    assert served.add(Request(1, None, 9, 1)).order == 0


def test_a_request_may_be_dropped_while_its_step_runs():
    served = scheduler(rows=[(5, 1), (4, 2)])
    step = served.schedule()
    first, second = served.running
    served.drop(first)
    assert served.report(step) == []
    served.check()
    assert (first.num_tokens, second.num_tokens) == (5, 5)
    assert played(served) == [[(1, 1)]]
    with pytest.raises(ValueError):
        served.drop(first)


class Listener(FirstComeLine):
    """A line that writes down what it is told of service."""

    counts_service = True

    def __init__(self):
        super().__init__()
        self.heard = []

    def served(self, job, num_tokens, output=False):
        self.heard.append((num_tokens, output))


def test_a_line_hears_of_prompt_tokens_and_of_each_output_once():
    """Ten prompt tokens in chunks of nine: no output is made by the first."""
    line = Listener()
    played(scheduler(rows=[(10, 3)], limits=StepLimits(max_tokens=9), waiting=line))
    assert line.heard == [(9, False), (1, False), (1, True), (1, True), (1, True)]


def test_a_line_does_not_hear_of_tokens_that_were_found():
    line = Listener()
    served = scheduler(20, 4, index=HashIndex, waiting=line)
    for i in range(2):
        request = Request(i, None, 9, 1)
        served.add(request, content=TokenContent(range(9), 4))
        played(served)
    assert [n for n, output in line.heard if not output] == [9, 1]
