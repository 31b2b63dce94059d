"""How long the README's first command takes once it is installed, and what it answers, in fresh clones.

    python -m tests.benchmarks.first [--times 10] [--busy] [--save FILE]

Every time clones this repository and calls `specbench run` in the clone twice: with empty caches of compiled code and
of Python's, and with what the first call has left. With --busy another process computes meanwhile without end.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import specbench
from specbench.models.execution.compile_cache import NAME
from specbench.models.execution.region_code import MACHINE_CODE
from tests.benchmarks.harness import Bench, Row, Sheet, begin, middle, parser, say
from tests.benchmarks.startup import ROOT

STATES = ("cold", "warm")
BUSY = "while True: pass"


def called(clone: Path) -> Row:
    """Seconds of the command in a clone, and its answer."""
    environment = {**os.environ, "PYTHONPATH": str(clone), MACHINE_CODE: str(clone / "a"), NAME: str(clone / "b")}
    before, began = {*clone.glob("results/*Z_*")}, time.perf_counter()
    command = [sys.executable, "-m", "specbench", "run"]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"specbench run: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    (folder,) = {*clone.glob("results/*Z_*")} - before
    found = specbench.load_run(folder)
    (row,) = found.rows()
    return {"seconds": seconds, "prompts": row["prompts"], "speedup": row["speedup"], "answer": found.verdict.answer}


def timed(bench: Bench) -> dict[str, list[Row]]:
    """What every time found, by the state of the caches."""
    found: dict[str, list[Row]] = {state: [] for state in STATES}
    for turn in range(bench.args.times):
        with tempfile.TemporaryDirectory() as place:
            clone = Path(place) / "clone"
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            for state in STATES:
                found[state].append(one := called(clone))
                say(f"{turn + 1} of {bench.args.times}, {state}: {one}")
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--times", type=int, default=10, help="clones (10)")
    options.add_argument("--busy", action="store_true", help="while another process computes")
    bench = begin("first", "The first command", options.parse_args())
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if bench.args.busy else None
    try:
        found = timed(bench)
    finally:
        if other:
            other.kill()
    rows = [
        {
            "caches": state,
            **{name: middle([one[name] for one in some]) for name in ("seconds", "prompts", "speedup")},
            "answers": ", ".join(sorted({one["answer"] for one in some})),
        }
        for state, some in found.items()
    ]
    bench.publish([Sheet("`specbench run`", rows)])


if __name__ == "__main__":
    main()
