"""Times one call, a read of a whole tensor, by many protocols: python measure/protocols.py.

Raw times are stored, not statistics: the page computes each protocol's answer from the same runs.
One part is disturbed on purpose: halfway through, neighbours begin to read memory as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter

import torch

import kvlib
from record import write

SIZES = (2**20, 2**24, 2**30)  # fits a core's own cache; fits a shared one; fits none
PROCESSES, RUNS, TURNS = 5, 13, 11
NEIGHBOUR_SECONDS = 120  # none outlives its parent by more than this

Timed = Callable[[], float]


def reader(num_bytes: int, device: torch.device) -> Timed:
    """Returns a call that reads so many bytes once and tells the seconds until they were read."""
    tensor = torch.ones(num_bytes // 4, device=device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def timed() -> float:
        wait()  # nothing earlier may still be running
        start = perf_counter()
        tensor.sum()
        wait()
        return float(f"{perf_counter() - start:.4g}")

    return timed


def fresh_processes() -> list[dict[str, object]]:
    """Times the first runs of several new processes for each size."""
    rows = []
    for num_bytes in SIZES:
        for process in range(1, PROCESSES + 1):
            command = [sys.executable, __file__, "--runs", str(num_bytes)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({"bytes": num_bytes, "process": process, "run_s": json.loads(done.stdout)})
    return rows


def two_equal_ways(timed: Timed, disturb: Callable[[], None], in_turns: bool) -> dict[str, object]:
    """Times the same call under two names, A and B, while the machine gets busy halfway.

    Args:
        timed: the call; A and B are both this, so that their true ratio is 1.
        disturb: is called once, when half of all runs are done.
        in_turns: A, B, A, B instead of all of A, then all of B.
    """
    order = "AB" * TURNS if in_turns else "A" * TURNS + "B" * TURNS
    times: dict[str, list[float]] = {"A": [], "B": []}
    for done, name in enumerate(order):
        if done == TURNS:
            disturb()
        times[name].append(timed())
    words = "in turns" if in_turns else "A first, then B"
    return {"order": words, "a_s": times["A"], "b_s": times["B"]}


def under_drift(device: torch.device, in_turns: bool) -> dict[str, object]:
    """Compares a call with itself in one of the two orders, with neighbours from halfway on."""
    timed = reader(SIZES[-1], device)
    timed()
    busy: list[subprocess.Popen[str]] = []
    try:
        return two_equal_ways(timed, lambda: busy.extend(neighbours(device)), in_turns)
    finally:
        for process in busy:
            process.kill()
            process.communicate()


def neighbours(device: torch.device) -> list[subprocess.Popen[str]]:
    """Starts one process for each core (on CUDA one for the card) that reads memory, and waits."""
    count = 1 if device.type == "cuda" else os.cpu_count() or 1
    command = [sys.executable, __file__, "--neighbour"]
    busy = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for process in busy:
        process.stdout.readline()
    return busy


def without_waiting(device: torch.device) -> dict[str, object]:
    """Times the launch alone, and the work by the device's own clock; only a card has the two."""
    if device.type != "cuda":
        return {"launch_s": "not applicable", "event_s": "not applicable"}
    tensor, launches, events = torch.ones(SIZES[-1] // 4, device=device), [], []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        start = perf_counter()
        tensor.sum()
        launches.append(float(f"{perf_counter() - start:.4g}"))
        end.record()
        torch.cuda.synchronize()
        events.append(float(f"{begin.elapsed_time(end) / 1000:.4g}"))
    return {"launch_s": launches, "event_s": events}


def main(arguments: list[str]) -> None:
    """Writes the record `protocols.<device>`; the options are for the processes it starts."""
    torch.set_num_threads(1)  # a second thread would measure how busy the machine is
    device = kvlib.device()
    if arguments[:1] == ["--runs"]:
        timed = reader(int(arguments[1]), device)
        print(json.dumps([timed() for _ in range(RUNS)]))
    elif arguments[:1] == ["--neighbour"]:
        timed, start = reader(SIZES[-1], device), perf_counter()
        print("ready", flush=True)
        while perf_counter() - start < NEIGHBOUR_SECONDS:
            timed()
    else:
        data = {
            "operation": "sum of a float32 tensor, which reads each byte once",
            "processes": fresh_processes(),
            "waiting": without_waiting(device),
            "under_drift": [under_drift(device, in_turns) for in_turns in (False, True)],
        }
        write("protocols", data, ("measure/protocols.py",), device)


if __name__ == "__main__":
    main(sys.argv[1:])
