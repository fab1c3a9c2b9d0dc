"""A small builder of SVG strings: the same calls give the same string on every machine."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from textwrap import wrap

from kvlib.show.drawings.palette import ROLES, colour

WIDTH = 440
MARGIN = 16
ROOM = WIDTH - 2 * MARGIN

# Strokes of an 8 by 8 tile for each hatch of the palette.
_HATCHES = {
    "/": "M-2,2l4,-4M0,8l8,-8M6,10l4,-4",
    "\\": "M-2,6l4,4M0,0l8,8M6,-2l4,4",
    "x": "M0,0l8,8M0,8l8,-8",
    ".": "M3,4h2",
    "-": "M0,2h8M0,6h8",
    "|": "M2,0v8M6,0v8",
}


def number(value: float) -> str:
    """Returns a coordinate with at most two decimals, so that hosts cannot differ in the rest.

    Example:
        >>> number(1 / 3), number(2.0), number(-0.001)
        ('0.33', '2', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


class Canvas:
    """A sheet 440 units wide to draw on; the page scales it to the width it has.

    Args:
        name: the drawing's name; keeps the pattern ids of different drawings apart.
        height: the height in the same units.
        title: the picture in one sentence.
        desc: what is seen, and what to conclude; read aloud in place of the picture.
        heading: what stands above the picture; the title where it is short enough.
        under: a second, fainter line.
    """

    def __init__(
        self, name: str, height: float, title: str, desc: str, heading: str = "", under: str = ""
    ) -> None:
        self._name, self._height = name, number(height)
        self._head = f"<title>{escape(title)}</title><desc>{escape(desc)}</desc>"
        self._shapes: list[str] = []
        self._hatched: list[str] = []
        self.text(MARGIN, 26, heading or title, size=15, bold=True)
        if under:
            self.text(MARGIN, 46, under, role="faint")

    def _paint(self, role: str, width: float) -> str:
        # In a sliver a hatch is noise.
        if role not in ROLES or not ROLES[role].hatch or width < 4:
            return colour(role)
        if role not in self._hatched:
            self._hatched.append(role)
        return f"url(#{self._name}-{role})"

    def rect(
        self, x: float, y: float, width: float, height: float, role: str, frame: str = ""
    ) -> None:
        """Adds a filled rectangle; `frame` names the role of its outline, if it has one."""
        stroke = f' stroke="{colour(frame)}"' if frame else ""
        self._shapes.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}" fill="{self._paint(role, width)}"{stroke}/>'
        )

    def line(
        self, points: Iterable[tuple[float, float]], role: str, width: float = 1, dash: str = ""
    ) -> None:
        """Adds a line through the points."""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{colour(role)}" '
            f'stroke-width="{number(width)}"{dashes}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        anchor: str = "start",
        *,
        size: float = 13,
        bold: bool = False,
        role: str = "ink",
    ) -> None:
        """Adds one line of text whose baseline is at `y`; `anchor` is start, middle or end."""
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" '
            f'text-anchor="{anchor}" fill="{colour(role)}"{weight}>{escape(words)}</text>'
        )

    def paragraph(self, y: float, words: str, *, bold: bool = False, role: str = "ink") -> float:
        """Adds text broken to the sheet's width and returns the baseline below its last line."""
        for row in wrap(words, 52 if bold else 60):
            self.text(MARGIN, y, row, bold=bold, role=role)
            y += 18
        return y

    def key(self, x: float, y: float, role: str, words: str) -> None:
        """Adds a legend entry: a swatch of the role and its words."""
        self.rect(x, y - 10, 12, 12, role, "faint")
        self.text(x + 18, y, words)

    def table(self, y: float, column: float, rows: Iterable[tuple[str, str, str, str]]) -> None:
        """Adds legend entries with two figures each, the first one ending at `column`."""
        for role, words, figure, share in rows:
            self.key(MARGIN, y, role, words)
            self.text(column, y, figure, "end", bold=True)
            self.text(WIDTH - MARGIN, y, share, "end")
            y += 22

    def svg(self) -> str:
        """Returns the picture as one SVG element."""
        patterns = "".join(
            f'<pattern id="{self._name}-{role}" width="8" height="8" '
            f'patternUnits="userSpaceOnUse"><rect width="8" height="8" fill="{colour(role)}"/>'
            f'<path d="{_HATCHES[ROLES[role].hatch]}" stroke="{colour("paper")}" '
            f'stroke-width="1.4" stroke-opacity="0.7"/></pattern>'
            for role in self._hatched
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {WIDTH} {self._height}" font-family="system-ui,sans-serif" '
            f'style="width:100%;max-width:560px;height:auto">{self._head}<defs>{patterns}</defs>'
            f'<rect width="{WIDTH}" height="{self._height}" rx="8" fill="{colour("paper")}"/>'
            f"{''.join(self._shapes)}</svg>"
        )
