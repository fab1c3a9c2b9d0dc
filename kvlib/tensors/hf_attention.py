"""The attention that a transformers model calls by the name "kvlib", and the mask it comes with.

`Cache.update` is never shown the mask, so it cannot know which of the new columns are pads. The
attention function is. Under this name nothing is stored in `update`: it hands itself on, and the
attention function stores what is real and attends to it where it lies.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvlib.tensors.hf_support import require_transformers

require_transformers()

from transformers import AttentionInterface  # noqa: E402
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask  # noqa: E402

if TYPE_CHECKING:
    from kvlib.tensors.hf import HFCache

NAME = "kvlib"
UNKNOWN = ("s_aux", "position_bias")


class Mask:
    """What transformers knows of a batch before the first layer, without the rectangle.

    Attributes:
        padding: [B, columns] bool, False for pads; None if there are none.
        plain: whether a token sees just the tokens before it, in a window or all.
    """

    def __init__(self, *, allow_is_causal_skip: bool = True, **asked: Any) -> None:
        padding = asked.get("attention_mask")
        self.padding = None if padding is None or bool(padding.all()) else padding
        other = asked.get("use_vmap") or asked.get("allow_is_bidirectional_skip")
        self.plain = allow_is_causal_skip and not other
        self._whole = partial(sdpa_mask, allow_is_causal_skip=allow_is_causal_skip, **asked)

    def whole(self) -> Tensor | None:
        """Returns the mask that `sdpa` gets, for a forward without a cache of kvlib."""
        return self._whole()


def mask(**asked: Any) -> Mask:
    """Returns what `attention` is to be told; transformers gives every argument by name."""
    return Mask(**asked)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    kvlib: tuple[HFCache, int] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attends in the cache that handed itself on, or as `sdpa` does where there is none.

    Args:
        module: the attention layer.
        query: [B, Hq, T, D].
        key: [B, Hkv, T, D], of the new tokens only where there is a cache.
        value: as `key`.
        attention_mask: what `mask` returned.
        dropout: of the weights, in training.
        scaling: factor on the scores, 1 / sqrt(D) by default.
        kvlib: the cache and the layer, from `HFCache.update`.
        options: what else the model asks for.

    Returns:
        [B, T, Hq, D], and no weights.

    Raises:
        ValueError: the model asks for what no kernel here knows; nothing is stored.
        RuntimeError: the keys come from a cache of kvlib, and the model did not hand it on.
    """
    if kvlib is None:
        if (lost := getattr(key, "kvlib_layer", None)) is not None:
            raise keys_lost(lost)
        whole = attention_mask.whole() if isinstance(attention_mask, Mask) else attention_mask
        given = {"dropout": dropout, "scaling": scaling, **options}
        return sdpa_attention_forward(module, query, key, value, whole, **given)
    _refuse_unknown(attention_mask, dropout, options)
    cache, layer = kvlib
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    padding = None if attention_mask is None else attention_mask.padding
    states = (query, key, value)
    return cache.attend(layer, *states, padding, scale=scale, softcap=options.get("softcap")), None


def keys_lost(layer: int) -> RuntimeError:
    """Returns the error of a layer that attends without the cache."""
    return RuntimeError(
        f"layer {layer} does not hand on what update() gives it, so its keys would be lost: load"
        " the model with attn_implementation 'sdpa' or 'eager'"
    )


def _refuse_unknown(given: Mask | Tensor | None, dropout: float, options: dict[str, Any]) -> None:
    asked = [name for name in UNKNOWN if options.get(name) is not None]
    if given is not None and not (isinstance(given, Mask) and given.plain):
        asked.append("a mask of its own")
    if dropout:
        asked.append("dropout")
    if asked:
        raise ValueError(
            f"the attention {NAME!r} knows causal masks, windows, pads and softcap; this model asks"
            f" for {', '.join(asked)}: load it with attn_implementation 'sdpa' or 'eager', and the"
            " same cache gathers"
        )


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
