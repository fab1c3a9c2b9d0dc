"""Random operations on the lines that requests wait in, and on the host's swap space."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvlib.fair_line import FairLine
from kvlib.handover_line import HandoverLine
from kvlib.preemption import SwapSpace
from kvlib.waiting import FirstComeLine, PriorityLine
from operation_steps import Subject, subject


@dataclass(eq=False, slots=True)
class Job:
    """What a line asks of whoever waits in it."""

    order: int
    request: Any


class Line(Subject):
    """A line against the set of those who wait in it."""

    rules = ("_push", "_push", "_pop", "_front", "_remove", "_served", "_expect", "_ready")
    make: type = FirstComeLine

    def build(self) -> None:
        self.line = type(self).make()
        self.inside: list[Any] = []
        self.outside: list[Any] = []
        self.held_back: set[int] = set()
        self.num_made = 0

    def state(self) -> Any:
        return [job.order for job in self.line], len(self.line)

    def check(self) -> None:
        self.line.check()
        waiting = sorted(job.order for job in self.line)
        assert waiting == sorted(job.order for job in self.inside), "somebody is lost, or twice"
        assert len(self.line) == len(waiting), "the line is miscounted"
        head = self.line.head()
        ready = [job for job in self.inside if job.order not in self.held_back]
        assert (head is None) == (not ready), f"{len(ready)} may begin, the head is {head}"
        assert head is None or head in ready, "the head is held back, or does not wait"

    def finish(self) -> None:
        for job in [*self.inside]:
            self.line.remove(job)
            self.inside.remove(job)
            self.held_back.discard(job.order)
            self.check()

    def _push(self) -> None:
        if len(self.inside) < 9:
            asked = SimpleNamespace(
                priority=self.random.randrange(3),
                tenant=self.random.choice("abc"),
                prompt_tokens=self.random.randint(1, 9),
            )
            job = Job(self.num_made, asked)
            self.num_made += 1
            self.line.push(job)
            self.inside.append(job)

    def _pop(self) -> None:
        head = self.line.head()
        if head is None:
            self.refused(self.line.pop, IndexError)
            return
        assert self.line.pop() is head, "another than the head left"
        self.inside.remove(head)
        self.outside = [*self.outside[-4:], head]

    def _front(self) -> None:
        if self.outside:
            job = self.outside.pop()
            self.line.push_front(job)
            self.inside.append(job)

    def _remove(self) -> None:
        if self.outside and self.chance(0.5):
            job = self.outside[-1]
            self.refused(lambda: self.line.remove(job), ValueError)
        elif self.inside:
            job = self.inside.pop(self.random.randrange(len(self.inside)))
            self.line.remove(job)
            self.held_back.discard(job.order)

    def _served(self) -> None:
        if self.outside:
            output = self.chance(0.5)
            self.line.served(self.outside[-1], self.random.randint(0, 9), output=output)
        if isinstance(self.line, FairLine) and self.outside:
            self.refused(lambda: self.line.served(self.outside[-1], -1), ValueError)

    def _expect(self) -> None:
        if isinstance(self.line, HandoverLine) and self.line._jobs:
            job = self.random.choice([*self.line._jobs])
            self.line.expect(job)
            self.held_back.add(job.order)

    def _ready(self) -> None:
        if not isinstance(self.line, HandoverLine):
            return
        for job in self.inside[:1]:
            if job.order in self.held_back:
                self.line.ready(job)
                self.held_back.remove(job.order)
            else:
                self.refused(lambda job=job: self.line.ready(job), KeyError)


class Space(Subject):
    """The swap space against what was taken in."""

    rules = ("_take", "_give", "_nonsense")

    def build(self) -> None:
        self.space, self.taken = SwapSpace(self.random.randint(1, 30)), []

    def state(self) -> Any:
        return self.space.num_free

    def check(self) -> None:
        self.space.check()
        free, total = self.space.num_free, self.space.num_tokens
        assert free + sum(self.taken) == total, f"{free} free, {self.taken} taken of {total}"

    def _take(self) -> None:
        count, free = self.random.randint(0, 12), self.space.num_free
        took = self.space.take(count)
        assert took == (count <= free), f"{count} tokens, {free} free"
        self.taken += [count] * took

    def _give(self) -> None:
        if self.taken:
            self.space.give(self.taken.pop(self.random.randrange(len(self.taken))))

    def _nonsense(self) -> None:
        most = sum(self.taken)
        self.refused(lambda: self.space.give(most + 1), ValueError)
        for bad in (-1, 1.5, True):
            self.refused(lambda bad=bad: self.space.take(bad), TypeError, ValueError)
            self.refused(lambda bad=bad: self.space.give(bad), TypeError, ValueError)


SUBJECTS = {
    "line: first come": Line,
    "line: by priority": subject(Line, make=PriorityLine),
    "line: fair shares": subject(Line, make=FairLine),
    "line: handed over": subject(Line, make=HandoverLine),
    "swap space": Space,
}
