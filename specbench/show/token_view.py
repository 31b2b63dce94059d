"""A decode token by token: on a terminal and as HTML.

All text in it is untrusted: terminal or browser control characters are shown by name and never active.
"""

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256

from markupsafe import Markup
from rich.text import Text

from specbench import metrics
from specbench.results.documents import Kind, TokenView, TracedRound, TracedToken

MEANING: dict[Kind, str] = {
    "accepted": "drafted and accepted",
    "rejected": "drafted and rejected",
    "correction": "drawn by the target in place of a rejected draft",
    "bonus": "drawn by the target after its drafts were accepted, or where none was made",
    "unused": "drafted after a rejected token or an end, never tested",
}
STYLES = {"accepted": "green", "rejected": "red strike", "correction": "bold blue", "bonus": "magenta"}
STYLES |= {"unused": "dim strike"}
MARKS = {"accepted": ("", ""), "rejected": ("[-", "-]"), "correction": ("{+", "+}"), "bonus": ("{*", "*}")}
MARKS |= {"unused": ("[~", "~]")}
LONGEST_PROMPT = 600  # characters from the end of the prompt that a terminal shows


# --- common to both forms ---------------------------------------------------------------------------------------------


def visible(text: str, breaks: bool = True) -> str:
    """Text with control characters made visible and inactive: ⏎ and a line break, ⇥ and a tab, ⟨U+001B⟩."""
    return "".join(c if c.isprintable() else _named(c, breaks) for c in text)


def _named(c: str, breaks: bool) -> str:
    if c in "\n\t":
        return {"\n": "⏎", "\t": "⇥"}[c] + (c if breaks else "")
    return f"⟨U+{ord(c):04X}⟩"


def token_text(token: TracedToken, breaks: bool = True) -> str:
    """A token for readers; bytes of an unfinished character are in brackets."""
    text = visible(token.text, breaks and token.emitted)
    return text + (f"⟨{visible(token.partial)}⟩" if token.partial else "" if text else "⟨empty⟩")


def summary(view: TokenView) -> str:
    """One line: α, tokens per round, rounds, tokens."""
    counts = metrics.acceptance([r.counts for r in view.rounds])
    alpha = "no draft was tested" if counts.tested == 0 else f"α {counts.alpha:.3f}"
    return f"{alpha} · {counts.tokens_per_round:.2f} tokens per round · {counts.rounds} rounds · {len(view.ids)} tokens"


def settings_line(view: TokenView) -> str:
    return visible(" · ".join(f"{name} {value}" for name, value in view.settings.items()), breaks=False)


def counted(view: TokenView) -> Iterator[tuple[Kind, int]]:
    kinds = [t.kind for r in view.rounds for t in r.tokens]
    return ((kind, kinds.count(kind)) for kind in MEANING if kind in kinds)


# --- on a terminal ----------------------------------------------------------------------------------------------------


def terminal(view: TokenView, *, marks: bool = False, rounds: bool = False) -> Text:
    """The decoded text in the colours of its tokens, or with `rounds` one line per round, including untested drafts.

    With `marks` every kind is recognisable without colours, for pipes and NO_COLOR.
    """
    kinds = [(kind, n) for kind, n in counted(view) if rounds or kind != "unused"]
    text = Text.assemble((settings_line(view), "dim"), "\n", summary(view), "\n")
    text.append_text(Text(" · ").join(_drawn(kind, f"{kind} {n}", marks) for kind, n in kinds)).append("\n\n")
    if rounds:
        return text.append_text(Text("\n").join(_line(n, r, marks) for n, r in enumerate(view.rounds, start=1)))
    cut = view.prompt[-LONGEST_PROMPT:]
    text.append("…" * (cut != view.prompt) + visible(cut), "dim")
    for token in (t for r in view.rounds for t in r.tokens if t.kind != "unused"):
        text.append_text(_drawn(token.kind, token_text(token), marks))
    return text


def _drawn(kind: Kind, text: str, marks: bool) -> Text:
    left, right = MARKS[kind] if marks else ("", "")
    return Text(f"{left}{text}{right}", STYLES[kind], end="")


def _line(number: int, done: TracedRound, marks: bool) -> Text:
    line = Text(f"{number:>4} {done.counts.accepted:>3}/{done.counts.usable:<3}│", "dim", end="")
    return Text.assemble(line, *(_drawn(t.kind, token_text(t, breaks=False), marks) for t in done.tokens))


# --- as HTML ----------------------------------------------------------------------------------------------------------

STYLE = """
.tv{font:14px/1.5 system-ui,sans-serif;color:#1b1f24;background:#fff}
.tv p{margin:.3em 0}.tv-settings{color:#59636e;overflow-wrap:anywhere}
.tv-text{font:14px/1.7 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;padding:.8em;margin:.6em 0;
border:1px solid #d1d9e0;border-radius:6px;max-height:40em;overflow:auto}
.tv-prompt{color:#59636e}.tv-token{unicode-bidi:isolate;text-decoration:none;border-radius:3px;border:1px solid #fff}
.tv-token:hover{outline:2px solid #1b1f24}
.tv-accepted{background:#d7f5dd;color:#0a4d1c}.tv-rejected{background:#ffe1de;color:#a40e26;text-decoration:line-through}
.tv-correction{background:#dbeaff;color:#0a3d91;font-weight:600}.tv-bonus{background:#f6def5;color:#7d147a}
.tv-unused{background:#f0f1f3;color:#59636e;text-decoration:line-through}
.tv-scroll{overflow-x:auto}.tv table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.tv td,.tv th{padding:.1em .7em;text-align:right;border-bottom:1px solid #d1d9e0}
.tv .tv-left{text-align:left;font-family:ui-monospace,monospace;white-space:pre}
"""


def fragment(view: TokenView, style: bool = True) -> Markup:
    """The view as a part of an HTML page; without `style` if the page has `STYLE`. Nothing is active.

    p and q are in the title of every token (hover) and in a table of all rounds (touch, print, screen readers).
    """
    legend = Markup(" ").join(_element(kind, MEANING[kind], f"{kind} {n}") for kind, n in counted(view))
    tokens = [t for r in view.rounds for t in r.tokens if t.kind != "unused"]
    return Markup(
        '{style}<section class="tv"><p class="tv-settings">{settings}</p><p>{summary}</p><p>{legend}</p>'
        '<div class="tv-text"><span class="tv-prompt">{prompt}</span>{tokens}</div>'
        "<details><summary>Round by round</summary><p>p is the probability of a token under the model that judges, q "
        "under the distribution that was drafted from at its position; at temperature 0 both are 0 or 1.</p>"
        '<div class="tv-scroll">{table}</div></details></section>\n'
    ).format(
        style=Markup("<style>") + Markup(STYLE) + Markup("</style>") if style else "",
        settings=settings_line(view),
        summary=summary(view),
        legend=legend,
        prompt=visible(view.prompt),
        tokens=Markup("").join(
            _element(t.kind, f"{t.kind}: p {t.p:.4g}, q {_q(t)}, id {t.id}", token_text(t)) for t in tokens
        ),
        table=_table(view),
    )


def page(view: TokenView) -> str:
    """The view as a standalone HTML file: no script, no network, and a policy that forbids both."""
    hashed = b64encode(sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    return Markup(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="{}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>specbench trace</title></head>'
        "<body>\n{}</body></html>\n"
    ).format(policy, fragment(view))


def _element(kind: Kind, title: str, text: str) -> Markup:
    tag = "del" if kind in {"rejected", "unused"} else "ins" if kind in {"correction", "bonus"} else "span"
    return Markup('<{0} class="tv-token tv-{1}" title="{2}">{3}</{0}>').format(tag, kind, title, text)


def _q(token: TracedToken) -> str:
    return "–" if token.q is None else f"{token.q:.4g}"


def _table(view: TokenView) -> Markup:
    row = Markup('<tr><td>{}</td><td class="tv-left">{}</td><td>{}</td><td>{:.4g}</td><td>{}</td></tr>')
    rows = [
        row.format(n, _element(t.kind, t.kind, token_text(t, breaks=False)), t.id, t.p, _q(t))
        for n, r in enumerate(view.rounds, start=1)
        for t in r.tokens
    ]
    titles = Markup('<tr><th>round</th><th class="tv-left">token</th><th>id</th><th>p</th><th>q</th></tr>')
    return Markup("<table>{}{}</table>").format(titles, Markup("").join(rows))
