"""When llama.cpp's tokens come, as a mark beside our own: on four-bit weights, if it is to be had.

`KVLIB_LLAMA_CPP` names the folder that `llama_cpp` can be imported from, `KVLIB_GGUF` the model's
file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import perf_counter


def token_times(num_threads: int, num_tokens: int) -> Callable[[list[int]], list[float]] | None:
    """Returns what notes when each token behind a prompt comes, or None without llama.cpp."""
    folder, model_file = os.environ.get("KVLIB_LLAMA_CPP"), os.environ.get("KVLIB_GGUF")
    if not folder or not model_file:
        return None
    sys.path.append(folder)
    import llama_cpp

    threads = {"n_threads": num_threads, "n_threads_batch": num_threads}
    llama = llama_cpp.Llama(model_path=model_file, n_ctx=4096, verbose=False, **threads)

    def times(prompt: list[int]) -> list[float]:
        llama.reset()
        stamps, tokens = [], llama.generate(prompt, temp=0.0)
        for _ in range(num_tokens):
            next(tokens)
            stamps.append(perf_counter())
        return stamps

    return times


def reads_of_a_token(kv_bytes_per_token: int) -> dict[str, object]:
    """Returns what llama.cpp reads for a token: at most its file, and 16-bit keys and values."""
    return {
        "version": sys.modules["llama_cpp"].__version__,  # of its Python package
        "file_bytes": os.path.getsize(os.environ["KVLIB_GGUF"]),
        "kv_bytes_per_token": kv_bytes_per_token,
    }
