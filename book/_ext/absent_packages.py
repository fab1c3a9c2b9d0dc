"""Gives the API pages the same text whether the packages that kvlib computes with are there or not.

The book is built without torch. Autodoc stands in for what `autodoc_mock_imports` names, but only
while it imports a module, and not for what somebody imported before; and its stand-ins cannot be
joined by `|`, so that a signature which names one loses its links and shows whole paths. Here they
stand from the first page to the last, and `torch.device | str` is a type.
"""

from __future__ import annotations

import sys
from typing import Any, Union

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.ext.autodoc.mock import MockFinder, _MockObject


def _either(one: Any, other: Any) -> Any:
    return Union[one, other]  # noqa: UP007 (the operator is what is defined here)


def _stand_in(app: Sphinx, config: Config) -> None:
    names = config.autodoc_mock_imports
    for module in [*sys.modules]:
        if module.partition(".")[0] in names:
            del sys.modules[module]
    sys.meta_path.insert(0, MockFinder(names))
    _MockObject.__or__ = _either
    _MockObject.__ror__ = lambda one, other: _either(other, one)


def setup(app: Sphinx) -> dict[str, bool]:
    """After every extension was loaded: some look for matplotlib and do without it."""
    app.connect("config-inited", _stand_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
