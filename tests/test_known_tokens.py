"""The tokens of each sequence are known: those of a plan at its commit, as its length is."""

import pytest

from kvlib.sizes import KVShape
from kvlib.tensors.known_tokens import KnownTokensKVCache


@pytest.fixture
def cache():
    made = KnownTokensKVCache(KVShape(1, 1, 2), num_blocks=8, block_size=2)
    made.add("a")
    return made


def test_a_plan_is_named_anew_by_as_many_tokens_only(cache):
    plan = cache.plan({"a": [0, 0]})
    for wrong in ({"a": [1]}, {"b": [1, 2]}, {}):
        with pytest.raises(ValueError, match="the plan brings"):
            cache.name_tokens(plan, wrong)
    cache.name_tokens(plan, {"a": [1, 2]})
    assert cache.tokens("a") == ()
    cache.commit(plan)
    assert cache.tokens("a") == (1, 2)
    with pytest.raises(ValueError, match="not open"):
        cache.name_tokens(plan, {"a": [1, 2]})


def test_tokens_follow_their_sequences(cache):
    with cache.step({"a": [1, 2, 3]}):
        pass
    cache.fork("a", "b")
    cache.truncate("a", 1)
    with cache.step({"b": [4]}):
        pass
    assert (cache.tokens("a"), cache.tokens("b")) == ((1,), (1, 2, 3, 4))
    cache.abort(cache.plan({"a": [9]}))
    cache.reorder({"a": "b", "b": "a"})
    assert (cache.tokens("a"), cache.tokens("b")) == ((1, 2, 3, 4), (1,))
    cache.free("a")
    cache.check()
    with pytest.raises(KeyError):
        cache.tokens("a")


def test_a_token_too_many_is_found(cache):
    cache._tokens["a"].append(5)
    with pytest.raises(AssertionError, match="tokens of 'a' miscounted"):
        cache.check()
