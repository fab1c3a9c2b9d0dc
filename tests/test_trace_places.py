"""What is known of a trace, and where its file is looked for."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from kvlib import traces
from kvlib.workloads import load

OWN = "arrival_ms,context_tokens,generated_tokens\n"


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("KVLIB_TRACES", raising=False)
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_name_is_found_in_the_named_folder_then_the_given_then_the_cache(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = traces.trace("azure-conv")
    cached = traces.cache_folder() / known.publisher_file
    given, named = nowhere / "given" / known.compact_file, nowhere / "named" / known.compact_file
    for path in (cached, given, named):
        path.parent.mkdir(parents=True)
        path.write_text(OWN + "0,1,2\n")
    assert traces.find("azure-conv") == cached
    assert traces.find("azure-conv", [given.parent]) == given
    monkeypatch.setenv("KVLIB_TRACES", str(named.parent))
    assert traces.find("azure-conv", [given.parent]) == named
    loaded = load("azure-conv")
    assert loaded.name == load(str(cached)).name == "azure-conv"
    assert loaded.source == known.source
    assert loaded.description == (
        "the trace azure-conv (chat requests of an Azure service), "
        "all 1 requests read from azure2023_conv.csv.gz"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("azure-code", "python -m kvlib.fetch azure-code"),
        ("arxiv", r"traces; workloads\.sample\('arxiv', ...\) needs no file"),
    ],
)
def test_a_trace_that_is_nowhere_says_how_to_get_it(nowhere: Path, name: str, hint: str) -> None:
    with pytest.raises(FileNotFoundError, match=hint):
        load(name)


def test_a_wrong_name_and_a_wrong_path_are_told_apart(nowhere: Path) -> None:
    with pytest.raises(ValueError, match="no trace 'azure'; known: azure-conv, azure-code"):
        load("azure")
    with pytest.raises(FileNotFoundError, match=r"azure\.csv"):
        load(str(nowhere / "azure.csv"))


def test_a_file_is_found_in_either_form_and_the_publishers_is_preferred(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert traces.find("arxiv") is None
    known = traces.trace("arxiv")
    compact, published = nowhere / known.compact_file, nowhere / known.publisher_file
    compact.write_text("")
    published.mkdir()  # no file
    assert traces.find("arxiv", [nowhere / "none", nowhere]) == compact
    published.rmdir()
    published.write_text("")
    assert traces.find("arxiv", [nowhere]) == published


def test_downloads_are_kept_where_one_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVLIB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert traces.user_cache() == tmp_path / ".cache" / "kvlib"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert traces.user_cache() == Path("/xdg/kvlib")
    for named, place in (("/mine", "/mine"), ("~/mine", tmp_path / "mine"), ("a", tmp_path / "a")):
        monkeypatch.setenv("KVLIB_CACHE", named)
        assert traces.user_cache() == Path(place)
        assert traces.cache_folder() == Path(place) / "traces"


def test_a_trace_says_where_it_comes_from() -> None:
    known = replace(
        traces.trace("arxiv"),
        attribution="Somebody",
        licence="MIT",
        changes="cut",
        citation=None,
        repository="some/body",
        commit="c0ffee",
        path="data/rows.csv",
    )
    assert known.source == "Somebody, MIT; cut"
    assert replace(known, citation="A Paper").source == "Somebody, MIT; cut; A Paper"
    assert known.publisher_file == "rows.csv"
    assert known.url == "https://raw.githubusercontent.com/some/body/c0ffee/data/rows.csv"
    assert replace(known, path="rows.csv").publisher_file == "rows.csv"


def test_what_is_known_of_a_trace_does_not_change() -> None:
    names = ["azure-conv", "azure-code", "arxiv", "apex-stories", "mooncake-conv"]
    assert traces.traces()[:7] == [*names, "mooncake-synthetic", "ragpulse"]
    traces.traces().clear()
    known = traces.trace("azure-conv")
    assert known is traces.trace("azure-conv") and hash(known)
    with pytest.raises(FrozenInstanceError):
        known.num_requests = 1
    assert (known.name, known.num_requests, len(known.gap_ms_permille)) == (names[0], 19_366, 1001)


def test_a_name_of_a_file_says_which_trace_it_holds() -> None:
    for name in traces.traces():
        known = traces.trace(name)
        assert traces.trace_of_file(known.publisher_file) is known
        assert traces.trace_of_file(known.compact_file) is known
    assert traces.trace_of_file("rows.csv") is None
