"""The highest usage in a log, and how often requests waited beside free memory."""

TASK = """
A log is a list of lines. A load line of vLLM (0.8 and later) looks like this:

`INFO 05-04 09:00:40 [loggers.py:118] Engine 000: Avg prompt throughput: 80.5 tokens/s, Avg
generation throughput: 12.5 tokens/s, Running: 4 reqs, Waiting: 2 reqs, GPU KV cache usage: 15.5%,
Prefix cache hit rate: 40.0%`

**Return a pair: the highest usage of all load lines, in percent, and how many load lines have
somebody waiting while less than 90 % is used.** Without a load line it is `(0.0, 0)`.

- A line is a load line by how its *message* begins, behind level, date, time and `[file:line]`:
  `Engine`, a number, `: Avg prompt throughput: `. Other lines may quote a load line.
- Newer versions put further fields between `Waiting` and the usage, such as `Deferred: 2 reqs` or
  `Preemptions: 4`.
"""

STUB = """
import re


def loads(lines):
    ...
"""

SOLUTION = """
import re

LOAD = re.compile(
    r"[A-Z]+ [\\d-]+ [\\d:]+ \\[[\\w.]+:\\d+\\] Engine \\d+: Avg prompt throughput: .*"
    r"Waiting: (\\d+) reqs, .*GPU KV cache usage: ([\\d.]+)%"
)


def loads(lines):
    found = [LOAD.match(line) for line in lines]
    pairs = [(int(m[1]), float(m[2])) for m in found if m]
    highest = max((used for _, used in pairs), default=0.0)
    return highest, sum(1 for waiting, used in pairs if waiting and used < 90)
"""

WRONG = (
    STUB,
    # Looks for the words anywhere in a line.
    SOLUTION.replace("LOAD.match", "LOAD.search").replace(
        'r"[A-Z]+ [\\d-]+ [\\d:]+ \\[[\\w.]+:\\d+\\] Engine \\d+: Avg', 'r"Avg'
    ),
    # Knows the fields of one version.
    SOLUTION.replace("reqs, .*GPU", "reqs, GPU"),
    # Compares texts: "9.0" is above "15.0".
    SOLUTION.replace("float(m[2])", "m[2]")
    .replace("used < 90", "float(used) < 90")
    .replace("return highest", "return float(highest)"),
    # The last usage, not the highest.
    SOLUTION.replace(
        "max((used for _, used in pairs), default=0.0)", "pairs[-1][1] if pairs else 0.0"
    ),
    # Counts every line on which somebody waits.
    SOLUTION.replace("waiting and used < 90", "waiting"),
    # Counts a full pool as well.
    SOLUTION.replace("used < 90", "used <= 90"),
    # Counts lines on which nobody waits.
    SOLUTION.replace("waiting and used", "used"),
    # Counts the requests, not the lines.
    SOLUTION.replace("sum(1 for", "sum(waiting for"),
    # Fails on a log without load.
    SOLUTION.replace(", default=0.0", ""),
)


def _load(waiting, used, engine="000", more=""):
    return (
        f"INFO 05-04 09:00:40 [loggers.py:118] Engine {engine}: Avg prompt throughput: 80.5 "
        "tokens/s, Avg generation throughput: 12.5 tokens/s, Running: 4 reqs, "
        f"Waiting: {waiting} reqs, {more}GPU KV cache usage: {used:.1f}%, "
        "Prefix cache hit rate: 40.0%"
    )


_QUOTE = (
    "INFO 05-04 09:00:41 [logger.py:43] Received request r7: prompt: 'what is "
    + _load(3, 97.5)[len("INFO 05-04 09:00:40 [loggers.py:118] ") :]
    + "?', params: SamplingParams(n=1)"
)
_ACCESS = 'INFO:     127.0.0.1:40052 - "POST /v1/completions HTTP/1.1" 200 OK'

CASES = (
    ([_load(0, 15.5)], (15.5, 0), "nobody waits"),
    ([_load(2, 15.5)], (15.5, 1), "two wait beside free memory"),
    ([_load(2, 90.0), _load(5, 99.5)], (99.5, 0), "they wait for memory"),
    ([_load(0, 9.0), _load(0, 15.0), _load(1, 10.0)], (15.0, 1), "numbers, not texts"),
    ([_load(4, 20.0), _load(9, 30.5), _load(0, 25.0)], (30.5, 2), "two lines have waiters"),
    ([_load(0, 20.0), _QUOTE], (20.0, 0), "a prompt quotes a load line"),
    ([_load(4, 91.0, more="Deferred: 3 reqs, Preemptions: 2, ")], (91.0, 0), "newer fields"),
    ([_ACCESS, "", _QUOTE], (0.0, 0), "no load line"),
    ([_load(1, 40.0, "017"), _ACCESS], (40.0, 1), "another engine's number"),
)


def check(answer):
    for lines, expected, why in CASES:
        try:
            got = answer(list(lines))
        except ValueError as error:
            got = error
        if got != expected:
            return (
                f"For a log of {len(lines)} lines ({why}) loads should return {expected}, "
                f"but yours gave {got!r}."
            )
    return None
