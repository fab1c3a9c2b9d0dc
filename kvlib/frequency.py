"""Keys by how often they were used, fewest first, without ever sorting or searching."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator

Key = Hashable


class _Count:
    """All keys with one number of uses, between the next lower and the next higher number."""

    def __init__(self, uses: int) -> None:
        self.uses = uses
        self.shown: OrderedDict[Key, None] = OrderedDict()
        self.num_keys = 0
        self.lower = self.higher = self

    def insert_above(self) -> _Count:
        """Puts the count with one more use behind this one, and returns it."""
        new = _Count(self.uses + 1)
        new.lower, new.higher = self, self.higher
        self.higher.lower = self.higher = new
        return new

    def leave(self, key: Key) -> None:
        """Takes a key out, and the count itself with its last key."""
        self.shown.pop(key, None)
        self.num_keys -= 1
        if not self.num_keys:
            self.lower.higher, self.higher.lower = self.higher, self.lower


class UseCounts:
    """A ring of counts in rising order: a key's next count is its neighbour, never searched for.

    A hidden key keeps its count and can come back to it, but is not offered by `lowest`.

    Source: Shah, Mitra and Matani, "An O(1) algorithm for implementing the LFU cache eviction
    scheme", 2010, arXiv:2110.11602.

    Example:
        >>> counts = UseCounts()
        >>> counts.show("a"); counts.show("b"); counts.use("a")
        >>> counts.lowest()
        'b'
        >>> counts.hide("b"); counts.lowest()
        'a'
    """

    def __init__(self) -> None:
        self._zero = _Count(0)
        self._count: dict[Key, _Count] = {}

    def show(self, key: Key) -> None:
        """Offers a key, as the last of its count; a key not known yet has one use."""
        if key not in self._count:
            self._raise(key, self._zero)
        self._count[key].shown[key] = None

    def hide(self, key: Key) -> None:
        """Offers a key no longer, and remembers its uses."""
        del self._count[key].shown[key]

    def use(self, key: Key) -> None:
        """Raises a key's count by one."""
        old = self._count[key]
        shown = key in old.shown
        self._raise(key, old)
        old.leave(key)
        if shown:
            self.show(key)

    def forget(self, key: Key) -> None:
        """Drops a key and its uses."""
        self._count.pop(key).leave(key)

    def lowest(self) -> Key:
        """Returns, of the keys on offer with the fewest uses, the one used longest ago.

        Raises:
            ValueError: no key is on offer.
        """
        count = self._zero.higher
        while not count.shown:
            if count is self._zero:
                raise ValueError(f"asked for 1 key, {len(self._count)} known, 0 of them on offer")
            count = count.higher
        return next(iter(count.shown))

    def __iter__(self) -> Iterator[Key]:
        return iter(self._count)

    def check(self) -> None:
        """Proves that the ring rises and that every key is in its count.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        count, found = self._zero.higher, 0
        while count is not self._zero:
            assert count.lower.uses < count.uses, "the counts do not rise"
            assert count.higher.lower is count, "a neighbour does not know its neighbour"
            here = {key for key, mine in self._count.items() if mine is count}
            assert len(here) == count.num_keys > 0, "a count without keys, or with keys lost"
            assert set(count.shown) <= here, "a key is offered under another count"
            found += count.num_keys
            count = count.higher
        assert found == len(self._count), "a key is in no count"

    def _raise(self, key: Key, old: _Count) -> None:
        above = old.higher
        if above.uses != old.uses + 1:
            above = old.insert_above()
        above.num_keys += 1
        self._count[key] = above
