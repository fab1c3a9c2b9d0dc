"""The colours of the book and what each one means: in drawings, in plots, everywhere.

A colour is a word here. Every role also has a hatch, and every picture names its roles in text, so
nothing is told by colour alone. The hues keep apart for the common kinds of colour blindness
(after Okabe and Ito, "Color universal design", 2008).
"""

from __future__ import annotations

from typing import NamedTuple


class Role(NamedTuple):
    r"""How one role looks.

    Attributes:
        light: its colour on a light page.
        dark: its colour on a dark page.
        hatch: its texture: "", "/", "\\", "x", ".", "-" or "|", as matplotlib spells them.
    """

    light: str
    dark: str
    hatch: str = ""


ROLES: dict[str, Role] = {
    "weights": Role("#868b93", "#9aa1ab", "\\"),
    "used": Role("#0072b2", "#4ba3dc"),
    "reserved": Role("#56b4e9", "#2f6f96", "/"),
    "wasted": Role("#d55e00", "#e8793a", "x"),
    "cached": Role("#009e73", "#2bb58d", "."),
    "prefill": Role("#e69f00", "#efb73e", "-"),
    "decode": Role("#b3559a", "#d58cc0", "|"),
}

# What carries no meaning of its own: text, lines, the sheet a picture lies on.
GROUND: dict[str, Role] = {
    "ink": Role("#1c2430", "#e8ebf0"),
    "faint": Role("#5b6472", "#a9b1bd"),
    "rule": Role("#c9ced6", "#4a5360"),
    "paper": Role("#ffffff", "#181d24"),
}


def colour(name: str) -> str:
    """Returns a colour as CSS: a variable that a dark page sets, with the light value in it."""
    return f"var(--kv-{name},{(ROLES | GROUND)[name].light})"


def stylesheet() -> str:
    """Returns the CSS of a dark page, in the book and in JupyterLab."""
    dark = ";".join(f"--kv-{name}:{role.dark}" for name, role in (ROLES | GROUND).items())
    pages = ("html[data-theme=dark] .kv-live", "body[data-jp-theme-light=false] .kv-live")
    # The book's theme puts HTML outputs of a dark page on a light sheet; ours bring their own.
    sheet = "html[data-theme=dark] .bd-content .cell_output .text_html:has(>.kv-live,>.kv-exercise)"
    return (
        f"{','.join(pages)}{{{dark}}}"
        f"{sheet}{{background:none!important;color:inherit!important;padding:0!important}}"
    )
