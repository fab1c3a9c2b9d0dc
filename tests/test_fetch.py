"""The downloader keeps the whole published file or nothing, and says in one line why."""

from __future__ import annotations

import errno
import hashlib
import logging
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

import pytest

from kvlib import fetch, traces, workloads

pooch = pytest.importorskip("pooch")
CSV = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44"
PATH = traces.trace("azure-conv").url.removeprefix(traces.PUBLISHER)


class Publisher(BaseHTTPRequestHandler):
    """Serves one file, at the publisher's path only."""

    timeout = 10
    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        self.send_response(200 if self.path == PATH else 404)
        self.send_header("Content-Length", str(len(CSV)))
        self.end_headers()
        self.wfile.write(CSV)

    def log_message(self, *_: object) -> None:
        """Keeps the test's stderr for the downloader."""


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Publisher]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Publisher)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    Publisher.requests = 0
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path))
    monkeypatch.delenv("KVLIB_TRACES", raising=False)
    monkeypatch.setattr(traces, "PUBLISHER", f"http://127.0.0.1:{server.server_port}")
    yield Publisher
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the served file the one whose hash is known."""
    known = replace(traces.trace("azure-conv"), sha256=hashlib.sha256(CSV).hexdigest())
    monkeypatch.setattr(fetch, "trace", lambda name: known)


def stays(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err
    return err


@pytest.mark.usefixtures("published")
def test_a_fetched_trace_is_found_by_name_and_not_downloaded_twice(
    publisher: type[Publisher], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch.main(["azure-conv"]) == 0
    out, err = capsys.readouterr()
    assert out.strip().endswith("AzureLLMInferenceTrace_conv.csv")
    assert "CC BY 4.0" in err
    assert workloads.load("azure-conv").requests[0].prompt_tokens == 374
    assert fetch.fetch("azure-conv").read_bytes() == CSV
    assert publisher.requests == 1
    assert not pooch.get_logger().isEnabledFor(logging.INFO)


@pytest.mark.usefixtures("publisher")
def test_a_wrong_hash_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch.main(["azure-conv"]) == 1
    line = error_line(capsys)
    assert traces.trace("azure-conv").sha256 in line
    assert hashlib.sha256(CSV).hexdigest() in line
    assert stays(tmp_path) == []


@pytest.mark.usefixtures("publisher", "published")
def test_a_damaged_file_in_the_cache_is_replaced(tmp_path: Path) -> None:
    place = traces.cache_folder() / "AzureLLMInferenceTrace_conv.csv"
    place.parent.mkdir(parents=True)
    place.write_bytes(CSV[:50])
    assert fetch.fetch("azure-conv") == place.resolve()
    assert place.read_bytes() == CSV


@pytest.mark.usefixtures("publisher")
def test_a_full_disk_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class FullDisk:
        def __init__(self, **_: object) -> None: ...

        def __call__(self, url: str, output_file: BinaryIO, pooch: object) -> None:
            output_file.write(CSV[:20])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pooch, "HTTPDownloader", FullDisk)
    assert fetch.main(["azure-conv"]) == 1
    assert "the disk is full" in error_line(capsys)
    assert stays(tmp_path) == []


@pytest.mark.usefixtures("publisher", "published")
def test_a_file_of_just_the_most_bytes_is_taken_into_the_folder_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetch, "MAX_FILE_BYTES", len(CSV))
    place = fetch.fetch("azure-conv", tmp_path / "mine")
    assert place.parent == (tmp_path / "mine").resolve() and place.read_bytes() == CSV
    assert stays(tmp_path) == [place.name]


@pytest.mark.usefixtures("published")
def test_a_download_has_a_time_limit_and_a_bar_that_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = {}

    class Recorder:
        def __init__(self, **options: object) -> None:
            asked.update(options)

        def __call__(self, url: str, output_file: BinaryIO, pooch: object) -> None:
            output_file.write(CSV)

    monkeypatch.setattr(pooch, "HTTPDownloader", Recorder)
    fetch.fetch("azure-conv", tmp_path)
    bar = asked["progressbar"]
    assert asked["timeout"] == 30 and bar and bar.leave is False


@pytest.mark.usefixtures("publisher")
def test_a_server_that_sends_without_end_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch, "MAX_FILE_BYTES", len(CSV) - 1)
    assert fetch.main(["azure-conv"]) == 1
    assert f"more than {len(CSV) - 1} bytes came" in error_line(capsys)
    assert stays(tmp_path) == []


@pytest.mark.usefixtures("publisher")
def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "traces").write_text("a file where the folder should be")
    assert fetch.main(["azure-conv"]) == 1
    assert "cannot write AzureLLMInferenceTrace_conv.csv" in error_line(capsys)


@pytest.mark.usefixtures("publisher")
def test_an_answer_that_is_no_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch.main(["azure-code"]) == 1
    assert "answered 404" in error_line(capsys)
    assert stays(tmp_path) == []


@pytest.mark.usefixtures("publisher")
def test_no_network_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(traces, "PUBLISHER", "http://127.0.0.1:9")
    assert fetch.main(["mooncake-conv"]) == 1
    assert "no connection to http://127.0.0.1:9/kvcache-ai/Mooncake/" in error_line(capsys)
    assert stays(tmp_path) == []


@pytest.mark.parametrize("missing", ["pooch", "tqdm"])
def test_a_missing_package_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert fetch.main(["azure-conv"]) == 1
    assert f"needs {missing}: pip install pooch tqdm" in error_line(capsys)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("azure-con", "no trace 'azure-con'; known: "), ("arxiv", "arxiv has no known SHA-256")],
)
def test_a_name_that_cannot_be_fetched_lists_those_that_can(
    name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch.main([name]) == 2
    line = error_line(capsys)
    assert reason in line
    assert "azure-conv, azure-code, mooncake-conv, mooncake-synthetic" in line


def test_every_address_is_pinned_to_a_commit_and_a_full_hash() -> None:
    assert len(fetch.fetchable()) >= 4
    for name in fetch.fetchable():
        known = traces.trace(name)
        assert len(known.commit) == 40
        assert len(bytes.fromhex(known.sha256)) == 32
        assert known.url == (
            f"https://raw.githubusercontent.com/{known.repository}/{known.commit}/{known.path}"
        )


def test_the_module_runs_as_a_command_and_imports_pooch_only_when_it_downloads() -> None:
    code = "import sys, kvlib.fetch; sys.exit('pooch' in sys.modules or 'requests' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    wrong = subprocess.run(
        [sys.executable, "-m", "kvlib.fetch", "azure-con"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "azure-conv" in wrong.stderr


def test_the_command_ends_with_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fetch", "azure-con"])
    monkeypatch.delitem(sys.modules, "kvlib.fetch")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("kvlib.fetch", run_name="__main__")
    assert ended.value.code == 2
    assert "no trace 'azure-con'" in error_line(capsys)
