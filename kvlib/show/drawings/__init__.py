"""Pictures as pure functions: control values in, one SVG string out, standard library only.

The same functions draw in Jupyter's kernel, in a reader's browser and in the pages as built.
"""

# Importing a module of drawings registers what it draws.
from kvlib.show.drawings import (  # noqa: F401
    block_pool,
    block_size_costs,
    budget_admission,
    exactness,
    fork_tree,
    fragmentation,
    heatmap,
    logical_to_physical,
    reservation,
    roofline_point,
    sizing,
    split_kv,
    steps,
    timing,
    weights,
    work,
    zoo,
)
from kvlib.show.drawings.controls import Choice, Control, Slider, Toggle
from kvlib.show.drawings.registry import Drawing, drawing, find, names

__all__ = ["Choice", "Control", "Drawing", "Slider", "Toggle", "drawing", "find", "names"]
