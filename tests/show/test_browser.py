"""The report in a real browser: it draws, fits, sorts and hides, logs nothing and asks for nothing but itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench.show.report.page import write_report
from tests.support.browser import OVERFLOWING, Browser, browser
from tests.support.many_methods import methods
from tests.support.measured import cell
from tests.support.simulated_sweeps import sweep, write_calibration, write_run

pytestmark = pytest.mark.slow  # starts a browser

WIDTHS = (1280, 400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module")
def chromium(folder: Path) -> Iterator[Browser]:
    with browser(folder / "profile") as found:
        yield found


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    """Two data sets, a failed cell with an unfriendly reason, and a calibration."""
    cells = [c for name in ("code", "articles") for c in sweep(name, prompts=8, ks=(1, 2, 4))]
    failed = cell(dataset="third", status="oom", error="<img src=http://localhost:1/x onerror=alert(1)>" + "x" * 500)
    runs = [write_run(folder, [*cells, failed]), write_calibration(folder)]
    return write_report(runs, folder / "report.html", png=False)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_and_asks_for_nothing(chromium: Browser, report: Path, width: int, dark: bool) -> None:
    chromium.open(report, width, dark=dark)
    chromium.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert chromium.ask("return document.title") == "specbench: demo ← demo-draft, big ← small"
    assert chromium.ask("return [innerWidth, document.documentElement.scrollWidth <= innerWidth]") == [width, True]
    assert chromium.ask(OVERFLOWING) == []
    assert chromium.requests() == [report.as_uri()]
    assert chromium.console() == []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_is_drawn_and_its_text_can_be_read(chromium: Browser, report: Path, width: int) -> None:
    chromium.open(report, width)
    sizes = chromium.ask(
        "return [...document.querySelectorAll('figure svg')].map(s => [s.clientWidth, s.clientHeight])"
    )
    assert len(sizes) == report.read_text(encoding="utf-8").count("<figcaption>") > 15
    assert all(w > 300 and h > 90 for w, h in sizes)
    marks = chromium.ask(
        "return [...document.querySelectorAll('figure svg')].map(s => s.querySelectorAll('path, use').length)"
    )
    assert min(marks) > 10
    smallest = """return Math.min(...[...document.querySelectorAll('figure svg text')].map(
      t => parseFloat(getComputedStyle(t).fontSize) * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b)))"""
    assert chromium.ask(smallest) >= 8
    cut = """
        return [...document.querySelectorAll('figure svg text')].filter(t => {
          const a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();
          return a.left < b.left || a.right > b.right || a.top < b.top || a.bottom > b.bottom }).map(t => t.textContent)
    """
    assert width != 1280 or chromium.ask(cut) == []


LIGHT, DARK = (
    ("rgb(255, 255, 255)", {"rgb(255, 255, 255)", "rgb(34, 34, 34)", "rgb(111, 111, 111)"}),
    ("rgb(20, 23, 27)", {"rgb(26, 30, 35)", "rgb(223, 227, 231)", "rgb(163, 171, 180)"}),
)


@pytest.mark.parametrize(("dark", "page", "figures"), [(False, *LIGHT), (True, *DARK)], ids=["light", "dark"])
def test_dark_is_dark_and_light_is_light_and_figures_are_as_dark_as_their_page(
    chromium: Browser, report: Path, dark: bool, page: str, figures: set[str]
) -> None:
    chromium.open(report, dark=dark)
    assert chromium.ask("return getComputedStyle(document.body).backgroundColor") == page
    assert set(chromium.ask(PAINTED)) == figures


PAINTED = """
return [...document.querySelectorAll('figure svg')].flatMap(s => [getComputedStyle(s).backgroundColor,
  ...[...s.querySelectorAll('text')].map(t => getComputedStyle(t).fill)])
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_accessible_by_the_rules_of_wcag(chromium: Browser, report: Path, dark: bool) -> None:
    chromium.open(report, dark=dark)
    chromium.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert chromium.violations() == []


def test_what_nobody_can_read_would_be_seen(chromium: Browser, folder: Path) -> None:
    """The control of the test above."""
    (folder / "pale.html").write_text(
        "<html><body><p style='color: #ddd; background: #fff'>pale</p><img src='x'></body></html>"
    )
    chromium.open(folder / "pale.html")
    assert {found.partition(":")[0] for found in chromium.violations()} >= {"color-contrast", "image-alt"}


def test_the_numbers_of_a_figure_are_reached_by_keyboard(chromium: Browser, report: Path) -> None:
    chromium.open(report)
    assert chromium.ask("return document.querySelectorAll('figure details').length") > 10
    chromium.ask("document.querySelector('figure summary').focus()")
    chromium.driver.switch_to.active_element.send_keys(" ")
    shown = chromium.ask("return document.querySelector('figure details ul').innerText")
    assert shown.count("×") > 5


@pytest.fixture(scope="module")
def many(folder: Path) -> Path:
    return write_report([write_run(folder, methods(24, prompts=3), "many")], folder / "many.html", png=False)


NAMES = "return [...document.querySelectorAll('table.ranked tbody tr:not(.off) th')].map(e => e.textContent)"
LEFT = "return document.querySelectorAll(`figure svg [data-of]:not(.off)`).length"


def test_lines_are_sorted_by_keyboard_and_back(chromium: Browser, many: Path) -> None:
    chromium.open(many)
    begun = chromium.ask(NAMES)
    assert len(begun) == 24
    chromium.ask("document.querySelector('table.ranked thead button').focus()")
    for expected, state in ((sorted(begun), "ascending"), (sorted(begun, reverse=True), "descending")):
        chromium.driver.switch_to.active_element.send_keys(" ")
        assert chromium.ask(NAMES) == expected
        assert chromium.ask("return document.querySelector('[aria-sort]').ariaSort") == state
    chromium.ask("document.querySelectorAll('table.ranked thead button')[1].click()")
    assert chromium.ask(NAMES) == begun  # by speedup, as it began
    assert chromium.console() == []


@pytest.mark.parametrize("width", WIDTHS)
def test_methods_are_hidden_in_tables_and_figures_and_shown_again(chromium: Browser, many: Path, width: int) -> None:
    chromium.open(many, width)
    parts = chromium.ask(LEFT)
    chromium.ask("document.querySelector('.choose summary').focus()")
    chromium.driver.switch_to.active_element.send_keys(" ")
    chromium.ask("document.querySelector('.choose input').focus()")
    first = chromium.ask(NAMES)[0]
    chromium.driver.switch_to.active_element.send_keys(" ")
    assert first not in chromium.ask(NAMES)
    assert 23 * parts // 24 - 5 <= chromium.ask(LEFT) < parts
    press = "[...document.querySelectorAll('.choose button')].find(b => b.textContent == arguments[0]).click()"
    chromium.driver.execute_script(press, "lossless only")
    assert not [name for name in chromium.ask(NAMES) if "lossy" in name]
    chromium.driver.execute_script(press, "first 8 of the table")
    assert len(chromium.ask(NAMES)) == 8
    chromium.driver.execute_script(press, "all")
    assert chromium.ask(LEFT) == parts
    assert chromium.ask(OVERFLOWING) == []
    assert chromium.violations(".choose", "table.ranked") == []  # the others are looked at above, on a smaller page


def test_without_scripts_everything_is_shown(chromium: Browser, many: Path) -> None:
    chromium.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        chromium.open(many)
    finally:
        chromium.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert chromium.ask("return document.querySelectorAll('.choose, table.ranked button').length") == 0
    assert len(chromium.ask(NAMES)) == 24


def test_a_script_or_a_request_would_be_seen(chromium: Browser, folder: Path) -> None:
    """The control of the first test: the browser says so when a page breaks its policy."""
    page = folder / "bad.html"
    policy = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
    page.write_text(f"<!doctype html>{policy}<script>1</script><img src='data:,x'><div style='width:5000px'>")
    chromium.open(page)
    assert len([message for message in chromium.console() if "Content Security Policy" in message]) >= 2
