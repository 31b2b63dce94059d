"""What a draft gains by learning its target's own answers and distributions instead of text alone.

    python -m tests.benchmarks.own_answers [--target demo] [--arms text:cross-entropy,answers:cross-entropy,…]
        [--files GLOB] [--prompts 2000] [--new 192] [--tokens 400000] [--layers 1] [--hidden 128] [--rows 8]
        [--length 256] [--rate 0.001] [--temperature 1] [--work FOLDER] [--save FILE]

Pieces of files are cut in two: a prompt, and how the file goes on. An arm "text:LOSS" learns the pieces as they are,
"answers:LOSS" the target's answers to the same prompts at the temperature, "mixed:LOSS" these and what the draft itself
writes, in turns; several losses are joined by +. All begin with the same weights and learn as many tokens, and are
judged along the target's answers to prompts that none of them has seen, which is what is decoded. The difference of α
to the first arm has a 95 % interval over sequences. --work keeps trained arms, so that a call goes on.
"""

import argparse
import json
import sysconfig
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from specbench.jobs.training.data import Source, Teaching, teaching
from specbench.jobs.training.start import Start, first, said_of
from specbench.training.evaluation import Along
from tests.benchmarks import harness
from tests.benchmarks.distillation import arm, recipe_of, trained
from tests.benchmarks.distillation import options as options_of_losses
from tests.benchmarks.harness import Row, Sheet, say

ARMS = (
    "text:cross-entropy,text:forward-kl,text:jsd,answers:cross-entropy,answers:forward-kl,answers:jsd,"
    "answers:forward-kl+hybrid,mixed:jsd"
)
PIECE, PROMPT = 900, 225  # characters, those of a prompt among them: about 256 and 64 tokens of code


def options() -> argparse.ArgumentParser:
    found = options_of_losses(__doc__)
    found.add_argument("--arms", default=ARMS, help=f"the first is what the others are compared with ({ARMS})")
    found.add_argument("--files", default=f"{sysconfig.get_path('stdlib')}/*.py", help="the modules of Python")
    found.add_argument("--prompts", type=int, default=2000, help="evenly from all pieces (2000)")
    found.add_argument("--new", type=int, default=192, help="tokens of an answer at most (192)")
    return found


def pieces(files: str, count: int) -> list[dict[str, str]]:
    """Rows with a prompt and how it goes on, evenly from all files."""
    texts = [(Path(name).name, Path(name).read_text("utf-8", "replace")) for name in sorted(glob(files))]
    every = [
        {
            "id": f"{name}/{start}",
            "prompt": text[start : start + PROMPT],
            "answer": text[start + PROMPT : start + PIECE],
        }
        for name, text in texts
        for start in range(0, len(text) - PIECE, PIECE)
    ]
    return [every[number * len(every) // count] for number in range(min(count, len(every)))]


def main() -> None:
    args = options().parse_args()
    bench = harness.begin("own_answers", "Text alone against the target's own answers, at equal tokens", args)
    with TemporaryDirectory() as temporary:
        bench.publish([compared(args, args.work or Path(temporary))])


def compared(args: argparse.Namespace, work: Path) -> Sheet:
    """All arms in one table."""
    work.mkdir(parents=True, exist_ok=True)
    rows = work / "pieces.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in pieces(args.files, args.prompts)), encoding="utf-8")
    answers, text = (taught(args, f"jsonl:{rows}", work, generate) for generate in (True, False))
    start = first(Start(layers=args.layers, hidden=args.hidden), answers, recipe_of(args, "jsd")).to(answers.device)
    found: list[Row] = []
    known: dict[float, list[Along]] = {}
    for name in harness.listed(args.arms):
        learned, _, losses = name.partition(":")
        samples = "mixed" if learned == "mixed" else "teacher"
        recipe = recipe_of(args, *losses.split("+")).model_copy(update={"samples": samples})
        student, seconds = trained(text if learned == "text" else answers, start, recipe, work / learned)
        row = {"learned": learned, "loss": losses, **arm(answers, student, recipe, known, "the first")}
        say(str(row))
        found.append({**row, "seconds": seconds})
    note = (
        f"{said_of(start)}, begun with the principal components of the target's embedding; every arm learns "
        f"{args.tokens:,} tokens; {len(answers.cache.train):,} answers of {args.new} tokens, drawn at "
        f"temperature {args.temperature:g} after {PROMPT} characters of Python's modules"
    )
    return Sheet(f"{args.target}: {args.layers} layers of width {args.hidden}", found, [note])


def taught(args: argparse.Namespace, data: str, work: Path, generate: bool) -> Teaching:
    """The target with its answers, or with the text itself."""
    settings = {"target": args.target, "device": args.device, "max_new_tokens": args.new, "batch": 16}
    folder = work / ("answers" if generate else "text")
    settings |= {"temperature": args.temperature, "ignore_eos": True}
    return teaching(
        settings, Source((data,), generate), recipe_of(args, "jsd"), folder, Console(stderr=True), again=True
    )


if __name__ == "__main__":
    main()
