"""The lab passes what is right, and says what is wrong with what is not."""

from pathlib import Path

import pytest
import torch

from kvlib.tensors import kernel_lab as lab
from kvlib.tensors import kernel_variants
from kvlib.tensors.kernel_check import TWISTS
from kvlib.tensors.kernel_variants import block_major, compiled, split_kv
from kvlib.tensors.kernels import build, paged_cpu
from kvlib.tensors.kernels.build import NoCompiler, compiler
from kvlib.tensors.paged_attention import WAYS


@pytest.fixture(scope="module")
def has_compiler():
    try:
        compiler()
    except NoCompiler as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "way", [WAYS["gather"], WAYS["chunked"], WAYS["reference"], block_major, split_kv]
)
def test_every_way_in_torch_passes(way):
    report = lab.check(way)
    assert report.passed, str(report)


@pytest.mark.parametrize("options", [{}, {"prefetch": False}, {"known_sizes": False}])
def test_the_compiled_ways_pass(has_compiler, options):
    report = lab.check(compiled(**options))
    assert report.passed, str(report)


def test_each_compiled_way_asks_for_what_its_name_says(has_compiler, monkeypatch):
    asked = []

    def noted(source, defines):
        asked.append(defines)
        return build.library(source, defines)

    monkeypatch.setattr(kernel_variants, "library", noted)
    step = lab.setting(lens=(5,), heads=(9, 3, 64))
    for options in ({}, {"prefetch": False}, {"known_sizes": False}):
        step.run(compiled(**options))
    sizes = ("TYPE=float", "HEAD_DIM=64", "GROUP=3")
    assert asked[0] == sizes and asked[1] == (*sizes, "__builtin_prefetch(...)=")
    assert asked[2] == ("TYPE=float", "HEAD_DIM=0", "GROUP=0")


def test_without_prefetch_the_code_is_another(has_compiler):
    """A define that changed nothing would time the same code twice."""
    defines = ("TYPE=float", "HEAD_DIM=64", "GROUP=3")
    one = build.library(paged_cpu.SOURCE, defines)
    two = build.library(paged_cpu.SOURCE, (*defines, "__builtin_prefetch(...)="))
    codes = [Path(each._name).read_bytes() for each in (one, two)]
    assert codes[0] != codes[1]


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 100])
def test_any_number_of_runs_gives_the_same(splits):
    assert lab.check(lambda *step: split_kv(*step, splits=splits)).passed


def test_fewer_than_one_run_is_refused():
    with pytest.raises(ValueError, match="at least 1 part, asked for 0"):
        lab.setting().run(lambda *step: split_kv(*step, splits=0))


@pytest.mark.parametrize("twist, words", TWISTS.items())
def test_each_well_known_mistake_is_named(twist, words):
    def wrong(q, keys, values, context, window):
        step = lab.Setting("", q, keys, values, context, window)
        return lab.exact(step, twist).to(q.dtype)

    faults = [said for _, said in lab.check(wrong).lines if said]
    assert faults and any(words in said for said in faults)


def test_a_fault_in_one_sequence_names_it_and_what_it_should_be():
    def wrong(q, keys, values, context, window):
        out, _ = WAYS["gather"](q, keys, values, context, window)
        if len(out) > 2:
            out[2, 1] += 0.5
        return out

    report = lab.check(wrong)
    first = next(said for name, said in report.lines if name == "ragged lengths")
    assert first.startswith("the sequence of 17 tokens is off: head 1 begins with what should be")
    assert "yours is" in first
    assert report.first_fault.startswith("ragged lengths: ") and not report.passed


def test_reading_a_free_slot_is_found():
    def wrong(q, keys, values, context, window):
        out, _ = WAYS["gather"](q, keys, values, context, window)
        out[0] = keys[context.block_table[0, 0].long(), 0].sum()
        return out

    assert "not finite: a free slot was read" in lab.check(wrong).first_fault


def test_cleaning_the_pool_is_no_way_out():
    def wrong(q, keys, values, context, window):
        keys.nan_to_num_(0.0)
        return WAYS["gather"](q, keys, values, context, window)

    assert "written into keys" in lab.check(wrong).first_fault


def test_a_wrong_shape_dtype_or_error_is_reported():
    assert "should return" in lab.check(lambda q, *_: q[:, :1]).first_fault
    assert "yours is" in lab.check(lambda q, *_: q.double()).first_fault
    assert "yours is NoneType" in lab.check(lambda *_: None).first_fault
    assert "raised ZeroDivisionError" in lab.check(lambda *_: 1 / 0).first_fault


def test_the_settings_hold_nan_exactly_where_nobody_wrote():
    step = lab.setting(lens=(17, 0, 16), heads=(2, 1, 4))
    written = ~step.keys.isnan().any(-1).any(1)
    assert written.sum() == 33 and torch.equal(written, ~step.values.isnan().any(-1).any(1))
    for side in (step.keys, step.values):
        assert side.isnan().any(-1).equal(side.isnan().all(-1))
        assert side.isnan().all(-1).any(1).equal(side.isnan().all(-1).all(1))
    assert step.kv_bytes == 33 * 2 * 4 * 4


def test_the_trials_hold_what_kernels_get_wrong():
    steps = {each.name: each for each in lab.trials()}
    assert {each.window for each in steps.values()} == {None, 20, 1}
    dtypes = {name for name, each in steps.items() if each.q.dtype == torch.bfloat16}
    shares = [name for name, each in steps.items() if each.q.shape[1] > each.keys.shape[1]]
    assert dtypes == {"bfloat16"} and shares == list(steps)[2:]
    lens = steps["ragged lengths"].context.host.context_lens
    assert 0 in lens[1:-1] and {n % 16 for n in lens} >= {0, 1, 15}


def test_only_loud_scores_stop_a_plain_sum_of_powers():
    def powers(q, keys, values, context, window):
        out, group, size = torch.empty_like(q), q.shape[1] // keys.shape[1], keys.shape[2]
        for s, rows, first, end in context.spans(window):
            at = torch.arange(first, end)
            blocks = context.block_table[s, at // size].long()
            k, v = (side[blocks, :, at % size].float() for side in (keys, values))
            k, v = (side.repeat_interleave(group, 1) for side in (k, v))
            scores = torch.einsum("hd,thd->ht", q[rows][0].float(), k) * q.shape[2] ** -0.5
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            out[rows] = torch.einsum("ht,thd->hd", weights, v).to(q.dtype)
        return out

    assert [name for name, said in lab.check(powers).lines if said] == ["loud scores"]


def test_the_step_that_is_timed_has_the_heads_of_smollm2():
    step = lab.timing_step()
    assert step.q.shape == (4, 9, 64) and step.kv_bytes == 4 * 1024 * 2 * 3 * 64 * 4


def test_shared_blocks_are_shared():
    step = lab.setting(lens=(40, 45, 33), shared=2)
    table = step.context.block_table
    assert (table[:, :2] == table[0, :2]).all() and len(set(table[:, 2].tolist())) == 3


def test_work_counts_what_torch_moves():
    step = lab.setting(lens=(32,), heads=(1, 1, 4), block_size=16)
    side = 32 * 4 * 4

    def look_up(q, keys, values, context, window):
        return keys[context.block_table[0].long()]

    seen = lab.work(look_up, step)
    # The table's two ids go from 4 to 8 bytes; the look-up reads them and what it returns.
    assert seen == lab.Work(8 + 16 + side, 16 + side, side, 2)
    view = lab.work(lambda q, keys, *_: keys.transpose(0, 1)[:, :1], step)
    assert view == lab.Work()
    added = lab.work(lambda q, keys, *_: q.clone().add_(1), step)
    assert (added.read_bytes, added.written_bytes, added.calls) == (32, 32, 2)
    expanded = lab.work(lambda q, *_: q.expand(50, 1, 4).sum(), step)
    assert expanded.read_bytes == 16


def test_a_wrong_way_is_not_timed():
    with pytest.raises(ValueError, match="correct first: one block"):
        lab.time(lambda q, *_: q)


def test_the_trials_lie_where_they_are_asked_for(device):
    steps = lab.trials(device)
    lie = {each.device.type for step in steps for each in (step.q, step.context.block_table)}
    assert lie == {device.type} and lab.check(WAYS["gather"], steps).passed


def test_a_right_way_is_timed_against_each_anchor(device):
    step = lab.setting("decode", (64, 64), (9, 3, 64), device=device)
    found = lab.time(WAYS["gather"], step, repeats=1)
    assert {"gather", "contiguous"} <= set(found) <= {"gather", "contiguous", "cpu"}
    assert all(times > 0 for times in found.values())


@pytest.mark.parametrize("lens", [(64, 64), (5, 33, 16)])
def test_the_contiguous_anchor_gives_the_same_answer(lens):
    step = lab.setting(lens=lens)
    assert lab.check(lab.Contiguous(step), [step]).passed


def test_the_contiguous_anchor_refuses_what_it_cannot_lay_out():
    with pytest.raises(ValueError, match="no empty sequence"):
        lab.Contiguous(lab.setting())
    with pytest.raises(ValueError, match="no window"):
        lab.Contiguous(lab.setting(lens=(9,), window=4))


def test_side_by_side_makes_everybody_as_wide_as_the_longest():
    even, ragged = (lab.setting(lens=n) for n in ((512,) * 4, (512, 16, 16, 16)))
    for way, grows in ((WAYS["gather"], True), (split_kv, False)):
        first, second = (lab.work(way, step).written_bytes for step in (even, ragged))
        assert (second < 0.5 * first) == grows
