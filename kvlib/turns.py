"""Whose turn it is, among names whose keys mostly grow: a heap that puts itself right."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any


class Turns:
    """Finds the name of the least key; nobody has to say that a key has grown.

    Each name has a place in a heap, under the key it had when it was last looked at. A key that has
    grown since makes the place too good, never too bad, so it is enough to put a place right when
    it comes to the top. A key that has become less must be told: `enter` again. Every call grows
    with the logarithm of the names, on average over many calls.

    Args:
        key: gives a name's present key; no two names have equal keys.

    Example:
        >>> keys = {"a": 1, "b": 2}
        >>> turns = Turns(keys.get)
        >>> turns.enter("a"); turns.enter("b")
        >>> keys["a"] = 3
        >>> turns.first()
        'b'
    """

    def __init__(self, key: Callable[[str], Any]) -> None:
        self._key = key
        self._places: dict[str, Any] = {}
        self._heap: list[tuple[Any, str]] = []  # the places, and old ones

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, name: str) -> None:
        """Gives a name a place, or moves it forward if its key has become less."""
        key = self._key(name)
        if name in self._places and self._places[name] <= key:
            return
        self._places[name] = key
        heappush(self._heap, (key, name))
        self._tidy()

    def leave(self, name: str) -> None:
        """Takes a name out; it must have a place."""
        del self._places[name]
        self._tidy()

    def first(self) -> str:
        """Returns the name of the least key; somebody must have a place."""
        while True:
            place, name = self._heap[0]
            if name not in self._places:
                heappop(self._heap)
            elif (key := self._key(name)) == place:
                return name
            else:
                self._places[name] = key
                heapreplace(self._heap, (key, name))

    def check(self) -> None:
        """Proves that no name stands too far back, and that old places do not pile up.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        for name, place in self._places.items():
            assert (place, name) in self._heap, f"the place of {name!r} is not in the heap"
            assert place <= self._key(name), f"{name!r} stands too far back"
        assert len(self._heap) <= 2 * len(self) + 8, "old places pile up"

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self) + 8:
            self._heap = [(place, name) for name, place in self._places.items()]
            heapify(self._heap)
