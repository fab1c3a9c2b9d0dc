"""How much to reserve when memory is short, and when it is not."""

from collections import deque

TASK = """
A request comes with a prompt, whose length you know, and will get an answer, whose length you do
not. **Return how many slots to reserve for both together**, a whole number above `prompt` and at
most 2,048.

- `history` is a list of `(prompt, output)`, the lengths of requests that are done;
- `prompt` is the length of this request's prompt;
- `load` is the share of the memory in use: 0.95 while a line of requests waits, 0.1 while they
  come one at a time.

The outline reserves twice the mean length where the load is above 0.8, and 1.2 times the mean
below. Beat it twice: with the line waiting, **serve all in fewer steps**; with memory to spare,
**let fewer requests outgrow their reservation**. One that does starts again from its prompt, with
twice as much.
"""

STUB = """
def reserve(history, prompt, load):
    ...
"""

SOLUTION = """
def reserve(history, prompt, load):
    outputs = sorted(output for _, output in history)
    if load <= 0.8:
        return 2048
    return min(2048, prompt + outputs[9 * len(outputs) // 10])
"""

OUTLINE = """
def reserve(history, prompt, load):
    mean = sum(prompt + output for prompt, output in history) / len(history)
    size = int(mean * 2.0) if load > 0.8 else int(mean * 1.2)
    return min(2048, max(prompt + 1, size))
"""

WRONG = (
    # No better than itself.
    OUTLINE,
    # Its two branches exchanged: still one size for a prompt of 48 and for one of 1,500.
    OUTLINE.replace("load > 0.8", "load <= 0.8"),
    # Never too little, at any load.
    "def reserve(history, prompt, load):\n    return 2048\n",
    # Almost nothing for the answer, at any load.
    "def reserve(history, prompt, load):\n    return prompt + 1\n",
    # Forgets the prompt.
    SOLUTION.replace("prompt + outputs", "outputs"),
    # A share of a slot.
    SOLUTION.replace("2048, prompt +", "2048.0, 0.5 + prompt +"),
    STUB,
)

BUDGET, MOST = 6000, 2048


def lengths(count):
    """Made-up lengths, spread as those of chats are: the longest are 30 times the shortest."""
    seed, pairs = 7, []
    for _ in range(count):
        draws = []
        for choices in (
            (48, 90, 150, 260, 420, 700, 1100, 1500),
            (15, 30, 60, 90, 130, 180, 260, 400),
        ):
            seed = (1103515245 * seed + 12345) % 2**31
            draws.append(choices[(seed >> 16) % 8])
        pairs.append(tuple(draws))
    return pairs


HISTORY, LATER = lengths(120)[:60], lengths(120)[60:]


def sizes(reserve, load):
    """What is reserved for each later request; a ValueError says what is wrong with a size."""
    found = []
    for prompt, _ in LATER:
        size = reserve(list(HISTORY), prompt, load)
        if type(size) is not int or not prompt < size <= MOST:
            raise ValueError(
                f"reserve(history, {prompt}, {load}) should be a whole number above {prompt} and "
                f"at most {MOST}, but yours gave {size!r}."
            )
        found.append(size)
    return found


def steps_to_serve(reserve):
    """Steps until a line is served, first come first served, one token a step for each running."""
    line = deque(
        [prompt, output, size, 0]
        for (prompt, output), size in zip(LATER, sizes(reserve, 0.95), strict=True)
    )
    running, free, steps = [], BUDGET, 0
    while line or running:
        while line and line[0][2] <= free:
            free -= line[0][2]
            running.append(line.popleft())
        steps += 1
        for job in list(running):
            prompt, output, size, made = job
            job[3] = made + 1
            if job[3] < output and prompt + job[3] < size:
                continue
            running.remove(job)
            free += size
            if job[3] < output:
                line.appendleft([prompt, output, min(MOST, 2 * size), 0])
    return steps


def outgrown(reserve):
    """Requests that outgrow what is reserved for them while memory is plentiful."""
    pairs = zip(LATER, sizes(reserve, 0.1), strict=True)
    return sum(prompt + output > size for (prompt, output), size in pairs)


def check(answer):
    space = {}
    exec(OUTLINE, space)
    try:
        steps, short = steps_to_serve(answer), outgrown(answer)
    except ValueError as error:
        return str(error)
    outline_steps, outline_short = steps_to_serve(space["reserve"]), outgrown(space["reserve"])
    if steps >= outline_steps:
        return (
            f"with {len(LATER)} requests in line and {BUDGET:,} slots, the steps should be fewer "
            f"than the outline's {outline_steps:,}, but yours took {steps:,}."
        )
    if short >= outline_short:
        return (
            f"at a load of 0.1, the requests that outgrow their reservation should be fewer than "
            f"the outline's {outline_short} of {len(LATER)}, but yours had {short}."
        )
    return None
