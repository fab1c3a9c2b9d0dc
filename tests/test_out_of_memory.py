"""Memory that runs out in the middle: the step is undone, what it held is gone, the next runs."""

import errno
import weakref

import pytest
import torch

from conftest import small_config
from engine_cases import Fragile, Solo, engine_of, run
from kvlib.scheduled_step import StepLimits
from kvlib.show.advice import DISK_FULL, NO_MEMORY, STOPPED, _after_cell, _let_go, advice
from kvlib.tensors.generate import generate
from kvlib.tensors.llama import Llama
from kvlib.tensors.paged import PagedKVCache

NO_ROOM = "CUDA out of memory. Tried to allocate 2.00 GiB."
PROMPT = [5, 6, 7]


def caused_by(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, words",
    [
        (torch.OutOfMemoryError(NO_ROOM), NO_MEMORY),
        (torch.OutOfMemoryError("no rows"), NO_MEMORY),
        (MemoryError(), NO_MEMORY),
        (RuntimeError("CUDA error: out of memory"), NO_MEMORY),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), NO_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), NO_MEMORY),
        (OSError(errno.ENOSPC, "No space left on device"), DISK_FULL),
        (RuntimeError("I/O error: No space left on device (os error 28)"), DISK_FULL),
        (caused_by(RuntimeError("rank 1 of 2 failed"), torch.OutOfMemoryError(NO_ROOM)), NO_MEMORY),
        (KeyboardInterrupt(), STOPPED),
        (FileNotFoundError(errno.ENOENT, "gone"), ""),
        (ValueError("out of memory is not what this says"), ""),
        (RuntimeError("a step while one runs"), ""),
    ],
)
def test_an_error_gets_the_sentence_that_helps(error, words):
    assert advice(error) == words


def test_an_error_that_hides_its_context_is_judged_alone():
    try:
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("asked for too much") from None
    except ValueError as error:
        assert advice(error) == ""


def test_errors_that_cause_each_other_are_read_once():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert advice(first) == ""


class Result:
    """What IPython says of a cell."""

    def __init__(self, error=None):
        self.error_in_exec = error


def test_a_cell_that_went_well_or_says_enough_gets_no_line(capsys):
    _after_cell(Result())
    _after_cell(Result(ValueError("block_size must be at least 1")))
    assert capsys.readouterr() == ("", "")


def failing_call(held):
    activations = torch.ones(1000)
    held.append(weakref.ref(activations))
    raise torch.OutOfMemoryError(NO_ROOM)


def test_what_a_failed_call_held_is_let_go_and_its_lines_stay():
    held = []
    with pytest.raises(torch.OutOfMemoryError) as caught:
        failing_call(held)
    frame = caught.tb.tb_next.tb_frame
    assert "activations" in frame.f_locals, "looked at, as Jupyter does to show a traceback"
    assert held[0]() is not None
    _let_go(caught.value)
    assert held[0]() is None
    assert "failing_call" in str(caught.getrepr(style="native"))


@pytest.fixture
def roomy(device):
    """A model whose layers are wide: a long text takes memory, a short one does not."""
    sizes = {"hidden_size": 64, "intermediate_size": 16_384, "max_position_embeddings": 8192}
    return Llama.random(small_config(**sizes), seed=2, device=device)


class Hungry(Fragile):
    """A model without memory for more than one text; it fails with a large tensor in hand."""

    def __init__(self, model, most=1):
        super().__init__(model)
        self.most, self.held, self.held_then = most, [], []

    def __call__(self, tokens, cache, plan):
        self.held_then.append([each for each in self.held if each() is not None])
        activations = torch.ones(1000)
        if len(plan.host.seq_ids) > self.most:
            self.held.append(weakref.ref(activations))
            raise torch.OutOfMemoryError(NO_ROOM)
        return super().__call__(tokens, cache, plan)


def test_a_batch_without_memory_is_gone_before_each_runs_alone(small_model):
    model, solo = Hungry(small_model), Solo(small_model)
    engine = engine_of(model)
    requests = [engine.submit(text, 6) for text in (PROMPT, [8, 8], [1] * 9)]
    run(engine)
    assert model.held and not any(model.held_then)
    assert all(map(solo.agrees, requests))


def test_a_request_that_ended_for_want_of_memory_keeps_none(small_model):
    model = Hungry(small_model, most=0)
    engine = engine_of(model)
    request = engine.submit(PROMPT, 6)
    run(engine)
    assert request.finish_reason == "error"
    assert [each() for each in model.held] == [None]
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        list(request)


def test_a_step_without_memory_leaves_the_cache_as_it_was(small_model):
    cache = PagedKVCache(small_model.kv_shape, 8, 4, device=small_model.device)
    before = generate(small_model, PROMPT, 6).tokens
    model = Hungry(small_model, most=0)
    with pytest.raises(torch.OutOfMemoryError):
        generate(model, PROMPT, 6, cache=cache)
    cache.check()
    assert cache.ledger.num_free == 8
    assert generate(small_model, PROMPT, 6, cache=cache).tokens == before


@pytest.fixture
def little_memory(device):
    """256 MiB of the card for this process: allocations beyond it really fail."""
    if device.type != "cuda":
        pytest.skip("memory that really runs out is tried on CUDA")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    most = torch.cuda.memory_reserved(device) + 256 * 2**20
    torch.cuda.set_per_process_memory_fraction(most / total, device)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    torch.cuda.empty_cache()


def test_half_a_cache_that_does_not_fit_is_given_back(roomy, device, little_memory):
    """Keys of 150 MiB fit, their values do not."""
    before = torch.cuda.memory_allocated(device)
    blocks = 150 * 2**20 // (roomy.kv_shape.bytes_per_token("float32") // 2 * 16)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        PagedKVCache(roomy.kv_shape, blocks, 16, device=device)
    _let_go(caught.value)
    assert torch.cuda.memory_allocated(device) == before
    cache = PagedKVCache(roomy.kv_shape, 8, 4, device=device)
    whole, cached = (generate(roomy, PROMPT, 6, cache=each) for each in (None, cache))
    assert whole.agrees_with(cached)


def test_a_long_text_fails_in_the_middle_and_a_short_one_is_served(roomy, device, little_memory):
    cache = PagedKVCache(roomy.kv_shape, 600, 16, device=device)
    whole, before = generate(roomy, PROMPT, 6), torch.cuda.memory_allocated(device)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        generate(roomy, [5] * 8000, 2, cache=cache)
    cache.check()
    _let_go(caught.value)
    assert cache.ledger.num_free == 600
    assert torch.cuda.memory_allocated(device) == before
    assert whole.agrees_with(generate(roomy, PROMPT, 6, cache=cache))


def test_an_engine_serves_who_fits_and_ends_who_does_not(roomy, device, little_memory):
    solo = Solo(roomy)
    engine = engine_of(roomy, 600, 16, limits=StepLimits(8192, chunked_prefill=False))
    short, long = engine.submit(PROMPT, 6), engine.submit([5] * 8000, 2)
    run(engine)
    assert (short.finish_reason, long.finish_reason) == ("length", "error")
    assert solo.agrees(short)
    with pytest.raises(torch.OutOfMemoryError):
        list(long)
