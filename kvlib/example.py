"""The example that returns on page after page: one budget, three requests, one conversation.

The budget is that of the PagedAttention paper's experiments: 12 GiB for the keys and values of
OPT-13B (Kwon et al. 2023, table 1). The three requests are small enough for paper. The conversation
is what becomes of the first of them when its user goes on.
"""

from __future__ import annotations

from typing import NamedTuple

from kvlib import catalog
from kvlib.request import Request

BUDGET_SLOTS = 12 * 2**30 // catalog.model("OPT-13B").kv_bytes(1)
"""Slots of the budget, each with room for one token."""


class Ask(NamedTuple):
    """One of the three: how many tokens its prompt has and its answer will have, and a real text.

    Attributes:
        text: has `prompt` tokens for the book's model, SmolLM2-135M.
    """

    prompt: int
    answer: int
    text: str


THREE = {
    "a": Ask(6, 4, "What is the capital of France"),
    "b": Ask(3, 5, "The sky is"),
    "c": Ask(4, 3, "Once upon a time"),
}
"""The three requests, by name."""

CONVERSATION = (6, 14, 22)
"""Prompt tokens of `a`'s conversation: its own prompt; then all said before and four new, twice."""


def three_requests(max_new_tokens: int | None = None) -> list[Request]:
    """Returns the three as requests without times, in order.

    Args:
        max_new_tokens: what each of their clients allows.

    >>> [(r.prompt_tokens, r.output_tokens) for r in three_requests()]
    [(6, 4), (3, 5), (4, 3)]
    """
    return [
        Request(i, None, ask.prompt, ask.answer, max_new_tokens=max_new_tokens)
        for i, ask in enumerate(THREE.values())
    ]


def conversation(gap_s: float = 1.0) -> list[Request]:
    """Returns the turns of the conversation, `gap_s` seconds apart, each answered with 4 tokens.

    Its 26 tokens are numbered in order: prompt and answer of a turn begin the next prompt.

    >>> [turn.prompt_tokens for turn in conversation()]
    [6, 14, 22]
    >>> conversation()[0].token_ids
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    """
    answer = THREE["a"].answer
    return [
        Request(
            turn,
            turn * gap_s,
            prompt,
            answer,
            token_ids=tuple(range(1, prompt + answer + 1)),
            conversation_id=0,
            turn=turn,
        )
        for turn, prompt in enumerate(CONVERSATION)
    ]
