"""What serving a workload on two pools has come to."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvlib.histogram import Histogram
from kvlib.serving_run import ServingRun


@dataclass
class DisaggregatedRun(ServingRun):
    """Counts of a run on two pools; what `ServingRun` counts is counted over both.

    The first token comes from the prefill instance. So the handover is no part of the time to the
    first token, but of the time to the second, and with it of the mean of those after the first.

    Attributes:
        num_prefill: instances that compute prompts.
        num_decode: instances that decode.
        sent: prompts whose keys and values were handed over.
        bytes_sent: of those.
        lost: requests that began anew, since the instance that had computed for them was lost.
        prefill_busy_s: seconds in which a step ran, over the prefill instances; of one that was
            lost, up to then.
        decode_busy_s: the same for the decode instances.
        link_s: seconds in which a prompt was on its way, over all links.
        handover_s: times from a prompt's end to its arrival, waits for memory and link included.
    """

    num_prefill: int = 0
    num_decode: int = 0
    sent: int = 0
    bytes_sent: int = 0
    lost: int = 0
    prefill_busy_s: float = 0.0
    decode_busy_s: float = 0.0
    link_s: float = 0.0
    handover_s: Histogram = field(default_factory=Histogram)

    @property
    def idle_shares(self) -> tuple[float, float]:
        """The share of the time in which the prefill, and the decode instances had no step."""
        whole = self.now_s or 1
        busy = self.prefill_busy_s / self.num_prefill, self.decode_busy_s / self.num_decode
        return 1 - busy[0] / whole, 1 - busy[1] / whole
