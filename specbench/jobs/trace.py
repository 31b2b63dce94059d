"""The body of `specbench trace`: from a prompt and settings to the token view of one decode. May import torch."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from specbench.backends.base import Networks, networks_of
from specbench.backends.choose import backend_for
from specbench.data.forms import applied_to
from specbench.data.loading import NO_FIELDS, surely_longer, written_in
from specbench.errors import UsageError
from specbench.files import read_whole, replace_text
from specbench.jobs.progress import load
from specbench.measure import grid
from specbench.measure.calibrate import quick_costs
from specbench.measure.group import seed_of
from specbench.measure.plan import chat_settings
from specbench.measure.tracing import trace as follow
from specbench.results.documents import Setting, TokenView, TracedRound, trace_json
from specbench.settings import group
from specbench.show import token_view
from specbench.spec import RunSpec

Style = Literal["terminal", "json", "html"]
SUFFIXES: dict[str, Style] = {".json": "json", ".html": "html", ".htm": "html"}
EXAMPLE = 'def mean(values):\n    """Return the arithmetic mean of the values."""\n'
# Shown if set.
OPTIONAL = (*(setting.name for some in ("chat", "sampling") for setting in group(some, RunSpec)), "seed")
LONGEST = 16 << 20  # bytes of a prompt
PROMPT_ID = "row-1"  # the id that `specbench run` gives the prompt of a one-line text: file, so that both draw the same


def start(settings: Mapping[str, Any], text: str, output: Path | None, style: Style | None, rounds: bool) -> None:
    """Decode a prompt and show the accepted drafts, or write them to a file."""
    view = decoded(text, settings)
    if output is None:
        kind = style or "terminal"
        out = Console()
        if kind == "terminal" and out.color_system is not None and not out.no_color:
            out.print(token_view.terminal(view, rounds=rounds), soft_wrap=True)
        else:
            sys.stdout.write(view_text(view, kind, rounds))
    else:
        if output.is_dir():
            raise UsageError(f"cannot write {output}: it is a folder; name a file in it")
        try:
            replace_text(output, view_text(view, style or SUFFIXES.get(output.suffix.lower(), "terminal"), rounds))
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror}; choose another --output") from None


def prompt_of(prompt: str | None, file: Path | None) -> str:
    """The prompt text. UsageError if there are two, or it is unreadable or empty."""
    if prompt is not None and file is not None:
        raise UsageError("--prompt and --prompt-file are two prompts: give one of them")
    try:
        text = read_whole(file, LONGEST).decode() if file else prompt
        (text or "").encode()
    except OSError as error:
        raise UsageError(f"cannot read the prompt {file}: {error.strerror}") from None
    except UnicodeError:
        raise UsageError(f"the prompt{f' in {file}' if file else ''} is not UTF-8 text") from None
    text = EXAMPLE if text is None else text.removesuffix("\n").removesuffix("\r") if file else text
    if not text:
        raise UsageError("the prompt is empty: give at least one character")
    return text


def decoded(prompt: str, settings: Mapping[str, Any]) -> TokenView:
    """Load the pair and decode the prompt."""
    spec = spec_of(settings)
    backend = backend_for([spec])
    networks = networks_of(backend, "a trace")
    room = backend.context - spec.max_new_tokens - spec.k - 1
    if surely_longer(prompt, room):
        raise UsageError(
            f"the prompt has {len(prompt)} characters, {max(room, 0)} tokens fit into the context of {backend.context} "
            "with the new tokens and a draft: give a shorter one, or fewer --max-new-tokens"
        )
    chat = chat_settings(spec, backend)
    ids = written_in(applied_to("this command", chat, False), chat, backend.encode)([prompt], NO_FIELDS)
    if not ids:
        raise UsageError("the prompt has no tokens: give a longer one")
    if len(ids) > room:
        raise UsageError(
            f"the prompt has {len(ids)} tokens, {max(room, 0)} fit into the context of {backend.context} with the new "
            "tokens and a draft: give a shorter one, or fewer --max-new-tokens"
        )
    load(backend, spec, len(ids), Console(stderr=True))
    resolved = backend.describe()
    names: dict[str, Setting] = {"target": spec.target, "draft": spec.draft} if "draft_source" in resolved else {}
    names |= {"target": spec.target, **dict(spec.model), "method": spec.method, "K": spec.k}
    names |= {"schedule": spec.schedule} if spec.schedule != "constant" else {}
    names |= {name.replace("_", "-"): value for name in OPTIONAL if (value := getattr(spec, name)) is not None}
    return TokenView(prompt, names | {"dtype": resolved["dtype_resolved"]}, rounds_of(spec, networks, ids))


def spec_of(settings: Mapping[str, Any]) -> RunSpec:
    """The one cell whose method decodes; its data set does not matter here."""
    specs = grid.cells({**settings, "dataset": "code"})
    if len(specs) > 1:
        raise UsageError("--k takes one value here: a trace shows one decode")
    return specs[0]


def rounds_of(spec: RunSpec, networks: Networks, ids: list[int]) -> tuple[TracedRound, ...]:
    """Decode with the same models, method and random draws as `specbench run`."""
    if spec.schedule == "auto":
        networks.costs = quick_costs(networks, spec.k, spec)
    method = networks.method(spec)
    rng = networks.source(spec, [seed_of(spec, PROMPT_ID, 0, "method")])
    to: Any = {"eos": networks.eos(spec), "device": networks.device, "tokenizer": networks.tokenizer}
    return follow(method, ids, new=spec.max_new_tokens, rng=rng, **to)


def view_text(view: TokenView, style: Style, rounds: bool) -> str:
    if style == "json":
        return trace_json(view)
    if style == "html":
        return token_view.page(view)
    return token_view.terminal(view, marks=True, rounds=rounds).plain + "\n"
