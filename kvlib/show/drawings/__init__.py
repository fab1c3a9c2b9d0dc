"""Pictures as pure functions: control values in, one SVG string out, standard library only.

The same functions draw in Jupyter's kernel, in a reader's browser and in the pages as built. A
module of drawings is loaded when one of its drawings is first asked for; `homes.py` lists them.
"""

from kvlib.show.drawings.controls import Choice, Control, Slider, Toggle
from kvlib.show.drawings.registry import Drawing, drawing, find, names

__all__ = ["Choice", "Control", "Drawing", "Slider", "Toggle", "drawing", "find", "names"]
