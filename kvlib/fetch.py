"""Downloads a trace from its publisher, pinned to a commit and checked by SHA-256.

`python -m kvlib.fetch azure-conv` puts the file into the user's cache, where
`workloads.load("azure-conv")` finds it. No trace is downloaded unasked.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from kvlib.sizes import near
from kvlib.trace_lines import MAX_FILE_BYTES
from kvlib.traces import Trace, cache_folder, trace, traces

TIMEOUT_S = 30


class FetchError(RuntimeError):
    """The file could not be downloaded; whatever was there before is there still."""


def fetchable() -> list[str]:
    """Lists the traces that can be downloaded: those whose published SHA-256 is known."""
    return [name for name in traces() if trace(name).sha256]


def fetch(name: str, folder: Path | None = None) -> Path:
    """Returns the path of a trace's publisher's file, downloaded unless it is there already.

    The file is written under a temporary name beside its place, checked, then renamed: a reader
    sees the whole published file or none.

    Args:
        name: one of `fetchable()`.
        folder: where the file goes; the user's cache if not given.

    Raises:
        ValueError: no such trace, or none whose download could be checked.
        FetchError: pooch is missing, there is no connection, the disk is full, or the file is not
            the published one or longer than any trace that is read. No part of it stays behind.
    """
    if name not in traces():
        raise ValueError(near(name, fetchable(), "trace"))
    if name not in fetchable():
        raise ValueError(
            f"{name} has no known SHA-256 to check a download by; {', '.join(fetchable())} have one"
        )
    known, folder = trace(name), folder or cache_folder()
    pooch, requests, tqdm = _packages()
    pooch.get_logger().setLevel("WARNING")
    try:
        # A bar without a total is false to pooch, which sets the true one. No bar off a terminal.
        with tqdm(total=1, unit="B", unit_scale=True, leave=False, disable=None) as bar:
            return Path(
                pooch.retrieve(
                    known.url,
                    known_hash=f"sha256:{known.sha256}",
                    fname=known.publisher_file,
                    path=folder,
                    downloader=_limited(pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT_S)),
                )
            )
    except requests.HTTPError as error:
        raise FetchError(f"{known.url} answered {error.response.status_code}") from error
    except requests.RequestException as error:
        raise FetchError(f"no connection to {known.url} ({type(error).__name__})") from error
    except (OSError, ValueError) as error:
        raise FetchError(_reason(error, known, folder)) from error


class _Limited:
    """A file that takes no more than a trace may have: a server can send without end."""

    def __init__(self, file: BinaryIO) -> None:
        self.flush = file.flush
        self._file, self._left = file, MAX_FILE_BYTES

    def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise FetchError(f"more than {MAX_FILE_BYTES:,} bytes came, no trace has so many")
        self._file.write(data)


def _limited(download: Callable[..., None]) -> Callable[..., None]:
    def into(url: str, path: str, asked_by: Any) -> None:
        with open(path, "wb") as file:
            download(url, _Limited(file), asked_by)

    return into


def _packages() -> tuple[Any, Any, Any]:
    try:
        import pooch
        import requests
        from tqdm import tqdm
    except ImportError as error:
        raise FetchError(f"downloading needs {error.name}: pip install pooch tqdm") from error
    return pooch, requests, tqdm


def _reason(error: Exception, known: Trace, folder: Path) -> str:
    if isinstance(error, ValueError):
        found = str(error).partition(" Deleted download")[0]
        return f"{known.url} is not the published file: {found}"
    # Windows has no quota error.
    full = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
    if isinstance(error, OSError) and error.errno in full:
        return f"the disk is full: no room for {known.publisher_file} in {folder}"
    return f"cannot write {known.publisher_file} into {folder}: {error}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, 1 for a failed download, 2 for a wrong name."""
    parser = argparse.ArgumentParser(
        prog="python -m kvlib.fetch", description="Download a request trace from its publisher."
    )
    parser.add_argument("name", help=", ".join(fetchable()))
    name = parser.parse_args(arguments).name
    try:
        print(fetch(name))
    except (FetchError, ValueError) as error:
        print(f"kvlib.fetch: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    print(trace(name).source, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
