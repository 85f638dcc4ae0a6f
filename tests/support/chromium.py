"""Headless Chromium, led over the DevTools protocol, for tests of pages."""

import asyncio
import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

KEYS = {"Enter": (13, "\r"), " ": (32, " "), "Tab": (9, ""), "ArrowLeft": (37, "")}  # codes and texts
PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")


@contextlib.contextmanager
def served(folder):
    """The address of a plain file server of a folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextlib.contextmanager
def opened(address, width, before=""):
    """A page of the browser, as a function that evaluates JavaScript there and waits for its value.

    `press(key)` presses a key there. `before` is JavaScript that runs before the page's own. Nothing moves.
    """
    from tornado.websocket import websocket_connect

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--hide-scrollbars"]
        options += ["--force-prefers-reduced-motion", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen([PROGRAM, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = _wait(lambda: Path(profile, "DevToolsActivePort").read_text().split()[0])
            loop, number = asyncio.new_event_loop(), iter(range(1, 10**6))

            def listed():
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                    return next(page for page in json.load(answer) if page["type"] == "page")

            url = _wait(listed)["webSocketDebuggerUrl"]

            async def ask(method, params):
                mine = next(number)
                await socket.write_message(json.dumps({"id": mine, "method": method, "params": params}))
                while (answer := json.loads(await socket.read_message())).get("id") != mine:
                    pass
                return answer["result"]

            def call(method, **params):
                return loop.run_until_complete(ask(method, params))

            def evaluate(code):
                code = f"(async () => {{ {code} }})()"
                answer = call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
                assert "exceptionDetails" not in answer, answer
                return answer["result"].get("value")

            def press(key, shift=False):
                code, text = KEYS[key]
                how = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
                call("Input.dispatchKeyEvent", type="keyDown", text=text, **how)
                call("Input.dispatchKeyEvent", type="keyUp", **how)

            def ready():
                assert evaluate("return document.readyState === 'complete' && location.href !== 'about:blank'")

            async def connect():
                return await websocket_connect(url, max_message_size=2**26)

            socket = loop.run_until_complete(connect())
            call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
            call("Page.enable")
            call("Page.addScriptToEvaluateOnNewDocument", source=before)
            call("Page.navigate", url=address)
            _wait(ready)
            evaluate.press = press
            yield evaluate
        finally:
            process.terminate()
            process.wait()


def _wait(probe, seconds=60):
    """The value of a probe as soon as it raises no error."""
    end = time.monotonic() + seconds
    while True:
        try:
            return probe()
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
