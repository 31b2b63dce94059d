"""Trainings that are killed at random moments and gone on with, beside one that is not: the same weights, or not.

    python -m tests.benchmarks.training_kills [--kills 10] [--tokens 40000] [--save FILE]

Every training is `specbench train draft` on the shipped target in float32, in a process of its own, which writes a
checkpoint every second. SIGKILL comes after a random share of the time that the first training took; the same command
is then given again. What is compared are the bytes of the draft's weights.
"""

import argparse
import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks import harness
from tests.benchmarks.harness import Sheet, say

SHAPE = ("--layers", "1", "--hidden", "64", "--rows", "4", "--length", "64", "--evaluations", "4", "--patience", "99")
DATA = ("--data", "code", "--max-new-tokens", "32", "--checkpoint-minutes", "0.0166")
CODE = "import sys; sys.argv[0] = 'specbench'; from specbench.cli.app import main; main()"


def begun(args: argparse.Namespace, work: Path, name: str) -> "subprocess.Popen[bytes]":
    """A training into a folder of its own; all share one token cache."""
    words = ("train", "draft", *DATA, *SHAPE, "--tokens", str(args.tokens), "--cache", str(work / "tokens"))
    command = [sys.executable, "-c", CODE, *words, "--quiet", "--output", str(work / name)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def finished(args: argparse.Namespace, work: Path, name: str) -> tuple[str, float]:
    """The hash of the weights that a training ends with, and its seconds."""
    began = time.monotonic()
    if code := begun(args, work, name).wait():
        raise SystemExit(f"the training of {name} ended with exit code {code}")
    return hashlib.sha256((work / name / "model.safetensors").read_bytes()).hexdigest(), time.monotonic() - began


def main() -> None:
    found = harness.parser(__doc__)
    found.add_argument("--kills", type=int, default=10, help="(10)")
    found.add_argument("--tokens", type=int, default=40_000, help="learned by every training (40000)")
    args = found.parse_args()
    bench = harness.begin("training_kills", "Trainings that are killed and gone on with", args)
    chance = random.Random(args.seed)
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        finished(args, work, "warm")  # answers are generated once
        whole, seconds = finished(args, work, "whole")
        rows = []
        for number in range(1, args.kills + 1):
            process, wait = begun(args, work, str(number)), chance.uniform(0.2, 1.0) * seconds
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            killed = process.wait() == -signal.SIGKILL
            checkpoints = sorted(path.name for path in (work / str(number)).glob("checkpoints/step-*"))
            found, _ = finished(args, work, str(number))
            rows.append({"kill": number, "after s": round(wait, 1), "before its end": "yes" if killed else "no",
                         "newest checkpoint": checkpoints[-1] if checkpoints else "none",
                         "same weights": "yes" if found == whole else "NO"})  # fmt: skip
            say(str(rows[-1]))
    same = sum(row["same weights"] == "yes" for row in rows)
    bench.publish([Sheet(f"{same} of {len(rows)} have the weights of the training that was not killed", rows)])


if __name__ == "__main__":
    main()
