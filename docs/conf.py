"""Sphinx's settings. Nothing is fetched while these pages are built, and nothing when they are read."""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from pygments.lexers.shell import BashLexer
from sphinx.highlighting import lexers

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from generate import write_pages  # noqa: E402

from specbench import __version__  # noqa: E402

project, author, copyright = "specbench", "the specbench authors", "the specbench authors"  # noqa: A001
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "specbench"
html_static_path = ["_static"]
html_css_files = ["specbench.css"]
html_show_sourcelink = html_copy_source = False
html_math_renderer = "mathml"
default_role = "code"  # `name` in a docstring
smartquotes = False  # `--` stays an option
pygments_style, pygments_dark_style = "friendly", "monokai"
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
toc_object_entries_show_parents = "hide"
copybutton_exclude = ".linenos, .gp, .go"


lexers["console"] = BashLexer()  # commands without a prompt, to be copied as they are


def inline_math(writer: Any, node: nodes.Element) -> None:
    """A formula in a sentence as MathML, which browsers draw by themselves."""
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def display_math(writer: Any, node: nodes.Element) -> None:
    """A formula on a line of its own."""
    writer.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def parsable(
    _app: Any, _what: str, _name: str, _one: Any, _options: Any, signature: str | None, returns: str | None
) -> Any:
    """The signature of a dataclass without `<factory>`, which Sphinx cannot read."""
    return signature and signature.replace("<factory>", "..."), returns


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.connect("autodoc-process-signature", parsable)
    app.connect("builder-inited", lambda _: write_pages(HERE / "generated"))
