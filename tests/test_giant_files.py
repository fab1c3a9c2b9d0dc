"""Ten gigabytes cost no reader more than a moment: files of holes, in a process with a limit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MORE_BYTES, MOST_S = 300 * 2**20, 3.0

CHILD = """
import json, os, resource, sys, time
from pathlib import Path

import torch
import tiny_folder, test_gguf_convert
from kvlib import measured, workloads
from kvlib.tensors.block_bytes import LostBlock
from kvlib.tensors.block_files import BlockFiles
from kvlib.tensors.gguf_convert import convert_gguf
from kvlib.tensors.weights import load_model

where, more_bytes = Path(sys.argv[1]), int(sys.argv[2])


def giant(path, start=b""):
    path.write_bytes(start)
    os.truncate(path, 10 * 2**30)
    return path


def model(name, start=b""):
    folder = tiny_folder.write_folder(where / f"{len(start)} {name}")
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    giant(folder / name, start)
    return lambda: load_model(folder, device="cpu")


def gguf(name, start):
    path = giant(where / name, start)
    return lambda: convert_gguf(path, where)


blocks = BlockFiles(where / "blocks")
giant(blocks.path(b"n"))
giant(where / "r.json", b"{")
whole = where / "whole.gguf"
test_gguf_convert.write_gguf(whole)
cases = {
    "trace": lambda path=giant(where / "t.csv", b"arrival_ms,context_tokens,generated_tokens"):
        workloads.load(path),
    "packed trace": lambda path=giant(where / "t.gz", bytes([31, 139, 8])): workloads.load(path),
    "config": model("config.json"),
    "tokenizer": model("tokenizer.json"),
    "index": model("model.safetensors.index.json"),
    "weights": model("model.safetensors", (2**20).to_bytes(8, "little")),
    "weights of holes": model("model.safetensors"),
    "gguf": gguf("a.gguf", b"GGUF\\3\\0\\0\\0" + bytes(8) + b"\\xff" * 8),
    "gguf of holes": gguf("b.gguf", b"GGUF\\3\\0\\0\\0" + bytes(8) + b"\\0\\0\\x10"),
    "block": lambda: blocks.get(b"n"),
    "record": lambda: measured.load("r", where),
}
torch.set_num_threads(1)
now = next(
    int(line.split()[1]) * 1024
    for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")
)
resource.setrlimit(resource.RLIMIT_DATA, (now + more_bytes, resource.RLIM_INFINITY))
for name, read in cases.items():
    start = time.process_time()
    try:
        read()
        said = "read"
    except (ValueError, LostBlock) as error:
        said = f"{type(error).__name__}: {error}"
    except BaseException as error:
        said = f"fault: {type(error).__name__}: {error}"
    print(json.dumps([name, said, time.process_time() - start]), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what a process has")
def test_ten_gigabytes_cost_a_moment_and_little_memory(tmp_path):
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path, str(MORE_BYTES)],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 11
    for name, said, took in rows:
        assert said.startswith(("ValueError: ", "LostBlock: ")), (name, said)
        assert len(said) < 500 and took < MOST_S, (name, took)
