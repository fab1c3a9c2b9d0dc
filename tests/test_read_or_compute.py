"""Reading against computing: the break-even is the one that trying every length finds."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvlib.catalog import gpu, model
from kvlib.prefetch import layer_times
from kvlib.prefill_time import Prefill
from kvlib.read_or_compute import break_even_gb_s, break_even_tokens, faster_read, gain_s
from kvlib.roofline import prefill_flops
from kvlib.tier import Tier

LLAMA, H100 = model("Llama-3-8B"), gpu("H100 SXM5")
PREFILL = Prefill(H100, LLAMA)
MODELS = ["Llama-3-8B", "Llama-3-70B", "SmolLM2-135M", "OPT-13B", "Mixtral-8x7B"]
CARDS = ["H100 SXM5", "A10", "L4", "V100 SXM2 32GB"]


def host(gb_s, latency_s=0.0):
    return Tier("host", 10**15, gb_s, latency_s=latency_s)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(MODELS),
    card=st.sampled_from(CARDS),
    gb_s=st.sampled_from([0.05, 0.5, 2, 7, 25, 64, 450]),
    latency_s=st.sampled_from([0, 1e-5, 1e-3, 0.1]),
    suffix=st.sampled_from([1, 16, 200, 3000]),
    layers=st.sampled_from([1, 32]),
    most=st.sampled_from([1, 300, 3000]),
)
@example("Llama-3-8B", "A10", 0.5, 0, 200, 32, 3000)  # two ranges
def test_the_break_even_is_what_trying_every_length_finds(
    name, card, gb_s, latency_s, suffix, layers, most
):
    prefill, tier = Prefill(gpu(card), model(name)), host(gb_s, latency_s)
    asked = (tier, prefill.token_bytes, prefill)
    how = {"suffix_tokens": suffix, "num_layers": layers}
    faster = [n for n in range(1, most + 1) if gain_s(n, *asked, **how) > 0]
    assert [n for each in faster_read(*asked, max_tokens=most, **how) for n in each] == faster
    if layers == 1:  # below it computing wins, from it on reading
        found = break_even_tokens(*asked, max_tokens=most, suffix_tokens=suffix)
        assert faster == (list(range(found, most + 1)) if found else [])


def test_layer_by_layer_a_short_prefix_pays_on_a_link_on_which_a_longer_one_does_not():
    asked = (host(6, 1e-4), PREFILL.token_bytes, PREFILL)
    short, long = faster_read(*asked, suffix_tokens=512, num_layers=32)
    whole = break_even_tokens(*asked, suffix_tokens=512)
    assert short.start < 100 and short.stop < 2000
    assert long.start > 10_000 and long.stop == 131_073
    assert 0 < whole - long.start < 5000


def test_a_range_of_three_percent_is_not_stepped_over():
    def compute_s(new, cached):
        return 1.0 if not cached and 1000 < new <= 1030 else 0.0

    assert faster_read(host(1), 1, compute_s, max_tokens=5000) == [range(1000, 1030)]


@pytest.mark.parametrize("first, found", [(131_072, 131_072), (131_073, None)])
def test_the_longest_prefix_that_is_asked_about_is_131072_tokens(first, found):
    def compute_s(new, cached):
        return 1.0 if not cached and new > first else 0.0

    assert break_even_tokens(host(1), 1, compute_s) == found
    ranges = [range(found, found + 1)] if found else []
    assert faster_read(host(1), 1, compute_s) == ranges


def test_what_takes_equally_long_is_no_gain():
    """A token takes a second to read, and a second to compute."""
    asked = (host(1), 10**9, lambda new, cached: float(new))
    assert [gain_s(n, *asked) for n in (1, 7)] == [0, 0]
    assert break_even_tokens(*asked, max_tokens=9) is None
    assert faster_read(*asked, max_tokens=9) == []


def long_for(first, width):
    """Computing takes a second for prefixes of these lengths, and nothing for others."""

    def compute_s(new, cached):
        compute_s.calls += 1
        return 1.0 if not cached and first < new <= first + width else 0.0

    compute_s.calls = 0
    return compute_s


@pytest.mark.parametrize("first", [*range(1, 65), 99])
def test_of_short_prefixes_every_length_is_looked_at(first):
    assert faster_read(host(1), 1, long_for(first, 1), max_tokens=100) == [range(first, first + 1)]


@pytest.mark.parametrize("first", [150, 333, 1000, 1013, 1026, 20_000, 20_200, 127_000])
def test_of_long_prefixes_so_many_that_two_percent_are_found(first):
    compute_s = long_for(first, first // 50 + 1)
    found = faster_read(host(1), 1, compute_s)
    assert found == [range(first, first + first // 50 + 1)]
    assert compute_s.calls < 2000


def test_a_range_that_is_open_at_the_end_ends_with_the_longest_prefix():
    assert faster_read(host(1), 1, long_for(40, 1000), max_tokens=70) == [range(40, 71)]


SIZES = ("token_bytes", "suffix_tokens", "max_tokens")


@pytest.mark.parametrize(
    "call, name",
    [*((break_even_tokens, n) for n in SIZES), *((faster_read, n) for n in (*SIZES, "num_layers"))],
)
@pytest.mark.parametrize("wrong", [0, 1.0])
def test_a_size_that_is_no_whole_number_is_refused_by_its_name(call, name, wrong):
    sizes = {"token_bytes": 1, "suffix_tokens": 1, name: wrong}
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        call(host(1), compute_s=lambda new, cached: 0.0, **sizes)


def test_on_both_sides_of_it_the_faster_way_is_the_one_it_names():
    for gb_s in (6, 25, 64):
        tier = host(gb_s)
        length = break_even_tokens(tier, PREFILL.token_bytes, PREFILL)

        def read(n, tier=tier):
            return tier.read_s(n * PREFILL.token_bytes) + PREFILL(1, n)

        assert read(length) < PREFILL(length + 1)
        assert read(length - 1) >= PREFILL(length)


def test_a_faster_link_and_a_longer_rest_make_shorter_prefixes_worth_reading():
    lengths = [
        break_even_tokens(host(gb_s), PREFILL.token_bytes, PREFILL) for gb_s in (3, 7, 25, 64)
    ]
    assert lengths == sorted(lengths, reverse=True) and len(set(lengths)) == 4
    # Behind a long rest every token saved saves arithmetic: reading pays from the first one.
    assert break_even_tokens(host(64), PREFILL.token_bytes, PREFILL, suffix_tokens=1000) == 1
    late = host(64, latency_s=0.01)
    assert 1 < break_even_tokens(late, PREFILL.token_bytes, PREFILL, suffix_tokens=1000) < 1000


def test_at_its_bandwidth_reading_and_computing_take_equally_long():
    for tokens in (500, 8192, 100_000):
        gb_s = break_even_gb_s(tokens, PREFILL.token_bytes, PREFILL)
        for factor, faster in ((0.999, False), (1.001, True)):
            gain = gain_s(tokens, host(factor * gb_s), PREFILL.token_bytes, PREFILL)
            assert (gain > 0) == faster
    assert break_even_gb_s(50, PREFILL.token_bytes, PREFILL) == float("inf")


@pytest.mark.parametrize("saved, gb_s", [(0, float("inf")), (1, float("inf")), (2, 3.0), (4, 1.5)])
def test_a_trillionth_of_the_time_is_nothing_saved(saved, gb_s):
    """Of a trillion seconds; six tokens of 1e9 bytes would be read in the seconds saved."""

    def compute_s(new, cached):
        return 1e12 - (saved if cached else 0)

    assert break_even_gb_s(6, 10**9, compute_s) == gb_s


def mooncake_gb_s(p, layers, d, group, flops, a=4, b=22, s=2):
    """Equation 2 of the paper, solved for the bandwidth."""
    return 2 * d * s * flops / (group * (a * p * d + b * d * d)) / 1e9


def test_mooncakes_two_figures_follow_from_its_equation_and_ours_is_near_them():
    """6 and 19 GB/s for 8,192 tokens of Llama-3-70B on 8 A800 and 8 H800."""
    llama70 = model("Llama-3-70B")
    for card, printed, tflops in (("A100 80GB SXM", 6, 312), ("H100 SXM5", 19, 989.4)):
        theirs = mooncake_gb_s(8192, 80, 8192, 8, 8 * tflops * 1e12)
        assert round(theirs) == printed
        prefill = Prefill(gpu(card), llama70, num_gpus=8)
        ours = break_even_gb_s(8192, prefill.token_bytes, prefill)
        assert 0.85 < ours / theirs < 1


def test_below_the_edge_only_the_quadratic_part_helps():
    """The edge: a token's bytes over the time of its operations, its attention left out."""
    edge = PREFILL.token_bytes * 989.4e12 / (2 * LLAMA.params) / 1e9
    assert round(edge, 1) == 8.1
    above, below = (
        break_even_tokens(host(factor * edge), PREFILL.token_bytes, PREFILL)
        for factor in (1.5, 0.75)
    )
    assert above < 1000 and below > 20_000


def test_the_two_equations_count_nearly_the_same_operations():
    llama70 = model("Llama-3-70B")
    p, d, layers = 8192, 8192, 80
    theirs = layers * (4 * p * p * d + 22 * p * d * d)
    causal = layers * (2 * p * p * d) + 2 * p * llama70.params
    assert prefill_flops(llama70, p) == pytest.approx(causal, rel=1e-3)
    assert 0.9 < theirs / prefill_flops(llama70, p) < 0.95


def test_a_suffix_is_one_token_and_a_prefix_read_as_a_whole_where_nothing_is_told():
    asked = (host(6), PREFILL.token_bytes, PREFILL)
    one = {"suffix_tokens": 1}
    assert gain_s(300, *asked) == gain_s(300, *asked, **one, num_layers=1)
    assert break_even_tokens(*asked) == break_even_tokens(*asked, **one)
    assert faster_read(*asked) == faster_read(*asked, **one, num_layers=1)
    assert break_even_gb_s(900, *asked[1:]) == break_even_gb_s(900, *asked[1:], **one)


@pytest.mark.parametrize("layers", [1, 4, 32])
@pytest.mark.parametrize("gb_s", [0.5, 5, 50])
def test_a_gain_layer_by_layer_is_that_of_the_timeline(layers, gb_s):
    tier, suffix = host(gb_s, latency_s=0.002), 500
    for tokens in (10, 1000, 30_000):
        load = tokens * PREFILL.token_bytes / (gb_s * 1e9) / layers
        each = PREFILL(suffix, tokens) / layers
        times = layer_times(layers, load, each, distance=layers, latency_s=0.002)
        gain = gain_s(
            tokens, tier, PREFILL.token_bytes, PREFILL, suffix_tokens=suffix, num_layers=layers
        )
        assert gain == pytest.approx(PREFILL(tokens + suffix) - times[-1].compute_end)
