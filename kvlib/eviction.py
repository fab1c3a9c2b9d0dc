"""Which key to give up when a cache is full: the one added, used last, or used least.

A key names whatever is kept or dropped as one: a block, a prefix, a document. A policy holds keys
only; bytes and addresses are its caller's. `kvlib.replay` counts what a policy is worth, beside a
bound that none can pass.
"""

from __future__ import annotations

from collections import OrderedDict

from kvlib.frequency import Key, UseCounts
from kvlib.plan import OutOfBlocks


class FIFOPolicy:
    """Evicts the key that has waited longest, however often it was used: the baseline.

    Keys that may be evicted stand in a line. A pinned key is in use and stands outside; when its
    last pin goes it joins the line at its end, as if added now. Every call takes the same time
    however many keys are held.

    Example:
        >>> policy = FIFOPolicy()
        >>> policy.add("a"); policy.add("b"); policy.touch("a")
        >>> policy.evict()
        'a'
    """

    def __init__(self) -> None:
        self._pins: dict[Key, int] = {}
        # Not a plain dict: finding its first key passes over every key deleted before it.
        self._line: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, key: Key) -> bool:
        return key in self._pins

    @property
    def num_evictable(self) -> int:
        """Keys that are held and not pinned."""
        return len(self._line)

    def add(self, key: Key) -> None:
        """Takes a key, unpinned.

        Raises:
            ValueError: the key is held already. Nothing changes.
        """
        if key in self._pins:
            raise ValueError(f"{key!r} is held already, among {len(self)} keys")
        self._pins[key] = 0
        self._join(key)

    def touch(self, key: Key) -> None:
        """Notes one use of a key.

        Raises:
            ValueError: the key is not held. Nothing changes.
        """
        self._num_pins(key)

    def evict(self) -> Key:
        """Gives up the key that the policy can spare, and returns it.

        Raises:
            OutOfBlocks: no key is held, or all are pinned. Nothing changes.
        """
        if not self.num_evictable:
            pinned = len(self) - self.num_evictable
            raise OutOfBlocks(f"asked to evict 1 key, {len(self)} held, {pinned} of them pinned")
        key = self._first()
        self.remove(key)
        return key

    def remove(self, key: Key) -> None:
        """Forgets a key that its owner has dropped.

        Raises:
            ValueError: the key is not held, or is pinned. Nothing changes.
        """
        if pins := self._num_pins(key):
            raise ValueError(f"only an unpinned key is removed, {key!r} has {pins} pins")
        self._leave(key)
        del self._pins[key]

    def pin(self, key: Key) -> None:
        """Keeps a key from being evicted, until it is unpinned as often as it was pinned.

        Raises:
            ValueError: the key is not held. Nothing changes.
        """
        if not self._num_pins(key):
            self._leave(key)
        self._pins[key] += 1

    def unpin(self, key: Key) -> None:
        """Takes one pin back.

        Raises:
            ValueError: the key is not held, or has no pin. Nothing changes.
        """
        if not self._num_pins(key):
            raise ValueError(f"{key!r} has no pin to take back")
        self._pins[key] -= 1
        if not self._pins[key]:
            self._join(key)

    def check(self) -> None:
        """Proves that exactly the unpinned keys stand in line.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        assert min(self._pins.values(), default=0) >= 0, "fewer than no pins"
        unpinned = {key for key, pins in self._pins.items() if not pins}
        assert set(self._line) == unpinned, "the line does not hold the unpinned keys"

    def _num_pins(self, key: Key) -> int:
        if key not in self._pins:
            raise ValueError(f"{key!r} is not held, among {len(self)} keys")
        return self._pins[key]

    def _join(self, key: Key) -> None:
        self._line[key] = None

    def _leave(self, key: Key) -> None:
        del self._line[key]

    def _first(self) -> Key:
        return next(iter(self._line))


class LRUPolicy(FIFOPolicy):
    """Evicts the key whose last use lies longest back; a use moves a key to the end of the line.

    Every call takes the same time however many keys are held.

    Example:
        >>> policy = LRUPolicy()
        >>> policy.add("a"); policy.add("b"); policy.touch("a")
        >>> policy.evict()
        'b'
    """

    def touch(self, key: Key) -> None:
        """Notes one use of a key; the errors are those of `FIFOPolicy.touch`."""
        if not self._num_pins(key):
            self._line.move_to_end(key)


class LFUPolicy(FIFOPolicy):
    """Evicts the key used least since it was added; among equals the one used longest ago.

    Every call takes the same time however many keys are held; `evict` also passes over counts of
    uses that only pinned keys have.

    Example:
        >>> policy = LFUPolicy()
        >>> policy.add("a"); policy.touch("a"); policy.add("b")
        >>> policy.evict()
        'b'
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts = UseCounts()

    def touch(self, key: Key) -> None:
        """Notes one use of a key, pinned or not; the errors are those of `FIFOPolicy.touch`."""
        self._num_pins(key)
        self._counts.use(key)

    def remove(self, key: Key) -> None:
        """Forgets a key and its uses; the errors are those of `FIFOPolicy.remove`."""
        super().remove(key)
        self._counts.forget(key)

    def check(self) -> None:
        """Proves what `FIFOPolicy.check` does, and that the uses of just these keys are counted."""
        super().check()
        assert set(self._counts) == set(self._pins), "uses are counted of other keys than are held"
        self._counts.check()

    def _join(self, key: Key) -> None:
        super()._join(key)
        self._counts.show(key)

    def _leave(self, key: Key) -> None:
        super()._leave(key)
        self._counts.hide(key)

    def _first(self) -> Key:
        return self._counts.lowest()
