"""Headless Chromium for tests: a page from a file at a given width, and what it logged, loaded and drew.

Where Chromium or its driver is not installed, the tests that need it are skipped and say so.
"""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = ("chromium", "chromium-browser", "google-chrome", "chrome"), ("chromedriver",)
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
OVERFLOWING = """
return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
  && !e.closest('.scroll, svg, .tv-scroll')).map(e => e.tagName + '.' + e.className).slice(0, 10)
"""

AXE = """
const done = arguments[1], some = arguments[0]
const named = one => one.id + ': ' + one.nodes[0].html.slice(0, 100)
axe.run(some.length ? {include: some} : document, {runOnly: ['wcag2a', 'wcag2aa']})
  .then(found => done(found.violations.map(named)), error => done([String(error)]))
"""


def program(names: tuple[str, ...]) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(names)} is installed")
    return found


@contextmanager
def browser(profile: Path) -> Iterator["Browser"]:
    """A fresh Chromium with a profile of its own; selenium's manager, which would go online, is never asked."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra dev)")
    service = pytest.importorskip("selenium.webdriver.chrome.service").Service(executable_path=program(DRIVER))
    options = selenium.ChromeOptions()
    options.binary_location = program(CHROMIUM)
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """A driver with the few questions that the tests ask."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, width: int = 1280, *, dark: bool = False) -> None:
        """Show a page; what was logged before is forgotten."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.driver.get(page.as_uri())

    def ask(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def console(self) -> list[str]:
        """Everything that the page logged, violations of its policy included."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        file.write_bytes(base64.b64decode(found["data"]))

    def violations(self, *some: str) -> list[str]:
        """What axe-core finds against WCAG 2 A and AA on the page that is shown, or in some of it by selectors, as
        "rule: first element"."""
        package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed (extra dev)")
        self.driver.execute_script((Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
        return list(self.driver.execute_async_script(AXE, list(some)))
