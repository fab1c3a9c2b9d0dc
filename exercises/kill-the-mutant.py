"""The reader writes the test; the check runs it against a right cache and against broken ones."""

TASK = """
Somebody hands you a paged cache that stores tokens. **Write a test for it**: a function that takes
`make`, builds caches by `make(num_blocks, block_size)`, uses them, and asserts. It must pass on a
right cache and fail, by any exception, on each of nine broken ones.

- `cache.append(name, token)` adds a token; the first one starts the sequence;
- `cache.fork(parent, child)` gives `child` the tokens of `parent`, by sharing its blocks;
- `cache.free(name)` ends a sequence; its blocks may be used again;
- `cache.read(name)` returns the tokens of a sequence, in order, as a list;
- `cache.num_free` is how many blocks nobody holds;
- a second `free` of one name raises `KeyError`, and `append` raises `MemoryError` when it needs a
  block and none is free; then nothing has changed.
"""

STUB = """
def kill(make):
    cache = make(8, 4)
    for token in range(6):
        cache.append("a", token)
    assert cache.read("a") == list(range(6))
"""

SOLUTION = """
def kill(make):
    cache = make(8, 4)
    for token in range(6):
        cache.append("a", token)
    assert cache.read("a") == list(range(6)) and cache.num_free == 6
    cache.fork("a", "b")
    cache.fork("a", "c")
    assert cache.num_free == 6
    for name in "abc":
        cache.append(name, name)
    for name in "abc":
        assert cache.read(name) == [*range(6), name]
    assert cache.num_free == 4
    cache.free("b")
    try:
        cache.free("b")
    except KeyError:
        pass
    else:
        raise AssertionError("freed twice")
    cache.free("c")
    assert cache.num_free == 6
    for token in range(4 * 6):
        cache.append("d", token)
    assert cache.read("a") == [*range(6), "a"]
    assert cache.read("d") == list(range(24)) and cache.num_free == 0
    try:
        cache.append("d", "too much")
    except MemoryError:
        pass
    else:
        raise AssertionError("a block from nowhere")
    assert cache.read("d") == list(range(24))
    cache.free("d")
    cache.append("e", "other")
    cache.append("d", "new")
    assert cache.read("d") == ["new"] and cache.read("e") == ["other"]
    for name in "ade":
        cache.free(name)
    assert cache.num_free == 8
"""

WRONG = (
    STUB,
    # Passes on everything.
    "def kill(make):\n    pass\n",
    # Fails on everything.
    "def kill(make):\n    assert False\n",
    # Counts blocks and never reads a token.
    """
def kill(make):
    cache = make(8, 4)
    for token in range(6):
        cache.append("a", token)
    cache.fork("a", "b")
    cache.append("b", 6)
    assert cache.num_free == 5
    cache.free("b")
    cache.free("a")
    assert cache.num_free == 8
""",
    # Never reuses a block.
    SOLUTION[: SOLUTION.index("    for token in range(4 * 6)")],
    # Lets a second free of one name pass.
    SOLUTION.replace('        raise AssertionError("freed twice")', "        pass"),
)


class _Right:
    """A paged cache of tokens, as plain as it gets."""

    def __init__(self, num_blocks, block_size):
        self.size, self.refs = block_size, [0] * num_blocks
        self.slots = [None] * num_blocks * block_size
        self.tables, self.lengths = {}, {}

    @property
    def num_free(self):
        return self.refs.count(0)

    def take(self):
        if 0 not in self.refs:
            raise MemoryError("no block is free")
        block = self.refs.index(0)
        self.refs[block] = 1
        return block

    def slot(self, name, position):
        block, offset = divmod(position, self.size)
        return self.tables[name][block] * self.size + offset

    def own_last(self, name):
        """Makes sure that nobody else holds the block that is written next."""
        table, filled = self.tables[name], self.lengths[name] % self.size
        if not filled:
            table.append(self.take())
        elif self.refs[table[-1]] > 1:
            old, new = table[-1], self.take()
            self.copy(old, new, filled)
            self.refs[old] -= 1
            table[-1] = new

    def copy(self, old, new, filled):
        for offset in range(filled):
            self.slots[new * self.size + offset] = self.slots[old * self.size + offset]

    def append(self, name, token):
        if name not in self.tables:
            self.tables[name], self.lengths[name] = [self.take()], 0
        else:
            self.own_last(name)
        self.slots[self.slot(name, self.lengths[name])] = token
        self.lengths[name] += 1

    def fork(self, parent, child):
        self.tables[child] = list(self.tables[parent])
        self.lengths[child] = self.lengths[parent]
        for block in self.tables[child]:
            self.refs[block] += 1

    def free(self, name):
        for block in self.tables.pop(name):
            self.refs[block] -= 1
        del self.lengths[name]

    def read(self, name):
        return [self.slots[self.slot(name, p)] for p in range(self.lengths[name])]


class _NoCopy(_Right):
    def own_last(self, name):
        if not self.lengths[name] % self.size:
            super().own_last(name)


class _ShortCopy(_Right):
    def copy(self, old, new, filled):
        super().copy(old, new, filled - 1)


class _Uncounted(_Right):
    def fork(self, parent, child):
        super().fork(parent, child)
        for block in self.tables[child]:
            self.refs[block] -= 1

    def free(self, name):
        for block in self.tables.pop(name):
            self.refs[block] = max(self.refs[block] - 1, 0)
        del self.lengths[name]


class _Twice(_Right):
    """Takes two references where it should take one, as long as others hold the block."""

    def free(self, name):
        shared = [block for block in self.tables[name] if self.refs[block] > 1]
        super().free(name)
        for block in shared:
            self.refs[block] -= 1


class _Quiet(_Right):
    def free(self, name):
        if name in self.tables:
            super().free(name)


class _Leak(_Right):
    def free(self, name):
        kept = self.tables[name][-1]
        super().free(name)
        self.refs[kept] += 1


class _Boundary(_Right):
    """Goes to the next block one token too early, where there is one."""

    def slot(self, name, position):
        table = self.tables[name]
        block = table[min((position + 1) // self.size, len(table) - 1)]
        return block * self.size + position % self.size


class _Stale(_Right):
    """Reads a name that comes back through the first entry of its old table."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.known = {}

    def free(self, name):
        self.known[name] = self.tables[name][0]
        super().free(name)

    def read(self, name):
        right, table = self.tables[name][0], self.tables[name]
        table[0] = self.known.get(name, right)
        tokens = super().read(name)
        table[0] = right
        return tokens


class _Borrow(_Right):
    """Writes over the oldest block when none is free."""

    def take(self):
        return super().take() if 0 in self.refs else 0


BROKEN = (
    (_NoCopy, "a shared block is written without a copy"),
    (_ShortCopy, "a copy leaves out its last token"),
    (_Uncounted, "a fork is not counted"),
    (_Twice, "a leaver gives up what others hold, too"),
    (_Quiet, "a second free of one name is accepted"),
    (_Leak, "a leaver's last block is lost"),
    (_Boundary, "a block boundary is off by one"),
    (_Stale, "a name that comes back reads what it had before"),
    (_Borrow, "without a free block, block 0 is written over"),
)


def check(answer):
    try:
        answer(_Right)
    except Exception as error:
        return (
            "on the right cache your test should return without an error, but yours raised "
            f"{type(error).__name__}: {error}."
        )
    left = []
    for broken, why in BROKEN:
        try:
            answer(broken)
        except Exception:
            continue
        left.append(why)
    if left:
        return (
            f"all {len(BROKEN)} broken caches should be killed, but yours lets {len(left)} live; "
            f"in the first of them {left[0]}."
        )
    return None
