"""A headless Chromium, driven over a pipe by its DevTools protocol: no port, no driver, no library."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


class Browser:
    """One Chromium with one page. `errors` is all that the page or its policy complained of."""

    DEADLINE_S = 60

    @staticmethod
    def program():
        return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

    def __init__(self, width=1440, height=900, dark=False):
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun_browser_", ignore_cleanup_errors=True)
        theirs_in, self.out = self._pipe()
        self.inp, theirs_out = self._pipe()

        def give():  # Chromium reads its orders from 3 and answers on 4
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        # The sandbox wants what containers and root do not have; nothing but our own page is ever opened.
        self.process = subprocess.Popen(
            [self.program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", "--no-first-run", "--hide-scrollbars", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--no-proxy-server", f"--user-data-dir={self.folder.name}",
             "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=give,
            pass_fds=(3, 4), start_new_session=True)
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.number, self.session, self.errors = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.look(width, height, dark)

    @staticmethod
    def _pipe():
        """Far from the numbers that the child is to have."""
        ends = []
        for end in os.pipe():
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20))
            os.close(end)
        return ends

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.inp)
        self.folder.cleanup()

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read(method)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _read(self, method):
        deadline = time.monotonic() + self.DEADLINE_S
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.inp], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.inp, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError(f"the browser {'has gone' if ready else 'did not answer in time'} ({method})")
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])

    def look(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise RuntimeError(f"{url}: {answer['errorText']}")
        deadline = time.monotonic() + self.DEADLINE_S
        while not self.value(f"location.href === {json.dumps(url)} && document.readyState === 'complete'"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{url} was not loaded in time")
            time.sleep(0.02)

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def text(self, element):
        """As it is read: a space that does not break is a space."""
        return self.value(f"document.getElementById({json.dumps(element)}).innerText").replace("\u00a0", " ")

    def point_at(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, file):
        # The whole page, not only what a window of this height would show.
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("window.innerWidth")
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})["data"]
        with open(file, "wb") as out:
            out.write(base64.b64decode(data))
