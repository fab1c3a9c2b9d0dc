"""On the meta device tensors have shapes but no bytes, so anything that makes the host wait raises.

That shows without a GPU that a step runs on the asked device and never synchronises with the host.
"""

import pytest
import torch

from conftest import small_config
from exact_caches import EXACT
from kvlib.tensors.device import device
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache
from kvlib.tensors.sink_window import RollingKVCache
from kvlib.tensors.step import NoCache

CACHES = {
    **{name: lambda shape, made=made: made(shape, "meta") for name, made in EXACT.items()},
    "paged with a window": lambda shape: PagedKVCache(shape, 8, 2, window=3, device="meta"),
    "rolling": lambda shape: RollingKVCache(shape, 2, 3, device="meta"),
    "none": lambda shape: NoCache("meta"),
}


@pytest.fixture
def model():
    with torch.device("meta"):
        return Llama(small_config())


@pytest.mark.parametrize("name", CACHES)
def test_a_step_stays_on_its_device_and_never_waits_for_it(model, name):
    cache = CACHES[name](model.kv_shape)
    cache.add("a")
    cache.add("b")
    for new in ({"a": [1, 2, 3], "b": [4]}, {"a": [5], "b": [6]}, {"b": [7, 8]}):
        tokens = torch.empty(sum(map(len, new.values())), dtype=torch.int64, device="meta")
        with cache.step(new) as plan:
            for array in (plan.positions, plan.slot_mapping, plan.last_token):
                assert array.device.type == "meta"
            logits = model(tokens, cache, plan)
        assert logits.device.type == "meta"
        assert tuple(logits.shape) == (len(new), 97)


def test_the_guard_itself_works():
    """If the meta device ever let the host wait, the test above would prove nothing."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.empty(1, device="meta").item()


def test_the_store_lives_where_it_was_asked_to(model):
    cache = CACHES["contiguous"](model.kv_shape)
    assert cache.store.keys.device.type == cache.store.values.device.type == "meta"


def test_keys_of_another_device_are_refused(model):
    cache = CACHES["contiguous"](model.kv_shape)
    cache.add("a")
    k = torch.ones(1, 2, 8)
    with pytest.raises(ValueError, match="on meta, got"), cache.step({"a": [1]}) as plan:
        cache.write(0, k, k, plan)


def test_a_device_that_is_not_there_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"asked for device 'cuda', this machine has 0 CUDA"):
        device("cuda")
    for name in ("gpu", "mps", "cuda:x"):
        with pytest.raises(ValueError, match=f"no device named '{name}'"):
            device(name)


def test_the_environment_chooses_unless_the_caller_does(monkeypatch):
    monkeypatch.setenv("KVLIB_DEVICE", "meta")
    assert device().type == "meta"
    assert device("cpu").type == "cpu"
