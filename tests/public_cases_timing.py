"""The public case about clocks: what is timed is the work, not the asking for it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvlib.tensors import kernel_lab
from public_cases import case

ROOT = Path(__file__).resolve().parents[1]


@case("BM-1")
def a_clock_is_read_when_the_device_is_done():
    """A card answers before it is done: between work and the clock there is a wait for it."""
    events = []

    class OnACard(torch.Tensor):
        is_cuda = True

    def clock():
        events.append("clock")
        return float(len(events))

    def work(q, *where):
        events.append("work")
        return kernel_lab.WAYS["gather"](q, *where)

    def noted(way):
        return lambda *given: (events.append("work"), way(*given))[1]

    lab = kernel_lab.setting(lens=(8, 8))
    step = replace(lab, q=lab.q.as_subclass(OnACard))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernel_lab, "perf_counter", clock)
        patched.setattr(torch.cuda, "synchronize", lambda *on: events.append("wait"))
        patched.setattr(kernel_lab, "gather", noted(kernel_lab.gather))
        kernel_lab.time(work, step, repeats=2)
        check_order(events)
        events.clear()
        patched.syspath_prepend(ROOT / "measure")
        import record

        patched.setattr(record, "perf_counter", clock)
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        record.rounds({"a": lambda: events.append("work"), "b": lambda: events.append("work")}, 3)
        check_order(events)
    kernel_lab.time(kernel_lab.WAYS["gather"], lab, repeats=1)  # and no GPU is needed


def check_order(events):
    """After work comes a wait before the clock is read, each time."""
    timed = [at for at, event in enumerate(events) if event == "work" and "clock" in events[:at]]
    assert len(timed) >= 6
    for at in timed:
        behind = events[at + 1 :]
        assert "wait" in behind[: behind.index("clock")], events
