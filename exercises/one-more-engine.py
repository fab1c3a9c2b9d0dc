"""A policy of one's own: who may begin, between asking for everything and asking for nothing."""

from collections import deque

TASK = """
A memory of 4,000 tokens, given out token by token. Whoever runs gets one token more in every step.
If none is left, the one that began last loses all of its tokens, goes back to the front of the
line, and must be computed again.

**Say whether the first in line may begin**: `True` or `False`. You are asked as long as the tokens
it knows already fit, and somebody runs.

- `running` is a list of `(known, made, allowed)`, in the order they began: the tokens each holds,
  how many of these are its answer, and the longest answer its client allows;
- `head` is the same of the one that waits;
- `free` is the number of free tokens.

No answer is known before it ends. Beat two engines at once: **serve the line in at most 80 % of the
steps** of one that sets aside `known + allowed - made` for everybody, and **compute at most a tenth
of the tokens twice** that are computed twice by one that always says `True`.
"""

STUB = """
def may_begin(running, head, free):
    ...
"""

SOLUTION = """
def may_begin(running, head, free):
    promised = sum(allowed - made for _, made, allowed in running)
    known, made, allowed = head
    return known + 0.35 * (promised + allowed - made) <= free
"""

WRONG = (
    # Asks for nothing: many are computed twice.
    "def may_begin(running, head, free):\n    return True\n",
    # Asks for everything: few run.
    SOLUTION.replace("0.35", "1.0"),
    # Forgets those who run.
    SOLUTION.replace("promised + allowed", "allowed"),
    # One at a time.
    "def may_begin(running, head, free):\n    return False\n",
    # A word is not a decision.
    SOLUTION.replace("return known", "return 'yes' if known").replace("free\n", "free else ''\n"),
    STUB,
)

SIZE, ALLOWED = 4000, 512


def lengths(count):
    """Made-up prompts and answers; no answer comes near what is allowed but one in eight."""
    seed, pairs = 11, []
    for _ in range(count):
        draws = []
        for choices in (
            (40, 70, 110, 160, 220, 300, 420, 600),
            (12, 30, 50, 80, 120, 180, 260, 480),
        ):
            seed = (1103515245 * seed + 12345) % 2**31
            draws.append(choices[(seed >> 16) % 8])
        pairs.append(tuple(draws))
    return pairs


REQUESTS = lengths(100)


def serve(may_begin):
    """Steps until all are served, and tokens computed twice; a ValueError names a wrong answer."""
    line = deque([prompt, 0, ALLOWED, output] for prompt, output in REQUESTS)
    running, steps, twice = [], 0, 0
    while line or running:
        for job in list(running):
            if job not in running:
                continue
            while SIZE - sum(each[0] for each in running) < 1:
                lost = running.pop()
                twice += lost[0]
                line.appendleft(lost)
            if any(each is job for each in running):
                job[0], job[1] = job[0] + 1, job[1] + 1
        running = [job for job in running if job[1] < job[3]]
        while line:
            head, free = line[0], SIZE - sum(each[0] for each in running)
            if head[0] > free:
                break
            if running:
                shown = [tuple(each[:3]) for each in running], tuple(head[:3]), free
                answer = may_begin(*shown)
                if type(answer) is not bool:
                    raise ValueError(
                        f"may_begin(…, {shown[1]}, {free}) with {len(running)} running should be "
                        f"True or False, but yours gave {answer!r}."
                    )
                if not answer:
                    break
            running.append(line.popleft())
        steps += 1
    return steps, twice


def set_aside(running, head, free):
    """Everybody's longest answer, from the start."""
    return sum(allowed - made for _, made, allowed in [*running, head]) + head[0] <= free


def check(answer):
    try:
        steps, twice = serve(answer)
    except ValueError as error:
        return str(error)
    most_steps = 0.8 * serve(set_aside)[0]
    most_twice = 0.1 * serve(lambda running, head, free: True)[1]
    if steps > most_steps:
        return (
            f"{len(REQUESTS)} requests should be served in at most {most_steps:,.0f} steps, but "
            f"yours took {steps:,} (and computed {twice:,} tokens twice)."
        )
    if twice > most_twice:
        return (
            f"at most {most_twice:,.0f} tokens should be computed twice, but yours computed "
            f"{twice:,} (in {steps:,} steps)."
        )
    return None
