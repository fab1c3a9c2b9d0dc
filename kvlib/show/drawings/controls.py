"""What a reader may change in a drawing: always a finite list, so that a test can try it all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

Scalar = str | int | float | bool


class Control:
    """One of finitely many values; see `Slider`, `Choice` and `Toggle`.

    Attributes:
        values: all of them in order, each a JSON scalar.
        default: the one in a picture nobody has touched.
        label: what a reader sees beside it, with the unit.
        texts: how each value is written: given as a format, or as a mapping.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        values: Sequence[Scalar],
        default: Scalar,
        label: str,
        texts: str | Mapping[Any, str] = "{}",
    ) -> None:
        self.values = tuple(values)
        self.label = label
        self.texts = tuple(
            texts.format(value) if isinstance(texts, str) else texts[value] for value in values
        )
        self.default = self.pick(default)

    def pick(self, value: Any) -> Scalar:
        """Returns the listed value equal to `value`.

        Raises:
            ValueError: no listed value is equal to it.
        """
        if value not in self.values:
            raise ValueError(f"{self.label!r} takes one of {list(self.values)}, not {value!r}")
        return self.values[self.values.index(value)]

    def text(self, value: Scalar) -> str:
        """Returns how a listed value is written for the reader."""
        return self.texts[self.values.index(value)]


class Slider(Control):
    """Values in a meaningful order, moved by dragging or with the arrow keys."""

    kind = "slider"


class Choice(Control):
    """Values without an order, picked from a list."""

    kind = "choice"


class Toggle(Control):
    """Off or on."""

    kind = "toggle"

    def __init__(self, default: bool, label: str, off: str = "no", on: str = "yes") -> None:
        super().__init__([False, True], default, label, {False: off, True: on})
