"""Text that someone who wishes harm would put into prompts, ids, names, errors and outputs, and what must not come out.

Knows what terminals, spreadsheets, browsers, Markdown and the logs of CI jobs obey; must not know who prints what.
"""

import base64
import hashlib
import re
from html.parser import HTMLParser

C0_C1 = "".join(map(chr, [*range(0x20), 0x7F, *range(0x80, 0xA0)]))
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
MEGABYTE = 1 << 20

FORMULAS = (
    "=1+1", "+1+1", "-1+1", "@SUM(A1:A9)", " =1+1", "\t=1+1", "\r=1+1", "\n=1+1", " \t@SUM(A1)", "＝1+1",
    "=cmd|' /C calc'!A0", '=HYPERLINK("http://x.test","y")', '"=1+1', "'=1+1", "\u200b=1+1", "\ufeff-1", "\u00a0+1",
    ",=1+1,", ";=1;",
)  # fmt: skip
MARKUP = (
    "[/]", "[bold]x[/nope]", "[link=http://x.test]y[/link]", "[@click=app.bell]x[/]", "[[x]]\\[", ":skull: :warning:",
    "{task.description} {0} %s", "$x^2$ \\frac{",
)  # fmt: skip
ESCAPES = (
    "\x1b[31mred\x1b[0m", "\x1b[2J\x1b[H", "\x1b]8;;http://x.test\x07y\x1b]8;;\x07", "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]0;title\x1b\\", "\x1bP$qm\x1b\\", "\x1b_G\x1b\\", "\x1bc", "\x9b2J", "\x9d52;c;ZXZpbA==\x9c", "\x90$qm\x9c",
    "\x08\x08\x08", "\x0e\x0f\x07",
)  # fmt: skip
WEB = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>", "<svg/onload=1>",
    "[x](javascript:alert(1))", "javascript:alert(1)", '<a href="javascript:alert(1)">x</a>', '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='", "<style>*{background:url(http://x.test)}</style>", "url(http://x.test/a.png)",
    "</style></title></textarea></svg><b>", "<!--", "--><i>", "<![CDATA[", "]]>", "<?xml version='1.0'?>",
    "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>&b;", "&lt;b&gt; &#x3c;b&#62; &amp;amp; &notanentity;",
    "{{7*7}}", "{% for a in b %}", "{#", "<iframe src=//x.test>", "<math><mi//xlink:href='data:x,<script>1'>",
)  # fmt: skip
UNICODE = (
    "a\0b", C0_C1, "\ud800", "x\udfff", "\udc00\ud800", "\udcff", BIDI, "\u202egnp.exe", "a\u200b\u200c\u200d\u2060b",
    "a\u2028b\u2029c", "\ufeffx", "z" + "\u0301" * 60, "שלום עולם", "مرحبا", "👩\u200d👩\u200d👧\u200d👦",
    "\ufffe\uffff", "\U000e0041\U000e007f", "\ue000\U0010ffff", "\x0bx\x0cy\x85", "ａ１　ｂ", "İıſK",
)  # fmt: skip
SHAPES = (
    "a\nb", "a\r\nb\r", "w" * 5000, "x" * MEGABYTE, "x y " * 10_000, "../../etc/passwd", "C:\\x\\..\\y", "..",
    "/etc/passwd", "a/../b", "CON", "~root", "$HOME `id` $(id)", "%00%2e%2e",
)  # fmt: skip
LOOKALIKES = (
    "NaN", "nan", "None", "null", "NA", "inf", "-inf", "1e10", "007", "1_000", "0x1f", "2026-01-02", "true", "1,5",
    "#N/A", '"', '""', "a,b", "'", "\\", "\\n", "_x",
)  # fmt: skip
MARKDOWN = (
    "a|b", "a\\|b", "a\\\\|b", "|---|---|", "`a`b``", "```", "![](http://x.test/a.png)", "[x]: http://x.test",
    "<details><summary>x", "**x** __y__ ~~z~~", "@everyone #1 www.x.test https://x.test", "`|`\\`", "- [ ] # x\n# y",
)  # fmt: skip
WORKFLOW = (
    "::error::x", "::set-output name=a::b", "x ::add-mask::x", "##[set-output name=a]b", "x##[error]y",
    "a\n::stop-commands::x", "%0A::warning::x",
)  # fmt: skip

PAYLOADS = (*FORMULAS, *MARKUP, *ESCAPES, *WEB, *UNICODE, *SHAPES, *LOOKALIKES, *MARKDOWN, *WORKFLOW)

COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # what rich itself writes
FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")
RUNNER = re.compile(r"^\s*::[a-z]|##\[", re.IGNORECASE)
BAR = re.compile(r"(?:\\.|[^\\|])+|(\|)")


def harmless(texts: tuple[str, ...] = PAYLOADS) -> list[str]:
    """As many different words, each as long as the payload at its place."""
    return [f"h{number:03}".ljust(len(text), "x") for number, text in enumerate(texts)]


def commands(screen: str, style: str = "") -> list[str]:
    """The lines that would steer a terminal or the runner of a CI job, colours aside.

    JSON is for programs and has texts as they are, so that it may hold what a runner obeys within a line.
    """
    plain, data = COLOUR.sub("", screen).split("\n"), style.startswith("json")
    return [ascii(line[:200]) for line in plain if not line.isprintable() or (RUNNER.search(line) and not data)]


def bars(markdown: str) -> list[int]:
    """The borders of cells in every line of a Markdown table."""
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    return [len([found for found in BAR.findall(row) if found]) for row in rows]


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[object] = []
        self.targets: list[str] = []
        self.scripts: list[str] = []

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))
        self.targets += [value or "" for name, value in attrs if name.split(":")[-1] in {"href", "src", "action"}]

    def handle_endtag(self, tag: str) -> None:
        self.found.append(tag)

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))

    def handle_decl(self, decl: str) -> None:
        self.found.append(("declaration", decl))

    def handle_pi(self, data: str) -> None:
        self.found.append(("instruction", data))

    def unknown_decl(self, data: str) -> None:
        self.found.append(("unknown", data))


def elements(html: str) -> list[object]:
    """Elements with the names of their attributes, comments and declarations: what text must not change.

    AssertionError where an element is active, but for the one script that the page names by its hash, or refers to
    anything outside of the page.
    """
    parser = _Elements()
    parser.feed(html)
    parser.close()
    names = [name for found in parser.found if isinstance(found, tuple) for name in found]
    active = {"iframe", "object", "embed", "base", "form", "foreignobject"}
    assert not [name for name in names if name in active or name.startswith("on")]
    own = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in parser.scripts]
    assert names.count("script") == len(own) <= 1
    assert all(f"script-src 'sha256-{digest}'" in html for digest in own)
    assert not [target for target in parser.targets if not target.startswith("#")]
    return parser.found
