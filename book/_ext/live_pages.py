"""Makes built pages live: the scripts, the Python they run, and the policy that shuts it in.

Needs npm once; where that cannot be reached the book is built all the same, and one line says what
it lacks. With `ONLINE_ASSETS=1` npm is not asked and pages take Pyodide and MathJax from a CDN.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(Path(__file__).parent)) if path not in sys.path]

import web_assets  # noqa: E402

# As elements: the page that shows the source of these has them as text.
PARTS = ('<div class="kv-live"', '<div class="kv-exercise"', '<div class="kv-try"')
LACKS = "live drawings and exercises stand still, formulas stay TeX source"


def policy(online: bool) -> str:
    """The content security policy of every page: the book's own origin and nothing else.

    Workers only start from `blob:`, because a worker from an address would not be bound by it.
    """
    also = f" {web_assets.CDN}" if online else ""
    rules = {
        "default-src": "'self'",
        # The theme writes small scripts and styles into its pages.
        "script-src": f"'self' 'unsafe-inline' 'wasm-unsafe-eval'{also}",
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data:",
        "font-src": "'self' data:",
        "connect-src": f"'self'{also}",
        "worker-src": "blob:",
        "object-src": "'none'",
        "base-uri": "'self'",
        "form-action": "'self'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in rules.items())


def _roots(app: Sphinx) -> dict[str, str]:
    """Where pages find each package, relative to `_static` or on the CDN; empty without npm."""
    versions = web_assets.versions()
    if os.environ.get("ONLINE_ASSETS") == "1":
        return {name: f"{web_assets.CDN}/npm/{name}@{versions[name]}/" for name in web_assets.FILES}
    try:
        app.live_packages = web_assets.installed()
    except (web_assets.NoAssets, OSError) as missing:
        # Not a Sphinx warning: the book is right without them, and -W must not fail it.
        print(f"The book will lack this: {LACKS} ({missing})", file=sys.stderr)
        return {}
    return {name: f"vendor/{name}-{versions[name]}/" for name in web_assets.FILES}


def _prepare(app: Sphinx, config: Any) -> None:
    app.live_packages = None
    config.live_roots = _roots(app)
    config.live_digest = _digest()
    if config.live_roots:
        config.mathjax_path = f"{config.live_roots['mathjax']}es5/tex-svg.js"


def _scripts() -> list[Path]:
    kinds = (".js", ".mjs", ".css")
    return sorted(path for path in web_assets.LIVE.iterdir() if path.suffix in kinds)


def _digest() -> str:
    """Names the scripts and kvlib by their content, so that no browser mixes two versions."""
    parts = [web_assets.library(), *(path.read_bytes() for path in _scripts())]
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts))
    return digest.hexdigest()[:12]


def _page(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    roots, live = app.config.live_roots, f"live-{app.config.live_digest}"
    rule = policy(any("://" in root for root in roots.values()))
    meta = f'<meta http-equiv="Content-Security-Policy" content="{rule}" />'
    context["metatags"] = f"{meta}\n{context.get('metatags', '')}"
    if not roots:
        context["script_files"] = [s for s in context["script_files"] if not _is_mathjax(s)]
    if not any(part in context.get("body", "") for part in PARTS):
        return
    app.add_css_file(f"{live}/live.css")
    if roots:
        # The script reads this relative to its own folder, which lies beside `vendor`.
        at = roots["pyodide"] if "://" in roots["pyodide"] else f"../{roots['pyodide']}"
        data = {"data-pyodide": at, "data-bytes": str(_download_bytes(app.live_packages))}
        app.add_js_file(f"{live}/live.js", loading_method="defer", **data)


def _is_mathjax(script: Any) -> bool:
    return "mathjax" in str(getattr(script, "filename", script) or "").lower()


def _download_bytes(packages: Path | None) -> int:
    if packages is None:
        return 13_500_000  # about, of the pinned version
    return sum((packages / "pyodide" / name).stat().st_size for name in web_assets.FILES["pyodide"])


def _deliver(app: Sphinx, failed: Exception | None) -> None:
    """Writes the scripts, kvlib and the packages into the built book."""
    if failed or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    for old in static.glob("live-*"):
        shutil.rmtree(old)
    live = static / f"live-{app.config.live_digest}"
    live.mkdir(parents=True)
    for path in _scripts():
        shutil.copy(path, live)
    (live / "kvlib.zip").write_bytes(web_assets.library())
    if app.live_packages is not None:
        web_assets.vendor(app.live_packages, static / "vendor")


def setup(app: Sphinx) -> dict[str, bool]:
    """Pages are renewed when `live_digest` or `live_roots` change."""
    app.add_config_value("live_digest", "", "html")
    app.add_config_value("live_roots", {}, "html")
    app.add_js_file("paper.js", loading_method="defer")
    app.add_js_file("phone.js", loading_method="defer")
    app.connect("config-inited", _prepare)
    app.connect("html-page-context", _page, priority=800)
    app.connect("build-finished", _deliver)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
