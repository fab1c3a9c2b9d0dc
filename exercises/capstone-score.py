"""The goodput of a run, from when its tokens came."""

from itertools import pairwise

TASK = """
Each request of a run is `(arrival_s, needed, token_s)`: when it came, how many tokens its whole
answer has, and the times at which it got tokens. A request is **good** if it got its whole answer,
the first token at most `ttft_s` after it came, and no two neighbouring tokens are more than `gap_s`
apart. **Return the good requests a second**: over the seconds from the first arrival to the last
token of any request.

- a request that was given up has fewer tokens than it needed, perhaps none: it is not good;
- with no token at all, or no time passed, the score is 0.
"""

STUB = """
def goodput(requests, ttft_s, gap_s):
    good = [r for r in requests if r[2] and r[2][0] - r[0] <= ttft_s]
    return len(good) / (requests[-1][2][-1] - requests[0][0])
"""

SOLUTION = """
def goodput(requests, ttft_s, gap_s):
    good, last = 0, None
    for arrival, needed, times in requests:
        if times:
            last = times[-1] if last is None else max(last, times[-1])
        whole = len(times) == needed and times[0] - arrival <= ttft_s
        good += whole and all(b - a <= gap_s for a, b in zip(times, times[1:]))
    first = min((arrival for arrival, _, _ in requests), default=0)
    return good / (last - first) if last is not None and last > first else 0
"""

WRONG = (
    STUB,
    # Looks at the mean of the gaps, which hides a standstill.
    SOLUTION.replace(
        "all(b - a <= gap_s for a, b in zip(times, times[1:]))",
        "times[-1] - times[0] <= gap_s * max(1, len(times) - 1)",
    ),
    # Counts who was given up.
    SOLUTION.replace("len(times) == needed", "len(times) > 0"),
    # Counts the first token from the start of the run.
    SOLUTION.replace("times[0] - arrival <= ttft_s", "times[0] <= ttft_s"),
    # Ends with the last request instead of the last token.
    SOLUTION.replace("times[-1] if last is None else max(last, times[-1])", "times[-1]"),
    # Begins at zero.
    SOLUTION.replace("min((arrival for arrival, _, _ in requests), default=0)", "0"),
)

CASES = (
    ([(0, 3, [1, 2, 3])], 1, 1),
    ([(0, 3, [1, 2, 4])], 1, 1),
    ([(0, 4, [1, 1, 1, 3])], 1, 1),
    ([(0, 2, [2, 3])], 1, 5),
    ([(5, 1, [6]), (6, 2, [7, 8])], 1, 1),
    ([(0, 2, [1, 2]), (1, 3, [2]), (2, 1, [])], 1, 1),
    ([(0, 5, [1, 2, 3, 4, 10]), (1, 1, [2])], 1, 1),
    ([(0, 1, [])], 1, 1),
    ([], 1, 1),
)


def _good(arrival, needed, times, ttft_s, gap_s):
    if len(times) != needed or times[0] > arrival + ttft_s:
        return False
    return max((b - a for a, b in pairwise(times)), default=0) <= gap_s


def check(answer):
    for requests, ttft_s, gap_s in CASES:
        last = max((times[-1] for _, _, times in requests if times), default=None)
        seconds = 0 if last is None else last - min(arrival for arrival, _, _ in requests)
        good = sum(_good(*request, ttft_s, gap_s) for request in requests)
        expected = good / seconds if seconds else 0
        try:
            got = answer([(a, n, list(t)) for a, n, t in requests], ttft_s, gap_s)
        except (ArithmeticError, ValueError, IndexError, TypeError) as error:
            got = error
        if not isinstance(got, (int, float)) or abs(got - expected) > 1e-9:
            return (
                f"goodput({requests}, ttft_s={ttft_s}, gap_s={gap_s}) should be "
                f"{round(expected, 4)}, {good} good in {seconds} s, but yours gave {got!r}."
            )
    return None
