"""Goes on where `first_cache.py` stops, to long texts: python measure/speed_up.py.

Few rounds at 2,048 tokens, where one without a cache takes many seconds on a CPU.
"""

from __future__ import annotations

import kvlib
from first_cache import record

REPEATS = {128: 15, 512: 9, 2048: 5}

if __name__ == "__main__":
    record("speed_up", REPEATS, "measure/speed_up.py", kvlib.device())
