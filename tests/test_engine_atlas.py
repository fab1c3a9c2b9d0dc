"""The record of whole traces: the cheapest engines are served again."""

import importlib
import json
import os

import pytest

from kvlib import atlas, measured
from test_trace_figures import ROOT

CHEAP = ("vLLM V0", "DeepSpeed-FastGen")


def test_the_cheapest_engines_come_out_of_the_long_trace_as_recorded(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "measure")
    script = importlib.import_module("engine_atlas")
    try:
        load = script.loads()["mooncake-conv"]
    except FileNotFoundError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    record = measured.load("engine_atlas.cpu")
    assert record is not None, "run python measure/engine_atlas.py"
    found = json.loads(json.dumps(script.served(load, CHEAP)))
    rows = record["data"]["loads"]["mooncake-conv"]["engines"]
    assert {name: rows[name] for name in CHEAP} == found


def test_the_record_has_every_engine():
    record = measured.load("engine_atlas.cpu")
    for load in record["data"]["loads"].values():
        assert list(load["engines"]) == atlas.engines(), "run python measure/engine_atlas.py"
        assert {row["refused"] for row in load["engines"].values()} <= {0, 1}


def test_what_the_page_says_of_the_whole_traces():
    chat, long = (
        load["engines"] for load in measured.load("engine_atlas.cpu")["data"]["loads"].values()
    )
    part = measured.load("trace_atlas.cpu")["data"]["loads"]["chat, all at once"]["engines"]
    stretch, hour = (
        {name: rows[name]["percent"]["used"] for name in atlas.engines()} for rows in (part, chat)
    )
    for a in stretch:
        for b in stretch:
            assert hour[a] > hour[b] or stretch[a] < stretch[b] + 3, "who was ahead stays ahead"
    twice = {name: chat[name]["recomputed_percent"] for name in chat}
    assert twice["vLLM V1"] < 2 and twice["DeepSpeed-FastGen"] > 3 * twice["vLLM V1"]
    assert chat["vLLM V1"]["preempted"] > 50 * chat["vLLM V0"]["preempted"]
    for name in ("TGI", "ExLlamaV3"):
        assert long[name]["hit_percent"] < long["vLLM V1"]["hit_percent"] - 1
