"""A lane for copies beside the lane of computation, and what each must wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch


class Copy:
    """Work handed to a lane; whoever needs what it does waits for it first."""

    def __init__(self, future: Future, finished: torch.cuda.Event | None) -> None:
        self._future, self._finished = future, finished

    @property
    def done(self) -> bool:
        """Whether it has ended well; asking waits for nothing."""
        if not self._future.done() or self._future.exception() is not None:
            return False
        return self._finished is None or self._finished.query()

    def result(self) -> Any:
        """Returns what the work returned, once it has; on CUDA its copies may still be under way.

        Raises:
            What the work raised.
        """
        return self._future.result()

    def wait(self) -> Any:
        """Lets the computation wait, and returns what the work returned.

        On CUDA what the current stream does next waits; the host waits only until the copies have
        been ordered.

        Raises:
            What the work raised.
        """
        result = self.result()
        if self._finished is not None:
            torch.cuda.current_stream().wait_event(self._finished)
        return result

    def ended(self) -> bool:
        """Lets the computation wait as `wait` does, and answers whether the work ended well."""
        well = self._future.exception() is None
        if self._finished is not None:
            torch.cuda.current_stream().wait_event(self._finished)
        return well


class CopyLane:
    """Does copies one after the other, in the order they were handed in, beside the computation.

    On a CPU the lane is a thread: copying and hashing let go of Python's lock. On CUDA the thread
    also has a stream of its own, so that the device copies while it computes. Order within the lane
    is given. Order between the lanes is not; it is made of two waits:

    - *a copy waits for the computation before it*: the lane begins a piece of work only after all
      that the computation had ordered when it was handed in (`submit` does this);
    - *the computation waits for the copy*: whoever reads what arrives, or writes over what leaves,
      calls `wait` first. Only the caller knows when.

    Args:
        device: whose computation it runs beside.
        gb_s: stands for a slower link: after each piece of work the lane waits until its bytes
            would have passed at so many GB/s. None: as fast as this machine copies.

    Raises:
        ValueError: `gb_s` is not above 0.

    Example:
        >>> with CopyLane() as lane:
        ...     copy = lane.submit(lambda: 6 * 7)
        ...     copy.wait(), copy.done
        (42, True)
    """

    def __init__(self, device: torch.device | str = "cpu", *, gb_s: float | None = None) -> None:
        if gb_s is not None and not gb_s > 0:
            raise ValueError(f"a link passes more than 0 GB/s, got {gb_s!r}")
        self.device, self.gb_s = torch.device(device), gb_s
        on_cuda = self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if on_cuda else None
        self.busy_s, self._handed_in, self._ended = 0.0, 0, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copy-lane")

    def submit(self, work: Callable[[], Any], num_bytes: int = 0) -> Copy:
        """Hands in a piece of work; it runs after all that was handed in before.

        Args:
            work: makes the copies, in the lane's stream.
            num_bytes: that pass the link, for `gb_s`.

        Raises:
            RuntimeError: the lane is closed.
        """
        if self.stream is None:
            run = self._thread.submit(self._run, work, num_bytes)
            self._handed_in += 1
            return Copy(run, None)
        ready, finished = torch.cuda.Event(), torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self.device))
        run = self._thread.submit(self._run_on_stream, work, num_bytes, ready, finished)
        self._handed_in += 1
        return Copy(run, finished)

    def arrive(self) -> None:
        """Lets the host wait for the copies ordered so far: before it reads what they brought."""
        if self.stream is not None:
            self.stream.synchronize()

    def drain(self) -> None:
        """Waits until all that was handed in is done; on CUDA the host waits too."""
        self.submit(lambda: None).wait()
        self.arrive()

    def check(self) -> None:
        """Proves that all that was handed in has come to an end, well or not. Waits for it.

        Raises:
            AssertionError: an invariant is broken, with its name.
        """
        self.drain()
        both = f"{self._handed_in} copies handed in, {self._ended} ended"
        assert self._ended == self._handed_in, both

    def close(self) -> None:
        """Finishes what was handed in and ends the thread; a second time does nothing."""
        self._thread.shutdown()
        self.arrive()

    def __enter__(self) -> CopyLane:
        """Returns itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes."""
        self.close()

    def _run(self, work: Callable[[], Any], num_bytes: int) -> Any:
        begun = time.perf_counter()
        try:
            # A thread begins outside the caller's inference mode, where what was made inside of it
            # must not be written to; in here both may.
            with torch.inference_mode():
                result = work()
            if self.gb_s is not None:
                self.arrive()
                time.sleep(max(0.0, begun + num_bytes / self.gb_s / 1e9 - time.perf_counter()))
            return result
        finally:
            self.busy_s += time.perf_counter() - begun
            self._ended += 1

    def _run_on_stream(
        self,
        work: Callable[[], Any],
        num_bytes: int,
        ready: torch.cuda.Event,
        finished: torch.cuda.Event,
    ) -> Any:
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(ready)
            try:
                return self._run(work, num_bytes)
            finally:
                finished.record(self.stream)
