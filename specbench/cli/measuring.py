"""The commands that measure: run, sweep-k, sweep, calibrate, noise, check, verify, trace, tree and skip-layers."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specbench.cli.help import beginning, grid_names
from specbench.cli.options import (
    DATA,
    EXECUTION,
    MEASURE,
    MEASURING,
    METHOD,
    OUTPUT,
    OWN,
    PAIR,
    RESULTS,
    SAMPLING,
    SEARCH,
    STYLE,
    URLS,
    WORDS,
    Given,
    Option,
    cells_of,
    launch,
    options,
    read_config,
    setting,
    settings_in,
    settings_of,
    typed_in,
)
from specbench.decoding.method_files import SYNONYMS
from specbench.errors import UsageError
from specbench.files import CONFIGS
from specbench.measure.parsing import USUAL, check_free, parse_counts, parse_k_list, with_ks, with_lists, with_models
from specbench.results.named_runs import found_run
from specbench.wording import near

AXES = ("dataset", "context", "method", "k", "temperature", "backend", "batch", "arrivals", "spec_config",
        "spec_args")  # options that may be lists # fmt: skip
METHOD_LIST = setting("method", "A method of configs/methods, a YAML file, or a list (chain,prompt-lookup).")
K_LIST = setting("k", "Lookahead: drafted tokens per round, a list (1-8 or 2,4,8), or auto (chosen round by round).")
TEMPERATURES = setting("temperature", "0 is greedy; or a list (0,1).")
RUN_METHOD, RUN_SAMPLING = (METHOD_LIST, K_LIST, *METHOD), ("max_new_tokens", TEMPERATURES, *SAMPLING)
RUN_OPTIONS = (*PAIR, *DATA, "preset", *RUN_METHOD, *RUN_SAMPLING, *EXECUTION, *MEASURING)


@options(*RUN_OPTIONS, "quick", "executor", "yes", "resume", "config", "explain", *RESULTS, lists=AXES)
def run(given: Given) -> None:
    """Measure baseline and speculative decoding of a pair over prompts.

    Without any option: the shipped pair on the shipped prompts, offline, on whatever device there is.

    Examples:

    specbench run

    specbench run --k 4 --dataset code --limit 50

    specbench run --method chain,prompt-lookup --k 2,4,8 --temperature 0,1

    specbench run --target llama-7b --draft llama-68m --dataset humaneval

    specbench run --resume latest --limit 60
    """
    launch(given, axes=AXES, **USUAL)


DEFAULT_KS = "1-8"
KS = setting("k", "Lookaheads: 1-8, or 1,2,4, or 1-16+3, also with auto (1-8,auto).", DEFAULT_KS)
HELP = (
    "YAML whose keys are the options of `specbench run`, and pair; a list is an axis. "
    f"Or the name of a shipped grid: {', '.join(grid_names())}."
)

Grid = Annotated[Path | None, typer.Argument(help=HELP, autocompletion=beginning(grid_names))]

SWEEP_OPTIONS = (*PAIR, *DATA, "preset", METHOD_LIST, KS, "acceptance", *RUN_SAMPLING, *EXECUTION, *MEASURING)


@options(*SWEEP_OPTIONS, "quick", "executor", "yes", "resume", "config", "explain", *RESULTS, lists=AXES)
def sweep_k(given: Given) -> None:
    """Find the best lookahead K: every K on the same prompts and weights, interleaved, with one shared baseline.

    Examples:

    specbench sweep-k --k 1-8 --limit 20

    specbench sweep-k --method block --k 2,4,8 --temperature 1

    specbench sweep-k --target llama-7b --draft llama-68m --dataset humaneval --dataset xsum
    """
    launch(given, axes=AXES, k=DEFAULT_KS, **USUAL)


@options(
    ..., METHOD_LIST, "limit", "max_new_tokens", "device", *URLS, "engine_option", *WORDS, *MEASURING, "executor",
    "yes", "resume", "explain", *RESULTS,
)  # fmt: skip
def sweep(given: Given, grid: Grid = None) -> None:
    """Measure every combination of a grid over pairs, methods, data sets, temperatures, dtypes and K.

    Examples:

    specbench sweep demo

    specbench sweep mine.yaml --limit 20

    specbench sweep --resume latest
    """
    if (grid is None) == ("resume" not in given):
        raise UsageError("name the YAML file of a grid, or a shipped one such as demo, or --resume RUN")
    file = grid_file(grid)
    if file is not None and not read_config(file):
        raise UsageError(f"{file} holds no settings: a grid names its axes, such as k: 1-8")
    launch({**given, "config": file}, axes=None, **USUAL)


CANDIDATES = setting("method", "Candidates: a list of methods; --spec-config, repeated, names those of a server.",
                     "prompt-lookup, and chain with a draft; of a server those that it has")  # fmt: skip
FIRST_RUN = replace(OWN["resume"], help="Continue an interrupted recommendation: its first run. Repeat its options.")
LARGEST = setting("k", "The largest lookahead. Every candidate is measured with it once.", 8)


@options(*PAIR, *DATA, CANDIDATES, LARGEST, *RUN_SAMPLING, *EXECUTION, *MEASURING, FIRST_RUN, "config",
         *RESULTS, lists=AXES)  # fmt: skip
def recommend(
    given: Given,
    minutes: Annotated[
        float,
        typer.Option(
            min=0.1, help="The second run takes as many prompts as fit into it, with an audit.", rich_help_panel=MEASURE
        ),
    ] = 30,
) -> None:
    """Recommend a method and K for a model, an engine and its loads, and print the line that deploys it.

    Measures every candidate on a few prompts with the largest K, predicts the smaller ones, and measures those that
    could win again, against one baseline. Audits the winner: a draft that changes the text is not recommended.

    Examples:

    specbench recommend

    specbench recommend --backend vllm-serve --target MODEL --draft SMALL --dataset humaneval --concurrency 1,8
    """
    from specbench.jobs.recommend import Setup, candidates, start_recommend
    from specbench.models.checkpoints.names import default_draft

    settings = with_lists({**USUAL, **settings_of(given)})
    draft = settings.get("draft") or default_draft(str(settings.get("target", "demo")))
    chosen = candidates(settings, draft)
    from specbench.jobs.output import output_of
    from specbench.jobs.resume import Typed

    output, typed = output_of(chosen, given), Typed(**typed_in(given))  # takes its settings out of the chosen ones
    before, cells = given.get("resume"), cells_of(chosen, given)
    start_recommend(cells, Setup(minutes, output, before and found_run(before), typed))


def grid_file(grid: Path | None) -> Path | None:
    """The file of a grid: a path, or a name in configs/grids. UsageError if it is neither."""
    if grid is None or grid.exists():
        return grid
    shipped = CONFIGS / "grids" / f"{grid}.yaml"
    if not shipped.is_file() and not grid.suffix:
        known = list(grid_names())
        raise UsageError(f"unknown grid {str(grid)[:60]!r}{near(str(grid), known)}: name a file, or {', '.join(known)}")
    return shipped if shipped.is_file() else grid


NAMED_PAIR = ("target", "draft", "revisions", "precision", "device")

Widths = Annotated[
    str, typer.Option(help="Tokens verified in one pass: 1-17, or 1,2,4, or 1-33+4.", rich_help_panel=MEASURE)
]
Contexts = Annotated[str, typer.Option(help="Lengths of the context before them, in tokens.", rich_help_panel=MEASURE)]
Repeat = Annotated[int, typer.Option(min=1, help="How often everything is timed.", rich_help_panel=MEASURE)]


@options(*NAMED_PAIR, setting("tier", usual="auto"), ..., "seed", "output_dir", "format", "quiet")
def calibrate(given: Given, widths: Widths = "1-17", contexts: Contexts = "128,512,1024", repeat: Repeat = 15) -> None:
    """Measure target cost against tokens verified, and draft cost; show which K the theory would choose for which α.

    The costs are those of one --tier: of what a run takes on a GPU, and of eager on a CPU unless it is given.

    Examples:

    specbench calibrate

    specbench calibrate --tier compile --widths 1-5

    specbench calibrate --target llama-7b --draft llama-68m --contexts 512,2000
    """
    settings = settings_of(given)
    chosen, lengths = parse_k_list(widths), parse_counts(contexts, "--contexts", "128,512,1024")
    if chosen[0] < 1:
        raise UsageError(f"--widths {widths}: a pass is over 1 token or more")
    from specbench.jobs import calibrate
    from specbench.jobs.output import output_of

    output = output_of(settings, given)
    calibrate.start_calibrate(settings, chosen, lengths, repeat, output)


MEASURED = ("target", "draft", "revisions", "precision", "device", "dataset", setting("limit", usual=20),
            "max_new_tokens", "seed", "repeat")  # fmt: skip


@options(*MEASURED, *RESULTS)
def noise(given: Given) -> None:
    """Measure the baseline against itself: how much the machine varies, and the smallest speedup that it can show.

    Examples:

    specbench noise

    specbench noise --limit 10 --repeat 3
    """
    settings = settings_of(given)
    from specbench.jobs.calibrate import start_noise
    from specbench.jobs.output import output_of

    output = output_of(settings, given)
    start_noise(settings, output)


METHODS = Option("method", list[str], "Method", "A method of configs/methods, or a YAML file. Repeatable. Default: all "
                 "that the pair can run.", ("--method", "-m"))  # fmt: skip
TOKENS = Option("tokens", int, "Sampling", "Minimum number of tokens per method to sample and test. Default: "
                "2000.", low=100, absent=2000)  # fmt: skip
SETTINGS = ("model", "revisions", "precision", "device", METHODS, setting("k"), setting("dataset", usual="code"),
            "excerpt", "chat", setting("limit", usual=8), setting("max_new_tokens", usual=48), "ignore_eos",
            setting("temperature", "Temperature of the sampled text; greedy text is always checked, too.", 1), TOKENS,
            setting("batch", "Rows decoded together.", "1; 8 for sampled text"), setting("tier"), setting("backend"),
            setting("seed", "Seed for the prompt sample and for every random draw."))  # fmt: skip
FOLDER = replace(OWN["output_dir"], help="Folder in which the certificate's folder is created. Default: results.")
Pair = Annotated[list[str] | None, typer.Argument(metavar="[TARGET [DRAFT]]", help="Alias, hub id or folder.")]


@options(..., *SETTINGS, FOLDER, *RESULTS)
def verify(given: Given, pair: Pair = None) -> None:
    """Prove the methods exact, and check a pair: greedy output, controls, and z-tests of sampled text.

    Without a TARGET only the proofs, on this installation. Exit code 5 where anything is not lossless.

    Examples:

    specbench verify

    specbench verify demo --method chain --method prompt-lookup
    """
    settings: dict[str, Any] = {**settings_of(given)}
    names, tokens = [SYNONYMS.get(name, name) for name in settings.pop("method", ())] or None, given["tokens"]
    if len(pair or ()) > 2:
        raise UsageError(f"{len(pair or ())} models were given: specbench verify takes a target and a draft")
    named = dict(zip(("target", "draft"), pair or (), strict=False))
    from specbench.jobs import verify
    from specbench.jobs.output import output_of

    output = output_of(settings, given)
    if not named and settings:
        raise UsageError(f"--{min(settings).replace('_', '-')} is about a pair: name it, as in specbench verify demo")
    verify.start_verify({**settings, **named}, names, tokens, output)


REQUESTS = Option("requests", int, MEASURE, "Requests to the audited server. Fewer than the usual 500 make every part "
                  "smaller, more are sent under load. A fault in less than 3 ÷ this number of requests may be missed.",
                  low=20)  # fmt: skip
MINUTES = Option("minutes", float, MEASURE, "End after this time with what is known then.", low=0.1)
LOAD = Option("at_once", int, MEASURE, "Requests in flight where the server is tried under load. Default: 8.",
              ("--concurrency",), low=2, absent=8)  # fmt: skip
NO_SERVER = setting("backend", "Without servers: native, transformers, vllm or llama.cpp for a pair; vllm-serve, "
                    "sglang or llama-server start both.", "native")  # fmt: skip
SERVER_K = setting("k", "The longest draft, around which lengths are tried.", "what the server says, else 4")
AUDITED = (
    *PAIR, setting("url", "The server to audit, which speculates."), "baseline_url", NO_SERVER, "method", SERVER_K,
    *WORDS, setting("dataset", usual="code"), "excerpt", "chat", setting("limit", usual=32), "seed",
)  # fmt: skip
AUDIT_RESUME = replace(OWN["resume"], help="Continue an audit (its folder); name the servers again.")
AUDIT_FOLDER = replace(OWN["output_dir"], help="Folder in which the audit's folder is created. Default: results.")


@options(*AUDITED, REQUESTS, MINUTES, LOAD, AUDIT_RESUME, AUDIT_FOLDER, *RESULTS)
def audit(given: Given) -> None:
    """Find out whether a served model with speculation gives the text of the same model without.

    Sends the same prompts to both servers: greedy, sampled, under load, and where faults were found before. Judges
    differences by the log-probabilities of the baseline server. Exit code 5 where a fault is proven. Without servers, a
    method of a pair on a --backend is audited by the target's network.

    Examples:

    specbench audit --url http://localhost:8000 --baseline-url http://localhost:8001 --target qwen3-8b

    specbench audit --target demo --draft demo-draft --backend transformers --method chain --requests 100
    """
    settings = settings_of(given)
    urls = {name: settings.pop(name) for name in URLS if name in settings}
    if len(urls) == 1:
        raise UsageError("specbench audit compares two servers: name them with --url and --baseline-url")
    from specbench.jobs import audit
    from specbench.jobs.output import output_of

    output = output_of(settings, given)
    bounds: dict[str, Any] = {name: given.get(name) for name in ("requests", "minutes", "at_once")}
    audit.start_audit(audit.Wanted(settings, **urls, **bounds), output, given.get("resume"))


TRACED = replace(OWN["format"], kind=Literal["terminal", "json", "html"],
                help="Default: by the end of --output, else terminal.")  # fmt: skip
FILE = replace(OWN["output"], help="Write to this file (x.json, x.html or text). In a run's folder, trace.json becomes "
               "part of its report.")  # fmt: skip
Prompt = Annotated[str | None, typer.Option("--prompt", "-p", help="The prompt. Default: an example.")]
PromptFile = Annotated[Path | None, typer.Option(help="UTF-8 file with the prompt; a final line break is dropped.")]
ROUNDS = Option("rounds", bool, OUTPUT, "One line per round, with drafts that were never tested.",
                absent=False)  # fmt: skip
SEED = setting("seed", "Seed for every random draw.")


@options(..., *PAIR, "method", "lookahead", *SAMPLING, "chat", SEED, ROUNDS, TRACED, FILE, usual={"max_new_tokens": 64})
def trace(given: Given, prompt: Prompt = None, prompt_file: PromptFile = None) -> None:
    """Show one decode token by token.

    Accepted drafts are green, rejected ones struck through in red, corrections blue, bonus tokens magenta.

    Examples:

    specbench trace --prompt "def area(r):"

    specbench trace --method prompt-lookup --k 8 --output trace.html
    """
    settings = with_models(with_ks(settings_in(given)))
    from specbench.jobs import trace

    text = trace.prompt_of(prompt, prompt_file)
    trace.start(settings, text, given.get("output"), given.get("format"), given["rounds"])


TREE_USUAL = {"limit": 10, "max_new_tokens": 64}

Children = Annotated[
    int, typer.Option(min=1, max=32, help="Children of a node whose acceptance is measured.", rich_help_panel=SEARCH)
]
Nodes = Annotated[
    int, typer.Option(min=1, max=256, help="Maximum number of nodes of the tree.", rich_help_panel=SEARCH)
]
Depth = Annotated[
    int, typer.Option(min=1, max=32, help="Maximum number of levels of the tree.", rich_help_panel=SEARCH)
]
By = Annotated[
    Literal["speedup", "tokens"],
    typer.Option(
        help="What to maximise: the speedup on this machine, or the tokens per round.", rich_help_panel=SEARCH
    ),
]
PassRepeat = Annotated[int, typer.Option(min=1, help="How often every pass is timed.", rich_help_panel=MEASURE)]


@options(*NAMED_PAIR, *DATA, *SAMPLING, ..., "seed", "output", "overwrite", STYLE, "quiet", usual=TREE_USUAL)
def tree(
    given: Given,
    children: Children = 4,
    nodes: Nodes = 32,
    depth: Depth = 8,
    by: By = "speedup",
    repeat: PassRepeat = 15,
) -> None:
    """Find the best token tree (Sequoia): measure how often each child is accepted and what a round costs.

    Children are the most probable tokens when greedy, draws without replacement when sampling. Decodes 10 prompts per
    data set and 64 tokens each by default.

    Examples:

    specbench tree --output tree.yaml

    specbench run --method tree.yaml
    """
    check_free(given.get("output"), given["overwrite"])
    from specbench.jobs.search import TreeSearch, start_tree

    search = TreeSearch(children, nodes, depth, by, repeat)
    start_tree(settings_in(given), search, given.get("output"), given["format"], given["quiet"])


TARGET = ("target", "target_revision", "dtype", "device")
LAYERS_USUAL = {"limit": 16, "max_new_tokens": 64}

Evaluations = Annotated[int, typer.Option(min=3, help="Maximum number of layer sets to score.", rich_help_panel=SEARCH)]
Cost = Annotated[
    Literal["measured", "share"],
    typer.Option(
        help="Cost ratio c of a set: timed on this machine, or the share of kept layers.", rich_help_panel=SEARCH
    ),
]


@options(*TARGET, *DATA, *SAMPLING, "seed", ..., "output", "overwrite", STYLE, "quiet", usual=LAYERS_USUAL)
def skip_layers(given: Given, evaluations: Evaluations = 600, cost: Cost = "measured") -> None:
    """Search the layers of the target that draft best for it (self-speculation without a draft model).

    One half of the prompts is for the search, the other half checks the result. Default: 16 prompts per data set.

    Examples:

    specbench skip-layers --output layers.yaml

    specbench run --method layers.yaml
    """
    check_free(given.get("output"), given["overwrite"])
    from specbench.jobs.search import LayerSearch, start_skip_layers

    search = LayerSearch(evaluations, cost)
    start_skip_layers(settings_in(given), search, given.get("output"), given["format"], given["quiet"])
