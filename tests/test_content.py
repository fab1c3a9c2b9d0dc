"""What a sequence's tokens are: chained keys that mean the same in every process."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.content import TokenContent
from kvlib.request_content import TraceContent

ROOT = Path(__file__).resolve().parents[1]
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=9)
EXTRAS = st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2)


def keys(content):
    return [content.key(i) for i in range(content.num_blocks)]


@given(a=TOKENS, b=TOKENS, size=st.integers(1, 3), extra=EXTRAS, other=EXTRAS)
def test_keys_are_equal_just_where_all_tokens_up_to_there_and_the_extras_are(
    a, b, size, extra, other
):
    left, right = TokenContent(a, size, extra), TokenContent(b, size, other)
    for i in range(min(left.num_blocks, right.num_blocks)):
        end = (i + 1) * size
        assert (left.key(i) == right.key(i)) == (a[:end] == b[:end] and extra == other)
        assert (left.block(i) == right.block(i)) == (a[end - size : end] == b[end - size : end])
    assert (left.namespace == right.namespace) == (extra == other)


@given(tokens=TOKENS, parts=st.lists(st.integers(0, 4), max_size=5), size=st.integers(1, 3))
def test_a_sequence_that_grew_has_the_keys_of_one_given_whole(tokens, parts, size):
    grown, rest = TokenContent([], size), list(tokens)
    for part in [*parts, len(rest)]:
        grown.append(rest[:part])
        del rest[:part]
        keys(grown)
    assert keys(grown) == keys(TokenContent(tokens, size))


def test_the_chain_is_the_documented_one():
    packed = [b"".join(t.to_bytes(8, "little") for t in pair) for pair in ((1, 2), (3, 4))]
    root = sha256(b"\0").digest()
    first = sha256(root + packed[0]).digest()
    content = TokenContent([1, 2, 3, 4, 5], 2)
    assert keys(content) == [first, sha256(first + packed[1]).digest()]


def test_the_root_names_every_extra_behind_its_length():
    """Labels in order, lengths of 8 bytes; zeros up to one more than a multiple of 8 bytes."""
    said = b"\1" + bytes(7) + b"a" + b"\2" + bytes(7) + b"xy" + b"\6" + bytes(7) + b"tenant"
    said += bytes(8) + bytes(8)
    link = sha256(sha256(said).digest() + (7).to_bytes(8, "little")).digest()
    for extras in ({"a": "xy", "tenant": ""}, {"tenant": "", "a": "xy"}):
        content = TokenContent([7], 1, extras)
        assert content.key(0) == link
        assert content.namespace == (("a", "xy"), ("tenant", ""))


def test_a_host_that_stores_numbers_the_other_way_round_turns_them(monkeypatch):
    """Its own order is taken for the other one, so the bytes of 1 become those of 2**56."""
    right = TokenContent([2**56], 1).key(0)
    monkeypatch.setattr(sys, "byteorder", "big")
    assert TokenContent([1], 1).key(0) == right


def test_a_key_is_computed_once(monkeypatch):
    from kvlib import content

    calls = []
    monkeypatch.setattr(content, "sha256", lambda data: calls.append(data) or sha256(data))
    known = TokenContent(range(6), 2)
    for _ in range(2):
        keys(known)
    known.append([6, 7])
    known.key(3)
    assert len(calls) == 1 + 4


def test_the_input_of_a_root_never_has_the_length_of_a_links():
    """Or somebody could choose a salt that makes a root out of another's chain."""
    from kvlib import content

    lengths = []

    class Recorder:
        def __init__(self, data):
            lengths.append(len(data))

        def digest(self):
            return b""

    real, content.sha256 = content.sha256, Recorder
    try:
        for n in range(20):
            content._root([("salt", "x" * n)])
    finally:
        content.sha256 = real
    assert {length % 8 for length in lengths} == {1}


@pytest.mark.parametrize(
    "one, other",
    [
        ({"salt": "a"}, {"adapter": "a"}),
        ({"a": "bc"}, {"ab": "c"}),
        ({"a": "b", "c": "d"}, {"a": "bc", "": "d"}),
        ({"a": ""}, {"": "a"}),
        ({"a": "\0"}, {"a": ""}),
    ],
)
def test_labels_and_values_cannot_run_into_each_other(one, other):
    assert TokenContent([1], 1, one).key(0) != TokenContent([1], 1, other).key(0)


def test_a_key_is_the_same_in_every_process():
    code = (
        "from kvlib.content import TokenContent as C\n"
        "for e in ({}, {'adapter': 'A'}): print(C(range(1, 17), 16, e).key(0).hex())"
    )
    said = set()
    for seed in "012":
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert not done.returncode, done.stderr
        said.add(done.stdout)
    (both,) = said
    assert len(set(both.split())) == 2


@pytest.mark.parametrize("i", [-1, 2, 9])
def test_a_block_that_is_not_whole_has_no_key(i):
    for content in (TokenContent(range(5), 2), TraceContent([7, 8], 256, 700)):
        for ask in (content.key, content.block):
            with pytest.raises(IndexError, match=f"whole blocks are 0 to 1, asked for {i}"):
                ask(i)


@pytest.mark.parametrize(
    "tokens, error", [([1.5], TypeError), (["a"], TypeError), ([2**63], OverflowError)]
)
def test_bad_tokens_are_refused_and_change_nothing(tokens, error):
    content = TokenContent([1, 2], 2)
    with pytest.raises(error):
        content.append([3, *tokens])
    assert (content.num_tokens, content.num_blocks) == (2, 1)
    with pytest.raises(error):
        TokenContent(tokens, 1)


@pytest.mark.parametrize("size", [0, -1, 1.0, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda size: TokenContent([1, 2], size),
        lambda size: TraceContent([7], size, 2, 2),
        lambda size: TraceContent([7], 1, size, 2),
        lambda size: TraceContent([7], 1, 1, size),
    ],
    ids=["tokens", "block", "prompt", "trace"],
)
def test_sizes_are_whole_numbers_of_at_least_one(make, size):
    with pytest.raises((TypeError, ValueError), match=r"must be (at least 1|a whole number)"):
        make(size)


@pytest.mark.parametrize("extras", [{"tenant": 1}, {1: "tenant"}, {"a": "b", "c": None}])
def test_extras_are_texts(extras):
    said = "extras are texts, label and value; got (int|NoneType)"
    with pytest.raises(TypeError, match=said):
        TokenContent([7], 1, extras)
    with pytest.raises(TypeError, match=said):
        TraceContent([7], 1, 1, 1, extras)


def test_a_block_is_its_tokens_and_of_one_the_token_itself():
    assert [TokenContent([5, 6, 7, 8], size).block(1) for size in (1, 2)] == [6, (7, 8)]


def test_bytes_are_a_token_each():
    assert keys(TokenContent(b"abcdefgh", 2)) == keys(TokenContent(list(b"abcdefgh"), 2))
