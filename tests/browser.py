"""A headless Chromium, driven over a pipe by its DevTools protocol. Tests that need it are skipped where it is missing.

`apt install chromium`, or CHROMIUM=/path/to/it.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--no-first-run",
)
# Chromium reads descriptor 3 and writes 4.
START = """
import os, sys
read, write = (os.dup(int(number)) for number in sys.argv[1:3])
read, write = (os.dup(os.dup(each)) for each in (read, write))
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
WITHIN_S = 30.0


class Browser:
    """One page. `console`: what it wrote to the console, and its errors."""

    def __init__(self, process, commands, messages):
        self._process, self._commands, self._messages = process, commands, messages
        self._number, self._rest, self._session = 0, b"", None
        self.console = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.look(1240, 1000)

    def call(self, method, **params):
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": params, **session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + WITHIN_S
        while True:
            answer = self._next(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._watch(answer)

    def look(self, width, height, *, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url):
        self.call("Page.navigate", url=str(url))
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        """Return the value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, condition, within_s=WITHIN_S):
        """Wait until the expression is true; return the seconds that it took."""
        began = time.monotonic()
        while not self.run(condition):
            assert time.monotonic() - began < within_s, f"not within {within_s} s: {condition}\n{self.text()}"
            select.select([], [], [], 0.05)
        return time.monotonic() - began

    def text(self):
        return self.run("document.body.innerText")

    def picture(self, file, **clip):
        more = {"clip": {"scale": 1, **clip}} if clip else {}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, **more)
        file.write_bytes(base64.b64decode(shot["data"]))

    def whole(self, file):
        """Take a picture of the whole page."""
        height = self.run("document.documentElement.scrollHeight")
        self.picture(file, x=0, y=0, width=self.run("innerWidth"), height=height)

    def print(self, file):
        file.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def _next(self, until):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._messages], [], [], max(0.0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            block = os.read(self._messages, 1 << 16)
            assert block, "Chromium has ended"
            self._rest += block
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _watch(self, event):
        if event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(event["params"])


@contextlib.contextmanager
def chromium(scratch):
    """Yield a Browser; skip the test where there is no Chromium. `scratch`: a directory for its profile."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium (apt install chromium, or CHROMIUM=/path/to/it)")
    (read, commands), (messages, write) = os.pipe(), os.pipe()
    argv = [sys.executable, "-c", START, str(read), str(write), program, *FLAGS, f"--user-data-dir={scratch}"]
    process = subprocess.Popen(argv, pass_fds=(read, write), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(read)
    os.close(write)
    try:
        yield Browser(process, commands, messages)
    finally:
        process.terminate()
        process.wait(WITHIN_S)
        os.close(commands)
        os.close(messages)
