"""The commands that read results or formulas: verdict, report, compare, list, import, profile and predict.

None of them may load torch, transformers, datasets or pandas, so that they answer at once.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specbench.cli.help import beginning, run_names
from specbench.cli.options import OWN, PLAIN, Given, options, setting, settings_in
from specbench.errors import UsageError
from specbench.measure.parsing import items, parse_k_list, with_lists
from specbench.results.named_runs import USUAL as USUAL_FOLDER
from specbench.results.named_runs import found_run
from specbench.wording import clean

VERDICT_STYLE = replace(PLAIN, kind=Literal["table", "json", "md"], help="table (sentences), json or md on stdout.")
Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, their names, latest, previous, or their results.csv.",
        autocompletion=beginning(run_names),
    ),
]

Judges = Annotated[
    bool,
    typer.Option(
        "--exit-code", help="Exit with 0 on YES, 3 on NO, 7 on PROVISIONAL and UNCLEAR; of several, the worst."
    ),
]
Least = Annotated[
    float | None,
    typer.Option(help="Exit with 3 if the whole interval of the speedup is below this, with 7 if that is undecided."),
]


@options(..., VERDICT_STYLE, "explain")
def verdict(given: Given, runs: Runs, exit_code: Judges = False, fail_under: Least = None) -> None:
    """Decide whether speculative decoding pays: YES, NO, PROVISIONAL or UNCLEAR, the best K, and what would settle it.

    Examples:

    specbench verdict latest

    specbench verdict latest --explain

    specbench verdict latest --fail-under 1.1
    """
    from specbench.jobs import reading

    reading.start_verdict([found_run(run) for run in runs], given["format"], given["explain"], exit_code, fail_under)


FILE = replace(OWN["output"], panel=None, help="File to write. Default: report.html in the first folder.")


@options(..., FILE)
def report(
    given: Given,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, or folders of calibrate or design-draft.",
            autocompletion=beginning(run_names),
        ),
    ],
    png: Annotated[
        bool, typer.Option("--png/--no-png", help="Also write the figures as plots/*.png next to the report.")
    ] = True,
    svg: Annotated[bool, typer.Option("--svg", help="Also write the figures as SVG.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write the figures as PDF.")] = False,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the report in the browser.")] = False,
) -> None:
    """Write one HTML file on finished runs, calibrations or audits: the answer, every number, the figures. No network.

    Two runs are shown side by side with what differs, every number of both, and the tests of compare.

    Examples:

    specbench report latest

    specbench report latest --svg --pdf --output answer.html

    specbench report results/baseline latest
    """
    output = given.get("output")
    if output is not None and output.is_dir():
        raise UsageError(f"--output {output} is a folder: name a file in it, such as {output / 'report.html'}")
    from specbench.show.report.page import write_report

    def note(line: str) -> None:
        typer.echo(f"note: {line}", err=True)

    file = write_report([found_run(run) for run in runs], output, png=png, svg=svg, pdf=pdf, note=note)
    typer.echo(clean(file, 4096))
    if show:
        typer.launch(file.resolve().as_uri())


MOST = 50.0  # percent; a larger margin would detect no regression
COMPARE_STYLE = replace(PLAIN, kind=Literal["table", "md", "json", "junit", "gha"])
QUIET = replace(OWN["quiet"], panel=None, help="Print nothing but an error.")

RUNS = beginning(run_names)
Base = Annotated[
    Path,
    typer.Argument(
        help="Run to compare with: its folder, its name, previous, or its results.csv.", autocompletion=RUNS
    ),
]
New = Annotated[
    list[Path] | None,
    typer.Argument(
        help="The run to judge, and reruns of it: all must show a regression. Required.",
        autocompletion=RUNS,
    ),
]
Reruns = Annotated[list[Path] | None, typer.Option(help="A rerun of BASE, for the second NEW, and so on. Repeatable.")]
Gates = Annotated[
    list[str] | None, typer.Option(help='Gates such as "speedup<-5%" or "latency>+10%"; they alone decide. Repeatable.')
]
Checks = Annotated[list[str] | None, typer.Option(help="Only deterministic, ratios or absolute. Repeatable.")]
Margin = Annotated[
    float | None, typer.Option(min=0, max=MOST, help="Percent a number may be worse. Default: 2.5; absolute: 5.")
]
Level = Annotated[
    float | None,
    typer.Option(
        min=80,
        max=99.99,
        help="Confidence of a regression: percent, one-sided, over all comparisons of a check. Default: 99.",
    ),
]
JUnit = Annotated[Path | None, typer.Option(help="Also write JUnit XML to this file.")]
Gha = Annotated[Path | None, typer.Option(help="Also write NEW as customBiggerIsBetter JSON to this file.")]


@options(..., COMPARE_STYLE, QUIET)
def compare(
    given: Given,
    base: Base,
    new: New = None,
    base_rerun: Reruns = None,
    fail_on: Gates = None,
    checks: Checks = None,
    margin: Margin = None,
    level: Level = None,
    junit: JUnit = None,
    gha: Gha = None,
) -> None:
    """Compare runs: exit 0 if nothing became worse, 3 on a regression, 7 if something could not be compared.

    Counts and outputs must be equal where seeds and versions are; ratios and times must be worse by more than the
    margin and by more than chance. Under GitHub Actions the table is added to the job summary.

    Examples:

    specbench compare results/baseline latest

    specbench compare results/baseline latest --fail-on "speedup<-5%" --junit compare.xml

    specbench compare previous latest
    """
    from specbench.jobs import reading

    if not new:
        raise UsageError(
            "give two runs, BASE and NEW; the best cell of one run is named by `specbench verdict RUN` and "
            "`specbench sweep-k`"
        )
    policy = reading.policy_of(fail_on or [], checks or [], margin, level or 99)
    output = reading.Output(given["format"], given["quiet"], junit, gha)
    bases, news = ([found_run(run) for run in runs] for runs in ([base, *(base_rerun or [])], new))
    reading.start_compare(bases, news, policy, output)


Parent = Annotated[Path, typer.Argument(help="The folder that holds the runs.")]


@options(..., PLAIN)
def list_(given: Given, parent: Parent = USUAL_FOLDER) -> None:
    """List the runs of a folder: the name that other commands take, what was measured, and the answer.

    Examples:

    specbench list

    specbench list results --format json
    """
    from specbench.jobs import reading

    reading.start_list(parent, given["format"])


ImportedBase = Annotated[Path, typer.Argument(metavar="BASE", help="Results without a draft: a file or its folder.")]
ImportedSpec = Annotated[Path, typer.Argument(metavar="SPEC", help="Results with a draft, of the same tool.")]
Slo = Annotated[str, typer.Option(help="Limits of latency for goodput, such as ttft=500ms,tpot=30ms,e2e=2s.")]


@options(..., PLAIN)
def import_(given: Given, base: ImportedBase, spec: ImportedSpec, slo: Slo = "", exit_code: Judges = False) -> None:
    """Compare results of `vllm bench serve`, AIPerf or guidellm, measured without and with a draft.

    Requests are paired by prompt: speedup with interval, verdict, acceptance length, latency, goodput.

    Examples:

    specbench import base.json spec.json

    specbench import base.json spec.json --slo ttft=500ms,tpot=30ms
    """
    from specbench.jobs import imports

    imports.start(base, spec, slo, given["format"], exit_code)


ProfiledRun = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run's folder, its name, latest, previous, or its results.csv.",
        autocompletion=beginning(run_names),
    ),
]
Cell = Annotated[str, typer.Option(help="Which of several cells to use: its key, its method, or its K (K4).")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="JSON file to write. Default: stdout.")]
ForEngine = Annotated[
    str,
    typer.Option(
        "--engine", help="Print what makes vllm, sglang, llama-server, trtllm, atom or aiconfigurator accept as much."
    ),
]


@options(...)
def profile(given: Given, run: ProfiledRun, cell: Cell = "", output: Output = None, engine: ForEngine = "") -> None:
    """Export the acceptance of a run by position: as the JSON file that --acceptance takes, or as an engine's options.

    Examples:

    specbench profile latest --output profile.json

    specbench run --acceptance profile.json

    specbench profile latest --engine vllm
    """
    from specbench.jobs import reading

    reading.start_profile(found_run(run), cell, output, engine)


DEFAULT_KS = "1-12"

Alphas = Annotated[list[float] | None, typer.Option(help="Acceptance of a tested token, 0 to 1. Repeatable.")]
Cs = Annotated[list[float] | None, typer.Option(help="Seconds per draft token ÷ target step. Repeatable.")]
CRounds = Annotated[
    list[float] | None,
    typer.Option(help="Instead of --c: seconds of all drafts of a round ÷ target step, if one pass makes them."),
]
CHat = Annotated[float | None, typer.Option(help="The ratio --c, or --c-round, in operations (default: the same).")]
Ks = Annotated[str | None, typer.Option(help=f"Lookahead K: 4, 1,2,4, 1-12, 1-16+3 (default {DEFAULT_KS}).")]
Run = Annotated[
    Path | None,
    typer.Option(
        help="Run folder or results.csv: predict its cells; --k: other K.", autocompletion=beginning(run_names)
    ),
]

FLEET = "A fleet under load (--fleet)"


def of_fleet(flag: str, text: str, least: float | None = None) -> Any:
    return typer.Option(flag, help=text, rich_help_panel=FLEET, min=least)


Fleet = Annotated[
    bool,
    of_fleet("--fleet", "Servers under load, from --from-run, a run at several --batch: throughput, latency, cost."),
]
Arrivals = Annotated[
    list[float] | None, of_fleet("--arrivals", "Requests a second at random times, of all devices. Repeatable.", 0)
]
Users = Annotated[
    list[int] | None,
    of_fleet("--users", "Number of users, who send their next request after each answer (closed loop). Repeatable.", 1),
]
Devices = Annotated[int | None, of_fleet("--devices", "Servers that share the requests. Default: 1.", 1)]
Slots = Annotated[
    int | None,
    of_fleet("--slots", "Maximum rows that a server decodes together. Default: the largest measured batch.", 1),
]
OutputTokens = Annotated[
    float | None,
    of_fleet("--output-tokens", "Mean tokens of an answer: measured lengths are scaled to it. Default: not scaled.", 1),
]
Requests = Annotated[int | None, of_fleet("--requests", "Number of simulated requests. Default: 1000.", 10)]
Price = Annotated[float | None, of_fleet("--price", "Cost of a device per hour, for the cost of tokens.", 0)]
Seed = Annotated[int | None, of_fleet("--seed", "Seed for arrivals, lengths and tokens. Default: 0.", 0)]

BEFORE = "Before anything is measured (--hardware)"
Hardware = Annotated[
    str | None,
    typer.Option(
        help="Predict a pair from its shapes: on h100, h200, a100 or 4090 from constants with sources, on cpu from a "
        "few of its layers, measured here.",
        rich_help_panel=BEFORE,
    ),
]
PAIR_ON = tuple(
    replace(one, panel=BEFORE)
    for one in (
        setting("target"),
        setting("draft"),
        setting(
            "tier",
            "How rounds are executed: eager, graph (CUDA graphs), compile or auto, or a list.",
            "all; on a CPU auto",
        ),
        setting("context", "Tokens before a round, 4k being 4096, or a list.", "512,2k,4k,32k"),
        *map(setting, ("batch", "dtype", "draft_dtype", "quantize", "draft_quantize")),
    )
)


@options(..., PLAIN, *PAIR_ON)
def predict(
    given: Given,
    alpha: Alphas = None,
    c: Cs = None,
    c_round: CRounds = None,
    c_hat: CHat = None,
    k: Ks = None,
    from_run: Run = None,
    fleet: Fleet = False,
    arrivals: Arrivals = None,
    users: Users = None,
    devices: Devices = None,
    slots: Slots = None,
    output_tokens: OutputTokens = None,
    requests: Requests = None,
    price: Price = None,
    seed: Seed = None,
    hardware: Hardware = None,
) -> None:
    """Predict tokens per round, speedup and operations from alpha, c and K, without running a model.

    Tables are rounded to 3 decimals (not truncated, as in some tutorials); csv, json and jsonl carry full precision.
    The best K is the best of all K, not only of --k; K = 0 is decoding without a draft.

    Examples:

    specbench predict --alpha 0.7 --c 0.05

    specbench predict --alpha 0.6 --alpha 0.8 --c 0.1 --k 1-16

    specbench predict --from-run latest

    specbench predict --from-run latest --k 1-16

    specbench predict --hardware h100 --target llama-7b --alpha 0.7
    """
    from specbench.jobs import predict as job

    style, settings = given["format"], settings_in(given)
    if hardware is not None:
        rates = {"c": c, "c-round": c_round, "c-hat": c_hat, "from-run": from_run, "fleet": fleet or None}
        refuse("--hardware takes all costs from the pair's shapes", rates)
        check_alone(arrivals, users, devices, slots, output_tokens, requests, price, seed)
        ks = [0, *parse_k_list(DEFAULT_KS)] if k is None else parse_k_list(k)
        tiers = {"tier": items(settings["tier"])} if "tier" in settings else {}
        job.from_hardware(hardware, with_lists({**settings, **tiers}), alpha or [], ks, style)
        return
    refuse("a pair is predicted on a device: add --hardware, such as h100 or cpu, or without one", settings)
    if fleet:
        others = {"alpha": alpha, "c": c, "c-round": c_round, "c-hat": c_hat, "k": k}
        servers = job.Servers(devices or 1, slots, output_tokens, requests or 1000, price, seed or 0)
        job.start(run_of_fleet(from_run, others), arrivals or [], users or [], servers, style)
        return
    check_alone(arrivals, users, devices, slots, output_tokens, requests, price, seed)
    if from_run is not None:
        if any(option is not None for option in (alpha, c, c_round, c_hat)):
            raise UsageError("--from-run takes alpha and c from the run: leave out --alpha, --c, --c-round, --c-hat")
        job.from_run(found_run(from_run), style, [] if k is None else parse_k_list(k))
        return
    costs = [*((one, False) for one in c or []), *((one, True) for one in c_round or [])]
    if not alpha or not costs:
        raise UsageError(
            "nothing to predict from: give --alpha and --c (such as 0.7 and 0.1) or --c-round, or --from-run RUN"
        )
    job.from_rates(alpha, costs, c_hat, parse_k_list(DEFAULT_KS if k is None else k), style)


def run_of_fleet(run: Path | None, others: Mapping[str, object]) -> Path:
    """The run of --fleet. UsageError if it is missing, or if an option conflicts with it."""
    if run is None:
        raise UsageError("--fleet needs measured costs: add --from-run RUN, a run with --batch 1,2,4,8")
    refuse("--fleet takes all costs from the run", others)
    return found_run(run)


def refuse(why: str, others: Mapping[str, object]) -> None:
    """UsageError if one of these options was given."""
    if given := [f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None]:
        raise UsageError(f"{why}: leave out {', '.join(given)}")


def check_alone(*of_fleet: object) -> None:
    """Raise UsageError for options that need --fleet."""
    if any(option is not None for option in of_fleet):
        raise UsageError(
            "--arrivals, --users, --devices, --slots, --output-tokens, --requests, --price and --seed are of servers "
            "under load: add --fleet, or leave them out"
        )
