"""In which order should the parts of a prompt stand, for a cache to find the most of it?

A prefix cache finds a prompt's beginning, whole blocks of it, up to the first token that differs.
So a part is found only if all parts before it are, and the order decides. Whether a model answers
as well to another order is a question for an evaluation, and not asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random

from kvlib.request import Request
from kvlib.sizes import whole_number

PARTS = ("date", "user", "system", "tools", "documents", "history", "question")
# Tokens of each part that has a fixed length; questions, answers and documents vary.
LENGTHS = {"system": 300, "tools": 500, "user": 40}
# Tokens of a date, by what it says.
STAMPS = {"day": 8, "minute": 10, "second": 12}
DOCUMENT, QUESTION, ANSWER = (150, 250), (10, 40), (40, 120)
VOCABULARY = 49_152


@dataclass(frozen=True)
class Ask:
    """One turn of a conversation: what an application has in hand when it makes the prompt.

    Attributes:
        arrival_s: seconds after the first one.
        user: whose it is.
        turn: its place in the user's conversation.
        parts: token ids by part, without `documents`.
        documents: of each document that was looked up, in order of relevance.
        answer: the token ids that will be generated.
    """

    arrival_s: float
    user: int
    turn: int
    parts: Mapping[str, tuple[int, ...]]
    documents: tuple[tuple[int, ...], ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Template:
    """How a prompt is made.

    Attributes:
        order: of the parts, each of `PARTS` once.
        stamp: how much the date says: the `day`, the `minute` or the `second`.
        sorted_documents: documents stand in an order of their own, whatever their relevance.

    Raises:
        ValueError: a part is missing, unknown or there twice, or no such stamp.
    """

    order: tuple[str, ...] = PARTS
    stamp: str = "second"
    sorted_documents: bool = False

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(PARTS):
            raise ValueError(f"a prompt has each of {PARTS} once, got {self.order}")
        if self.stamp not in STAMPS:
            raise ValueError(f"a date says one of {list(STAMPS)}, got {self.stamp!r}")

    def parts(self, ask: Ask) -> list[tuple[str, tuple[int, ...]]]:
        """Returns the parts of a prompt in order, each with its name."""
        documents = sorted(ask.documents) if self.sorted_documents else ask.documents
        known = dict(ask.parts) | {"documents": tuple(chain.from_iterable(documents))}
        known["date"] = known["date"][: STAMPS[self.stamp]]
        return [(name, known[name]) for name in self.order]

    def request(self, request_id: int, ask: Ask) -> Request:
        """Returns the request whose prompt this template makes."""
        prompt = tuple(chain.from_iterable(tokens for _, tokens in self.parts(ask)))
        return Request(
            request_id,
            ask.arrival_s,
            len(prompt),
            len(ask.answer),
            token_ids=prompt + ask.answer,
            conversation_id=ask.user,
            turn=ask.turn,
        )

    def requests(self, asks: Iterable[Ask]) -> list[Request]:
        """Returns a request for each turn, in order."""
        return [self.request(i, ask) for i, ask in enumerate(asks)]


def asks(
    seed: int,
    num_users: int = 24,
    num_turns: int = 4,
    num_documents: int = 12,
    per_turn: int = 2,
    gap_s: float = 8.0,
) -> list[Ask]:
    """Makes up the turns of an assistant's users, with random token ids.

    All share system prompt and tools. A user has a profile and a conversation; each turn looks up
    documents, some much more often than others, and the next turn's history has the question and
    the answer, not the documents. Turns of all users come in a random order that keeps each user's
    own.

    Args:
        seed: the same seed gives the same turns on every host.
        num_users: one conversation each.
        num_turns: of every conversation.
        num_documents: that there are.
        per_turn: different documents looked up for a turn.
        gap_s: the mean time from one turn to the next, of all users.

    Raises:
        TypeError, ValueError: a count is not a whole number of at least 1, or more documents are
            looked up than there are.

    Example:
        >>> first = asks(seed=0)[0]
        >>> {name: len(tokens) for name, tokens in first.parts.items() if name != "question"}
        {'system': 300, 'tools': 500, 'user': 40, 'date': 12, 'history': 0}
    """
    for name, value in (("num_users", num_users), ("num_turns", num_turns)):
        whole_number(name, value)
    whole_number("per_turn", per_turn)
    if per_turn > num_documents:
        raise ValueError(f"{per_turn} documents a turn of {num_documents} that there are")
    author = _Author(Random(f"prompts/{seed}"))
    system, tools = author.text(LENGTHS["system"]), author.text(LENGTHS["tools"])
    day = author.text(STAMPS["day"])
    documents = [author.between(DOCUMENT) for _ in range(num_documents)]
    users = [author.text(LENGTHS["user"]) for _ in range(num_users)]
    histories: list[tuple[int, ...]] = [()] * num_users
    # What a date says is two tokens for the minute and two for the second, of different numbers.
    numbers: dict[tuple[str, int], tuple[int, ...]] = {}
    now, made = 0.0, []
    for user in author.shuffled([u for u in range(num_users) for _ in range(num_turns)]):
        minute = numbers.setdefault(("minute", int(now // 60)), author.text(2))
        second = numbers.setdefault(("second", int(now)), author.text(2))
        question, answer = author.between(QUESTION), author.between(ANSWER)
        parts = {
            "system": system,
            "tools": tools,
            "user": users[user],
            "date": day + minute + second,
        }
        parts |= {"history": histories[user], "question": question}
        turn = sum(each.user == user for each in made)
        found = author.popular(documents, per_turn)
        made.append(Ask(round(now, 3), user, turn, parts, found, answer))
        histories[user] += question + answer
        now += 2 * gap_s * author.random.random()
    return made


@dataclass(frozen=True)
class _Author:
    random: Random

    def text(self, num_tokens: int) -> tuple[int, ...]:
        # `random()` is the one method whose sequence Python promises never to change.
        return tuple(int(self.random.random() * VOCABULARY) for _ in range(num_tokens))

    def between(self, lengths: tuple[int, int]) -> tuple[int, ...]:
        least, most = lengths
        return self.text(least + int(self.random.random() * (most - least)))

    def shuffled(self, values: list[int]) -> list[int]:
        return [value for _, value in sorted((self.random.random(), value) for value in values)]

    def popular(self, documents: Sequence[tuple[int, ...]], count: int) -> tuple:
        # The square makes the first ones frequent: of twelve, the first comes up 29 % of the time.
        left, found = list(documents), []
        for _ in range(count):
            found.append(left.pop(int(len(left) * self.random.random() ** 2)))
        return tuple(found)
