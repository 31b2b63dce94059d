"""`specbench models`: which checkpoints have a name here, and scale models as folders."""

from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.bench.files import clean
from specbench.bench.wording import literal
from specbench.cli.records import Format, print_data
from specbench.errors import UsageError
from specbench.models import pairs
from specbench.models.shapes import Shape, find, shapes

BYTES = 2  # of a weight in bfloat16
WIDTH = 160  # not the terminal's: rich would cut names to fit, and a cut name is a wrong one

models = typer.Typer(help="List the models that have a name, and make scale models.", no_args_is_help=True)


@models.command(name="list")
def list_models(
    output: Annotated[Format, typer.Option("--format", help="How to print the list.")] = "table",
) -> None:
    """List the aliases for --target and --draft, and the shapes that any of them can be grown to (demo@llama-7b)."""
    named = [{"name": name, **pairs.described(name)} for name in pairs.aliases()]
    grown = [described(shape) for shape in shapes().values()]
    rows = [{"kind": "alias", **row} for row in named] + [{"kind": "shape", **row} for row in grown]
    if not print_data(rows, output):
        show = print_markdown if output == "md" else print_table
        show("aliases of checkpoints", named)
        show("shapes of scale models: --target demo@<shape>", grown)


def described(shape: Shape) -> dict[str, Any]:
    """What the list says about a shape."""
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


def text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else clean(value, 200)


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name, value in rows[0].items():
        table.add_column(name.replace("_", " "), justify="right" if isinstance(value, int | float) else "left")
    for row in rows:
        table.add_row(*(Text(text(value)) for value in row.values()))
    Console(markup=False, highlight=False, width=WIDTH).print(table)


def print_markdown(title: str, rows: list[dict[str, Any]]) -> None:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([literal(text(v)) for v in row.values()] for row in rows)]
    typer.echo(f"**{literal(title)}**\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")


@models.command(name="grow")
def grow(
    like: Annotated[str, typer.Option(help="The shape: see `specbench models list`.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    small: Annotated[str, typer.Option("--from", help="A Llama checkpoint: alias, hub id or folder.")] = "demo",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16, float32 or float64.")] = "bfloat16",
    max_shard_size: Annotated[str, typer.Option(help="Of one file of weights.")] = "5GB",
    force: Annotated[bool, typer.Option("--force", help="Replace a scale model that is there already.")] = False,
) -> None:
    """Write a scale model: the function of a small checkpoint at the cost of a larger shape, for any engine to load."""
    shape = find(like)
    from specbench.models.loading import DTYPES
    from specbench.models.scale_folder import write_scale_model

    if dtype not in DTYPES:
        raise UsageError(f"unknown --dtype {dtype!r}: use {', '.join(DTYPES)}")
    size = shape.parameters * DTYPES[dtype].itemsize / 1e9
    typer.echo(f"growing {clean(small)} to {like}: {shape.parameters:,} weights, {size:.2f} GB in {dtype} …", err=True)
    write_scale_model(small, like, out, DTYPES[dtype], max_shard_size, force=force)
    typer.echo(f"scale model: the function of {clean(small)} at the cost of {like}", err=True)
    typer.echo(clean(out, 1000))
