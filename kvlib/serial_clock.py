"""A clock whose steps do one thing at a time: first all bytes, then all arithmetic.

A roofline lets the two overlap perfectly, here they do not at all. Both reach the peaks of the data
sheet, so a real step may be slower than either: they bracket what overlap is worth, not a card.
What a policy gains under the one and loses under the other is open.
"""

from __future__ import annotations

from kvlib.clock import RooflineClock
from kvlib.scheduled_step import Step


class SerialClock(RooflineClock):
    """The time of each step if its bytes and its arithmetic take turns; made as `RooflineClock`.

    Example:
        A prompt of 1,024 tokens takes the time of its arithmetic, and that of reading the weights:

        >>> from kvlib.catalog import gpu, model
        >>> from kvlib.request import Request
        >>> from kvlib.served import ServedRequest
        >>> job = ServedRequest(Request(0, None, 1024, 9), 0, 0.0, 1033, 1033, num_tokens=1024)
        >>> card, llama = gpu("H100 SXM5"), model("Llama-3-8B")
        >>> [round(1000 * clock(card, llama).seconds(Step([(job, 1024)])), 1)
        ...  for clock in (RooflineClock, SerialClock)]
        [16.9, 21.7]
    """

    def seconds(self, step: Step) -> float:
        """Returns the time of a step; raises as `RooflineClock.seconds`."""
        whole = super().seconds(step)
        if not step.work:
            return whole
        keys, pairs = step.attention()
        flops = step.num_tokens * self._token_flops + pairs * self._pair_flops
        num_bytes = self._weight_bytes + keys * self._token_bytes
        peak = 1e12 * (self._gpu.bf16_dense_tflops or self._gpu.fp16_dense_tflops)
        # The roofline has counted the longer of the two already.
        return whole + min(flops / peak, num_bytes / (self._gpu.memory_bandwidth_gb_s * 1e9))
