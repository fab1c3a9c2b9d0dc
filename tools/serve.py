"""Serves the built book on this machine and opens it: python tools/serve.py _build/html."""

from __future__ import annotations

import functools
import http.server
import sys
import webbrowser
from pathlib import Path


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each request."""

    def log_message(self, *args: object) -> None:
        pass


def serve(folder: Path) -> None:
    """Serves `folder` on a free port of 127.0.0.1 until Ctrl-C."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        print(f"The book is open at {address} (Ctrl-C ends it)")
        webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nClosed.")


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve()
    if not (site / "index.html").exists():
        sys.exit(f"no built book in {site}: run `make html` first")
    if sys.stdout.isatty():
        serve(site)
    else:
        # Without a terminal nobody could end the server.
        print(f"The book is built: {site / 'index.html'}")
        print(f"To read it over HTTP: python tools/serve.py {sys.argv[1]}, from a terminal")
