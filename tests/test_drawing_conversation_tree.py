"""The conversation tree shows what the two indexes really know and find."""

from itertools import takewhile

import pytest

from kvlib.show.drawings.conversation_tree import PROMPTS, conversation_tree, known


def common(a, b):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@pytest.mark.parametrize("request_", range(1, len(PROMPTS) + 1))
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_each_finds_the_longest_common_beginning_in_whole_blocks(request_, size):
    tree, hashed = known(request_, 1, tree=True), known(request_, size, tree=False)
    for i, prompt in enumerate(PROMPTS[:request_]):
        best = max((common(prompt, before) for before in PROMPTS[:i]), default=0)
        assert tree.tokens[i] == min(best, len(prompt) - 1)
        assert hashed.tokens[i] == min(best, len(prompt) - 1) // size * size
    assert sum(len(run.pieces) for run in tree.runs) == len(
        {prompt[:n] for prompt in PROMPTS[:request_] for n in range(1, len(prompt) + 1)}
    )


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("tree", [True, False])
def test_a_run_stands_behind_the_prompt_that_computed_what_is_before(size, tree):
    state = known(len(PROMPTS), size, tree=tree)
    for run in state.runs:
        assert (run.above is None) == (run.first == 0)
        for _, owner in run.pieces:
            text = PROMPTS[run.pieces[-1][1]][: run.first]
            assert PROMPTS[owner].startswith(text)
            assert run.above is None or PROMPTS[run.above].startswith(text)


def test_a_run_is_written_where_two_prompts_part():
    texts = {
        PROMPTS[run.pieces[-1][1]][run.first : run.first + len(run.pieces)]
        for run in known(6, 1, tree=True).runs
    }
    assert {"Be b", "rief.H", "i!", "ow?", "old.Hi!", "Hey."} <= texts


def test_the_figures_are_said():
    svg = conversation_tree(7, 4)
    assert ">Blocks of 4 find 16 of its 24 tokens, the tree 19.<" in svg
    assert "So far 68 and 74 of 118 tokens." in svg
    single = conversation_tree(7, 1)
    assert "Prompt 7: found 19 in blocks, 19 in the tree" in single
