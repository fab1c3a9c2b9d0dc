"""What is fetched covers what is promised, and early enough is what trying every distance finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.prefetch import Fetch, fetch_plan, layer_times, prefetch_distance


def test_TI_3_planned_and_fetched_amounts_differ_by_the_overlap():
    plan = fetch_plan(512, 288, chunk_tokens=256, block_size=16)
    assert plan == Fetch(hit=512, fetch=256, overlap=32, new=224)
    assert plan.new // 16 == 14 and plan.fetch - plan.overlap == plan.new


def test_TI_5_a_hit_is_whole_chunks():
    assert fetch_plan(27, 16, chunk_tokens=8) == Fetch(hit=24, fetch=8, overlap=0, new=8)


@given(
    shared=st.integers(0, 600),
    blocks=st.integers(0, 40),
    block_size=st.sampled_from([1, 4, 16]),
    chunk=st.integers(1, 8),
)
def test_every_plan_covers_what_it_promises(shared, blocks, block_size, chunk):
    plan = fetch_plan(
        shared, blocks * block_size, chunk_tokens=chunk * block_size, block_size=block_size
    )
    here, width = set(range(blocks * block_size)), chunk * block_size
    fetched = set(range(plan.hit - plan.fetch, plan.hit))
    assert plan.hit <= shared < plan.hit + width and plan.fetch % width == 0
    assert len(fetched & here) == plan.overlap < width
    assert len(fetched - here) == plan.new and plan.new % block_size == 0
    assert here | fetched >= set(range(plan.hit))
    assert (not plan.fetch) == (plan.hit <= len(here))


@pytest.mark.parametrize(
    "wrong", [{"chunk_tokens": 0}, {"chunk_tokens": 24}, {"on_device": 8}, {"shared": -1}]
)
def test_a_plan_of_parts_of_blocks_is_refused(wrong):
    right = {"shared": 64, "on_device": 16, "chunk_tokens": 32, "block_size": 16}
    with pytest.raises(ValueError):
        fetch_plan(**(right | wrong))


def test_a_device_may_hold_any_token_where_no_block_size_is_told():
    assert fetch_plan(5, 3, chunk_tokens=5) == Fetch(hit=5, fetch=5, overlap=3, new=2)


@pytest.mark.parametrize("name", ["shared", "on_device", "chunk_tokens", "block_size"])
@pytest.mark.parametrize("wrong", [-1, 16.0])
def test_a_plan_of_no_whole_number_is_refused_by_its_name(name, wrong):
    right = {"shared": 64, "on_device": 16, "chunk_tokens": 32, "block_size": 1}
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        fetch_plan(**(right | {name: wrong}))


def total(load, compute, latency, distance, layers=60):
    return layer_times(layers, load, compute, distance=distance, latency_s=latency)[-1].compute_end


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 40))
def test_the_prefetch_distance_is_the_shortest_that_ends_soonest(load, compute, latency):
    ends = [total(load, compute, latency, d) for d in range(60)]
    assert prefetch_distance(load, compute, latency) == max(1, ends.index(min(ends)))
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize(
    "times, distance",
    [
        ((2, 2), 1),
        ((0, 5), 1),
        ((3, 2, 3), 2),
        ((3, 2, 3.5), 3),
        ((0, 1, 1 + 4e-10), 1),  # less than a billionth of a layer is the rounding of floats
        ((0, 1, 1 + 4e-9), 2),
    ],
)
def test_prefetch_distances_by_hand(times, distance):
    assert prefetch_distance(*times) == distance


@pytest.mark.parametrize("wrong", [{"num_layers": 0}, {"num_layers": 2.0}, {"distance": -1}])
def test_a_timeline_of_no_layers_or_behind_itself_is_refused(wrong):
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(wrong))} must be"):
        layer_times(**({"num_layers": 2, "load_s": 1, "compute_s": 1, "distance": 1} | wrong))


def test_what_layers_cost_with_and_without_loading_ahead():
    assert total(2, 3, 0, 0) == 60 * 5  # one after the other
    assert total(2, 3, 0, 1) == 2 + 60 * 3  # all but the first load are hidden
    assert total(5, 3, 0, 9) == 60 * 5 + 3  # the link is the slower one: nothing hides it


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 5))
def test_a_timeline_keeps_its_two_lanes(load, compute, latency, distance):
    times = layer_times(12, load, compute, distance=distance, latency_s=latency)
    for i, layer in enumerate(times):
        assert layer.compute_start >= layer.arrived == layer.load_end + latency
        assert layer.compute_end - layer.compute_start == compute
        if i:
            assert layer.load_start >= times[i - 1].load_end
            assert layer.compute_start >= times[i - 1].compute_end
        if 0 < distance <= i:
            assert layer.load_start >= times[i - distance].compute_start


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="times are at least 0"):
        layer_times(2, wrong, 1, distance=1)
    with pytest.raises(ValueError, match="times are at least 0"):
        prefetch_distance(1, wrong)
    with pytest.raises(ValueError, match="got 0 for both"):
        prefetch_distance(0, 0)
