"""`specbench trace`: one decode token by token: what was drafted, accepted, rejected and put in its place."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specbench.cli import options as o
from specbench.cli.launch import with_ks
from specbench.cli.parsing import with_models
from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.backends.base import Backend, Networks
    from specbench.results.trace_file import Setting, TokenView, TracedRound
    from specbench.spec import RunSpec

Format = Literal["terminal", "json", "html"]
SUFFIXES: dict[str, Format] = {".json": "json", ".html": "html", ".htm": "html"}
EXAMPLE = 'def mean(values):\n    """Return the arithmetic mean of the values."""\n'
NO_SETTINGS = ("prompt", "prompt_file", "rounds", "style", "output")
SHOWN = ("temperature", "top_k", "top_p", "min_p", "eta", "seed")
PROMPT_ID = "row-1"  # what `specbench run` calls the prompt of a text: file of one line, so that both draw the same


Prompt = Annotated[str | None, typer.Option("--prompt", "-p", help="Text to go on from. Default: an example.")]
PromptFile = Annotated[
    Path | None, typer.Option(help="UTF-8 file with the prompt; a line end at its end is no part of it.")
]
Tokens = Annotated[
    int, typer.Option(min=1, help="Tokens to decode. Default: 64.", show_default=False, rich_help_panel=o.LAW)
]
Seed = Annotated[int | None, typer.Option(min=0, help="Of every draw. Default: 0.", rich_help_panel=o.LAW)]
Rounds = Annotated[
    bool,
    typer.Option("--rounds", help="One line per round, with drafts that were never tested.", rich_help_panel=o.OUTPUT),
]
Style = Annotated[
    Format | None,
    typer.Option("--format", help="Default: by the end of --output, else terminal.", rich_help_panel=o.OUTPUT),
]
Output = Annotated[
    Path | None,
    typer.Option(
        help="Write to this file (x.json, x.html or text). In a run's folder, trace.json becomes part of its report.",
        rich_help_panel=o.OUTPUT,
    ),
]


def trace(
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    target: o.Target = None,
    draft: o.Draft = None,
    model: o.Models = None,
    target_revision: o.TargetRevision = None,
    draft_revision: o.DraftRevision = None,
    dtype: o.Dtype = None,
    draft_dtype: o.DraftDtype = None,
    device: o.Device = None,
    method: o.Method = None,
    k: o.K = None,
    schedule: o.Schedule = None,
    confidence: o.Confidence = None,
    max_new_tokens: Tokens = 64,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    eta: o.Eta = None,
    ignore_eos: o.IgnoreEos = None,
    seed: Seed = None,
    rounds: Rounds = False,
    style: Style = None,
    output: Output = None,
) -> None:
    """Show one decode token by token.

    Accepted drafts are green, rejected ones struck through in red, corrections blue, bonus tokens magenta.
    """
    settings = {name: value for name, value in locals().items() if name not in NO_SETTINGS and value is not None}
    text = prompt_of(prompt, prompt_file)
    view = decoded(text, settings)
    if output is None:
        show(view, style or "terminal", rounds)
    else:
        write(output, rendered(view, style or SUFFIXES.get(output.suffix.lower(), "terminal"), rounds))


def prompt_of(prompt: str | None, file: Path | None) -> str:
    """The prompt as text; UsageError if there are two, or it cannot be read or is empty."""
    if prompt is not None and file is not None:
        raise UsageError("--prompt and --prompt-file are two prompts: give one of them")
    try:
        text = file.read_bytes().decode() if file else prompt
        (text or "").encode()
    except OSError as error:
        raise UsageError(f"cannot read the prompt {file}: {error.strerror}") from None
    except UnicodeError:
        raise UsageError(f"the prompt{f' in {file}' if file else ''} is not UTF-8 text") from None
    text = EXAMPLE if text is None else text.removesuffix("\n").removesuffix("\r") if file else text
    if not text:
        raise UsageError("the prompt is empty: give at least one character")
    return text


def decoded(prompt: str, settings: Mapping[str, Any]) -> "TokenView":
    """Load the pair and decode the prompt; UsageError if it does not fit into the context."""
    from rich.console import Console

    from specbench.backends.base import networks_of
    from specbench.backends.choose import backend_for
    from specbench.jobs.run import say
    from specbench.results.trace_file import TokenView

    spec = spec_of(settings)
    backend = backend_for([spec])
    networks = networks_of(backend, "a trace")
    ids = backend.encode(prompt)
    if not ids:
        raise UsageError("the prompt has no tokens: give a longer one")
    room = backend.context - spec.max_new_tokens - spec.k - 1
    if len(ids) > room:
        raise UsageError(
            f"the prompt has {len(ids)} tokens, {max(room, 0)} fit into the context of {backend.context} beside the "
            "new tokens and a draft: give a shorter one, or fewer --max-new-tokens"
        )
    backend.load()
    say(Console(stderr=True), [f"note: {warning}" for warning in backend.warnings])
    return TokenView(prompt, shown_settings(spec, backend), rounds_of(spec, networks, ids))


def spec_of(settings: Mapping[str, Any]) -> "RunSpec":
    """The one cell whose method is to decode; which data set it names does not matter here."""
    from specbench.measure import grid

    specs = grid.cells({**with_models(with_ks(settings)), "dataset": "code"})
    if len(specs) > 1:
        raise UsageError("--k takes one value here: a trace shows one decode")
    return specs[0]


def rounds_of(spec: "RunSpec", networks: "Networks", ids: list[int]) -> "tuple[TracedRound, ...]":
    """Decode with the models, the method and the draws of `specbench run`."""
    from specbench.measure.calibrate import quick_costs
    from specbench.measure.order import seed_of
    from specbench.measure.tracing import trace as follow

    if spec.schedule == "auto":
        networks.costs = quick_costs(networks, spec.k, spec)
    method = networks.method(spec)
    rng = networks.source(spec, [seed_of(spec, PROMPT_ID, 0, "method")])
    to: Any = {"eos": networks.eos(spec), "device": networks.device, "tokenizer": networks.tokenizer}
    return follow(method, ids, new=spec.max_new_tokens, rng=rng, **to)


def shown_settings(spec: "RunSpec", backend: "Backend") -> "dict[str, Setting]":
    """What a reader of a trace must know."""
    resolved = backend.describe()
    names: dict[str, Setting] = {"target": spec.target, "draft": spec.draft} if "draft_source" in resolved else {}
    names |= {"target": spec.target, **dict(spec.model), "method": spec.method, "K": spec.k}
    names |= {"schedule": spec.schedule} if spec.schedule != "constant" else {}
    names |= {name.replace("_", "-"): value for name in SHOWN if (value := getattr(spec, name)) is not None}
    return names | {"dtype": resolved["dtype_resolved"]}


def rendered(view: "TokenView", style: Format, rounds: bool) -> str:
    """The view as the text of a file."""
    from specbench.results.trace_file import to_json
    from specbench.show import token_view

    if style == "json":
        return to_json(view)
    if style == "html":
        return token_view.page(view)
    return token_view.terminal(view, marks=True, rounds=rounds).plain + "\n"


def show(view: "TokenView", style: Format, rounds: bool) -> None:
    """Print on stdout, in colours where they can be seen."""
    from rich.console import Console

    from specbench.show import token_view

    out = Console()
    if style == "terminal" and out.color_system is not None and not out.no_color:
        out.print(token_view.terminal(view, rounds=rounds), soft_wrap=True)
    else:
        sys.stdout.write(rendered(view, style, rounds))


def write(path: Path, text: str) -> None:
    """Replace the file by the text."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another --output") from None
