"""The switcher shows the scheduler's own run, and the sentences are that run's."""

import pytest

from kvlib import atlas
from kvlib.show.drawings.policy_switcher import (
    LINE,
    LONG,
    LONGEST,
    SPREAD,
    TALK,
    policy_switcher,
    requests_of,
    served,
)


@pytest.mark.parametrize("load", [LINE, SPREAD, LONG, TALK])
def test_every_engine_serves_every_load_to_the_end(load):
    assert all(r.prompt_tokens + r.output_tokens <= LONGEST for _, r in requests_of(load))
    for name in atlas.engines():
        run, parts = served(name, load, 2048)
        assert (run.finished, run.refused, run.cut_short) == (len(requests_of(load)), 0, 0)
        assert len(parts) == run.steps
        assert {round(sum(each)) for each in parts} == {round(sum(parts[0]))}


def test_the_figures_are_the_runs():
    run, _ = served("vLLM V0", LINE, 4096)
    svg = policy_switcher("vLLM V0", LINE, 4096)
    assert f">{run.mean_running:.1f} and {run.peak_running}<" in svg
    assert f">{100 * run.recomputed_share:.1f} %<" in svg
    other, _ = served("vLLM V1", LINE, 4096)
    assert f"{run.steps:,} steps; vLLM V1 takes {other.steps:,} in the same memory." in svg


def test_what_the_page_says_of_it_holds():
    runs = {name: served(name, LINE, 4096).run for name in atlas.engines()}
    v1 = runs["vLLM V1"]
    for name in ("TensorRT-LLM no-evict", "TGI", "ExLlamaV3"):
        assert 2.2 < runs[name].steps / v1.steps < 2.9 and runs[name].preempted == 0
    assert 0.15 < v1.recomputed_share < 0.19
    found = {name: served(name, TALK, 4096).run.prefix_hit_rate for name in runs}
    nothing = {name for name, hit in found.items() if hit == 0}
    assert nothing == {
        *("vLLM V0", "LMDeploy TurboMind", "DeepSpeed-FastGen", "vAttention"),
        *("Orca Max", "Orca Pow2", "Orca Oracle"),
    }
    assert max(found, key=found.get) in ("SGLang", "LightLLM", "TGI")
