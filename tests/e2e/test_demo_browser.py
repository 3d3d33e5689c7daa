"""The dashboard of a running demo, looked at with a real browser."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 90_000
"""The demo shares two busy processors with whatever else runs."""
EVIL = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'


@dataclass
class RunningDemo:
    """A demo in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    api: str
    lines: queue.Queue[str]

    def json(self, path: str) -> Any:
        """A page's JSON twin."""
        with urllib.request.urlopen(self.url.rstrip("/") + path, timeout=10) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any], method: str = "POST") -> None:
        """Write to the API server, as somebody else would."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            self.api + path, json.dumps(body).encode(), {"content-type": kind}, method=method
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status < 300


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.rstrip())


@pytest.fixture(scope="module")
def demo() -> Iterator[RunningDemo]:
    """`outlast demo`, as a user starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "outlast", "demo", "--port", "0", "--rate", "60"],
        stdout=subprocess.PIPE,
        text=True,
    )
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        opening = ""
        deadline = time.monotonic() + 60
        while "KUBECONFIG=" not in opening:
            opening += lines.get(timeout=max(0.1, deadline - time.monotonic())) + "\n"
        url = re.search(r"http://\S+", opening)
        kubeconfig = re.search(r"KUBECONFIG=(\S+)", opening)
        assert url is not None
        assert kubeconfig is not None
        server = re.search(r"server: (\S+)", Path(kubeconfig.group(1)).read_text())
        assert server is not None
        yield RunningDemo(process, url.group(0), server.group(1), lines)
    finally:
        process.terminate()
        process.wait(20)
        reader.join(5)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    """One Chromium for all tests."""
    with sync_playwright() as player:
        started = player.chromium.launch(executable_path=str(chromium), args=list(FLAGS))
        yield started
        started.close()


class Tab:
    """A page that remembers everything it complained about."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    """A fresh tab; the test fails when the page complained."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    opened = Tab(context)
    yield opened
    complaints = list(opened.complaints)
    context.close()
    assert complaints == []


def test_the_fleet_moves_without_a_reload_and_leads_to_the_incident(demo: RunningDemo, tab: Tab) -> None:
    """A node is healthy, then blocked, on the same page; its tile leads to what is being done and why."""
    page = tab.page
    page.goto(demo.url)
    page.evaluate("window.sameDocument = true")
    expect(page.locator(".t")).to_have_count(48, timeout=PATIENCE_MS)
    expect(page.locator("#pulse")).to_have_text("live", timeout=PATIENCE_MS)
    sick = page.locator("#n-gpu-003")
    expect(sick).to_have_class(re.compile(r"s-(blocked|draining|repairing)"), timeout=PATIENCE_MS)
    expect(sick).to_contain_text("Xid 79")
    assert page.evaluate("window.sameDocument") is True
    sick.click()
    expect(page.locator("h1")).to_have_text("gpu-003")
    page.get_by_role("link", name="What is being done").click()
    expect(page.get_by_text("What happened")).to_be_visible()
    expect(page.locator(".timeline svg")).to_be_visible()
    expect(page.locator("text.step").first).to_have_text("detect")
    expect(page.locator("body")).to_contain_text("NVRM: Xid (PCI:0000:60:1c): 79")


def test_an_incident_page_follows_its_incident(demo: RunningDemo, tab: Tab) -> None:
    """The page of a running incident shows the next step by itself."""
    name = incident_of(demo, "gpu-020")
    page = tab.page
    page.goto(f"{demo.url}incidents/{name}")
    expect(page.locator("#live")).to_contain_text("rebooted", timeout=PATIENCE_MS)
    expect(page.locator("#live")).to_contain_text("handed over", timeout=PATIENCE_MS)


def test_hostile_text_stays_text(demo: RunningDemo, tab: Tab) -> None:
    """What a compromised node says of itself is shown as written, live parts included."""
    node = {
        "metadata": {
            "name": "evil-1",
            "labels": {"nvidia.com/gpu.present": "true", "example.com/rack": "rack-x"},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    }
    page = tab.page
    page.goto(demo.url)
    demo.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node})
    group = "/apis/outlast.dev/v1alpha1/nodehealths"
    kind = {"apiVersion": "outlast.dev/v1alpha1", "kind": "NodeHealth"}
    demo.post(group, {**kind, "metadata": {"name": "evil-1"}})
    fault = {
        "id": "evil",
        "code": "xid/13",
        "class": "Application",
        "subsystem": "GPU",
        "scope": "GPU",
        "summary": EVIL,
        "openedAt": "2026-01-01T00:00:00Z",
        "lastSeenAt": "2026-01-01T00:00:00Z",
        "evidence": [{"at": "2026-01-01T00:00:00Z", "source": EVIL[:40], "text": EVIL}],
    }
    status = {"checkedAt": "2026-01-01T00:00:00Z", "state": "Faulty", "faults": [fault]}
    demo.post(f"{group}/evil-1/status", {"status": status}, method="PATCH")
    expect(page.locator("#n-evil-1")).to_be_visible(timeout=PATIENCE_MS)
    page.goto(f"{demo.url}nodes/evil-1")
    expect(page.locator("pre")).to_contain_text(EVIL)
    assert page.evaluate("window.owned") is None
    assert page.locator("main img").count() == 0


def test_dark_and_light_are_both_readable(demo: RunningDemo, browser: Browser) -> None:
    """The page follows the reader's setting, and text keeps a contrast of 4.5 to its ground in both."""
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(demo.url)
        ratio = page.evaluate(
            CONTRAST, ["body", ".stat > span", ".t b", ".t em .quiet", ".foot", ".chips .none"]
        )
        assert min(ratio) >= 4.5, (scheme, ratio)
        is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", is_dark)[:3])) < 150) is (scheme == "dark")
        context.close()


def test_everything_can_be_read_without_scripts(demo: RunningDemo, browser: Browser) -> None:
    """With scripts off each page is whole, and links lead on."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(demo.url)
    assert page.locator(".t").count() >= 48
    page.get_by_role("link", name="Incidents").click()
    expect(page.locator("h1")).to_have_text("Incidents")
    page.goto(f"{demo.url}?view=table&q=gpu-00")
    expect(page.locator("tbody tr")).to_have_count(9)
    page.goto(f"{demo.url}policy")
    expect(page.locator("main")).to_contain_text("repairs in flight")
    context.close()


def test_the_map_can_be_walked_with_the_keyboard(demo: RunningDemo, tab: Tab) -> None:
    """One tab stop a rack; arrows move between tiles, enter opens the node, slash finds."""
    page = tab.page
    page.goto(demo.url)
    page.locator("#n-gpu-001").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "n-gpu-002"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.id") == "n-gpu-010"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("gpu-010")
    page.goto(demo.url)
    page.keyboard.press("/")
    page.keyboard.type("gpu-04")
    page.keyboard.press("Enter")
    expect(page.locator(".t")).to_have_count(9, timeout=PATIENCE_MS)


def test_ctrl_c_ends_the_demo_cleanly(demo: RunningDemo, tab: Tab) -> None:
    """A last reader is told that the server stops; the process ends with 0 and leaves no file behind."""
    page = tab.page
    page.goto(demo.url)
    expect(page.locator("#pulse")).to_have_text("live", timeout=PATIENCE_MS)
    demo.process.send_signal(2)
    expect(page.locator("#pulse")).to_have_text("server stopped", timeout=PATIENCE_MS)
    assert demo.process.wait(20) == 0


def incident_of(demo: RunningDemo, node: str) -> str:
    """The open incident of a node, once there is one."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < deadline:
        for row in demo.json("/incidents.json")["open"]:
            if row["node"] == node:
                return str(row["name"])
        time.sleep(0.2)
    raise AssertionError(f"no incident of {node} was opened")


CONTRAST = """selectors => {
  const linear = x => x / 255 <= .03928 ? x / 255 / 12.92 : ((x / 255 + .055) / 1.055) ** 2.4;
  const light = c => .2126 * linear(c[0]) + .7152 * linear(c[1]) + .0722 * linear(c[2]);
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const ground = el => {
    for (; el; el = el.parentElement) {
      const c = rgb(getComputedStyle(el).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  return selectors.map(s => {
    const el = document.querySelector(s);
    const a = light(rgb(getComputedStyle(el).color)), b = light(ground(el));
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  });
}"""
