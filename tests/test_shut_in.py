"""Code in the page is shut in: it reaches the book's own folder and nothing else."""

import http.server
import json

import pytest

import built_book
from built_book import CALL, PATIENCE_MS, go

pytestmark = pytest.mark.browser

CALLING_OUT = """
import js
from pyodide.ffi import to_js
from pyodide.http import open_url

def attempt(call):
    try:
        call()
    except Exception:
        pass

inner = js.Blob.new(to_js([f"fetch('{OTHER}/inner', {{mode: 'no-cors'}})"]))
module = js.Object.fromEntries(to_js([["type", "module"]]))
attempt(lambda: open_url(OTHER + "/request"))
attempt(lambda: js.fetch(OTHER + "/fetch"))
attempt(lambda: js.WebSocket.new(OTHER.replace("http", "ws") + "/socket"))
attempt(lambda: js.EventSource.new(OTHER + "/events"))
attempt(lambda: js.Worker.new(js.URL.createObjectURL(inner)))
attempt(lambda: js.Worker.new(OWN, module))
"""


WAYS = ("request", "fetch", "socket", "events", "inner", "worker")


@pytest.mark.parametrize("bound", [True, False], ids=["with the policy", "without it"])
def test_code_in_the_page_cannot_call_out(book, browser, bound):
    """Without the policy the same code does reach the other server, so the attempts are real."""
    asked = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()

        def log_message(self, *args):
            pass

    name, text = next(iter(built_book.texts(book).items()))
    if not bound:
        text = text.replace("Content-Security-Policy", "X-Nothing")
    changed = {name: text}
    with built_book.serving(Other) as other, built_book.served(book, changed) as site:
        changed["worker.mjs"] = f"fetch('{other}/worker', {{mode: 'no-cors'}})"
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        go(page, f"{site}{name}?noidle")
        script = CALLING_OUT.replace("OTHER", repr(other)).replace("OWN", repr(f"{site}worker.mjs"))
        outcome = json.loads(page.evaluate(CALL, [["run", script]])[0])
        assert outcome["error"] == ""
        page.wait_for_timeout(1500)
        context.close()
    assert set(asked) == (set() if bound else {f"/{way}" for way in WAYS})
