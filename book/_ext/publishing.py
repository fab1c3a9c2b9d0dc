"""Where the book is published, set in one place, and which version of it a page is from.

`book_repository` in `_config.yml` is the address of the repository, `book_address` that of the
published book. Buttons that need either are shown only when it is set.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

ROOT = Path(__file__).resolve().parents[2]
FOOTER = '<span class="kv-version"></span>'
STAMP = re.compile(r'(<span class="kv-version">).*?(</span>)')
NO_ADDRESS = re.compile(r'<meta property="og:url"[^>]*>\s*')


def options(repository: str, branch: str) -> dict:
    """Returns the theme's options for a repository; without one it has no button to show."""
    if not repository:
        return {}
    return {
        "repository_url": repository.rstrip("/"),
        "repository_branch": branch,
        "path_to_docs": "",
        "use_repository_button": True,
        "use_edit_page_button": True,
        "use_issues_button": True,
        "launch_buttons": {
            "binderhub_url": "https://mybinder.org",
            "colab_url": "https://colab.research.google.com",
            "notebook_interface": "jupyterlab",
        },
    }


def version() -> str:
    """Returns the library's version with its commit: `KVLIB_COMMIT`, else what git knows."""
    text = (ROOT / "kvlib" / "__init__.py").read_text(encoding="utf-8")
    number = re.search(r'^__version__ = "(.*)"', text, re.MULTILINE)[1]
    found = os.environ.get("KVLIB_COMMIT") or commit()
    return f"Version {number}, {f'commit {found}' if found else 'not built from a repository'}"


def commit() -> str:
    """Returns the commit that is checked out, its day, and whether files have changed since."""
    found = _git("log", "-1", "--format=%h of %cs")
    return found + (", with changes since" if found and _git("status", "--porcelain") else "")


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    except OSError:  # no git on this machine
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _configured(app: Sphinx, config: Config) -> None:
    config.html_theme_options |= {"extra_footer": FOOTER}
    config.html_theme_options |= options(config.book_repository, config.book_branch)
    if config.book_address:
        config.html_baseurl = config.ogp_site_url = config.book_address.rstrip("/") + "/"


def _page(app: Sphinx, page: str, template: str, context: dict, document: object) -> None:
    if not app.config.book_address:  # a place on no host is no address
        context["metatags"] = NO_ADDRESS.sub("", context.get("metatags", ""))


def stamp(folder: Path, said: str) -> None:
    """Writes the version on every page, also on those that this build had no reason to write."""
    for path in folder.rglob("*.html"):
        before = path.read_text(encoding="utf-8")
        if (after := STAMP.sub(lambda found: found[1] + said + found[2], before)) != before:
            path.write_text(after, encoding="utf-8")


def _finished(app: Sphinx, failed: Exception | None) -> None:
    if not failed and app.builder.format == "html":
        stamp(Path(app.outdir), version())


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the settings, and what follows from them before the theme asks."""
    for name, default in (("repository", ""), ("branch", "main"), ("address", "")):
        app.add_config_value(f"book_{name}", default, "html", types=frozenset({str}))
    app.connect("config-inited", _configured, priority=400)
    app.connect("html-page-context", _page, priority=900)
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
