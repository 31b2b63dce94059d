"""How long until the first token? Commands as processes of their own, loading, and compiling cold and warm.

    python -m tests.benchmarks.startup [--load demo,demo@llama-300m] [--compile demo] [--repeat 5] [--save FILE]

First table: wall time of whole commands. Second: where a short run spends its time: every stage of a fresh process,
from the start of the interpreter to the first tokens. Third: loading, the file of the weights in the page cache, as
after a first run. Fourth: making a chain ready in the compiled tier, in a fresh process each: with an empty cache of
torch's compiler, and again with what the first has left there.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.harness import Bench, Sheet, begin, listed, middle, parser, say

ROOT = Path(__file__).parents[2]
CLI = "from specbench.cli.app import main; main()"
SHORT = ["run", "--limit", "1", "--max-new-tokens", "8", "--tier", "eager", "-q"]
COMMANDS = {
    "specbench --help": ["--help"],
    "specbench --version": ["--version"],
    "specbench run --limit 1 --max-new-tokens 8": SHORT,
}
STAGES = """
import json, sys, time
began, spent = time.perf_counter(), {}
def stage(name):
    global began
    spent[name], began = time.perf_counter() - began, time.perf_counter()
target, tier, dtype, device, threads = sys.argv[1:]
import torch
stage("import torch")
torch.set_num_threads(int(threads) or torch.get_num_threads())
import transformers
from specbench.backends.native import open_pair
from specbench.spec import RunSpec
stage("import transformers and specbench")
spec = RunSpec(target=target, tier=tier, dtype=dtype, device=device, max_new_tokens=8, ignore_eos=True)
pair = open_pair([spec])
prompt = pair.encode("def add(a, b):")
stage("check the pair, tokenizer")
pair.load()
stage("load the weights")
run = pair.prepare(spec, len(prompt))
stage("prepare")
run([prompt], [0])
stage("first 8 tokens")
run([prompt], [0])
stage("next 8 tokens")
print(json.dumps(spent))
"""


def process(
    code: str, arguments: Sequence[str], folder: str, more: Mapping[str, str] | None = None
) -> tuple[float, str]:
    """(seconds, stdout) of a fresh interpreter. SystemExit with its stderr where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **(more or {})}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return seconds, done.stdout


def commands(repeat: int, folder: str) -> Sheet:
    """Whole commands, one after the other, again and again."""
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(repeat + 1):
        say(f"commands: {turn} of {repeat}")
        for name, arguments in COMMANDS.items():
            seconds, _ = process(CLI, arguments, folder)
            if turn:  # the first reads files from the disk
                found[name].append(seconds)
    rows = [{"command": name, "seconds: median (least – most)": middle(values)} for name, values in found.items()]
    return Sheet("Commands", rows)


def stages(bench: Bench, target: str, tier: str, folder: str, cache: str = "") -> dict[str, float]:
    """Seconds by stage of a fresh process."""
    more = {"TORCHINDUCTOR_CACHE_DIR": cache} if cache else {}
    arguments = [target, tier, bench.args.dtype, str(bench.device), str(bench.args.threads or 0)]
    whole, out = process(STAGES, arguments, folder, more)
    spent: dict[str, float] = json.loads(out.splitlines()[-1])
    return {"start and end of the interpreter": whole - sum(spent.values()), **spent, "all": whole}


def first_token(bench: Bench, folder: str) -> Sheet:
    """Where the time until the first tokens goes: medians of each stage, and their shares."""
    runs = []
    for turn in range(bench.args.repeat):
        say(f"stages: {turn + 1} of {bench.args.repeat}")
        runs.append(stages(bench, "demo", "eager", folder))
    middles = {name: median(run[name] for run in runs) for name in runs[0]}
    rows = [{"stage": name, "seconds": value, "share": value / middles["all"]} for name, value in middles.items()]
    return Sheet("Until the first tokens, shipped pair, eager", rows)


def loading(bench: Bench, folder: str) -> Sheet:
    """Loading of pairs, target and draft, each in fresh processes."""
    rows: list[dict[str, Any]] = []
    for target in listed(bench.args.load):
        say(f"loading {target}")
        found = [stages(bench, target, "eager", folder)["load the weights"] for _ in range(2)]
        rows.append({"pair": target, "dtype": bench.args.dtype, "seconds: median (least – most)": middle(found)})
    return Sheet("Loading a pair", rows)


def compiling(bench: Bench, folder: str) -> Sheet:
    """Preparing a chain with an empty cache of the compiler, and with a full one."""
    rows: list[dict[str, Any]] = []
    for target in listed(bench.args.compile):
        with tempfile.TemporaryDirectory() as cache:
            found = {}
            for name in ("cold", "warm"):
                say(f"compiling {target}, {name}")
                found[name] = stages(bench, target, bench.args.tier, folder, cache)["prepare"]
        rows.append({"pair": target, "tier": bench.args.tier, "dtype": bench.args.dtype}
                    | {f"{name} s": value for name, value in found.items()})  # fmt: skip
    return Sheet("Making a chain ready", rows)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--load", default="demo,demo@llama-300m", help="pairs to load (demo,demo@llama-300m)")
    options.add_argument("--compile", default="demo", help="pairs to compile; an empty text for none (demo)")
    options.add_argument("--tier", default="compile", help="of what is made ready (compile)")
    options.add_argument("--dtype", default="bfloat16", help="of what is loaded and compiled (bfloat16)")
    options.add_argument("--repeat", type=int, default=5, help="of the commands and stages (5)")
    bench = begin("startup", "Start-up and load times", options.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        sheets = [commands(bench.args.repeat, folder), first_token(bench, folder)]
        sheets += [loading(bench, folder)] if bench.args.load else []
        sheets += [compiling(bench, folder)] if bench.args.compile else []
    bench.publish(sheets)


if __name__ == "__main__":
    main()
