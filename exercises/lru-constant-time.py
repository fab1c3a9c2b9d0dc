"""LRU without a search: graded by counting what each access does."""

import sys
from random import Random

TASK = """
A cache holds at most `capacity` keys and takes in every key it misses. **Return the keys it gives
up, in order, when it always gives up the least recently used one**; every access is a use.

The grader counts the lines you run and how often keys are hashed and compared: **an access must not
do more work because more keys are held.** Is there something in `collections` that remembers an
order and moves a key to its end?
"""

STUB = """
def given_up(accesses, capacity):
    order, gone = [], []
    for key in accesses:
        if key in order:
            order.remove(key)
        elif len(order) == capacity:
            gone.append(order.pop(0))
        order.append(key)
    return gone
"""

SOLUTION = """
from collections import OrderedDict

def given_up(accesses, capacity):
    order, gone = OrderedDict(), []
    for key in accesses:
        if key in order:
            order.move_to_end(key)
            continue
        if len(order) == capacity:
            oldest, _ = order.popitem(last=False)
            gone.append(oldest)
        order[key] = None
    return gone
"""

WRONG = (
    # A hit does not count as a use: first in, first out.
    SOLUTION.replace("order.move_to_end(key)", "pass"),
    # Gives up the newest.
    SOLUTION.replace("last=False", "last=True"),
    # Holds one key too many.
    SOLUTION.replace("len(order) == capacity", "len(order) > capacity"),
    # The right order, but searches all moments for the earliest.
    """
def given_up(accesses, capacity):
    last, gone = {}, []
    for now, key in enumerate(accesses):
        if key not in last and len(last) == capacity:
            gone.append(min(last.items(), key=lambda item: item[1])[0])
            del last[gone[-1]]
        last[key] = now
    return gone
""",
    STUB,
)

WORK_PER_ACCESS = 30


class Key:
    """A key that counts how often keys are hashed and compared."""

    work = 0

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        Key.work += 1
        return hash(self.name)

    def __eq__(self, other):
        Key.work += 1
        return isinstance(other, Key) and self.name == other.name


def counted(answer, accesses, capacity):
    """Returns how many lines and calls run, and how often keys are hashed and compared."""
    steps = 0

    def trace(frame, event, arg):
        nonlocal steps
        if frame.f_code not in (Key.__hash__.__code__, Key.__eq__.__code__):
            steps += event in ("call", "line")
        return trace

    before, Key.work = sys.gettrace(), 0
    sys.settrace(trace)
    try:
        answer(accesses, capacity)
    finally:
        sys.settrace(before)
    return steps + Key.work


def evicted(accesses, capacity):
    """The obvious way: looks through everything that was asked for before."""
    held, gone = [], []
    for key in accesses:
        if key in held:
            held.remove(key)
        elif len(held) == capacity:
            gone.append(held.pop(0))
        held.append(key)
    return gone


def check(answer):
    rng = Random(0)
    cases = [("abcabc", 2), ("abacad", 2), ("aaaa", 1), ("abcd", 9), ("", 3)]
    cases += [([int(rng.random() * 9) for _ in range(30)], size) for size in (1, 3, 5, 8)]
    for accesses, capacity in cases:
        expected, got = evicted(accesses, capacity), answer(accesses, capacity)
        if got != expected:
            return (
                f"given_up({accesses!r}, {capacity}) should be {expected}, but yours gave {got!r}."
            )
    return too_much_work(answer)


def too_much_work(answer):
    # Fills the cache, hits every key once, then replaces half of them.
    capacity = 500
    accesses = [Key(name) for name in (*range(capacity), *range(capacity), *range(500, 750))]
    work = counted(answer, accesses, capacity)
    most = WORK_PER_ACCESS * len(accesses)
    if work > most:
        return (
            f"The order is right. With {capacity} keys held, {len(accesses):,} accesses should be "
            f"done in {most:,} lines run and keys hashed or compared, but yours took {work:,}."
        )
    return None
