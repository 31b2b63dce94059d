"""`specbench models`: which checkpoints have a name here, and scale models as folders."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from specbench.cli.help import Command
from specbench.cli.options import OWN, PLAIN, Given, options
from specbench.errors import UsageError
from specbench.models.checkpoints import pairs
from specbench.models.scale.shapes import Shape, find, shapes
from specbench.show.records import print_records
from specbench.wording import clean

BYTES = 2  # of a weight in bfloat16

models = typer.Typer(help="List the models that have a name, and make scale models.", invoke_without_command=True)


@models.callback()
def alone(context: typer.Context) -> None:
    """Without a command: the list."""
    if context.invoked_subcommand is None:
        list_models()


@models.command(name="list", cls=Command)
@options(PLAIN)
def list_models(given: Given) -> None:
    """List the aliases for --target and --draft, and the shapes that any of them can be grown to (demo@llama-7b).

    Examples:

    specbench models list

    specbench run --target demo@llama-68m
    """
    named = [{"name": name, **pairs.described(name)} for name in pairs.aliases()]
    grown = [described(shape) for shape in shapes().values()]
    rows = [{"kind": "alias", **row} for row in named] + [{"kind": "shape", **row} for row in grown]
    tables = {"aliases of checkpoints": named, "shapes of scale models: --target demo@<shape>": grown}
    print_records(rows, tables, given["format"])


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


OUTPUT = replace(OWN["output"], panel=None, absent=..., help="The folder to write.")
OVERWRITE = replace(OWN["overwrite"], panel=None, help="Replace a scale model that is there already.")


@models.command(name="grow", cls=Command)
@options(..., OUTPUT, OVERWRITE)
def grow(
    given: Given,
    like: Annotated[str, typer.Option(help="The shape: see `specbench models list`.")],
    small: Annotated[str, typer.Option("--from", help="A Llama checkpoint: alias, hub id or folder.")] = "demo",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16, float32 or float64.")] = "bfloat16",
    max_shard_size: Annotated[str, typer.Option(help="Of one file of weights.")] = "5GB",
) -> None:
    """Write a scale model: the function of a small checkpoint at the cost of a larger shape, for any engine to load.

    Examples:

    specbench models grow --like llama-68m --output scale-68m
    """
    shape = find(like)
    from specbench.models.checkpoints.precision import DTYPES
    from specbench.models.checkpoints.write_scale_model import write_scale_model

    if dtype not in DTYPES:
        raise UsageError(f"unknown --dtype {dtype!r}: use {', '.join(DTYPES)}")
    size = shape.parameters * DTYPES[dtype].itemsize / 1e9
    typer.echo(f"growing {clean(small)} to {like}: {shape.parameters:,} weights, {size:.2f} GB in {dtype} …", err=True)
    write_scale_model(small, like, given["output"], DTYPES[dtype], max_shard_size, overwrite=given["overwrite"])
    typer.echo(f"scale model: the function of {clean(small)} at the cost of {like}", err=True)
    typer.echo(clean(given["output"], 1000))
