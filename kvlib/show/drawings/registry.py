"""The drawings by name: each a plain function from control values to an SVG string."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kvlib.show.drawings.controls import Control, Scalar
from kvlib.show.drawings.homes import HOMES
from kvlib.sizes import near

Draw = Callable[..., str]


@dataclass(frozen=True)
class Drawing:
    """A registered drawing.

    Attributes:
        name: the function's name.
        draw: the function; its keyword arguments are the controls.
        controls: the control behind each argument, in the order the reader sees them.
    """

    name: str
    draw: Draw
    controls: dict[str, Control]

    def complete(self, values: Mapping[str, Any]) -> dict[str, Scalar]:
        """Returns a value for every control: the given one, else its default.

        Raises:
            TypeError: a name is not one of the controls.
            ValueError: a value is not one the control lists.
        """
        if unknown := set(values) - set(self.controls):
            raise TypeError(f"{self.name} has {list(self.controls)}, not {sorted(unknown)}")
        return {
            name: control.pick(values.get(name, control.default))
            for name, control in self.controls.items()
        }

    def __call__(self, **values: Any) -> str:
        """Returns the SVG at these values, with defaults for the rest."""
        return self.draw(**self.complete(values))


_DRAWINGS: dict[str, Drawing] = {}


def drawing(**controls: Control) -> Callable[[Draw], Draw]:
    """Registers the decorated function under its name, with a control for each argument."""

    def register(draw: Draw) -> Draw:
        _DRAWINGS[draw.__name__] = Drawing(draw.__name__, draw, controls)
        return draw

    return register


def names() -> list[str]:
    """Returns the names of all drawings, sorted."""
    return sorted({*HOMES, *_DRAWINGS})


def find(name: str) -> Drawing:
    """Returns a drawing by name, loading its module if need be.

    Raises:
        ValueError: there is none; the message lists the near names.
    """
    if name not in _DRAWINGS and name in HOMES:
        import_module(f"kvlib.show.drawings.{HOMES[name]}")
    if name not in _DRAWINGS:
        raise ValueError(near(name, names(), "drawing"))
    return _DRAWINGS[name]
