"""What every structure of `operations.py` shares: random operations, faults between any two, a law.

A *subject* is one structure beside a plain model of what it should hold. One call of `operate` does
one random operation, checks every invariant, and may put a fault in; `finish` gives everything
back. A fault is an exception at a place where something may fail: inside an allocation, in a copy,
in a callback. Half of them are interrupts, so that no `except Exception` takes them for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any


class Broken(Exception):
    """A failure that was put in."""


class Stopped(KeyboardInterrupt):
    """An interrupt that was put in."""


FAULTS = (Broken, Stopped)


class Faults:
    """Fails once, at the place that was chosen, while it is armed.

    Attributes:
        raised: faults so far.
    """

    def __init__(self, random: Random) -> None:
        self.random, self.raised = random, 0
        self._left = 0

    @property
    def armed(self) -> bool:
        """Whether a place may fail."""
        return self._left > 0

    def arm(self) -> None:
        """Lets one of the next places fail."""
        self._left = self.random.choice((1, 1, 2, 3))

    def disarm(self) -> None:
        """Lets no place fail."""
        self._left = 0

    def here(self, *_: object) -> None:
        """Stands where something may fail, and fails if it is this place's turn."""
        if self._left:
            self._left -= 1
            if not self._left:
                self.raised += 1
                raise self.random.choice(FAULTS)("a fault was put in")

    def before(self, owner: object, name: str) -> None:
        """Lets a method of one object fail before it has done anything."""
        real = getattr(owner, name)

        def fragile(*args: Any, **options: Any) -> Any:
            self.here()
            return real(*args, **options)

        setattr(owner, name, fragile)

    def after(self, owner: object, name: str) -> None:
        """Lets a method of one object fail after it has done all it does."""
        real = getattr(owner, name)

        def fragile(*args: Any, **options: Any) -> Any:
            result = real(*args, **options)
            self.here()
            return result

        setattr(owner, name, fragile)


class Subject:
    """One structure and its model. A kind of structure says what may be done to it.

    Attributes:
        rules: names of methods, each one random operation; a name that stands twice comes twice as
            often.
        partial: of these, the ones that may have done a part of their work when a fault strikes, or
            all of it. After any other, `state` is what it was before.
        fault_share: of the operations, how many have a fault put in.
        share: how often it is driven, beside the others' 1.
    """

    rules: tuple[str, ...] = ()
    partial: frozenset[str] = frozenset()
    fault_share = 0.15
    share = 1.0

    def __init__(self, random: Random) -> None:
        self.random, self.faults = random, Faults(random)
        self.build()

    def build(self) -> None:
        """Makes the structure, empty, and its model."""
        raise NotImplementedError

    def state(self) -> Any:
        """Returns what a failed call must leave as it was."""
        raise NotImplementedError

    def check(self) -> None:
        """Proves the structure's invariants, and that its model says the same."""
        raise NotImplementedError

    def finish(self) -> None:
        """Gives everything back, and proves that nothing is left."""

    def operate(self) -> None:
        """Does one random operation and checks what is left."""
        self.do(self.random.choice(self.rules), faulty=self.chance(self.fault_share))

    def do(self, name: str, *, faulty: bool) -> None:
        """Does one operation and checks what is left.

        Args:
            name: one of `rules`.
            faulty: whether a place that it passes may fail.
        """
        before = self.state() if faulty else None
        if faulty:
            self.faults.arm()
        try:
            getattr(self, name)()
        except FAULTS:
            self.faults.disarm()
            same = name in self.partial or self.state() == before
            assert same, f"{type(self).__name__}.{name} failed and left something behind"
        self.faults.disarm()
        self.check()

    def refused(self, call: Callable[[], object], *errors: type[Exception]) -> None:
        """Makes a call that must be refused and change nothing."""
        before = self.state()
        try:
            call()
        except errors:
            assert self.state() == before, "a refused call changed something"
            return
        raise AssertionError(f"{type(self).__name__} took what it should refuse")

    def chance(self, share: float) -> bool:
        """Answers yes so often."""
        return self.random.random() < share


def subject(base: type[Subject], **settings: Any) -> type[Subject]:
    """Returns a kind of subject with these settings, as class attributes."""
    return type(base.__name__, (base,), settings)
