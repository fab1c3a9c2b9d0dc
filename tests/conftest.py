"""What all tests share: devices, small random models and the real one, the built book."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import built_book
from kvlib.sizes import KVShape
from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig

settings.register_profile("kvlib", deadline=None, print_blob=True)
settings.load_profile("kvlib")
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


# Written by tools/slow_tests.py.
SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").split())


def pytest_collection_modifyitems(items):
    """Marks the tests that `make quick` leaves out."""
    for item in items:
        if item.nodeid.partition("[")[0] in SLOW:
            item.add_marker("slow")


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Each test that takes a device runs on the CPU, and on CUDA where there is one."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device(request.param)


def small_config(**changes):
    """Two layers, three query heads to one KV head, sizes that differ so that mix-ups show."""
    sizes = {
        "vocab_size": 97,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_layers": 2,
        "num_q_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
    }
    return LlamaConfig(**{**sizes, **changes})


@pytest.fixture
def small_model(device):
    return Llama.random(small_config(), seed=1, device=device)


@pytest.fixture
def small_shape():
    return KVShape(num_layers=2, num_kv_heads=2, head_dim=8)


@pytest.fixture(scope="session")
def real_model():
    """SmolLM2-135M-Instruct and its tokenizer, loaded once; a skip that CI does not accept."""
    from kvlib.tensors.weights import load_model

    try:
        return load_model(device="cpu")
    except RuntimeError as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))


def needed(thing, what: str):
    """Returns it, or skips; CI does not accept the skip."""
    if thing is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(what)
    return thing


@pytest.fixture(scope="session")
def book():
    """The folder of the built book."""
    return needed(built_book.book(), "the book is not built: run `make html`")


@pytest.fixture(scope="session")
def site(book):
    """Its address while it is served."""
    with built_book.served(book) as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium without a network."""
    from playwright.sync_api import sync_playwright

    needed(built_book.chromium(), "there is no Chromium on this machine")
    with sync_playwright() as playwright, built_book.browser(playwright) as opened:
        yield opened
