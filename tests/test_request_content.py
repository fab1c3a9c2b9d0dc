"""A trace's blocks are a content of their own, and a request tells what is known of its tokens."""

import pytest

from kvlib.conversations import conversations
from kvlib.request import Request
from kvlib.request_content import TraceContent, content_of


def keys(content):
    return [content.key(i) for i in range(content.num_blocks)]


def test_blocks_of_a_trace_may_be_cut():
    whole = TraceContent([7, 8], 512, 700)
    parts = TraceContent([7, 8], 256, 700)
    assert (keys(whole), keys(parts)) == ([(7, 0)], [(7, 0), (7, 1)])
    assert TraceContent([7, 8], 16, 700).num_blocks == 43
    assert (parts.block_size, parts.block(1)) == (256, (7, 1))
    assert keys(TraceContent([7, 8, 9], 2, 9, 4)) == [(7, 0), (7, 1), (8, 0), (8, 1)]


@pytest.mark.parametrize(
    "args, said",
    [
        (([7], 300, 512), "blocks of 300 do not divide the trace's 512 tokens"),
        (([7], 512, 700), "1 block ids for a prompt of 700 tokens"),
        (([7], 0, 512), "block_size must be at least 1"),
    ],
)
def test_a_trace_that_does_not_fit_is_refused(args, said):
    with pytest.raises(ValueError, match=said):
        TraceContent(*args)


def test_a_tenants_trace_blocks_are_its_own():
    a, b = (TraceContent([7], 512, 512, extras={"tenant": name}) for name in "ab")
    assert len({a.key(0), b.key(0), TraceContent([7], 512, 512).key(0)}) == 3


def test_what_is_known_of_a_request():
    talk = conversations(seed=0).requests[0]
    content = content_of(talk, 16, {"tenant": "t"})
    assert content.num_blocks == len(talk.token_ids) // 16
    assert len(talk.token_ids) == talk.prompt_tokens + talk.output_tokens
    assert content.namespace == (("tenant", "t"),)
    traced = content_of(Request(0, 0.0, 700, 9, block_ids=(7, 8)), 16, {"tenant": "t"})
    assert (traced.num_blocks, traced.namespace) == (43, (("tenant", "t"),))
    assert content_of(Request(0, 0.0, 700, 9), 16) is None
