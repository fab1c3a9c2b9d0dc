"""The script behind the page on allocators: one traffic, and a snapshot that can be drawn."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvlib import show

ROOT = Path(__file__).resolve().parents[1]
# As torch.cuda.memory_snapshot() gives it, in another order than the addresses'.
SNAPSHOT = [
    {
        "address": 4096,
        "total_size": 20 * 2**20,
        "segment_type": "large",
        "blocks": [
            {"size": 3 * 2**20, "state": "active_allocated"},
            {"size": 12 * 2**20, "state": "inactive"},
            {"size": 5 * 2**20, "state": "active_pending_free"},
        ],
    },
    {
        "address": 512,
        "total_size": 2 * 2**20,
        "segment_type": "small",
        "blocks": [{"size": 2 * 2**20, "state": "active_allocated"}],
    },
]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "measure"))
    return importlib.import_module("cuda_allocator")


def test_the_traffic_frees_what_it_took_and_keeps_so_many_running(script):
    live = set()
    for request, size in script.traffic(requests=100, running=5):
        if size:
            assert 0 < size <= 2048 * script.BYTES_PER_TOKEN
            live.add(request)
        else:
            live.remove(request)
        assert len(live) <= 5
    assert len(live) == 5


def test_playing_it_leaves_what_never_left(script):
    events = [(0, 10), (1, 20), (0, 0), (2, 5)]
    held = script.play(events, torch.device("cpu"))
    assert {request: tensor.nbytes for request, tensor in held.items()} == {1: 20, 2: 5}


def test_a_snapshot_is_reduced_to_sizes_by_address(script):
    small, large = script.reduced(SNAPSHOT)
    assert small == {"pool": "small", "bytes": 2**21, "blocks": [[2**21, 1]]}
    assert large["blocks"] == [[3 * 2**20, 1], [12 * 2**20, 0], [5 * 2**20, 0]]
    assert sum(size for size, _ in large["blocks"]) == large["bytes"]


def test_a_reduced_snapshot_can_be_drawn(script):
    kinds = ("free", "used")
    strips = {
        f"{segment['pool']} {row}": [
            (kinds[held], size / 2**20) for size, held in segment["blocks"]
        ]
        for row, segment in enumerate(script.reduced(SNAPSHOT))
    }
    words = {"used": "a tensor has it", "free": "free, kept by PyTorch"}
    plot = show.strip_plot(strips, x="MiB", words=words, alt="Two segments.")
    data, _ = plot._repr_mimebundle_()
    assert data["image/png"] and plot.series["small 0"] == [("used", 2.0)]


def test_without_cuda_it_says_so_and_writes_nothing(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "kvlib", SimpleNamespace(device=lambda: torch.device("cpu")))
    monkeypatch.setattr(script.sys, "argv", ["cuda_allocator.py"])
    monkeypatch.setattr(script, "write", None)
    script.main()
    assert capsys.readouterr().out == "cuda_allocator: not measured, it needs CUDA\n"


def test_the_raw_way_asks_by_the_name_that_pytorch_reads(script):
    """Under any other name the cached way would be measured twice, in silence."""
    assert script.WAYS["raw"] == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def test_each_way_has_a_process_with_its_own_settings(script, monkeypatch):
    """The settings of whoever started the script do not reach the ways."""
    seen = []

    def run(command, *, env, **more):
        seen.append({name: env.get(name) for name in ("PYTORCH_ALLOC_CONF", script.EXPANDABLE)})
        return SimpleNamespace(stdout='a warning\n{"event_s": 1}\n')

    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:32")
    monkeypatch.setattr(script.subprocess, "run", run)
    assert script.in_a_process(script.WAYS["expandable"]) == {"event_s": 1}
    assert seen == [{"PYTORCH_ALLOC_CONF": None, script.EXPANDABLE: "expandable_segments:True"}]
