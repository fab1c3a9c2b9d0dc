"""The command: what it prints, what it refuses, and that it needs nothing installed."""

import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from textwrap import fill

import pytest

from kvlib import capacity, catalog
from kvlib.fleet import EFFICIENCY, SPANS
from kvlib.plan_interval import Interval, plan_range
from kvlib.scheduled_step import StepLimits

ROOT = Path(__file__).resolve().parents[1]


def test_the_command_runs_without_anything_installed():
    command = [sys.executable, "-S", "-W", "error", "-m", "kvlib.capacity", "Qwen3-8B", "L4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "1 x L4"
    assert lines[-2].startswith("of 8,192 at once") and lines[-1] == capacity.MEMORY_ENDS


def test_every_card_gets_a_line_and_as_many_as_hold_one_request(capsys):
    assert capacity.main(["Llama-3-70B", "--context", "4096"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "8 x V100 SXM2 32GB: 61.1 at once (20.3 to 64.8)"
    assert [line.split(" x ")[0] for line in lines[1:5]] == ["4", "2", "2", "2"]
    assert lines[8] == "8 x L4: 15.1 at once (0 to 18.8)"
    assert lines[-2].startswith("1 x MI300X: ")
    # Two of these cards hold blocks, but not 8,192 tokens of them; four do.
    few = plan_range(catalog.model("Llama-3-70B"), catalog.gpu("H100 PCIe"), num_gpus=2)["likely"]
    context = int(few.num_tokens) + 1
    assert 0 < few.concurrency(context) < 1 and context <= 8192
    assert capacity.main(["Llama-3-70B", "H100 PCIe", "--context", str(context)]) == 0
    assert capsys.readouterr().out.startswith("4 x H100 PCIe")


def test_what_fits_nowhere_is_said_and_is_not_a_success(capsys):
    assert capacity.main(["DeepSeek-V3", "L4"]) == 1
    said = "L4: no room for 8,192 tokens of DeepSeek-V3 on 8 of them\n"
    assert capsys.readouterr().out == said
    for words in (["Llama-3-70B", "L4"], ["GPT-3 175B"]):
        assert capacity.main([*words, "--num-gpus", "1"]) == 1
        out = capsys.readouterr().out
        assert "does not fit; in GiB, the share is" in out and "None" not in out
        assert max(map(len, out.splitlines())) <= 79
    assert capacity.main(["DeepSeek-V3"]) == 0  # on one kind of card it does
    capsys.readouterr()


def test_a_latency_adds_the_users_and_what_their_interval_covers(capsys, monkeypatch):
    asked = []

    def users(plans, known, card, target, **arguments):
        asked.append((known.name, card.name, target.ttft_s, target.tpot_s, arguments))
        return Interval(3, 10, 20.6)

    monkeypatch.setattr(capacity, "users", users)
    words = ["Llama-3.2-1B", "A10", "--ttft", "5", "--tpot", "0.5", "--workload", "azure-code"]
    assert capacity.main([*words, "--max-batched-tokens", "2048", "--max-num-seqs", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == [
        "users served in time: 10 (3 to 21)",
        capacity.MEMORY_ENDS,
        *capacity.USER_ENDS.splitlines(),
    ]
    assert f"at {EFFICIENCY.low} of" in lines[-2] and f"at {EFFICIENCY.high}," in lines[-2]
    chosen = {"every_s": 60.0, "workload": "azure-code", "weight_dtype": "bfloat16"}
    chosen["limits"] = StepLimits(2048, 64)  # served as it was planned
    assert asked == [("Llama-3.2-1B", "A10", 5.0, 0.5, chosen)]
    assert SPANS == 4  # the tenth in USER_ENDS is for this
    assert capacity.main(words[:6]) == 0
    assert asked[1][-1] == chosen | {"workload": "azure-conv", "limits": StepLimits(8192, 256)}


def test_a_card_is_seen_as_soon_as_it_is_answered(monkeypatch):
    written, seen = BytesIO(), []

    def looks(*arguments, **options):
        seen.append(written.getvalue().count(b"\n"))
        return plan_range(*arguments, **options)

    monkeypatch.setattr(capacity, "plan_range", looks)
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written))
    assert capacity.main(["Llama-3.2-1B"]) == 0
    assert sorted(set(seen)) == list(range(len(catalog.gpus())))


@pytest.mark.parametrize(
    "words, reason",
    [
        (["Llama-9"], "no published model 'Llama-9'"),
        (["Llama-3-8B", "H1000"], "no GPU 'H1000'"),
        (["Llama-3-8B", "L4", "--utilization", "2"], "utilization is in (0, 1], got 2.0"),
        (["Llama-3-8B", "L4", "--num-gpus", "0"], "--num-gpus must be at least 1, got 0"),
        (["Llama-3-8B", "L4", "--context", "0"], "context must be at least 1, got 0"),
        (["Llama-3-8B", "L4", "--context", "9000"], "context of 8,192 tokens, asked for 9,000"),
        (["Llama-3-8B", "L4", "--kv-dtype", "fp7"], "no dtype 'fp7'"),
        (["Llama-3-8B", "L4", "--kv-dtype", "nvfp4-block-of16"], "int8, int4"),  # 79 columns
        (["Llama-3-8B", "L4", "--kv-dtype", "nvidia-nvfp4-e2m1"], "fp8, int8, int4"),
        (["Llama-3-8B", "L4", "--ttft", "2"], "users need both --ttft and --tpot"),
        (["Llama-3-8B", "L4", "--ttft", "0", "--tpot", "1"], "ttft_s must be above 0, got 0.0"),
        (["Llama-3-8B", "L4", "--ttft", "1", "--tpot", "1", "--every", "-5"], "every_s above 0"),
        (["Llama-3-8B", "L4", "--ttft", "1", "--tpot", "1", "--workload", "x"], "no trace 'x'"),
        (["Llama-3-8B", "L4", "--ttft", "1e6", "--tpot", "1"], "tighten the target"),
        (["Gemma-2-9B", "--ttft", "1", "--tpot", "1"], "21 layers that keep a window only"),
        (["DeepSeek-V3", "--ttft", "1", "--tpot", "1"], "DeepSeek-V3 caches a latent"),
    ],
)
def test_what_is_refused_is_refused_with_its_reason_and_nothing_else(capsys, words, reason):
    assert capacity.main(words) == 2
    said = capsys.readouterr()
    assert reason in said.err.replace("\n", " ") and said.out == ""
    assert said.err == fill(" ".join(said.err.split()), 79) + "\n"


def test_the_default_context_is_one_the_model_has(capsys):
    assert capacity.main(["Llama-2-7B", "L4"]) == 0
    assert "of 4,096 at once" in capsys.readouterr().out


def test_the_help_names_all_models_and_cards_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        capacity.main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and max(map(len, out.splitlines())) <= 79
    flat = " ".join(out.split())
    assert all(name in flat for name in (*catalog.models(), *catalog.gpus()))


@pytest.mark.parametrize("name, card", [("Qwen3-0.6B", "H200 SXM"), ("Gemma-3-27B", "B200")])
def test_columns_stand_apart_and_fit(name, card):
    plans = plan_range(catalog.model(name), catalog.gpu(card))
    lines = capacity.table(plans, 32768)
    assert {len(line) for line in lines} == {55}
    assert all(line[22] == line[33] == line[44] == " " for line in lines)
    tokens = [int(each.replace(",", "")) for each in lines[-2].split()[1:]]
    if name == "Qwen3-0.6B":
        assert tokens == [plan.num_tokens for plan in plans.values()] and tokens[0] > 10**6
    else:
        held = [plan.concurrency(32768) for plan in plans.values()]
        assert tokens == [int(each * 32768) for each in held]
