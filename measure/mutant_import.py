"""Hands the import system a mutant's text in place of a file, which stays as it is on the disk."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path


class Loader(SourceFileLoader):
    """Loads `source` as if it stood in a file."""

    source = b""

    def get_data(self, path: str) -> bytes:
        """Returns the text."""
        return self.source

    def path_stats(self, path: str) -> dict[str, int]:
        """Refuses, as if nobody knew when the file was written."""
        raise OSError("never from a compiled file, and never written to one")


class Finder:
    """Finds one module, with other text; for `sys.meta_path`."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns where the module is loaded from, None for all others."""
        if name != self.name:
            return None
        loader = Loader(name, str(self.path))
        loader.source = self.source.encode()
        return importlib.util.spec_from_file_location(name, self.path, loader=loader)
