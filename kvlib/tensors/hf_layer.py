"""One layer, as transformers asks it: the cache answers for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from kvlib.tensors.hf_groups import Group
from kvlib.tensors.hf_support import require_transformers

require_transformers()

from transformers.cache_utils import CacheLayerMixin  # noqa: E402

if TYPE_CHECKING:
    from kvlib.tensors.hf_cache import SteppedCache


class CacheLayer(CacheLayerMixin):
    """A layer that holds nothing itself.

    Args:
        cache: the whole.
        index: the layer's, in the model.
        group: the layers that see the same tokens.
    """

    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: SteppedCache, index: int, group: Group) -> None:
        super().__init__()
        self._cache, self._index, self._group = cache, index, group
        self.is_sliding = group.window is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: the bytes are there from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the cache's."""
        return self._cache.update(key_states, value_states, self._index, *args, **kwargs)

    def get_seq_length(self) -> int:
        """As the cache's."""
        return self._cache.get_seq_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many columns this layer's keys have, new ones included, and the first."""
        columns = self._cache.get_seq_length()
        first = self._group.seen_from(columns + query_length, query_length)
        first = first if self._group.drops else 0
        return columns + query_length - first, first

    def get_max_length(self) -> int:
        """Returns the longest sequence that fits, -1 if there is no limit."""
        return self._group.cache.max_seq_len or -1
