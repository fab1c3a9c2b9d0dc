"""A line of free blocks that one can leave from the middle, without anybody looking for it."""

TASK = """
`ids` are the free blocks, the one to be reused first in front. **Carry out the operations in order
and return what the pops gave**, as a list.

- `("pop", None)` takes the block in front; from an empty line it gives `None`;
- `("append", block_id)` puts a block behind all others; it is not in the line then;
- `("remove", block_id)` takes a block out, wherever it stands; it is in the line then.

No operation may look through the line: the check counts how often two ids are compared.
"""

STUB = """
from collections import deque

def free_queue(ids, operations):
    line, popped = deque(ids), []
    for what, block_id in operations:
        if what == "append":
            line.append(block_id)
        elif what == "remove":
            line.remove(block_id)
        else:
            popped.append(line.popleft() if line else None)
    return popped
"""

SOLUTION = """
from collections import OrderedDict

def free_queue(ids, operations):
    line, popped = OrderedDict.fromkeys(ids), []
    for what, block_id in operations:
        if what == "append":
            line[block_id] = None
        elif what == "remove":
            del line[block_id]
        else:
            popped.append(line.popitem(last=False)[0] if line else None)
    return popped
"""

WRONG = (
    STUB,
    # Gives out the newest.
    SOLUTION.replace("popitem(last=False)", "popitem()"),
    # Never takes anything out of the middle.
    SOLUTION.replace("del line[block_id]", "pass"),
    # Gives a block from an empty line.
    SOLUTION.replace("else None", "else 0"),
    # Puts a block back in front.
    SOLUTION.replace(
        "line[block_id] = None",
        "line[block_id] = None\n            line.move_to_end(block_id, last=False)",
    ),
    # Notes who left and skips it later, but finds its old place when it comes back.
    """
from collections import deque

def free_queue(ids, operations):
    line, gone, popped = deque(ids), set(), []
    for what, block_id in operations:
        if what == "append":
            gone.discard(block_id)
            line.append(block_id)
        elif what == "remove":
            gone.add(block_id)
        else:
            while line and line[0] in gone:
                gone.discard(line.popleft())
            popped.append(line.popleft() if line else None)
    return popped
""",
)

POP = ("pop", None)
CASES = (
    ([4, 2, 7], [POP, POP, POP, POP], [4, 2, 7, None], "first in, first out"),
    ([4, 2, 7], [("remove", 2), POP, POP, POP], [4, 7, None], "the middle one has left"),
    ([4, 2, 7], [("remove", 7), ("append", 7), POP, POP, POP], [4, 2, 7], "back at the end"),
    ([4, 2, 7], [("remove", 4), ("append", 4), POP, POP, POP], [2, 7, 4], "from front to end"),
    ([], [POP, ("append", 3), POP, POP], [None, 3, None], "an empty line"),
    ([5], [("remove", 5), POP], [None], "the only one has left"),
)
LONG, MOST = 400, 4


def _counted(operator):
    def compare(mine, other):
        _Id.compared += 1
        return operator(mine, other)

    return compare


class _Id(int):
    """A block id that counts how often it is compared."""

    compared = 0
    __eq__, __ne__ = _counted(int.__eq__), _counted(int.__ne__)
    __lt__, __le__ = _counted(int.__lt__), _counted(int.__le__)
    __gt__, __ge__ = _counted(int.__gt__), _counted(int.__ge__)
    __hash__ = int.__hash__


def check(answer):
    for ids, operations, expected, why in CASES:
        got = answer(list(ids), list(operations))
        if got != expected:
            return (
                f"free_queue({ids}, {operations}) should return {expected} ({why}), but yours "
                f"gave {got!r}."
            )
    ids = [_Id(number) for number in range(LONG)]
    operations = [("remove", _Id(number)) for number in range(LONG - 1, LONG // 2, -1)]
    operations += [POP] * 3
    _Id.compared = 0
    got = answer(ids, operations)
    compared = _Id.compared
    if got != [0, 1, 2]:
        return f"with {LONG} ids the pops should return [0, 1, 2], but yours gave {got!r}."
    if compared > MOST * len(operations):
        return (
            f"comparisons should be at most {MOST} an operation, but yours made {compared:,} in "
            f"{len(operations)} operations on {LONG} ids."
        )
    return None
