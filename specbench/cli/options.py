"""The options that several commands share, each once: its names, its help, its panel. Knows no command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.parsing import with_models
from specbench.errors import UsageError

PAIR, METHOD, DATA, LAW, MEASURE, OUTPUT = "Pair", "Method", "Data", "Sampling", "Measuring", "Output"

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        help="Alias, hub id (owner/name) or folder, also grown to a shape (demo@llama-7b). Default: the shipped pair.",
        rich_help_panel=PAIR,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft", "-d", help="The same for the draft. Default: the target's usual draft.", rich_help_panel=PAIR
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="NAME=CHECKPOINT: a further model by the name that a method file uses. Also NAME=target[:50%]. Repeatable.",
        rich_help_panel=PAIR,
    ),
]
TargetRevision = Annotated[str | None, typer.Option(help="Commit of the target on the hub.", rich_help_panel=PAIR)]
DraftRevision = Annotated[str | None, typer.Option(help="Commit of the draft on the hub.", rich_help_panel=PAIR)]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16 or float64.", rich_help_panel=PAIR)]
DraftDtype = Annotated[str | None, typer.Option(help="Default: the target's.", rich_help_panel=PAIR)]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.", rich_help_panel=PAIR)]
Method = Annotated[
    str | None,
    typer.Option("--method", "-m", help="A method of configs/methods, or a YAML file.", rich_help_panel=METHOD),
]
K = Annotated[
    str | None,
    typer.Option(
        "--k",
        "-k",
        help="Lookahead: drafted tokens per round, or auto (chosen round by round). Default: the pair's.",
        rich_help_panel=METHOD,
    ),
]
Ks = Annotated[
    str | None,
    typer.Option(
        "--k",
        "-k",
        help="Lookaheads: 1-8, or 1,2,4, or 1-16+3, also with auto (1-8,auto). Default: 1-8.",
        rich_help_panel=METHOD,
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="How the lookahead is chosen: constant, auto, heuristic or confidence; --k is its ceiling. Default: constant.",
        rich_help_panel=METHOD,
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="--schedule confidence drafts on while a token's own probability is at least this. Default: 0.4.",
        rich_help_panel=METHOD,
    ),
]
Tier = Annotated[
    str | None,
    typer.Option(
        help="How rounds are executed: eager, graph (CUDA graphs), compile, or auto (the best there is). Default: eager.",
        rich_help_panel=METHOD,
    ),
]
Acceptance = Annotated[
    str | None,
    typer.Option(
        help="Synthetic acceptance at the same compute: a rate (0.8), or one per position (0.8,0.7,0.6).",
        rich_help_panel=METHOD,
    ),
]
Batch = Annotated[
    str | None,
    typer.Option(help="Rows decoded together: 4, or a list (1,4,16). Default: 1.", rich_help_panel=MEASURE),
]
Dataset = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        help="code, articles (shipped), humaneval, xsum (hub), needle:, passkey:, longdoc:, pg19: and a LENGTH in tokens, "
        "or jsonl:, parquet:, csv:, text: and a path. Repeatable.",
        rich_help_panel=DATA,
    ),
]
Column = Annotated[
    str | None, typer.Option(help="Column that holds the prompt. Default: found by its name.", rich_help_panel=DATA)
]
Template = Annotated[
    str | None, typer.Option(help="Prompt template with the column's name in braces.", rich_help_panel=DATA)
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Prompts per data set: a seeded sample over its categories.", rich_help_panel=DATA),
]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens to decode per prompt. Default: 128.", rich_help_panel=LAW)
]
Temperature = Annotated[float | None, typer.Option(min=0, help="0 is greedy. Default: 0.", rich_help_panel=LAW)]
TopK = Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens.", rich_help_panel=LAW)]
TopP = Annotated[
    float | None, typer.Option(min=0, max=1, help="Draw from the smallest set of this mass.", rich_help_panel=LAW)
]
MinP = Annotated[
    float | None, typer.Option(min=0, max=1, help="Drop tokens below this share of the likeliest.", rich_help_panel=LAW)
]
Eta = Annotated[float | None, typer.Option(min=0, max=1, help="Epsilon of eta sampling.", rich_help_panel=LAW)]
IgnoreEos = Annotated[
    bool | None,
    typer.Option(
        "--ignore-eos/--stop-at-eos", help="Decode a fixed length. Default: stop-at-eos.", rich_help_panel=LAW
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Of the sample of prompts and of every draw. Default: 0.", rich_help_panel=MEASURE),
]
Warmup = Annotated[
    int | None, typer.Option(min=0, help="Uncounted prompts per arm and cell. Default: 2.", rich_help_panel=MEASURE)
]
Repeat = Annotated[
    int | None, typer.Option(min=1, help="How often every prompt is decoded. Default: 1.", rich_help_panel=MEASURE)
]
UntilCi = Annotated[
    float | None,
    typer.Option(
        "--until-ci",
        help="Go on until the speedup's interval is this narrow (0.02: ± 2 %), looking after 20, 30, 45 … prompts only.",
        rich_help_panel=MEASURE,
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Folder of a run that was killed or interrupted: go on with it. Takes all settings from there.",
        rich_help_panel=MEASURE,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML with the same keys; the command line wins.", rich_help_panel=OUTPUT),
]
OutputDir = Annotated[
    Path | None,
    typer.Option(
        "--output-dir", "-o", help="Where the run's folder is made. Default: results.", rich_help_panel=OUTPUT
    ),
]
Format = Annotated[
    str | None, typer.Option("--format", help="table, csv, json, jsonl or md on stdout.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result.", rich_help_panel=OUTPUT)]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        help="-v prints settings, versions and machine on stderr, -vv also the traceback of an error.",
        rich_help_panel=OUTPUT,
    ),
]

NO_SETTINGS = ("config", "quiet", "verbose", "resume", "grid", "file")


def settings_of(given: Mapping[str, Any], config: Path | None) -> dict[str, Any]:
    """What a configuration file says, overridden by the options that were given."""
    chosen = {name: value for name, value in given.items() if name not in NO_SETTINGS and value is not None}
    return with_models({**read_config(config), **chosen})


def read_config(path: Path | None) -> dict[str, Any]:
    """The keys of a configuration file, with underscores; raises UsageError with one line."""
    import yaml

    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected keys and values, the same as the options of `specbench run`")
    return {str(key).replace("-", "_"): value for key, value in content.items()}
