"""Pictures as pure functions: control values in, one SVG string out, standard library only.

The same functions draw in Jupyter's kernel, in a reader's browser and in the pages as built.
"""

# Importing a module of drawings registers what it draws.
from kvlib.show.drawings import (  # noqa: F401
    alignment,
    arena_map,
    batch_slots,
    block_pool,
    block_size_costs,
    budget_admission,
    cache_rows,
    exactness,
    fork_tree,
    fragmentation,
    growth,
    heatmap,
    logical_to_physical,
    paged_rows,
    pool_partition,
    reservation,
    reservation_lengths,
    reservation_quantile,
    result_table,
    roofline_point,
    sizing,
    split_kv,
    steps,
    timing,
    token_strip,
    weights,
    work,
    write_pattern,
    zoo,
)
from kvlib.show.drawings.controls import Choice, Control, Slider, Toggle
from kvlib.show.drawings.registry import Drawing, drawing, find, names

__all__ = ["Choice", "Control", "Drawing", "Slider", "Toggle", "drawing", "find", "names"]
