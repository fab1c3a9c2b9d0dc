"""Fair shares: who was served least goes first, and idling saves up nothing."""

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.fair_line import FairLine
from kvlib.waiting import FirstComeLine
from test_waiting import job, orders

SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=60)


def test_the_tenant_served_least_goes_first():
    line = FairLine()
    for order, tenant in enumerate("abab"):
        line.push(job(order, tenant=tenant))
    line.served(job(9, tenant="a"), 10)
    line.served(job(9, tenant="b"), 9)
    assert line.pop().request.tenant == "b"
    line.served(job(9, tenant="b"), 2)
    assert line.pop().request.tenant == "a"


def test_among_equals_the_first_to_arrive_goes_first():
    line = FairLine()
    line.push(job(0, tenant="z"))
    line.push(job(1, tenant="a"))
    assert orders(line) == [0, 1]
    assert line.pop().order == 0


def test_a_token_made_counts_twice_a_token_of_the_prompt():
    line = FairLine()
    line.served(job(0, tenant="a"), 5)
    line.served(job(0, tenant="a"), 5, output=True)
    assert line.counter("a") == 15
    line = FairLine(input_weight=3, output_weight=7)
    line.served(job(0, tenant="a"), 1)
    line.served(job(0, tenant="a"), 1, output=True)
    assert line.counter("a") == 10


def test_a_tenant_that_was_idle_is_lifted_to_the_least_of_those_that_wait():
    line = FairLine()
    for order, tenant in enumerate("abc"):
        line.push(job(order, tenant=tenant))
    line.served(job(0, tenant="a"), 100)
    line.served(job(1, tenant="b"), 60)
    line.served(job(2, tenant="c"), 90)
    line.push(job(3, tenant="late"))
    assert line.counter("late") == 60


def test_a_lift_takes_nothing_away():
    line = FairLine()
    line.served(job(0, tenant="busy"), 100)
    line.push(job(1, tenant="new"))
    line.push(job(2, tenant="busy"))
    assert (line.counter("new"), line.counter("busy")) == (0, 100)


def test_who_already_waits_is_not_lifted():
    line = FairLine()
    line.push(job(0, tenant="a"))
    line.push(job(1, tenant="b"))
    line.served(job(0, tenant="a"), 100)
    line.push(job(2, tenant="b"))
    assert line.counter("b") == 0


def test_where_nobody_waits_the_last_to_leave_sets_the_lift():
    """Else a newcomer between two requests of a lone tenant would own the machine for long."""
    line = FairLine()
    line.push(job(0, tenant="alone"))
    line.served(line.pop(), 10_000)
    line.push(job(1, tenant="new"))
    assert line.counter("new") == 10_000


def test_a_preempted_request_goes_before_the_others_of_its_tenant_only():
    line = FairLine()
    line.push(job(1, tenant="a"))
    line.push(job(2, tenant="b"))
    line.served(job(2, tenant="b"), 7)
    line.push_front(job(5, tenant="b"))
    assert orders(line) == [1, 5, 2]


def test_a_preempted_request_brings_its_tenant_forward_among_equals():
    line = FairLine()
    line.push(job(3, tenant="a"))
    line.push(job(4, tenant="b"))
    line.push_front(job(0, tenant="b"))
    assert line.head().order == 0


def test_a_request_that_gives_up_may_leave_an_earlier_one_at_its_tenants_head():
    line, gives_up = FairLine(), job(2, tenant="a")
    line.push_front(job(0, tenant="a"))
    line.push_front(gives_up)
    line.push(job(1, tenant="b"))
    assert line.head().order == 1
    line.remove(gives_up)
    line.check()
    assert line.head().order == 0


def test_one_step_does_not_admit_a_single_tenant():
    line = FairLine()
    for order, tenant in enumerate("aaaabbbb"):
        line.push(job(order, tenant=tenant, prompt_tokens=10))
    assert [line.pop().request.tenant for _ in range(4)] == ["a", "b", "a", "b"]


def test_a_prompt_that_was_admitted_counts_its_tokens_and_no_more():
    """Then both tenants have 9, and a's next request came first."""
    line = FairLine()
    for order, tenant in enumerate("aab"):
        line.push(job(order, tenant=tenant, prompt_tokens=9))
    line.served(job(9, tenant="b"), 9)
    assert [line.pop().order for _ in range(3)] == [0, 1, 2]


def test_what_was_found_in_the_cache_is_forgiven_once_the_work_is_noted():
    line = FairLine()
    for order, tenant in enumerate("aab"):
        line.push(job(order, tenant=tenant, prompt_tokens=1000))
    line.served(job(2, tenant="b"), 100)
    first = line.pop()
    assert line.head().request.tenant == "b"
    line.served(first, 50)
    line.check()
    assert line.head().request.tenant == "a"
    assert line.counter("a") == 50


@given(SIZES, SIZES)
def test_two_tenants_that_always_wait_differ_by_at_most_one_request(of_a, of_b):
    """Each request costs what it says; as soon as one begins, its tenant sends another."""
    line, sizes, tokens = FairLine(), {"a": cycle(of_a), "b": cycle(of_b)}, {"a": 0, "b": 0}
    for order, tenant in enumerate("abab"):
        line.push(job(order, tenant=tenant, prompt_tokens=next(sizes[tenant])))
    for order in range(4, 60):
        first = line.pop()
        tenant, cost = first.request.tenant, first.request.prompt_tokens
        line.push(job(order, tenant=tenant, prompt_tokens=next(sizes[tenant])))
        line.served(first, cost)
        tokens[tenant] += cost
        assert abs(tokens["a"] - tokens["b"]) <= max(*of_a, *of_b)


@given(SIZES, st.integers(1, 8))
def test_admitting_many_in_a_step_keeps_that_bound(sizes, at_once):
    line, tokens = FairLine(), {"a": 0, "b": 0}
    for order in range(160):
        size = sizes[order % len(sizes)]
        line.push(job(order, tenant="ab"[order % 2], prompt_tokens=size))
    for _ in range(10):
        begun = [line.pop() for _ in range(at_once)]
        for each in begun:
            line.served(each, each.request.prompt_tokens)
            tokens[each.request.tenant] += each.request.prompt_tokens
        if {each.request.tenant for each in line} != {"a", "b"}:
            break
        assert abs(tokens["a"] - tokens["b"]) <= max(sizes)


class AnyLine(RuleBasedStateMachine):
    """Beside the line stand a plain list a tenant and plain counters."""

    def __init__(self):
        super().__init__()
        self.line, self.lists, self.counters = FairLine(), {}, {}
        self.admitted, self.running, self.last, self.num_pushed = {}, [], None, 0

    def lift(self, tenant):
        if self.lists.get(tenant):
            return
        waiting = [each for each, jobs in self.lists.items() if jobs]
        floor = self.counters[min(waiting, key=self.key)] if waiting else 0
        floor = floor if waiting or not self.last else self.counters[self.last]
        self.counters[tenant] = max(self.counters.get(tenant, 0), floor)

    def key(self, tenant):
        served = self.counters[tenant] + self.admitted.get(tenant, 0)
        return served, self.lists[tenant][0].order

    def due(self):
        waiting = [tenant for tenant, jobs in self.lists.items() if jobs]
        return [each for tenant in sorted(waiting, key=self.key) for each in self.lists[tenant]]

    def leave(self, each):
        self.lists[each.request.tenant].remove(each)
        if not self.lists[each.request.tenant]:
            self.last = each.request.tenant

    @rule(tenant=st.sampled_from("abcd"), size=st.integers(1, 9))
    def push(self, tenant, size):
        self.lift(tenant)
        new = job(self.num_pushed, tenant=tenant, prompt_tokens=size)
        self.num_pushed += 1
        self.lists.setdefault(tenant, []).append(new)
        self.line.push(new)

    @precondition(lambda self: self.due())
    @rule()
    def pop(self):
        head = self.due()[0]
        assert self.line.pop() is head
        tenant = head.request.tenant
        self.leave(head)
        self.admitted[tenant] = self.admitted.get(tenant, 0) + head.request.prompt_tokens
        self.running.append(head)

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 99))
    def back(self, number):
        each = self.running.pop(number % len(self.running))
        self.lift(each.request.tenant)
        self.lists[each.request.tenant].insert(0, each)
        self.line.push_front(each)

    @precondition(lambda self: self.due())
    @rule(number=st.integers(0, 99))
    def remove(self, number):
        each = self.due()[number % len(self.due())]
        self.leave(each)
        self.line.remove(each)

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 99), tokens=st.integers(0, 9), output=st.booleans())
    def served(self, number, tokens, output):
        each = self.running[number % len(self.running)]
        self.counters[each.request.tenant] += tokens * (2 if output else 1)
        self.admitted = {}
        self.line.served(each, tokens, output)

    @invariant()
    def same(self):
        due = self.due()
        assert list(self.line) == due
        assert len(self.line) == len(due)
        assert self.line.head() is (due[0] if due else None)
        assert all(self.line.counter(each) == n for each, n in self.counters.items())
        self.line.check()


TestAnyLine = AnyLine.TestCase


def test_bad_input_is_refused_and_nothing_changes():
    with pytest.raises(ValueError, match="weights are above 0, got 0 and 2"):
        FairLine(input_weight=0)
    with pytest.raises(ValueError, match="weights are above 0, got 1 and nan"):
        FairLine(output_weight=float("nan"))
    with pytest.raises(ValueError, match="weights are above 0, got 1 and 0"):
        FairLine(output_weight=0)
    line = FairLine()
    with pytest.raises(IndexError, match="asked for 1 request, 0 wait"):
        line.pop()
    line.push(job(0, tenant="a"))
    with pytest.raises(ValueError, match="at least 0 tokens are served, got -1"):
        line.served(job(0, tenant="a"), -1)
    for stranger in (job(0, tenant="a"), job(0, tenant="b")):
        with pytest.raises(ValueError, match="request 0 does not wait here"):
            line.remove(stranger)
    line.check()
    assert (orders(line), line.counter("a")) == ([0], 0)


def test_weights_may_be_as_small_as_one_likes():
    line = FairLine(input_weight=0.5, output_weight=0.25)
    assert line.counts_service
    line.push(job(0, tenant="a", prompt_tokens=6))
    line.push(job(1, tenant="a", prompt_tokens=6))
    line.push(job(2, tenant="b"))
    line.served(job(2, tenant="b"), 8, output=True)
    assert line.counter("b") == 2
    assert [line.pop().order for _ in range(3)] == [0, 2, 1]  # of a prompt of 6 three count


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda line: line._lines["a"].push(line.head()), "one of 3 waits twice"),
        (lambda line: setattr(line, "_num_waiting", 4), "3 wait, 4 are counted"),
        (lambda line: line._lines.update(z=FirstComeLine()), "a tenant without requests waits"),
        (lambda line: line._turns.leave("b"), "1 tenants have a turn, 2 wait"),
        (lambda line: line._counters.update(b=-5), "'b' stands too far back"),
    ],
)
def test_a_check_finds_what_is_wrong(spoil, found):
    line = FairLine()
    for order, tenant in enumerate("aab"):
        line.push(job(order, tenant=tenant))
    line.check()
    spoil(line)
    with pytest.raises(AssertionError, match=found):
        line.check()
