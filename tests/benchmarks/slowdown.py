"""Does `specbench compare` see a target that became 10 % slower, and nothing where nothing changed? Real seconds. Run

    python -m tests.benchmarks.slowdown [RUNS] [PROMPTS]

RUNS pairs of runs of the shipped pair, base and head alternating, each a process of its own. The slow head does real
work in every pass of the target: its own first layers once more, until a tenth of the pass has been spent again.
Prints the exit code of every comparison: 0 is wanted of base against base, 3 of base against the slow head.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLAIN = "from specbench.cli.app import main; main()"
SLOW = """
import time
from specbench.models.network.causal import Causal
forward = Causal._forward
def slowed(self, *rest, **more):
    begin = time.perf_counter()
    logits = forward(self, *rest, **more)
    if self.config.num_hidden_layers > 4:
        end = time.perf_counter() + 0.1 * (time.perf_counter() - begin)
        weight = self.network.model.layers[0].mlp.gate_proj.weight
        while time.perf_counter() < end:
            weight @ weight.T
    return logits
Causal._forward = slowed
from specbench.cli.app import main; main()
"""


def run(code: str, folder: Path, prompts: int) -> Path:
    """One run into `folder`; the folder of the run."""
    options = ["run", "--k", "2", "--dataset", "code", "--limit", str(prompts), "-q", "-o", str(folder)]
    subprocess.run([sys.executable, "-c", code, *options], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime)


def compared(*runs: Path, rerun: Path) -> int:
    """The exit code of base, new and a second new against it, the second with a base of its own."""
    command = ["compare", *map(str, runs), "--base-rerun", str(rerun)]
    found = subprocess.run(
        [sys.executable, "-c", PLAIN, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(found.stderr.strip() or found.stdout.strip().splitlines()[-1])
    return found.returncode


def main(runs: int, prompts: int) -> None:
    print(f"{'round':>5} {'base vs base':>13} {'base vs slow':>13}")
    for number in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            heads = {"base": PLAIN, "same": PLAIN, "slow": SLOW}
            made = {f"{head}{again}": run(code, folder / f"{head}{again}", prompts)
                    for again in (1, 2) for head, code in heads.items()}  # fmt: skip
            same = compared(made["base1"], made["same1"], made["same2"], rerun=made["base2"])
            slow = compared(made["base1"], made["slow1"], made["slow2"], rerun=made["base2"])
        print(f"{number:5} {same:13} {slow:13}", flush=True)


if __name__ == "__main__":
    main(*(int(text) for text in (*sys.argv[1:], "3", "20")[:2]))
