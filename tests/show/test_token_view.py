"""How a decode looks token by token: kinds in colours and marks, p and q in HTML, and text that commands nothing."""

import io
import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specbench.errors import UsageError
from specbench.metrics import RoundCounts
from specbench.results.documents import (
    Kind,
    TokenView,
    TracedRound,
    TracedToken,
    read_trace,
    trace_from_json,
    trace_json,
)
from specbench.show.token_view import STYLE, fragment, page, summary, terminal, visible

HOSTILE = (
    "</section><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "\x1b[31mred\x1b]8;;http://x\x07",
    "\x00\x7f\x85\x9b31m",
    "\u202eevil\u2066\u200b",
    "\udcff",
    "{0.__class__}{style}%s",
    "[bold]x[/]",
    "=1+1",
    "a\r\nb\tc\u2028",
    "x" * 100_000,
)


def token(kind: Kind, text: str, number: int = 7, q: float | None = 0.25, partial: str = "") -> TracedToken:
    return TracedToken(kind, number, text, partial, 0.5, q)


def view_of(text: str = "", prompt: str = "def f", **settings: Any) -> TokenView:
    """Two rounds: one that ends in a correction, one that ends in a bonus."""
    first = (token("accepted", "(x", 1), token("rejected", ", y" + text, 2), token("unused", ", z", 3))
    first += (token("correction", "):\n" + text, 4),)
    second = (token("accepted", "   ", 5), token("bonus", " return", 6, q=None))
    rounds = (
        TracedRound(first, RoundCounts(3, 2, 1, 2, (0.9, 0.4))),
        TracedRound(second, RoundCounts(1, 1, 1, 2, (0.8,))),
    )
    return TokenView(prompt, {"target": "demo", "K": 3, **settings}, rounds)


def screen(view: TokenView, **changes: Any) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=100, _environ={})
    console.print(terminal(view, **changes), soft_wrap=True)
    return file.getvalue()


# --- as data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_json_gives_the_same_view_back(text: str) -> None:
    view = view_of(text, prompt=text, draft=text, schedule=None, temperature=0.1 + 0.2, whole=1, flag=True)
    written = trace_json(view)
    assert trace_from_json(written) == view
    assert [type(v) for v in trace_from_json(written).settings.values()] == [type(v) for v in view.settings.values()]
    assert written.isascii()


def test_emitted_are_accepted_tokens_corrections_and_bonus_tokens_and_the_summary_counts_them() -> None:
    assert view_of().ids == (1, 4, 5, 6)
    assert summary(view_of()) == "α 0.700 · 2.00 tokens per round · 2 rounds · 4 tokens"
    untested = (TracedRound((token("bonus", "a"),), RoundCounts(0, 0, 0, 1, ())),)
    assert summary(replace(view_of(), rounds=untested)).startswith("no draft was tested · 1.00 ")


WRONG = [json.dumps(json.loads(trace_json(view_of())) | {n: v}) for n, v in
         (("rounds", 1), ("prompt", None), ("settings", {"a": []}))]  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "is not a trace") for text in ("", "{", "[]", "{}", '{"schema": "specbench trace 0"}', "ÿþ\x00")),
        ("[" * 100_000, "is not a trace"),
        *((text, "wrong fields") for text in WRONG),
        (None, r"trace\.json: No such file"),
    ],
    ids=range(11),
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(text: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(trace_json(view_of()))
    assert read_trace(file) == view_of()
    file.unlink() if text is None else file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=f"^[^\n]*{said}[^\n]*$"):
        read_trace(file)


# --- on a terminal ----------------------------------------------------------------------------------------------------


def test_every_kind_has_its_colour() -> None:
    found = screen(view_of())
    for codes, text in (("32", "(x"), ("9;31", ", y"), ("1;34", "):⏎"), ("35", " return")):
        assert f"\x1b[{codes}m{text}\x1b[0m" in found
    assert ", z" not in found


def test_marks_tell_the_kinds_apart_without_colour_and_rounds_are_lines() -> None:
    text = terminal(view_of(), marks=True).plain
    assert text.endswith("\n\ndef f(x[-, y-]{+):⏎\n+}   {* return*}")
    assert "accepted 2 · [-rejected 1-] · {+correction 1+} · {*bonus 1*}" in text
    *_, first, second = terminal(view_of(), marks=True, rounds=True).plain.splitlines()
    assert first == "   1   1/3  │(x[-, y-][~, z~]{+):⏎+}", "with the drafts that were never tested"
    assert second == "   2   1/1  │   {* return*}"
    assert "[-, y⏎-]" in terminal(view_of("\n"), marks=True).plain, "a line end that was rejected breaks no line"


def test_bytes_that_are_no_character_yet_stand_in_brackets() -> None:
    halves = TracedRound((token("bonus", "", partial="E2"), token("bonus", "→")), RoundCounts(0, 0, 0, 2, ()))
    assert terminal(TokenView("", {}, (halves,)), marks=True).plain.endswith("{*⟨E2⟩*}{*→*}")


def test_of_a_long_prompt_the_end_is_shown() -> None:
    found = terminal(view_of(prompt="a" * 10_000 + "end")).plain
    assert "…aaa" in found
    assert len(found) < 1000


def test_controls_are_named() -> None:
    assert visible("\x1b\x00\t\n\u202e\udcff\x9b") == "⟨U+001B⟩⟨U+0000⟩⇥\t⏎\n⟨U+202E⟩⟨U+DCFF⟩⟨U+009B⟩"
    assert visible("é→日本 🎉") == "é→日本 🎉"


# --- as HTML ----------------------------------------------------------------------------------------------------------


class Parts(HTMLParser):
    """The tags of a page with their attributes, and the text of its token view."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._inside = "", False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside |= dict(attrs).get("class") == "tv-text"

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "div"

    def handle_data(self, data: str) -> None:
        self.text += data * self._inside


def test_every_token_has_its_kind_and_its_p_and_q_in_the_title() -> None:
    tags = Parts(fragment(view_of())).tags
    titles = [(tag, a["class"], a["title"]) for tag, a in tags if "id" in (a.get("title") or "").split(" ")]
    assert titles == [
        ("span", "tv-token tv-accepted", "accepted: p 0.5, q 0.25, id 1"),
        ("del", "tv-token tv-rejected", "rejected: p 0.5, q 0.25, id 2"),
        ("ins", "tv-token tv-correction", "correction: p 0.5, q 0.25, id 4"),
        ("span", "tv-token tv-accepted", "accepted: p 0.5, q 0.25, id 5"),
        ("ins", "tv-token tv-bonus", "bonus: p 0.5, q –, id 6"),
    ]


def test_the_text_is_that_of_the_tokens_each_a_line_of_the_table_and_a_report_may_bring_the_style() -> None:
    assert Parts(fragment(view_of())).text == "def f(x, y):⏎\n    return"
    assert fragment(view_of()).count("<tr>") == 1 + 6, "with those that were never tested"
    assert "<style>" not in fragment(view_of(), style=False)
    assert STYLE in fragment(view_of())


def test_a_page_allows_its_own_style_and_nothing_else() -> None:
    html = page(view_of())
    ((_, policy),) = [(tag, a) for tag, a in Parts(html).tags if a.get("http-equiv") == "Content-Security-Policy"]
    own = b64encode(sha256(re.findall("<style>(.*?)</style>", html, re.DOTALL)[0].encode()).digest()).decode()
    assert policy["content"] == f"default-src 'none'; style-src 'sha256-{own}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"\b(?:src|href|style|on\w+)=", html.split("</style>")[1])
