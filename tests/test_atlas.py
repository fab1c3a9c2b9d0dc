"""Every engine's configuration keeps to its facts; and the check notices when one does not."""

import json
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from kvlib import atlas, measured
from kvlib.admission import AdmitPrompt, AdmitReserved
from kvlib.comparison import OwnContent, compare, content_for
from kvlib.comparison_rows import row, table
from kvlib.content import TokenContent
from kvlib.engine_configs import CONFIGURATIONS, Configuration, fastgen_block, pages_of_2_mib
from kvlib.engine_settings import settings
from kvlib.hash_index import HashIndex
from kvlib.preemption import fewest_outputs, oldest
from kvlib.radix import RadixTree
from kvlib.request import Request
from kvlib.retention import DropAll, RankedFIFO
from kvlib.scheduled_step import StepLimits
from kvlib.serving import serve
from kvlib.sizes import KVShape
from kvlib.slot_memory import SlotMemory
from kvlib.workloads import conversations, sample

ROOT = Path(__file__).resolve().parents[1]
NAMES = atlas.engines()
PLAIN = settings(Configuration())
# What says nothing where nobody can lose memory, or where another setting says it all.
SILENT = {"limits", "victim"}


def contradictions(name, configuration):
    """Facts of an engine that a configuration does not keep, as sentences."""
    found = settings(configuration)
    return [
        f"{fact.what}: {key} is {found.get(key, 'nothing')!r}, not {value!r}"
        for fact in atlas.engine(name).facts
        for key, value in fact.sets.items()
        if key not in found or found[key] != value or type(found[key]) is not type(value)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_keeps_to_the_facts(name):
    assert not contradictions(name, CONFIGURATIONS[name])


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_set_rests_on_a_fact(name):
    decided = {key for fact in atlas.engine(name).facts for key in fact.sets}
    found = settings(CONFIGURATIONS[name])
    chosen = {k for k, value in found.items() if value and PLAIN.get(k) != value}
    assert chosen - SILENT <= decided, "a setting that no fact asks for"
    least = {"memory", "index", "admission"}
    assert least <= decided, "for these some fact has to say what they are"
    if found["admission"] != "AdmitReserved" and name != "vAttention":  # its sources say nothing
        assert "victim" in decided, "some fact has to say who loses memory"


MUTANTS = {
    "vLLM V1": dict(block_size=32),
    "vLLM V0": dict(admission=lambda longest: AdmitPrompt(0.02)),
    "SGLang": dict(index=HashIndex),
    "TensorRT-LLM no-evict": dict(admission=lambda longest: AdmitPrompt()),
    "TensorRT-LLM max-util": dict(retention=RankedFIFO),
    "LMDeploy TurboMind": dict(index=RadixTree),
    "LightLLM": dict(admission=lambda longest: AdmitReserved()),
    "TGI": dict(block_size=16),
    "transformers": dict(retention=DropAll),
    "llama.cpp": dict(other_memory=lambda slots, longest: SlotMemory(2, longest, 0.5)),
    "DeepSpeed-FastGen": dict(limits=StepLimits(2048, 512)),
    "MLC-LLM": dict(victim=fewest_outputs),
    "ExLlamaV3": dict(block_size=128),
    "vAttention": dict(block_size=16),
    "Orca Max": dict(other_memory=None),
    "Orca Pow2": dict(admission=CONFIGURATIONS["Orca Oracle"].admission),
    "Orca Oracle": dict(admission=CONFIGURATIONS["Orca Max"].admission),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_that_contradicts_a_fact_is_noticed(name):
    assert name in MUTANTS, f"MUTANTS needs a change that contradicts a fact of {name}"
    assert contradictions(name, replace(CONFIGURATIONS[name], **MUTANTS[name]))


@pytest.mark.parametrize("name", NAMES)
def test_every_default_has_a_version_a_date_and_a_place(name):
    engine = atlas.engine(name)
    for fact in engine.facts:
        assert fact.version and fact.date and fact.where
        assert fact.date == atlas.NOT_KNOWN or fact.date[:2] == "20"
    assert engine.read and engine.unit and engine.approximations and engine.better
    assert all(len(line) <= 79 for line in engine.sheet().splitlines())


def test_a_sheet_is_all_that_is_known_in_lines_of_79_letters():
    full, longer = "no " * 23 + "it", "no " * 23 + "its"
    facts = (
        atlas.Fact("tokens of a block", 16, "a.py:3", "2.0", "2026-01", {"block_size": 16}),
        atlas.Fact("hosts", "no", "b.py:7", "1.9", "2025-12", {}),
    )
    made = atlas.Engine(
        *("Toy", "2.0", "2026-01", "its source", (), "blocks", facts, (full, longer)),
        *("toys", "Where toys win", "nobody timed it", Configuration()),
    )
    assert made.sheet().splitlines() == [
        "Toy, 2.0, date 2026-01; blocks",
        "  read in: its source",
        "  tokens of a block: 16 [a.py:3]",
        "  hosts: no [b.py:7; 1.9]",
        f"  here: {full}",
        f"  here: {longer[:-4]}",
        "      its",
        "  no times: nobody timed it",
        "  better for: toys (Where toys win)",
    ]
    assert "no times" not in replace(made, no_clock="").sheet()


def test_what_is_known_is_one_object_and_stays():
    engine, claim = atlas.engine("SGLang"), atlas.stale_claims()[0]
    assert engine is atlas.engine("SGLang")
    for each, name in ((engine, "version"), (engine.facts[0], "value"), (claim, "now")):
        with pytest.raises(FrozenInstanceError):
            setattr(each, name, "another")


KNOWN = [atlas.engine(name) for name in NAMES]


def test_what_is_read_once_more_is_as_it_was():
    for each in vars(atlas).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()
    assert atlas.engines() == NAMES
    assert [atlas.engine(name) for name in NAMES] == KNOWN and atlas.engine(NAMES[0]) != KNOWN[1]
    assert {type(each.files) for each in map(atlas.engine, NAMES)} == {tuple}


def test_settings_are_read_from_a_memory_of_4096_slots_unless_asked_otherwise():
    seen = []

    def rows(slots, longest):
        seen.append((slots, longest))
        return SlotMemory(2, longest, 0.25)

    found = [settings(Configuration(other_memory=rows), *a) for a in ((), (64, 32))]
    assert seen == [(4096, 2048), (64, 32)]
    assert [each["memory.similarity"] for each in found] == [0.25, 0.25]


def test_every_engine_has_a_configuration_in_the_same_order():
    rows = json.loads(atlas.DATA.read_text(encoding="utf-8"))["engines"]
    assert [each["name"] for each in rows] == list(CONFIGURATIONS) == NAMES and len(NAMES) >= 17


def test_whatever_counts_the_engines_counts_them_right():
    """The outline is left out: it says what there was at a time."""
    teens = {17: "seventeen", 18: "eighteen", 19: "nineteen", 20: "twenty"}
    right, found = teens.get(len(NAMES), str(len(NAMES))), []
    places = ("CONTRIBUTING.md", "CHANGELOG.md", "book/ideas.yml", "chapters/04_engines/*.*")
    for path in (path for place in places for path in ROOT.glob(place)):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"(?i)\b(\d+|\w+teen|twenty[-\w]*)\s+engines\b", text):
            found.append((str(path.relative_to(ROOT)), match[1].lower()))
    told = {(path, n) for path, n in found if n not in (right, str(len(NAMES)))}
    assert found and not told, f"there are {right} engines: {sorted(told)}"


def test_the_table_of_defaults_is_the_published_one():
    """Unit and what is set aside at admission, of the first seventeen."""
    units = {name: settings(CONFIGURATIONS[name]).get("block_size") for name in NAMES}
    assert [units[name] for name in NAMES[:9]] == [16, 16, 1, 32, 32, 64, 1, 1, 256]
    assert [units[name] for name in NAMES[9:17]] == [None, 64, 16, 256, 1024, None, None, None]
    rules = {name: settings(CONFIGURATIONS[name])["admission"] for name in NAMES[:17]}
    assert [name for name, rule in rules.items() if rule == "AdmitReserved"] == [
        *("TensorRT-LLM no-evict", "TGI", "llama.cpp", "ExLlamaV3"),
        *("Orca Max", "Orca Pow2", "Orca Oracle"),
    ]


def test_units_that_hang_on_the_model():
    qwen = KVShape(num_layers=28, num_kv_heads=4, head_dim=128)
    assert (pages_of_2_mib(qwen), fastgen_block(qwen)) == (2048, 64)
    assert fastgen_block(KVShape(num_layers=1, num_kv_heads=8, head_dim=64)) == 128
    built = atlas.engine("vAttention").build(8192, 4096, shape=qwen)
    assert (built.memory.block_size, built.memory.pool.num_blocks) == (2048, 4)


def test_an_engines_own_policies_are_built_and_the_steps_can_be_made_alike():
    engine = atlas.engine("SGLang")
    a, b = (engine.build(4096, 2048, limits=StepLimits(99, 9)) for _ in range(2))
    assert (a.limits.max_tokens, a.max_seq_len) == (99, 2048)
    assert a.admission is not b.admission, "a share that learns is nobody else's"
    assert type(a.memory.prefixes._policy).__name__ == "RankedLRU"
    tree = atlas.engine("TensorRT-LLM no-evict").build(4096, 2048).memory.prefixes
    assert type(tree._policy).__name__ == "PriorityPolicy"


@pytest.mark.parametrize("name", NAMES)
def test_with_memory_for_everybody_no_policy_matters(name):
    """engines.md, section 8.6."""
    requests = [replace(r, max_new_tokens=1024) for r in sample("azure-conv", 30, seed=3)]

    def ends(which):
        scheduler, found = CONFIGURATIONS[which].build(2**19, 8192, limits=StepLimits()), []
        jobs = [scheduler.add(request) for request in requests]
        while scheduler.has_work:
            found += scheduler.report(scheduler.schedule())
        assert sum(job.num_preempted for job in jobs) == scheduler.recomputed_tokens == 0
        return [job.order for job in found]

    assert ends(name) == ends("vLLM V1")


@pytest.mark.parametrize("name", NAMES)
def test_under_pressure_every_engine_serves_all_and_its_books_balance(name):
    talk = conversations(1, 8, system_tokens=100, user_tokens=20, output_tokens=40)
    scheduler = CONFIGURATIONS[name].build(2048, 1024, limits=StepLimits(256, 32))
    content, done, steps = content_for(scheduler), 0, 0
    for request in talk:
        scheduler.add(replace(request, max_new_tokens=128), content=content(request))
    while scheduler.has_work:
        done += len(scheduler.report(scheduler.schedule()))
        steps += 1
        if steps % 8 == 0:
            scheduler.check()
    assert done == len(talk)


def test_who_asks_for_everything_or_nothing_comes_out_as_published():
    """Qualitative order of engines.md, section 8.3."""
    requests = [replace(r, max_new_tokens=1024) for r in sample("azure-conv", 80, seed=1)]
    runs = compare(CONFIGURATIONS, requests, 42_266, 8192, limits=StepLimits(2048, 256))
    used = {name: run.share("used") for name, run in runs.items()}
    order = ["Orca Max", "TensorRT-LLM no-evict", "LightLLM", "SGLang", "vLLM V1"]
    assert [used[name] for name in order] == sorted(used[name] for name in order)
    for name in ("TensorRT-LLM no-evict", "TGI", "LightLLM", "ExLlamaV3", "Orca Oracle"):
        assert runs[name].preempted == 0
    assert runs["vLLM V1"].preempted > runs["vLLM V0"].preempted > 0


def test_content_comes_in_the_blocks_of_the_memory():
    request = Request(0, None, 40, 2, token_ids=tuple(range(42)))
    sizes = {}
    for name in ("vLLM V1", "SGLang", "llama.cpp", "vLLM V0", "Orca Max"):
        content = content_for(CONFIGURATIONS[name].build(4096, 2048))(request)
        sizes[name] = content.block_size if isinstance(content, TokenContent) else None
    assert list(sizes.values()) == [16, 1, 1, None, None]


def test_who_lost_memory_finds_its_own_blocks_again_where_there_is_an_index():
    requests = [replace(r, max_new_tokens=1024) for r in sample("azure-conv", 200, seed=0)]
    kinds = {name: CONFIGURATIONS[name] for name in ("vLLM V1", "DeepSpeed-FastGen")}
    kinds["blind"] = replace(CONFIGURATIONS["vLLM V1"], index=None)
    runs = compare(kinds, requests, 42_266, 8192, limits=StepLimits(2048, 256))
    v1, none, blind = runs.values()
    assert min(none.recomputed_tokens, blind.recomputed_tokens) > 2 * v1.recomputed_tokens > 0
    assert v1.preempted > 0 and v1.prefix_hit_rate == 0, "nobody is like another"


@pytest.mark.parametrize("name", ["SGLang", "TGI", "ExLlamaV3"])
def test_where_nobody_lost_memory_there_is_nothing_of_ones_own_to_find(name):
    """Why `compare` may leave the slower run out."""
    requests = [replace(r, max_new_tokens=1024) for r in sample("azure-conv", 25, seed=1)]
    kind = CONFIGURATIONS[name]
    run = compare({name: kind}, requests, 12_000, 8192, limits=StepLimits(2048, 256))[name]
    scheduler = kind.build(12_000, 8192, limits=StepLimits(2048, 256))
    own = serve(requests, scheduler, content=content_for(scheduler, own=True))
    assert run.preempted == 0 and row(run) == row(own)


def test_unknown_tokens_are_like_their_own_and_nobody_elses():
    a, b = (OwnContent(Request(i, None, 40, 8), 16) for i in (0, 1))
    assert a.num_blocks == 3 and a.namespace == b.namespace
    names = [each.key(i) for each in (a, b) for i in range(3)]
    assert len(set(names)) == 6 and a.key(2) == OwnContent(Request(0, None, 40, 8), 16).key(2)


def test_what_cannot_work_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="900 slots are less than one block of 1024"):
        atlas.engine("vAttention").build(900, 512)
    with pytest.raises(ValueError, match="900 slots are less than one row of 1000"):
        atlas.engine("llama.cpp").build(900, 1000)
    with pytest.raises(ValueError, match="max_seq_len is 5000"):
        atlas.engine("vLLM V1").build(4096, 5000)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="num_slots"):
            Configuration().build(bad, 10)
    with pytest.raises(TypeError, match="max_seq_len"):
        Configuration().build(100, 10.0)
    rows = atlas.engine("llama.cpp").configuration.other_memory
    with pytest.raises(ValueError, match="shares whole blocks, and this memory has none"):
        Configuration(index=HashIndex, other_memory=rows)
    with pytest.raises(ValueError, match="needs an index that knows it"):
        Configuration(retention=DropAll)
    with pytest.raises(ValueError, match="watermark is a share"):
        Configuration(admission=lambda longest: AdmitPrompt(1.1)).build(1000, 100)
    with pytest.raises(ValueError, match="no engine 'vLLM'; near: vLLM V1"):
        atlas.engine("vLLM")
    with pytest.raises(ValueError, match="no fact 'blocks'"):
        atlas.engine("vLLM V1").fact("blocks")


def test_a_readers_engine_is_compared_like_the_others():
    mine = Configuration(16, HashIndex, admission=lambda longest: AdmitPrompt(0.1), victim=oldest)
    requests = [Request(i, None, 100, 40, max_new_tokens=100) for i in range(40)]
    found = {n: row(r) for n, r in compare({"mine": mine}, requests, 2048, 512).items()}
    assert found["mine"]["finished"] == 40 and "seconds" not in found["mine"]
    assert sum(found["mine"]["percent"].values()) == pytest.approx(100, abs=0.3)
    text = table(found, {"steps": "steps", "s": "seconds", "% used": "percent.used"})
    assert text.splitlines()[1].split()[0] == "mine" and text.split()[-2] == "-"


def test_twelve_stale_claims_each_with_its_engine():
    claims = atlas.stale_claims()
    assert len({each.claim for each in claims}) == 12
    assert all(each.now and each.engine.version for each in claims)
    facts = {
        "vLLM V1": {"watermark": 0.0, "share of the card's memory": 0.92},
        "TensorRT-LLM no-evict": {"tokens of a block": 32},
        "LMDeploy TurboMind": {"share of the memory that is free": 0.8},
        "SGLang": {"order of the line": "fcfs"},
    }
    for name, values in facts.items():
        for what, value in values.items():
            assert atlas.engine(name).fact(what).value == value


def test_the_page_shows_what_each_engine_is_better_at():
    """Each names a section of the page; the first cell under its heading is not far from it."""
    page = json.loads((ROOT / "chapters/04_engines/engine_atlas.ipynb").read_text("utf-8"))
    cells = [("".join(c["source"]), c["cell_type"]) for c in page["cells"]]
    for name in NAMES:
        heading = f"## {atlas.engine(name).shown}\n"
        texts = [text + "\n" if kind == "markdown" else "" for text, kind in cells]
        at = [i for i, text in enumerate(texts) if heading in text]
        assert len(at) == 1, f"{name}: `shown` is no section of the page: {heading!r}"
        assert cells[at[0] + 1][1] == "code"


ALIKE = (
    ("vLLM V1", "MLC-LLM", "TensorRT-LLM max-util"),
    ("TensorRT-LLM no-evict", "TGI"),
    ("LMDeploy TurboMind", "DeepSpeed-FastGen"),
)


@pytest.mark.parametrize("group", ALIKE)
def test_engines_that_the_page_calls_alike(group):
    for load in measured.load("trace_atlas.cpu")["data"]["loads"].values():
        rows = [load["engines"][name] for name in group]
        for key, most in (("used", 1), ("hit_percent", 2)):
            values = [row["percent"].get(key, row.get(key)) for row in rows]
            assert max(values) - min(values) < most
        seconds = [row["seconds"] for row in rows]
        assert max(seconds) < 1.02 * min(seconds)
