"""When users come back, and what a tier must hold for them: python measure/trace_sessions.py.

The trace is RAGPulse: every turn brings other passages, and its pace is that of a selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise, takewhile
from math import inf
from statistics import fmean
from typing import Any

from kvlib.eviction import LRUPolicy
from kvlib.request import ContentPiece, Request
from resample import ratio_interval
from whole_traces import load, record_figures

# In tokens of context; the page makes bytes of them.
CAPACITIES = tuple(2500 * 2**power for power in range(1, 11))
KEPT_S = (9, 30, 60, 120, 300, 900, 3600, 86_400)
TURNS = (50, 200)


def context(request: Request) -> int:
    """Returns the tokens whose keys and values a turn leaves behind."""
    return request.prompt_tokens + request.output_tokens


def by_session(requests: Sequence[Request]) -> list[list[Request]]:
    """Returns each session's requests, in order."""
    found: dict[int, list[Request]] = {}
    for r in requests:
        found.setdefault(r.session_id, []).append(r)
    return list(found.values())


def returns_served(requests: Sequence[Request], capacity: int) -> float:
    """Returns the percentage of returns that find their session's context in a tier of tokens."""
    policy, sizes, held, hits = LRUPolicy(), {}, 0, 0
    for r in requests:
        if r.session_id in policy:
            hits += 1
            policy.remove(r.session_id)
            held -= sizes[r.session_id]
        if context(r) > capacity:
            continue
        while held + context(r) > capacity:
            held -= sizes[policy.evict()]
        policy.add(r.session_id)
        sizes[r.session_id] = context(r)
        held += context(r)
    return 100 * hits / (len(requests) - len({r.session_id for r in requests}))


def last_turns(requests: Sequence[Request], num_turns: int) -> dict[str, Any]:
    """Returns what the service's last turns weigh, in tokens, and which returns they serve."""
    held = sum(map(context, requests[:num_turns]))
    weights = [held]
    for gone, new in zip(requests, requests[num_turns:], strict=False):
        weights.append(weights[-1] + context(new) - context(gone))
    place, distances = {}, []
    for i, r in enumerate(requests):
        if r.session_id in place:
            distances.append(i - place[r.session_id])
        place[r.session_id] = i
    served = sum(distance <= num_turns for distance in distances)
    return {
        "num_turns": num_turns,
        "tokens": [min(weights), round(fmean(weights)), max(weights)],
        "served_percent": round(100 * served / len(distances), 1),
    }


def common_start(before: Request, after: Request) -> list[ContentPiece]:
    """Returns the pieces from the front that two prompts share."""
    both = zip(before.pieces, after.pieces, strict=False)
    return [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], both)]


def most_alike(before: Request, after: Request) -> int:
    """Returns the most tokens at the front that can be equal: the first other piece, but its end.

    Pieces are compared by their numbers, so two that differ may still begin alike.
    """
    same = len(common_start(before, after))
    rest = zip(before.pieces[same:], after.pieces[same:], strict=False)
    more = [min(a.num_tokens, b.num_tokens) for a, b in rest][:1]
    return sum(piece.num_tokens for piece in after.pieces[:same]) + sum(more)


def known_elsewhere(requests: Sequence[Request]) -> float:
    """Returns the percentage of the starts shared in sessions that another session had before."""
    owners: dict[tuple[ContentPiece, ...], set[int]] = {}
    last: dict[int, Request] = {}
    shared = known = 0
    for r in requests:
        me, same = {r.session_id}, 0
        if r.session_id in last:
            same = len(common_start(last[r.session_id], r))
        for i, piece in enumerate(r.pieces, 1):
            others = owners.setdefault(r.pieces[:i], set())
            if i <= same:
                shared += piece.num_tokens
                known += piece.num_tokens * bool(others - me)
            others |= me
        last[r.session_id] = r
    return 100 * known / shared


def keeping(seconds: float, stays: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Returns what it means to keep every context so long, from arrival to arrival.

    A context stays until its session returns, or for all of the time where it does not.

    Args:
        seconds: how long a context is kept at most.
        stays: for each request the seconds until its session returns, or infinity, and the tokens
            of its context.

    Returns:
        The returns that are served, and the means over all requests of the stay and of tokens x
        seconds. Times a rate, the second is the tokens held: Little's law, weighted.
    """
    held = [(min(gap, seconds), tokens) for gap, tokens in stays]
    gaps = [gap for gap, _ in stays if gap < inf]
    return {
        "seconds": seconds,
        "served_percent": round(100 * sum(gap <= seconds for gap in gaps) / len(gaps), 1),
        "stays_s": round(fmean(stay for stay, _ in held), 1),
        "token_seconds": round(fmean(stay * tokens for stay, tokens in held)),
    }


def starts_shared(sessions: Sequence[Sequence[Request]]) -> dict[str, Any]:
    """Returns how much of a prompt stood at the front of the session's turn before it."""
    pairs = [pair for session in sessions for pair in pairwise(session)]
    starts = []
    for session in sessions:
        alike = chain.from_iterable(common_start(*pair) for pair in pairwise(session))
        tokens = sum(piece.num_tokens for piece in alike)
        starts.append((tokens, sum(r.prompt_tokens for r in session[1:])))
    in_system = [
        any(piece.kind == "sys" for piece in b.pieces[len(common_start(a, b)) :]) for a, b in pairs
    ]
    at_most = sum(most_alike(*pair) for pair in pairs) / sum(b.prompt_tokens for _, b in pairs)
    return {
        "shared_start": ratio_interval(starts, 3),
        "shared_at_most": round(at_most, 3),
        "differ_in_system_percent": round(100 * fmean(in_system), 1),
    }


def figures() -> dict[str, Any]:
    """Returns sessions, gaps between turns, contexts, and what tiers of several sizes serve."""
    rag = load("ragpulse")
    requests, sessions = rag.requests, by_session(rag.requests)
    pairs = [pair for session in sessions for pair in pairwise(session)]
    gaps = sorted(after.arrival_s - before.arrival_s for before, after in pairs)
    contexts = sorted(map(context, requests))
    stays = [(b.arrival_s - a.arrival_s, context(a)) for a, b in pairs]
    stays += [(inf, context(session[-1])) for session in sessions]
    half = len(requests) // 2
    parts = (requests, requests[:half], requests[half:])
    return {
        "num_requests": len(requests),
        "source": rag.source,
        "num_sessions": len(sessions),
        "num_returning": sum(len(session) > 1 for session in sessions),
        "returning": ratio_interval([(len(session) > 1, 1) for session in sessions], 3),
        "most_turns": max(map(len, sessions)),
        "num_returns": len(gaps),
        "rate": round((len(requests) - 1) / requests[-1].arrival_s, 4),
        "gap_s": {str(p): round(gaps[len(gaps) * p // 100]) for p in (5, 25, 50, 75, 90, 95)},
        "context_tokens": {
            "mean": round(fmean(contexts)),
            **{str(p): contexts[len(contexts) * p // 100] for p in (5, 50, 95)},
            "largest": contexts[-1],
            "above_8192": sum(n > 8192 for n in contexts),
        },
        **starts_shared(sessions),
        "known_elsewhere_percent": round(known_elsewhere(requests), 1),
        "last_turns": [last_turns(requests, num_turns) for num_turns in TURNS],
        "served": [
            [capacity, *(round(returns_served(part, capacity), 1) for part in parts)]
            for capacity in CAPACITIES
        ],
        "keeping": [keeping(seconds, stays) for seconds in KEPT_S],
    }


if __name__ == "__main__":
    code = ("kvlib/eviction.py", "measure/trace_sessions.py", "measure/resample.py")
    record_figures("trace_sessions", figures, ["ragpulse"], code)
