"""Every drawing draws over its whole range, says what it shows, and tells the right numbers."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib import catalog
from kvlib.show.drawings import Choice, Slider, Toggle, drawing, find, names
from kvlib.show.drawings.homes import HOMES
from kvlib.show.drawings.palette import GROUND, ROLES, stylesheet
from kvlib.show.drawings.registry import _DRAWINGS
from kvlib.show.drawings.reservation import BUDGET_TOKENS, admitted
from kvlib.show.drawings.steps import total
from kvlib.show.drawings.svg import WIDTH, Canvas, number
from kvlib.show.drawings.weights import HEAD_DIMS, LENGTHS, mean_self_weights

SVG = "{http://www.w3.org/2000/svg}"
NUMBERS = re.compile(r"(-?\d+(\.\d{1,2})?[ ,]?)+")
# The average letter of a wide sans-serif face (DejaVu Sans) as a share of the font size.
LETTER, BOLD_LETTER = 0.53, 0.6


def moves() -> list:
    """Each control of each drawing moved over its range, the others at their defaults."""
    return [
        pytest.param(name, {control: value}, id=f"{name}-{control}-{value}")
        for name in names()
        for control, made in find(name).controls.items()
        for value in made.values
    ]


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[str, dict]:
    """Any drawing with any values."""
    name = draw(st.sampled_from(names()))
    controls = find(name).controls.items()
    return name, {key: draw(st.sampled_from(control.values)) for key, control in controls}


def check_sheet(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    for part in ("title", "desc"):
        assert len(root.find(SVG + part).text) > 15
    assert len(root.find(SVG + "desc").text) > 80
    _, _, width, height = map(float, root.get("viewBox").split())
    assert width == WIDTH
    for text in root.iter(f"{SVG}text"):
        check_inside(text, height)
    for shape in root.iter():
        for key in ("x", "y", "width", "height", "points", "stroke-width"):
            assert NUMBERS.fullmatch(shape.get(key, "0")), (key, shape.get(key))
        assert float(shape.get("width", "0")) >= 0
        assert float(shape.get("height", "0")) >= 0


def check_inside(text: ElementTree.Element, height: float) -> None:
    letter = BOLD_LETTER if text.get("font-weight") else LETTER
    room = len(text.text) * float(text.get("font-size")) * letter
    x, y = float(text.get("x")), float(text.get("y"))
    left = {"start": x, "middle": x - room / 2, "end": x - room}[text.get("text-anchor")]
    assert left > 0, text.text
    assert left + room < WIDTH, text.text
    assert 10 < y < height - 4, text.text


@pytest.mark.parametrize("name", names())
def test_the_controls_are_the_arguments_of_the_function(name: str) -> None:
    drawn = find(name)
    assert list(inspect.signature(drawn.draw).parameters) == list(drawn.controls)
    assert all(control.label for control in drawn.controls.values())
    for control in drawn.controls.values():
        assert len(set(control.values)) == len(control.values) == len(set(control.texts))


@pytest.mark.parametrize(("name", "values"), moves())
def test_a_drawing_draws_over_the_range_of_each_control(name: str, values: dict) -> None:
    check_sheet(find(name)(**values))


@given(settings_of())
def test_a_drawing_draws_at_any_values(setting: tuple[str, dict]) -> None:
    name, values = setting
    svg = find(name)(**values)
    check_sheet(svg)
    assert svg == find(name)(**values)


def test_every_control_changes_the_picture() -> None:
    for name in names():
        for key, control in find(name).controls.items():
            pictures = {find(name)(**{key: value}) for value in control.values}
            assert len(pictures) > 1, (name, key)


def test_every_host_without_packages_draws_the_same() -> None:
    script = (
        "import hashlib, kvlib.show.live as live; from kvlib.show.drawings import names\n"
        "print(hashlib.sha256(''.join(map(live.render, names())).encode()).hexdigest())"
    )
    root = Path(__file__).resolve().parents[1]
    # -S leaves out installed packages; another hash seed reorders every set.
    runs = [
        subprocess.run(
            [sys.executable, "-S", "-c", script],
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(runs[0].strip()) == 64
    assert runs[0] == runs[1]


def test_llama_3_8b_leaves_room_for_59_requests_of_8192_tokens() -> None:
    svg = find("kv_size_explorer")()
    # 80 GB - 16.06 GB of weights; 2^30 bytes a request.
    assert "room for 59" in svg
    assert "17.2 GB" in svg
    assert "One request keeps 1.07 GB" in svg


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "Llama-3.1-405B"}, "the weights alone are 732 GB too large"),
        ({"context": 65536, "batch": 64}, "only 7"),
        ({"context": 1048576, "gpu": "L4"}, "not even"),
        ({"context": 16384}, "Beyond the model: published for 8,192 tokens"),
        ({"model": "Gemma-3-27B"}, "layers stop at 1,024 tokens"),
        ({"context": 32768, "batch": 1, "model": "Llama-2-70B", "dtype": "int4"}, "room for 16"),
    ],
)
def test_the_size_explorer_says_what_does_not_fit(values: dict, words: str) -> None:
    assert words in find("kv_size_explorer")(**values)


def test_the_size_explorer_agrees_with_the_catalog_on_what_fits() -> None:
    for name in catalog.models():
        shape = catalog.model(name)
        most = shape.max_num_seqs(
            catalog.gpu("H200 SXM"),
            8192,
            reserved=0,
            weight_dtype="bfloat16",
            kv_dtype="bfloat16",
            beyond_context=True,
        )
        svg = find("kv_size_explorer")(model=name, gpu="H200 SXM", batch=1)
        words = " ".join(re.findall(r">([^<]+)</text>", svg))
        assert ("Fits." in words) == (most >= 1), name
        if most > 1:
            assert f"room for {most:,} requests" in words, name


def test_opt_13b_in_12_gib_reserves_room_for_seven() -> None:
    svg = find("reservation_strip")(max_seq_len=2048)
    assert BUDGET_TOKENS == 15_728
    assert ">7 requests fit." in svg
    assert ">1,392<" in svg
    assert ">8.9 %<" in svg
    assert "external: too small for a request" in svg


def test_a_reservation_that_fits_exactly_is_admitted() -> None:
    assert admitted(512, 512) == BUDGET_TOKENS // 512
    assert admitted(512, 513) == 0


def test_a_request_longer_than_its_reservation_is_refused() -> None:
    svg = find("reservation_strip")(max_seq_len=256, prompt_tokens=128, output_tokens=256)
    assert "Refused: 384 tokens never fit a reservation of 256." in svg


def test_a_cache_forwards_each_token_once() -> None:
    assert [total(steps, True) for steps in (1, 2, 8)] == [4, 5, 11]
    assert [total(steps, False) for steps in (1, 2, 8)] == [4, 9, 60]
    assert ">15 tokens<" in find("decode_steps")(step=3)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_a_query_appended_as_key_drowns_the_cache(head_dim: int) -> None:
    right, wrong = (mean_self_weights(head_dim, bug) for bug in (False, True))
    for length, good, bad in zip(LENGTHS, right, wrong, strict=True):
        # Right: within noise of the even share.
        assert good < 3 / (length + 1)
        assert bad > good
    if head_dim == 64:
        assert 0.90 < wrong[LENGTHS.index(63)] < 0.96


def test_text_is_escaped() -> None:
    canvas = Canvas("x", 50, "a < b & c", "longer than it is" * 9)
    canvas.text(0, 20, "</text><script>")
    assert "<script>" not in canvas.svg()
    ElementTree.fromstring(canvas.svg())


@given(st.floats(-1e4, 1e4))
def test_coordinates_keep_two_decimals(value: float) -> None:
    assert float(number(value)) == pytest.approx(value, abs=0.0051)
    assert re.fullmatch(r"-?\d+(\.\d{1,2})?", number(value))


def test_a_role_has_a_hatch_of_its_own_and_a_colour_for_dark_pages() -> None:
    assert len({role.hatch for role in ROLES.values()}) == len(ROLES)
    for name, role in (ROLES | GROUND).items():
        assert f"--kv-{name}:{role.dark}" in stylesheet()


def test_an_unknown_drawing_control_or_value_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no drawing 'kv_size'; near: kv_size_explorer"):
        find("kv_size")
    with pytest.raises(TypeError, match=r"decode_steps has \['step', 'cached'\], not \['stop'\]"):
        find("decode_steps")(stop=3)
    with pytest.raises(ValueError, match=r"'steps done' takes one of .*, not 99"):
        find("decode_steps")(step=99)
    with pytest.raises(ValueError, match="not 3"):
        Slider([1, 2], 3, "x")


def test_values_are_written_for_the_reader() -> None:
    assert Slider([1024], 1024, "tokens", "{:,}").text(1024) == "1,024"
    assert Choice(["a"], "a", "x", {"a": "first"}).text("a") == "first"
    assert Toggle(True, "cache", off="without").texts == ("without", "yes")


def test_every_drawing_is_at_home_where_the_list_says() -> None:
    folder = Path(__file__).resolve().parents[1] / "kvlib/show/drawings"
    for path in folder.glob("*.py"):
        import_module(f"kvlib.show.drawings.{path.stem}")
    found = {name: drawn.draw.__module__.split(".")[-1] for name, drawn in _DRAWINGS.items()}
    homeless = {name: home for name, home in found.items() if name not in HOMES}
    assert not homeless, f"kvlib/show/drawings/homes.py has no line for {homeless}"
    assert found == HOMES


def test_every_drawing_stands_on_a_page_and_has_tests_of_its_own() -> None:
    root = Path(__file__).resolve().parents[1]
    pages = "".join(path.read_text("utf-8") for path in root.glob("chapters/*/*.ipynb"))
    tests = "".join(path.read_text("utf-8") for path in root.glob("tests/test_*.py"))
    for name, home in HOMES.items():
        assert f'show.widget(\\"{name}\\"' in pages, f'no page says show.widget("{name}")'
        imported = f"kvlib.show.drawings.{home} import" in tests
        own = imported or re.search(rf'\b(find|widget|render)\("{name}"', tests)
        assert own, f"no test draws {name}; write tests/test_drawing_{home}.py"


def test_a_picture_loads_no_other_picture_than_it_needs() -> None:
    script = (
        "import sys, kvlib.show.live as live; live.render('kv_size_explorer')\n"
        "print(*(m for m in sys.modules if m.startswith('kvlib.show.drawings.')))"
    )
    root = Path(__file__).resolve().parents[1]
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "kvlib.show.drawings.sizing" in loaded
    assert len(loaded) < len(set(HOMES.values())) / 2


def test_a_drawing_is_registered_under_the_name_of_its_function() -> None:
    assert callable(drawing)
    assert {"kv_size_explorer", "reservation_strip", "decode_steps"} <= set(names())
