"""A bar beside work that takes seconds, for whoever watches a notebook run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

W = TypeVar("W")
PATIENCE_S = 1.0  # work that is done by then shows no bar


def watched() -> bool:
    """Whether somebody watches: a Jupyter kernel runs, and nobody has set KVLIB_PROGRESS=off.

    The tests and `make notebooks` set it, because a bar is no result.
    """
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return hasattr(shell, "kernel") and os.environ.get("KVLIB_PROGRESS") != "off"


def progress(work: Collection[W], what: str) -> Iterator[W]:
    """Yields each piece of the work; a bar says how many are done and how long the rest will take.

    Nothing of it is seen once the work is done. A notebook that you save then holds an empty widget
    in its place, which is why `make notebooks` runs without bars.

    Args:
        work: what to go through; it has a length.
        what: what one piece is, as "lengths".

    Example:
        >>> [n * n for n in progress([1, 2, 3], "numbers")]
        [1, 4, 9]
    """
    with progress_to(len(work), what) as done:
        for number, piece in enumerate(work, 1):
            yield piece
            done(number)


@contextmanager
def progress_to(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Gives a call that says how many of `total` are done, such as `serve` wants for `progress`.

    Example:
        >>> with progress_to(3, "requests") as done:
        ...     done(2)
    """
    if not watched():
        yield lambda number: None
        return
    from tqdm.auto import tqdm

    kept: dict[str, Any] = {"leave": False, "delay": PATIENCE_S, "unit": ""}
    with tqdm(total=total, desc=what, **kept) as bar:

        def done(number: int) -> None:
            bar.update(number - bar.n)

        yield done
