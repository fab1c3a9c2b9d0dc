"""The capstone grades: four references, a solution that beats them, and nobody who cheats."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capstone_solution import Selective
from kvlib import capstone as rules
from kvlib.admission import AdmitPredictedPeak
from kvlib.capstone import Ask, Refused, Score, graded, leaderboard
from kvlib.capstone_fair import require_fair
from kvlib.scheduled_step import StepLimits
from kvlib.show.drawings.capstone_board import scores
from kvlib.tensors import capstone as judge
from kvlib.tensors import capstone_file
from kvlib.tensors.capstone_meter import OVERHEAD_S, Charge
from kvlib.tensors.engine import Engine
from kvlib.tensors.llama import Llama
from kvlib.tensors.step import NoCache
from kvlib.waiting import PriorityLine

ROOT = Path(__file__).resolve().parents[1]
SOLUTION = ROOT / "tests" / "capstone_solution.py"


def chunks(model, num_blocks, **options):
    return Engine(model, num_blocks, limits=StepLimits(max_tokens=128), **options)


def refused(build, **options):
    with pytest.raises(Refused) as caught:
        judge.judge("cheat", build, **options)
    return str(caught.value)


def test_the_references_answer_everybody_and_stand_in_order():
    found = judge.references()
    assert [score.finished for score in found] == [64] * 4
    goodputs = [score.goodput for score in found]
    assert goodputs == sorted(goodputs) and goodputs[0] < goodputs[-1] / 2
    assert all(score.good + score.late + score.stalled == 64 for score in found)


def test_the_score_is_the_same_every_time_and_what_the_picture_has():
    references, yours = scores()
    assert list(references) == judge.references()
    again = judge.judge("paged + prefix + chunks", chunks)
    assert again == references[-1]
    alike = yours[128, 0.0, False, False]
    assert (alike.good, alike.seconds, alike.forwarded) == (
        (again.good, again.seconds, again.forwarded)
    )


def test_the_command_grades_the_sample_solution():
    done = subprocess.run(
        [sys.executable, "-m", "kvlib.capstone", str(SOLUTION)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("capstone_solution")
    assert [line[:25].strip() for line in lines[2:6]] == list(judge.REFERENCES)[::-1]
    assert lines[-1] == "your engine beats all four"
    mine = scores()[1][128, 0.1, True, True]
    assert f"{mine.goodput:8.2f}{mine.good:9}{mine.late:9}" in lines[1]


def test_the_command_says_what_it_takes(capsys, tmp_path):
    assert rules.main([str(tmp_path / "missing.py")]) == 2
    assert "one file with build" in capsys.readouterr().out


def test_the_command_refuses_with_the_table_and_a_status(capsys, tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def built(model, num_blocks):\n    pass\n")
    assert rules.main([str(bad)]) == 1
    said = capsys.readouterr().out
    assert said == "refused: bad.py should have a function build(model, num_blocks)\n"


def test_an_engine_with_no_idea_exits_with_one(capsys, monkeypatch, tmp_path):
    """Its goodput is above all four by a step size that nobody chose; a pass asks for more."""
    plain = tmp_path / "plain.py"
    plain.write_text(
        "from kvlib.tensors.engine import Engine\n"
        "def build(model, num_blocks):\n    return Engine(model, num_blocks)\n"
    )
    score = capstone_file.grade_file(plain)
    best = scores()[0][-1].goodput
    assert best < score.goodput < rules.PASS_TIMES * best
    for found, status in ((score, 1), (replace(score, good=99), 0)):
        monkeypatch.setattr(capstone_file, "grade_apart", lambda path, found=found: found)
        assert rules.main([str(plain)]) == status
        last = capsys.readouterr().out.splitlines()[-1]
        asked = f"to pass: {rules.PASS_TIMES * best:.2f}, 1.25 times the best of the four"
        assert last == ("your engine beats all four", asked)[status]


def test_the_command_alone_prints_the_four(capsys):
    assert rules.main([]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert rules.main(["a.py", "b.py"]) == 2


def test_the_page_shows_the_solution_that_is_graded():
    page = json.loads((ROOT / "chapters/05_practice/capstone.ipynb").read_text())
    text = "\n".join("".join(cell["source"]) for cell in page["cells"])
    source = SOLUTION.read_text().split('"""', 2)[2].strip()
    assert source in text


@pytest.mark.parametrize("seed", [0, 3])
def test_the_solution_beats_the_best_reference_on_traces_it_was_not_made_for(seed):
    best = judge.judge("chunks", chunks, seed)
    mine = capstone_file.grade_file(SOLUTION, seed)
    assert mine.goodput > best.goodput
    assert mine.good > best.good


def test_the_answers_are_far_from_a_tie():
    """Two best logits this far apart do not change places by rounding on another machine."""
    model, least = Llama.random(judge.CONFIG, rules.MODEL_SEED), []
    pairs = list(zip(rules.trace(), judge.answers(), strict=True))
    for ask, answer in pairs[::4]:
        cache = NoCache()
        cache.add(0)
        text = [*ask.prompt, *answer[:-1]]
        with cache.step({0: text}) as plan:
            logits = model(torch.tensor(text), cache, plan, all_logits=True)
        best = logits[len(ask.prompt) - 1 :].topk(2)
        assert best.indices[:, 0].tolist() == list(answer)
        least.append((best.values[:, 0] - best.values[:, 1]).min().item())
    assert min(least) > 5e-5


def test_wrong_tokens_are_refused_with_the_first_of_them():
    class Sloppy(Engine):
        def step(self):
            ended = super().step()
            for request in self.live.values():
                if len(request.tokens) == 3:
                    request.tokens[2] = 95
            return ended

    said = refused(lambda model, n: Sloppy(model, n))
    assert "output token 2 of request" in said and "yours is 95" in said


def test_a_token_too_many_is_refused():
    class Talkative(Engine):
        def step(self):
            ended = super().step()
            for request in ended:
                request.tokens.append(5)
            return ended

    assert "should be no token, yours is 5" in refused(lambda model, n: Talkative(model, n))


def test_half_an_answer_counts_as_late():
    class Curt(Engine):
        def submit(self, prompt, most, **options):
            return super().submit(prompt, min(most, 2), **options)

    score = judge.judge("curt", lambda model, n: Curt(model, n))
    short = sum(len(answer) <= 2 for answer in judge.answers())
    assert score.finished == short and score.late >= 64 - short


@pytest.mark.parametrize(
    "options", [{"num_blocks": 2 * rules.NUM_BLOCKS}, {"swap_tokens": 4096}], ids=str
)
def test_more_memory_is_refused_on_the_device_and_beside_it(options):
    said = refused(lambda model, n: Engine(model, **({"num_blocks": n} | options)))
    assert said.startswith("keys and values should take 64 blocks of 16 tokens")


def test_memory_in_two_caches_is_added_up():
    class Twins:
        def __init__(self, model, n):
            self.each = [Engine(model, n), Engine(model, n)]
            self.turn = 0

        has_work = property(lambda self: any(e.has_work for e in self.each))

        def submit(self, *args, **options):
            self.turn = 1 - self.turn
            return self.each[self.turn].submit(*args, **options)

        def step(self):
            for each in self.each:
                each.step()

    assert "keys and values should take" in refused(Twins)


@pytest.mark.parametrize("block_size", [8, 32])
def test_the_memory_may_be_cut_into_other_blocks(block_size):
    num_blocks = rules.NUM_BLOCKS * rules.BLOCK_SIZE // block_size
    score = judge.judge("cut", lambda model, n: chunks(model, num_blocks, block_size=block_size))
    assert score.finished == 64


def test_a_clock_that_sleeps_is_found_by_the_tokens_that_must_have_passed():
    def build(model, num_blocks):
        model.forward = lambda *args, **options: Llama.forward(model, *args, **options)
        return chunks(model, num_blocks)

    assert "tokens should pass the model, yours forwarded 0" in refused(build)


def test_the_judges_time_cannot_be_set_by_the_engine():
    def build(model, num_blocks):
        model.now = lambda: 0.0
        return chunks(model, num_blocks, clock=lambda: 0.0)

    assert judge.judge("paged + prefix + chunks", build) == judge.references()[-1]


def test_an_engine_that_stands_still_is_refused():
    class Asleep(Engine):
        def step(self):
            return []

    said = refused(lambda model, n: Asleep(model, n))
    assert said == f"a step should call the model, yours made {judge.MOST_IDLE + 1} that did not"


def test_an_engine_that_never_ends_is_refused(monkeypatch):
    class Busy(Engine):
        def step(self):
            cache = NoCache()
            with cache.step({0: [5]}) as plan:
                self.model(torch.tensor([5]), cache, plan)
            return []

    monkeypatch.setattr(rules, "MOST_S", 2.0)
    said = refused(lambda model, n: Busy(model, n))
    assert said.startswith("all should be over after 2 s of the judge's time")


def test_what_submit_returns_and_has_work_are_looked_at():
    class Silent(Engine):
        def submit(self, *args, **options):
            super().submit(*args, **options)

    class Method(Engine):
        def has_work(self):
            return bool(self.live)

    assert "a request with `tokens`, yours returned NoneType" in refused(Silent)
    assert "has_work should be a property" in refused(Method)


def test_a_request_that_failed_is_named_with_its_error():
    class Broken(Engine):
        def _forward(self, work):
            return [RuntimeError("two sizes do not fit") for _ in work]

    said = refused(lambda model, n: Broken(model, n))
    assert said.endswith(
        "request 0 should be served or given up; it failed: RuntimeError: two sizes do not fit"
    )


def test_a_cache_that_does_not_say_its_bytes_is_refused():
    class Hidden(NoCache):
        nbytes = property(lambda self: self.missing)

    def build(model, num_blocks):
        cache = Hidden()
        with cache.step({0: [5]}) as plan:
            model(torch.tensor([5]), cache, plan)
        return Engine(model, num_blocks)

    assert refused(build) == "a cache should say its `nbytes`, yours, Hidden, does not"


def test_time_goes_by_while_an_engine_does_nothing():
    began = []

    class Lazy(Engine):
        idle = 300

        def step(self):
            self.idle -= 1
            if self.idle >= 0:
                return []
            began.append(self.model.now())
            return super().step()

    judge.judge("lazy", lambda model, n: Lazy(model, n))
    assert began[0] == pytest.approx(300 * judge.IDLE_S)


def test_work_in_secret_is_charged():
    class Curious(Engine):
        def submit(self, prompt, most, **options):
            cache = NoCache()
            cache.add(0)
            with cache.step({0: prompt}) as plan:
                self.model(torch.tensor(prompt), cache, plan)
            return super().submit(prompt, most, **options)

    score = judge.judge("curious", lambda model, n: Curious(model, n))
    honest = judge.judge("honest", lambda model, n: Engine(model, n))
    # Time goes by, so that others arrive meanwhile and steps differ; each prompt is paid for.
    assert score.steps >= 64 and score.seconds > honest.seconds


def test_no_rule_is_told_how_long_an_answer_will_be():
    seen = []

    class Told(AdmitPredictedPeak):
        def room(self, job):
            seen.append((job.request.output_tokens, job.num_outputs))
            return super().room(job)

    judge.judge("told", lambda model, n: Engine(model, n, admission=Told(told=True)))
    assert {told + made for told, made in seen} == {rules.MAX_NEW_TOKENS}


@pytest.mark.parametrize(
    "source",
    [
        "import kvlib.capstone",
        "from kvlib import capstone",
        "from kvlib.tensors.capstone import answers",
        "from kvlib.tensors.capstone_meter import Meter",
        "from kvlib.tensors.llama import Llama",
        "from kvlib import load_model",
        "import kvlib\nkvlib.capstone.trace()",
        "import kvlib\nkvlib.tensors.llama.Llama",
        "import gc",
        "def f():\n    import sys",
        "from importlib import import_module",
        "x = __import__('kvlib')",
        "exec('import gc')",
    ],
)
def test_a_file_that_reaches_for_the_judge_is_refused(source):
    with pytest.raises(Refused, match=r"an engine should not .*, yours"):
        require_fair(source)


def test_the_solution_and_the_tools_it_needs_are_fair():
    require_fair(SOLUTION.read_text())
    require_fair("import torch\nfrom kvlib.tensors.engine import Engine\nimport math, random")


def test_turning_a_request_away_is_allowed_and_counts_as_late():
    score = judge.judge("small", lambda model, n: chunks(model, n, max_waiting=4))
    assert score.finished < 64 and score.late >= 64 - score.finished


def test_a_call_costs_what_the_roofline_says():
    meter = judge.Meter()
    engine = Engine(judge.timed_model(meter), rules.NUM_BLOCKS, prefix_caching=False)
    engine.submit([9] * 100, 4)
    engine.step()
    first = meter.now_s
    engine.step()
    model_bytes, card = 2 * 8_030_261_248, 900e9
    second = OVERHEAD_S + (model_bytes + 101 * 131_072) / card
    assert meter.now_s - first == pytest.approx(second, rel=1e-3)
    flops = 100 * 2 * 8_030_261_248
    assert first == pytest.approx(OVERHEAD_S + max(model_bytes / card, flops / 125e12), 0.01)
    assert (meter.forwarded, meter.steps) == (101, 2)


def test_a_call_is_charged_as_the_scheduler_counts_the_step():
    found, expected = [], []

    class Noting(judge.Meter):
        def charge(self, held, plan):
            charge = Charge(plan.host)
            found.append((charge.num_tokens, charge.attention()))
            super().charge(held, plan)

    engine = chunks(
        judge.timed_model(Noting()), rules.NUM_BLOCKS,
        on_step=lambda step: expected.append((step.num_tokens, step.attention())),
    )  # fmt: skip
    for ask in rules.trace()[:9]:
        engine.submit(ask.prompt, 5)
    engine.run()
    assert found == expected and len(found) > 8
    assert any(pairs > keys for _, (keys, pairs) in found)


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=6))
def test_the_least_tokens_are_the_distinct_beginnings(texts):
    beginnings = {tuple(t[:end]) for t in texts for end in range(1, len(t) + 1)}
    assert judge.least_tokens(texts) == len(beginnings)


def test_a_standstill_is_no_mean():
    asks = (Ask(0.0, (5,)), Ask(0.0, (5,)))
    even, burst = [0.1, 0.19, 0.28], [0.1, 0.1, 0.28]
    score = graded("x", [even, burst], [True, True], asks, 2.0, (9, 3))
    assert (score.good, score.stalled, score.goodput) == (1, 1, 0.5)
    assert graded("x", [], [], (), 0.0, (0, 0)).goodput == 0.0


def test_half_an_answer_in_time_is_not_good():
    score = graded("x", [[0.1, 0.15]], [False], (Ask(0.0, (5,)),), 2.0, (9, 3))
    assert (score.good, score.late, score.finished) == (0, 1, 0)


def test_the_table_has_the_best_first_and_fits_a_page():
    low, high = (Score(name, good, 9, 2.0, 0, 0, 1234, 5) for name, good in (("a", 1), ("b", 8)))
    lines = leaderboard([low, high]).splitlines()
    assert lines[1].split() == ["b", "4.00", "8", "0", "0", "9", "1,234"]
    assert lines[2].startswith("a") and max(map(len, lines)) <= 80


def test_equal_seeds_give_equal_traces_and_others_do_not():
    assert rules.trace(5) == rules.trace(5) != rules.trace(6)
    asks = rules.trace()
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(asks))
    assert not any(rules.STOP.intersection(ask.prompt) for ask in asks)


def test_those_that_the_best_of_the_picture_gives_up_have_long_prompts():
    kept = []

    class Noted(Selective):
        def submit(self, *args, **options):
            kept.append(super().submit(*args, **options))
            return kept[-1]

    def build(model, num_blocks):
        return Noted(
            model, num_blocks, limits=StepLimits(max_tokens=128), waiting=PriorityLine(),
            clock=model.now,
        )  # fmt: skip

    score = judge.judge("yours", build)
    assert score == scores()[1][128, 0.0, True, True]
    given_up = [len(each.prompt) for each in kept if each.finish_reason == "cancelled"]
    assert len(given_up) == 3 and min(given_up) > 250
