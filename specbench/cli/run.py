"""`specbench run`: baseline and one method over some data sets, measured side by side."""

import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.errors import SpecbenchError, UsageError

PAIR, METHOD, DATA, LAW, MEASURE, OUTPUT = "Pair", "Method", "Data", "Sampling", "Measuring", "Output"


def run(
    target: Annotated[str | None, typer.Option("--target", "-t", help="Alias, hub id (owner/name) or folder. Default: the shipped pair.", rich_help_panel=PAIR)] = None,
    draft: Annotated[str | None, typer.Option("--draft", "-d", help="The same for the draft. Default: the target's usual draft.", rich_help_panel=PAIR)] = None,
    target_revision: Annotated[str | None, typer.Option(help="Commit of the target on the hub.", rich_help_panel=PAIR)] = None,
    draft_revision: Annotated[str | None, typer.Option(help="Commit of the draft on the hub.", rich_help_panel=PAIR)] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16 or float64.", rich_help_panel=PAIR)] = None,
    draft_dtype: Annotated[str | None, typer.Option(help="Default: the target's.", rich_help_panel=PAIR)] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.", rich_help_panel=PAIR)] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="A method of configs/methods, or a YAML file.", rich_help_panel=METHOD)] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", min=0, help="Lookahead: drafted tokens per round. Default: the pair's.", rich_help_panel=METHOD)] = None,
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="code, articles (shipped), humaneval, xsum (hub), or jsonl:, parquet:, csv:, text: and a path. Repeatable.", rich_help_panel=DATA)] = None,
    column: Annotated[str | None, typer.Option(help="Column that holds the prompt. Default: found by its name.", rich_help_panel=DATA)] = None,
    template: Annotated[str | None, typer.Option(help="Prompt template with the column's name in braces.", rich_help_panel=DATA)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts per data set: a seeded sample over its categories.", rich_help_panel=DATA)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens to decode per prompt. Default: 128.", rich_help_panel=LAW)] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy. Default: 0.", rich_help_panel=LAW)] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens.", rich_help_panel=LAW)] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="Draw from the smallest set of this mass.", rich_help_panel=LAW)] = None,
    min_p: Annotated[float | None, typer.Option(min=0, max=1, help="Drop tokens below this share of the likeliest.", rich_help_panel=LAW)] = None,
    eta: Annotated[float | None, typer.Option(min=0, max=1, help="Epsilon of eta sampling.", rich_help_panel=LAW)] = None,
    ignore_eos: Annotated[bool | None, typer.Option("--ignore-eos/--stop-at-eos", help="Decode a fixed length. Default: stop-at-eos.", rich_help_panel=LAW)] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the sample of prompts and of every draw. Default: 0.", rich_help_panel=MEASURE)] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Uncounted prompts per arm and cell. Default: 2.", rich_help_panel=MEASURE)] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="How often every prompt is decoded. Default: 1.", rich_help_panel=MEASURE)] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML with the same keys; the command line wins.", rich_help_panel=OUTPUT)] = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", "-o", help="Where the run's folder is made. Default: results.", rich_help_panel=OUTPUT)] = None,
    format: Annotated[str | None, typer.Option("--format", help="table, csv, json, jsonl or md on stdout.", rich_help_panel=OUTPUT)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result.", rich_help_panel=OUTPUT)] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="-v prints settings, versions and machine on stderr, -vv also the traceback of an error.", rich_help_panel=OUTPUT)] = 0,
) -> None:  # fmt: skip
    """Measure baseline and speculative decoding of a pair over prompts.

    Without any option: the shipped pair on the shipped prompts, offline, on whatever device there is.
    """
    from specbench.cli import measuring

    given = {name: value for name, value in locals().items() if name not in {"measuring", "config", "quiet", "verbose"}}
    settings = {**read_config(config), **{name: value for name, value in given.items() if value is not None}}
    try:
        measuring.run(settings, quiet=quiet, verbose=verbose)
    except SpecbenchError:
        if verbose > 1:
            traceback.print_exc()
        raise


def read_config(path: Path | None) -> dict[str, Any]:
    """The keys of a configuration file, with underscores; raises UsageError with one line."""
    import yaml

    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected keys and values, the same as the options of `specbench run`")
    settings = {str(key).replace("-", "_"): value for key, value in content.items()}
    if "dataset" in settings and not isinstance(settings["dataset"], list):
        settings["dataset"] = [settings["dataset"]]
    return settings
