"""What a draft gains by learning its target's distributions instead of text, and which loss serves it best.

    python -m tests.benchmarks.distillation [--target demo] [--data text:FOLDER] [--losses cross-entropy,forward-kl,…]
        [--tokens 400000] [--layers 1] [--hidden 128] [--rows 8] [--length 256] [--rate 0.001] [--temperature 1]
        [--work FOLDER] [--save FILE]

All arms start from the same weights and learn the same batches; only the loss differs. α and tokens per round are along
held-out text, at the temperature and for greedy decoding; the difference to the first loss of the list has a 95 %
interval over held-out sequences (delete-one jackknife, paired). --work keeps trained arms, so that a call goes on.
"""

import argparse
import copy
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from safetensors.torch import load_model, save_model
from scipy.stats import t as student_t

from specbench.jobs.training.data import Source, Teaching, teaching
from specbench.jobs.training.start import Start, first, said_of
from specbench.training.distil import Run
from specbench.training.evaluation import Along, Judge, chosen, tokens_per_round
from specbench.training.recipe import Recipe
from tests.benchmarks import harness
from tests.benchmarks.harness import Sheet, say

LOSSES = "cross-entropy,forward-kl,reverse-kl,jsd,tv,overlap,hybrid"


def options(doc: str | None) -> argparse.ArgumentParser:
    found = harness.parser(doc)
    found.add_argument("--target", default="demo", help="(demo)")
    found.add_argument("--tokens", type=int, default=400_000, help="learned by every arm (400000)")
    found.add_argument("--layers", type=int, default=1, help="(1)")
    found.add_argument("--hidden", type=int, default=128, help="(128)")
    found.add_argument("--rows", type=int, default=8, help="(8)")
    found.add_argument("--length", type=int, default=256, help="(256)")
    found.add_argument("--rate", type=float, default=1e-3, help="(0.001)")
    found.add_argument("--temperature", type=float, default=1.0, help="(1)")
    found.add_argument("--work", type=Path, help="folder for text and trained arms (a temporary one)")
    return found


def recipe_of(args: argparse.Namespace, *losses: Any) -> Recipe:
    """One arm, which is judged at its beginning and its end alone and keeps its last weights."""
    return Recipe(
        losses=losses, tokens=args.tokens, rows=args.rows, length=args.length, rate=args.rate, evaluations=1,
        temperature=args.temperature, held_out=200, seed=args.seed,
    )  # fmt: skip


def sequences(given: Teaching, student: Any, recipe: Recipe, temperature: float) -> tuple[list[Along], float]:
    """Every held-out sequence, and tokens per round over all of them."""
    how = recipe.model_copy(update={"temperature": temperature})
    found = Judge(given.teacher, given.cache, how).sequences(student)
    return found, tokens_per_round(found, how.k)


def difference(ours: Sequence[Along], theirs: Sequence[Along]) -> str:
    """The difference of two pooled α with its 95 % interval over sequences."""
    a, b = (np.array([float(one.overlap.sum()) for one in some]) for some in (ours, theirs))
    n = np.array([len(one.overlap) for one in ours], dtype=float)
    gain = (a - b).sum() / n.sum()
    without = ((a - b).sum() - (a - b)) / (n.sum() - n)
    error = float(np.sqrt((len(n) - 1) / len(n) * ((without - without.mean()) ** 2).sum()))
    reach = error * float(student_t.ppf(0.975, len(n) - 1))
    return f"{gain:+.3f} ({gain - reach:+.3f} – {gain + reach:+.3f})"


def arm(given: Teaching, student: Any, recipe: Recipe, known: dict[float, list[Along]], name: str) -> dict[str, object]:
    """What a trained draft is worth, and against the first one, whose sequences are `known` by temperature then."""
    row: dict[str, object] = {}
    for temperature in (recipe.temperature, 0.0):
        found, accepted = sequences(given, student, recipe, temperature)
        before = known.setdefault(temperature, found)
        at = f"T = {temperature:g}"
        alpha = sum(float(one.overlap.sum()) for one in found) / sum(len(one.overlap) for one in found)
        row |= {f"α, {at}": round(alpha, 3), f"tokens per round, {at}": round(accepted, 2)}
        row[f"α − α of {name}, {at}"] = "–" if before is found else difference(found, before)
    return row


def trained(given: Teaching, start: Any, recipe: Recipe, place: Path) -> tuple[Any, int | None]:
    """One arm, trained here or before, and the seconds that took, if it was here."""
    place.mkdir(parents=True, exist_ok=True)
    student, file = copy.deepcopy(start), place / f"{recipe.key}.safetensors"
    began = time.monotonic()
    if file.exists():
        load_model(student, file)
        return student.eval().requires_grad_(False), None
    Run(student, given.teacher, given.cache, recipe).trained()
    save_model(student, str(file))
    return student, round(time.monotonic() - began)


def main() -> None:
    found = options(__doc__)
    found.add_argument(
        "--data", action="append", help="as in `specbench train draft --as-it-is`; the modules of Python"
    )
    found.add_argument("--losses", default=LOSSES, help=f"the first is what the others are compared with ({LOSSES})")
    args = found.parse_args()
    bench = harness.begin("distillation", "Losses of a draft, at equal tokens", args)
    with TemporaryDirectory() as temporary:
        bench.publish([compared(args, args.work or Path(temporary))])


def compared(args: argparse.Namespace, work: Path) -> Sheet:
    """All losses in one table."""
    work.mkdir(parents=True, exist_ok=True)
    data = tuple(args.data or [f"text:{sysconfig.get_paths()['stdlib']}/*.py"])
    losses = harness.listed(args.losses)
    settings = {"target": args.target, "device": args.device}
    source, err = Source(data, generate=False), Console(stderr=True)
    given = teaching(settings, source, recipe_of(args, losses[0]), work, err, again=True)
    start = first(Start(layers=args.layers, hidden=args.hidden), given, recipe_of(args, losses[0])).to(given.device)
    rows, known = [], dict[float, list[Along]]()
    for loss in losses:
        recipe = recipe_of(args, loss)
        student, seconds = trained(given, start, recipe, work)
        row = {"loss": loss, **arm(given, student, recipe, known, losses[0])}
        say(str(row))
        rows.append({**row, "seconds": seconds})
    held_out = len(chosen(given.cache.held_out, recipe.held_out))
    text = ", ".join(given.data).replace(sysconfig.get_path("stdlib"), "STDLIB")
    notes = [
        f"{said_of(start)}, begun with the principal components of the target's embedding; {args.tokens:,} tokens of "
        f"{text} in the same batches for every arm; {held_out} held-out sequences, K = {recipe.k}"
    ]
    return Sheet(f"{args.target}: {args.layers} layers of width {args.hidden}", rows, notes)


if __name__ == "__main__":
    main()
