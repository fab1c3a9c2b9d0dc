"""Which transformers the caches of `kvlib.tensors.hf` fit under, asked before anything is built.

Its cache interface has changed several times; a cache written for another version would be called
with other arguments, or not at all, and generate fluent nonsense. So the version is looked at, and
each part of the interface that is relied on.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

FIRST, BEYOND = (5, 24), (6, 0)
RANGE = "transformers 5.24 or later, below 6.0"
ABSTRACT = {
    "lazy_initialization",
    "update",
    "get_mask_sizes",
    "get_seq_length",
    "get_max_length",
}
NEEDED = {
    "cache_utils": {
        "CacheLayerMixin": ABSTRACT,
        "Cache": {
            *("update", "get_seq_length", "get_mask_sizes", "get_query_offset", "get_max_length"),
            *("reset", "crop", "reorder_cache", "activate_past_recording"),
            *("batch_repeat_interleave", "batch_select_indices"),
        },
        "get_layer_types_and_kwargs": set(),
    },
    "masking_utils": {"AttentionMaskInterface": {"register"}, "sdpa_mask": set()},
    "modeling_utils": {"AttentionInterface": {"register"}},
    "integrations.sdpa_attention": {"sdpa_attention_forward": set()},
}


class UnsupportedTransformers(ModuleNotFoundError):
    """There is no transformers here, or none whose cache interface is the one that is known."""


def require_transformers() -> ModuleType:
    """Returns transformers, if its interface is the one these caches are written for.

    Raises:
        UnsupportedTransformers: it is missing, of another version, or a part of the interface is
            gone; says which, what was found and what is supported.
    """
    try:
        transformers = import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise _refusal("it is not installed") from error
    version = transformers.__version__
    if not isinstance(version, str):  # the stand-in of a build of the pages, which runs nothing
        return transformers
    if not FIRST <= _numbers(version) < BEYOND:
        raise _refusal(f"found {version}")
    for module_name, things in NEEDED.items():
        for thing, methods in things.items():
            _require(f"transformers.{module_name}", thing, methods, version)
    layer = transformers.cache_utils.CacheLayerMixin
    if more := sorted(layer.__abstractmethods__ - ABSTRACT):
        raise _refusal(f"{version} asks a cache layer for more: {', '.join(more)}")
    return transformers


def _require(module_name: str, thing: str, methods: set[str], version: str) -> None:
    try:
        found = getattr(import_module(module_name), thing, None)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise _refusal(f"{version} has no {module_name}.{thing}")
    if gone := sorted(name for name in methods if not hasattr(found, name)):
        raise _refusal(f"{version} has no {thing}.{gone[0]}")


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; those of a development version are its next one's."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _refusal(found: str) -> UnsupportedTransformers:
    return UnsupportedTransformers(
        f"kvlib's caches fit under {RANGE}: {found}. pip install transformers==5.24.0",
        name="transformers of the supported range",
    )
