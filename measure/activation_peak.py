"""Runs the largest step of SmolLM2-135M and asks the system: python measure/activation_peak.py.

Counting tensors is one thing; what a process takes from its system is another. For each size of
step a fresh process loads the model, notes the most memory it ever held, runs the step, and notes
it again. On a card that is what torch's allocator took from the driver.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import torch

import kvlib
from kvlib.tensors.profile_run import profile_run
from kvlib.tensors.weights import load_model
from record import write

STEPS = (64, 256, 1024, 2048)
WARM = 16  # tokens: so that what is loaded at the first use is there already


def resident(device: torch.device) -> int:
    """Returns the most bytes this process ever held there; Linux counts in KiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(num_tokens: int) -> dict[str, int]:
    """Measures one step in this process."""
    torch.set_num_threads(1)
    model, _ = load_model()
    profile_run(model, WARM)
    before = resident(model.device)
    found = profile_run(model, num_tokens)
    kv_bytes = -(-num_tokens // 16) * 16 * model.kv_shape.bytes_per_token("float32")
    return {
        "tokens": num_tokens,
        "weight_bytes": found.weight_bytes,
        "activation_bytes": found.activation_bytes,
        "kv_bytes": kv_bytes,
        "resident_growth_bytes": resident(model.device) - before,
        "resident_bytes": resident(model.device),
    }


def main() -> None:
    """Writes the record `activation_peak.<device>`."""
    rows = []
    for num_tokens in STEPS:
        command = [sys.executable, __file__, str(num_tokens)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
    code = ("kvlib/tensors/llama.py", "kvlib/tensors/profile_run.py", "measure/activation_peak.py")
    write("activation_peak", {"model": "SmolLM2-135M", "rows": rows}, code, kvlib.device())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(int(sys.argv[1]))))
    else:
        main()
