"""Made-up conversations whose prompts share prefixes by design."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from kvlib.request import Request, Workload
from kvlib.sizes import whole_number


class _Turn(NamedTuple):
    arrival_ms: int
    conversation_id: int
    turn: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True)
class _Author:
    random: Random
    vocab_size: int
    user_tokens: int
    output_tokens: int

    def below(self, limit: int) -> int:
        # `random()` is the one method whose sequence Python promises never to change.
        return int(self.random.random() * limit)

    def text(self, num_tokens: int) -> tuple[int, ...]:
        return tuple(self.below(self.vocab_size) for _ in range(num_tokens))

    def turn_after(self, parent: _Turn, conversation_id: int) -> _Turn:
        message = self.text(1 + self.below(2 * self.user_tokens - 1))
        return _Turn(
            arrival_ms=parent.arrival_ms + 5_000 + self.below(15_000),
            conversation_id=conversation_id,
            turn=parent.turn + 1,
            prompt=parent.prompt + parent.output + message,
            output=self.text(1 + self.below(2 * self.output_tokens - 1)),
        )


def conversations(
    seed: int,
    num_conversations: int = 8,
    num_turns: int = 4,
    num_system_prompts: int = 2,
    system_tokens: int = 64,
    user_tokens: int = 24,
    output_tokens: int = 32,
    branch_share: float = 0.25,
    vocab_size: int = 49_152,
) -> Workload:
    """Makes up multi-turn conversations that share prefixes: a tree of token ids.

    A prompt is a system prompt, then every earlier message and answer of its conversation, then a
    new message. A branch goes on from an answer that another conversation has already gone on
    from, with another message; its turns count from the root. Token ids are random, so no prefix
    is shared but by design (or, rarely, its first token or two). Times are fixed beforehand: a
    conversation starts every 10 s on average, a user answers 5 to 20 s after the turn before.

    Args:
        seed: the same seed gives the same conversations on every host.
        num_conversations: branches included.
        num_turns: from the system prompt to the last answer, in every conversation.
        num_system_prompts: each conversation that is no branch starts with one of them.
        system_tokens: length of each system prompt.
        user_tokens: mean length of a message; lengths are uniform in `[1, 2 * user_tokens)`.
        output_tokens: mean length of an answer, likewise.
        branch_share: the chance that a conversation is a branch, once there is one to branch from.
        vocab_size: token ids are below this; the default fits SmolLM2.

    Raises:
        TypeError: a count is not an `int`.
        ValueError: a count is below 1, or `branch_share` is outside `[0, 1]`.

    Example:
        >>> first, second, *_ = conversations(seed=0, num_conversations=1).requests
        >>> second.token_ids[: len(first.token_ids)] == first.token_ids
        True
    """
    counts = dict(
        num_conversations=num_conversations,
        num_turns=num_turns,
        num_system_prompts=num_system_prompts,
        system_tokens=system_tokens,
        user_tokens=user_tokens,
        output_tokens=output_tokens,
        vocab_size=vocab_size,
    )
    for name, value in counts.items():
        whole_number(name, value)
    if not 0 <= branch_share <= 1:
        raise ValueError(f"branch_share must be within [0, 1], got {branch_share!r}")
    author = _Author(Random(f"conversations/{seed}"), vocab_size, user_tokens, output_tokens)
    systems = [author.text(system_tokens) for _ in range(num_system_prompts)]
    turns = _tree(author, systems, num_conversations, num_turns, branch_share)
    turns.sort(key=lambda each: each[:3])
    return Workload(
        name=f"conversations (seed={seed})",
        description=(
            f"made up, not a trace: {num_conversations} conversations of {num_turns} turns over "
            f"{num_system_prompts} system prompts, random token ids (seed {seed})"
        ),
        source="",
        requests=tuple(_request(i, each, turns[0].arrival_ms) for i, each in enumerate(turns)),
    )


def _tree(
    author: _Author,
    systems: list[tuple[int, ...]],
    num_conversations: int,
    num_turns: int,
    branch_share: float,
) -> list[_Turn]:
    """Every turn of every conversation, one conversation after another."""
    turns: list[_Turn] = []
    for conversation_id in range(num_conversations):
        continued = [each for each in turns if each.turn < num_turns - 1]
        if continued and author.random.random() < branch_share:
            last = continued[author.below(len(continued))]
        else:
            start_ms = author.below(num_conversations * 10_000)
            last = _Turn(start_ms, conversation_id, -1, (), systems[author.below(len(systems))])
        while last.turn < num_turns - 1:
            last = author.turn_after(last, conversation_id)
            turns.append(last)
    return turns


def _request(request_id: int, turn: _Turn, first_ms: int) -> Request:
    return Request(
        request_id,
        arrival_s=(turn.arrival_ms - first_ms) / 1000,
        prompt_tokens=len(turn.prompt),
        output_tokens=len(turn.output),
        token_ids=turn.prompt + turn.output,
        conversation_id=turn.conversation_id,
        turn=turn.turn,
    )
