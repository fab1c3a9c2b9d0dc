"""Hides one sentence in a long text and asks for it: how often a cache still finds it.

The text is made of plain sentences drawn by a seed. One of them says a number; the end of the text
begins the same sentence again, and the model is to say the number. That is retrieval by copying,
the easiest kind: a cache that fails it has lost the sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

import kvlib
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import CacheBase
from kvlib.tensors.tokenizer import Tokenizer

NewCache = Callable[[Llama], CacheBase]

WHO = ("gardener", "teacher", "baker", "sailor", "painter", "farmer", "doctor", "singer")
DID = ("walked past", "looked at", "asked about", "wrote down", "forgot", "drew", "remembered")
WHAT = ("the old bridge", "a quiet street", "the tall clock", "an open door", "the long train")
WHEN = ("in the morning", "after lunch", "on Monday", "before the rain", "late at night")
PLACES = ("harbour", "library", "station", "market", "museum", "castle", "garden", "airport")
NUM_DIGITS = 4
# Not 1: a needle right before the question is missed by the model itself, with all of the text.
DEPTHS = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Needle:
    """A text with a sentence in it that can be asked for.

    Attributes:
        context: token ids of the text.
        question: token ids that ask, behind the text.
        answer: token ids of the number.
    """

    context: tuple[int, ...]
    question: tuple[int, ...]
    answer: tuple[int, ...]


def needle(
    tokenizer: Tokenizer, num_tokens: int, depth: float, seed: int, num_digits: int = NUM_DIGITS
) -> Needle:
    """Returns a text of about `num_tokens` with its needle at `depth`, 0 the start and 1 the end.

    Args:
        tokenizer: of the model that will read it.
        num_tokens: of context and question; it has at most as many, and fewer by one sentence.
        depth: where the needle stands, as a share of the other sentences.
        seed: equal seeds give equal texts.
        num_digits: of the number; the tokenizer gives each digit, and the space before, a token.
    """
    draw = Random(f"needle/{seed}")
    place = draw.choice(PLACES)
    number = "".join(str(draw.randrange(10)) for _ in range(num_digits))
    asked = f" The secret number of the {place} is"
    found, question = tokenizer.encode(f"{asked} {number}."), tokenizer.encode(asked)
    room = num_tokens - len(found) - len(question)
    sentences: list[list[int]] = []
    while True:
        words = (draw.choice(each) for each in (WHO, DID, WHAT, WHEN))
        sentence = tokenizer.encode(" The {} {} {} {}.".format(*words))
        if room < len(sentence):
            break
        room -= len(sentence)
        sentences.append(sentence)
    at = round(depth * len(sentences))
    hidden = [*sentences[:at], found, *sentences[at:]]
    answer = found[len(question) : -1]
    return Needle(tuple(t for each in hidden for t in each), tuple(question), tuple(answer))


@torch.inference_mode()
def finds(
    model: Llama,
    cache: CacheBase,
    text: Needle,
    *,
    asked_later: bool,
    between: Callable[[Any], object] = lambda cache: None,
) -> bool:
    """Answers whether the model says the number, each digit the likeliest token.

    Args:
        model: reads.
        cache: an empty one.
        text: what it reads.
        asked_later: the text is read before the question is known, in a step of its own; else both
            come in one step, as one prompt.
        between: done to the cache after the first step, say a way down a tier and back.
    """
    cache.add("text")
    steps = [[*text.context], [*text.question]]
    if not asked_later:
        steps = [steps[0] + steps[1]]
    said: list[int] = []
    for new in [*steps, *([t] for t in text.answer[:-1])]:
        with cache.step({"text": new}) as plan:
            logits = model(torch.tensor(new, device=model.device), cache, plan)[0]
        if not said:
            between(cache)
        said.append(int(logits.argmax()))
    cache.free("text")
    return tuple(said[-len(text.answer) :]) == text.answer


def needle_accuracy(
    model: Llama,
    tokenizer: Tokenizer,
    new_cache: NewCache,
    num_tokens: int,
    *,
    asked_later: bool,
    depths: Sequence[float] = DEPTHS,
    seeds: Sequence[int] = range(4),
    between: Callable[[Any], object] = lambda cache: None,
) -> float:
    """Returns the share of needles found, over all depths and seeds.

    Args:
        model: reads.
        tokenizer: its tokenizer.
        new_cache: makes an empty cache for a model.
        num_tokens: of each text, question included.
        asked_later: as for `finds`.
        depths: where the needles stand.
        seeds: of the texts.
        between: as for `finds`.
    """
    found = [
        finds(
            model,
            new_cache(model),
            needle(tokenizer, num_tokens, depth, 1000 * seed + index),
            asked_later=asked_later,
            between=between,
        )
        for seed in seeds
        for index, depth in enumerate(depths)
    ]
    return sum(found) / len(found)


def exact(model: Llama) -> CacheBase:
    """Returns the cache that every other is compared with: it keeps all of a text."""
    limit = model.config.max_position_embeddings
    return kvlib.PagedKVCache(model.kv_shape, -(-limit // 16), 16, device=model.device)
