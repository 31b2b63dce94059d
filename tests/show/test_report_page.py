"""The HTML report without a browser: every number is the CSV's, no text is active, nothing is loaded from anywhere."""

import base64
import csv
import hashlib
import math
import re
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.metrics import RoundCounts
from specbench.results import documents
from specbench.results.documents import TokenView, TracedRound, TracedToken
from specbench.results.numbers import LENGTHS, NUMBERS
from specbench.show.details import OF_SOME, OF_SOME_ROWS, ROWS, STAGES
from specbench.show.report import page as report_assets
from specbench.show.report.page import write_report
from specbench.show.table import unbroken
from tests.show.scenes import RUNS
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import sweep, write_calibration, write_run

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "\u202eevil\u2066",
    "a\x00b",
    "\x1b[31m\x1b]8;;http://x\x07link\x1b]8;;\x07",
    "=HYPERLINK(1)",
    "javascript:alert(1)",
    "]]><!-- --><!doctype x>",
    "$x_1$ \\frac{1}{2}",
)
LOADING = {"img", "link", "iframe", "object", "embed", "form", "base", "video", "audio", "source", "image"}


@dataclass
class Page(HTMLParser):
    """What stands on a page: tags with their attributes, the visible text, and the numbers."""

    text: str
    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    numbers: list[dict[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag == "data":
            self.numbers.append({**self.tags[-1][1], "shown": ""})

    def handle_data(self, data: str) -> None:
        self.said.append(data)
        if self.tags and self.tags[-1][0] == "data" and not self.numbers[-1]["shown"]:
            self.numbers[-1]["shown"] = data

    @property
    def visible(self) -> str:
        return "".join(self.said)


def page_of(*runs: Path, png: bool = False, output: Path | None = None) -> Page:
    return Page(write_report(runs, output, png=png).read_text(encoding="utf-8"))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def check_harmless(page: Page) -> None:
    """No element loads or runs anything, and no character steers a terminal, an editor or the direction of writing."""
    assert not {tag for tag, _ in page.tags} & LOADING
    assert [found for tag, found in page.tags if tag == "script"] == [{}]  # the one that the policy names by its hash
    attributes = [(name, value) for _, found in page.tags for name, value in found.items()]
    assert not [
        name for name, _ in attributes if name.startswith("on") or name in {"src", "srcset", "action", "xlink:href"}
    ]
    assert all(value.startswith("#") for name, value in attributes if name == "href")
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page.text))
    assert "@import" not in page.text
    assert all(c.isprintable() or c == "\n" for c in page.text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep over two data sets."""
    cells = [c for name in ("code", "articles") for c in sweep(name, prompts=6, ks=(1, 3))]
    return write_run(tmp_path_factory.mktemp("runs"), cells)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return page_of(run, png=True)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_every_number_is_the_one_of_the_csv_and_shown_rounded(run: Path, page: Page) -> None:
    rows = {row["cell"]: row for row in table(run / "results.csv")}
    rows |= {f"{row['cell']}/{row['category']}": row for row in table(run / "categories.csv")}
    assert page.numbers
    for number in page.numbers:
        assert number["value"] == rows[number["data-cell"]][number["data-column"]] == number["title"], number
        value, shown = float(number["value"]), float(number["shown"].rstrip("×"))
        digits = 0.05 if abs(value) >= 100 else 0.0005
        assert math.isclose(value, shown, abs_tol=digits * 1.001), number


def test_every_category_with_several_prompts_has_its_line(run: Path, page: Page) -> None:
    found = {number["data-cell"] for number in page.numbers if "/" in number["data-cell"]}
    assert found == {f"{row['cell']}/{row['category']}" for row in table(run / "categories.csv")}
    shown = [number["data-column"] for number in page.numbers if number["data-cell"] == min(found)]
    assert {"prompts", "speedup", "speedup_low", "tokens_per_round", "alpha", "alpha_mean", "c", "v"} <= set(shown)


@pytest.mark.usefixtures("undrawn")
def test_a_category_with_one_prompt_has_none(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, sweep("code", prompts=4, ks=(2,))))
    assert {number["data-cell"].split("/")[1] for number in page.numbers if "/" in number["data-cell"]} == {"parsing"}
    assert "Speedup by category" not in page.text


def test_every_number_of_the_csv_is_shown(run: Path, page: Page) -> None:
    found = {(number["data-cell"], number["data-column"]) for number in page.numbers}
    for row in table(run / "results.csv"):
        columns = [name for name in row if name in NUMBERS or name.startswith("acceptance_at_")]
        numeric = [name for name in columns if row[name] and name not in ("lossless", *LENGTHS[2:])]  # texts and lists
        assert len(numeric) > 40
        assert not [name for name in numeric if (row["cell"], name) not in found]


def test_every_line_of_a_table_shows_the_column_that_its_name_says(page: Page) -> None:
    found: dict[str, set[str]] = {}
    for line in re.findall(r"<tr.*?</tr>", page.text, re.DOTALL):
        if name := re.search(r'<th scope="row"[^>]*>([^<]+)</th>', line):
            found.setdefault(unescape(name[1]), set()).update(re.findall(r'data-column="([^"]+)"', line))
    steps = {unbroken(label): {column} for label, column, _ in STAGES if column not in OF_SOME}
    assert {label: found[label] for label in steps} == steps
    always = [line for line in ROWS if line[1] not in OF_SOME_ROWS]
    rows = {label.strip(): {column} for label, column, _ in always if not column.endswith("_interval")}
    assert {label: found[label] for label in rows} == {**rows, "lossless": set()}
    assert found["95 % interval"] == {"speedup_low", "speedup_high", "alpha_low", "alpha_high"}


def test_the_answer_comes_before_the_tables_and_they_before_the_figures(page: Page) -> None:
    marks = ('<p class="answer">PROVISIONAL', "<table>", 'aria-label="Speedup, measured')
    at = [page.text.index(mark) for mark in marks]
    assert at == sorted(at)
    assert (
        page.visible.count("PROVISIONAL, leaning YES. With K = 3, the best of ") == 4
    )  # in short, and at its data set


def test_a_provisional_answer_is_no_green_yes_and_says_beneath_it_why_and_what_settles_it(page: Page) -> None:
    kinds = [found["class"] for _, found in page.tags if found.get("class", "").startswith("verdict ")]
    assert kinds == ["verdict provisional"] * 2
    hero = page.text[page.text.index('<div class="verdict') :]
    assert re.findall('<p class="([a-z]+)">(.*?)</p>', hero)[2:4] == [
        ("why", "only 6 prompts (20 needed)"),
        ("settle", "settle it: <code>specbench sweep-k --k 1-8 --limit 20</code>"),
    ]
    for kind in ("yes", "no", "provisional", "unclear"):
        assert f".{kind} .answer {{ color: var(--{kind}); }}" in page.text
        assert page.text.count(f"--{kind}: #") == 2  # in light and dark


@pytest.mark.usefixtures("undrawn")
def test_a_plain_yes_has_nothing_beneath_it(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, sweep("articles", prompts=20, ks=(3,))))
    assert page.text.count('<p class="answer">YES. With K = 3, decoding is ') == 1
    assert page.text.count('<p class="reason">Why: a round emits ') == 1
    assert not [found for _, found in page.tags if found.get("class") in ("why", "settle")]


def test_every_figure_is_there_with_a_caption_a_name_a_png_and_its_numbers(run: Path, page: Page) -> None:
    figures = [found for tag, found in page.tags if tag == "svg"]
    names = [figure["aria-label"].split(".")[0] for figure in figures]
    assert len(figures) == page.text.count("<figcaption>") == 1 + 12 + 10  # the articles are of one category
    assert names[:4] == ["All cells side by side", "Speedup, measured and predicted", "Time per token",
                         "Acceptance against K"]  # fmt: skip
    assert all(figure["role"] == "img" for figure in figures)
    ids = [found["id"] for _, found in page.tags if "id" in found]
    assert len(ids) == len(set(ids))
    files = {file.name for file in (run / "plots").iterdir()}
    assert {"intervals.png", "code-waterfall.png", "articles-over-time.png"} <= files
    assert len(files) == 23
    points = page.text.count("<title>") - 1  # that of the page
    listed = sum(figure.count("<li") for figure in page.text.split("<figure>")[1:] if "<details>" in figure)
    assert listed >= points > 50


@pytest.mark.slow
def test_figures_are_files_for_papers_where_that_is_wanted(tmp_path: Path) -> None:
    run = write_run(tmp_path, [cell(sample("p1"), sample("p2"))])
    found = []
    for number in range(2):
        folder = tmp_path / str(number) / "plots"
        write_report([run], folder.parent / "page.html", png=False, svg=True, pdf=True)
        found.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert found[0] == found[1]
    assert {name.partition(".")[2] for name in found[0]} == {"svg", "pdf"}
    assert all(data.startswith(b"%PDF") for name, data in found[0].items() if name.endswith("pdf"))


def test_requests_have_their_tables_and_one_figure_over_all_loads(tmp_path: Path) -> None:
    run = write_run(tmp_path, RUNS["servers"]())
    page = page_of(run, png=True)
    for words in ("requests · throughput", "speculation pays at 0.5, 2", "requests · within ttft", "compare TPOT"):
        assert words in page.visible
    assert page.text.count('aria-label="Tokens per second, of a user and of all') == 1
    assert [file.name for file in run.glob("plots/*per-user*")] == ["loads-per-user-against-all.png"]


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(run: Path, page: Page) -> None:
    assert page_of(run).text == page.text


# --- what a reader must know besides -------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_cells_without_numbers_are_named_with_their_reason(tmp_path: Path) -> None:
    cells = [cell(sample("p1"), sample("p2")), cell(dataset="third", status="oom", error="out of memory: try less")]
    page = page_of(write_run(tmp_path, [*cells, cell(dataset="fourth", status="skipped", error="no room")]))
    assert "third, chain, K 4: oom: out of memory: try less" in page.visible
    assert "fourth, chain, K 4: skipped: no room" in page.visible
    assert "2 prompts: below 20" in page.visible


@pytest.mark.usefixtures("undrawn")
def test_a_cell_measured_without_phases_is_a_report_without_a_waterfall(tmp_path: Path) -> None:
    method = sample().method
    bare = type(method)(method.tokens, method.rounds, method.seconds)
    page = page_of(write_run(tmp_path, [cell(*(sample(name, method=bare, baseline=bare) for name in ("p1", "p2")))]))
    names = [found["aria-label"].split(".")[0] for tag, found in page.tags if tag == "svg"]
    assert "Acceptance by position" in names
    assert not [name for name in names if name.startswith("From predicted")]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_several_runs_are_sections_with_figures_of_their_own(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, [cell(sample("p1"), sample("p2"), k=4)], name) for name in ("old", "new")]
    page = page_of(*runs, png=True)
    assert [found["href"] for tag, found in page.tags if tag == "a"][:2] == ["#part-1", "#part-2"]
    targets = {found.get("id") for _, found in page.tags}
    assert all(found["href"].removeprefix("#") in targets for tag, found in page.tags if tag in {"a", "use"})
    assert (runs[0] / "plots" / "run-2-code-over-time.png").is_file()
    assert not (runs[1] / "plots").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_calibration_is_shown_with_its_points(tmp_path: Path) -> None:
    path = write_calibration(tmp_path)
    page = page_of(path)
    points = {"/".join(row[n] for n in ("model", "context", "width")): row for row in table(path / "calibration.csv")}
    shown = [n for n in page.numbers if n["data-cell"] in points]
    assert len(shown) == 6 * len(points)
    assert all(n["value"] == points[n["data-cell"]][n["data-column"]] for n in shown)
    assert [found["aria-label"][:20] for tag, found in page.tags if tag == "svg"] == [
        "Cost of a pass: targ",
        "Cost of drafting: dr",
    ]


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_calibration_is_told_in_one_line_and_one_with_strange_values_shown(tmp_path: Path) -> None:
    file = tmp_path / "calibration.csv"
    for content in ("", "model,width\ntarget,1\n", "\x00"):
        file.write_text(content)
        with pytest.raises(UsageError, match=r"calibration\.csv"):
            page_of(tmp_path)
    file.write_text("model,context,width,milliseconds,low,high,v\n" + "</td>,x,,nan,,,\n" * 3)
    (tmp_path / "calibration.json").write_text('{"contexts": [1, {"context": "<b>"}], "choices": {}}')
    page = page_of(tmp_path)
    check_harmless(page)
    assert "</td>" in page.visible


# --- strangers' text --------------------------------------------------------------------------------------------------


def hostile_run(parent: Path, text: str) -> Path:
    """A run in which whatever comes from outside is `text`."""
    name = text.replace("\udcff", "")  # a setting of a run is text that can be encoded
    resolved = {"rejected": text, "device_name": text, "dtype_resolved": text, "target_source": text}
    good = cell(*(sample(f"{text}{i}", category=text) for i in range(3)), dataset=name, target=name, resolved=resolved)
    bad = cell(dataset=name, method=name, status="error", error=text, resolved=resolved)
    environment = {"specbench": text, "cpu": text, "device_name": [text]}
    return write_run(parent, [good, bad], command=text, started=text, environment=environment)


def trace(text: str) -> str:
    token = TracedToken("accepted", 5, text, "", 0.5, 0.25)
    return documents.trace_json(
        TokenView(text, {text: text}, (TracedRound((token,), RoundCounts(1, 1, 1, 1, (0.5,))),))
    )


@pytest.mark.slow
@pytest.mark.parametrize("text", [*HOSTILE, "\udcff", "x" * 1_000_000], ids=range(len(HOSTILE) + 2))
def test_no_text_is_active_or_crashes(tmp_path: Path, text: str) -> None:
    run = hostile_run(tmp_path, text)
    (run / "trace.json").write_text(trace(text[:5000]))
    page = page_of(run, png=text in (HOSTILE[0], "\udcff"))  # to draw them all takes longer than the pages
    check_harmless(page)
    assert len(page.text) < 1_000_000
    assert not [file for file in tmp_path.rglob("*.png") if file.parent != run / "plots"]


def test_text_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    page = page_of(hostile_run(tmp_path, HOSTILE[0]))
    assert page.visible.count(HOSTILE[0]) > 5
    assert "49" not in page_of(hostile_run(tmp_path / "b", "{{ 7 * 7 }}")).text.split("</style>")[1].split("<h2>")[0]


def test_the_policy_forbids_scripts_and_the_network(page: Page) -> None:
    (policy,) = [found["content"] for tag, found in page.tags if found.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    (script,) = re.findall("<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert re.findall("script-src ([^;]*);", policy) == [f"'sha256-{digest}'"]
    assert script == (Path(report_assets.__file__).parents[2] / "assets" / "report" / "report.js").read_text()
    check_harmless(page)
    assert not re.findall(r"(?:https?:)?//\w", page.text)


@pytest.mark.usefixtures("undrawn")
def test_a_trace_in_the_folder_is_shown_and_a_broken_one_is_a_note(tmp_path: Path) -> None:
    run = write_run(tmp_path, [cell(sample())])
    (run / "trace.json").write_text(trace("token"))
    (run / "trace-2.json").write_text("{}")
    page = page_of(run)
    assert [found["title"] for tag, found in page.tags if "tv-token" in found.get("class", "")][1].startswith(
        "accepted: p 0.5"
    )
    assert "trace-2.json is not a trace" in page.visible
