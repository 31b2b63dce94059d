"""A server at concurrency 1, 4 and 16, with and without a draft, beside what `specbench predict --fleet` says of it.

    python -m tests.benchmarks.servers --engine vllm --save results/benchmarks/servers-vllm.md
    python -m tests.benchmarks.servers --engine llama.cpp --save results/benchmarks/servers-llama-cpp.md

About fifteen minutes with vLLM on two cores, of which starting its processes takes most, and five with llama.cpp.
Engines must be installed: `specbench backend install`.

First the engine's own steps are measured without a server (`--backend vllm --batch 1,4,16`), which is all that the
prediction knows. Then two servers of the same engine are started, with a draft and without, and asked by so many users,
turn by turn: each sends the next request when it has the answer. Last, requests come at random times, at a share of
what the server without a draft can answer by the prediction. Greedy, with answers of equal length, one and the same
prompts, no prompt kept from one request to the next; every prompt is asked for several times where there are too few.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specbench
from specbench.backends.engines import install
from specbench.backends.native import open_pair
from specbench.jobs.predict import Servers, lines
from specbench.judge.fleet import Arm, arms
from specbench.results.numbers import REQUESTS
from specbench.results.statistics import FEWEST
from specbench.show.predictions import Line
from specbench.spec import RunSpec
from specbench.theory.fleet import Served
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Row, Sheet, numbers, say, spec_of
from tests.support import real_servers

Start = Callable[[RunSpec, int, Path], AbstractContextManager[str]]
OPEN = 3 * FEWEST * REQUESTS  # requests of an open load: five turns that are long beside their beginning and end
SLACK = 8  # tokens that a server may add
FIGURES: tuple[tuple[str, str, Callable[[Served], float]], ...] = (
    ("tokens/s", "served_tokens_per_second", lambda served: served.tokens_per_second),
    ("first token ms", "ttft_median_ms", lambda served: 1000 * served.first_token[0]),
    ("first token ms p95", "ttft_p95_ms", lambda served: 1000 * served.first_token[1]),
    ("per token ms", "per_token_median_ms", lambda served: 1000 * served.per_token[0]),
    ("answer ms", "latency_median_ms", lambda served: 1000 * served.latency[0]),
    ("answer ms p95", "latency_p95_ms", lambda served: 1000 * served.latency[1]),
)


def main() -> None:
    options = harness.parser(__doc__)
    harness.decoding(options, "demo:demo-draft", prompts=48, new=64)
    options.add_argument("--engine", choices=(install.VLLM, install.LLAMA_CPP), default=install.VLLM, help="(vllm)")
    options.add_argument("--users", type=numbers, default=[1, 4, 16], help="in turn (1,4,16)")
    options.add_argument("--steps", type=numbers, default=[1, 4, 16], help="batches whose steps are measured (1,4,16)")
    options.add_argument("--per-user", type=int, default=20, help="requests of every user (20)")
    options.add_argument("--shares", type=shares, default=[0.5], help="of the capacity, for an open load (0.5)")
    options.add_argument("--k", type=int, default=4, help="lookahead (4)")
    options.set_defaults(dtype="float32")
    bench = harness.begin("servers", "Servers beside their prediction", options.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        bench.publish(sheets(bench, Path(folder)))


def shares(text: str) -> list[float]:
    return [float(part) for part in harness.listed(text)]


@dataclass(frozen=True)
class Asked:
    """What servers are asked: the file of the prompts, and the tokens of the longest text."""

    file: Path
    places: int


@dataclass(frozen=True)
class Measured:
    """The servers, what they are asked, and what the steps of their engine say of them."""

    bench: Bench
    asked: Asked
    folder: Path
    urls: Mapping[str, str]
    arms: Sequence[Arm]
    samples: Sequence[Mapping[str, str]]

    def asking(self, count: int, **load: Any) -> Row:
        """The row of a run over so many requests."""
        common = {"target": real_servers.NAME, "backend": "openai", "endpoint": "completions", **self.urls}
        (row,) = run(self.bench, self.asked, self.folder, count, **common, **load).rows()
        return row

    def predicted(self, count: int, arrivals: Sequence[float] = (), users: Sequence[int] = ()) -> list[Line]:
        """What the fleet says of one server: the baseline, then the method."""
        server = Servers(1, None, None, count, None, self.bench.args.seed)
        return [line for arm in self.arms for line in lines(arm, self.samples, arrivals, users, server)]

    def closed(self) -> Sheet:
        """Users who wait for their answers."""
        args, rows, notes = self.bench.args, [], []
        for users in args.users:
            count = args.per_user * users
            say(f"asking with {users} users, {count} requests")
            row, says = self.asking(count, batch=users), self.predicted(count, users=[users])
            rows += [beside(f"{users} users", row, one) for one in says]
            notes.append(f"{users} users: {gains(row, says)}")
        said = f"predicted: specbench predict --fleet --from-run RUN --users N --requests {args.per_user}·N"
        return Sheet(f"{args.engine}: users who wait for answers, K = {args.k}", rows, [*notes, said])

    def opened(self) -> Sheet:
        """Requests that come at random times, at shares of what the server can answer without a draft."""
        args, rows, notes = self.bench.args, [], []
        capacity = self.predicted(OPEN, users=[1])[0].capacity
        for rate in (float(f"{share * capacity:.3g}") for share in args.shares):
            say(f"{rate:g} requests a second, {OPEN} requests")
            row, says = self.asking(OPEN, arrivals=rate, batch=OPEN), self.predicted(OPEN, arrivals=[rate])
            rows += [beside(f"{rate:g} a second", row, one) for one in says]
            notes.append(f"{rate:g} a second: {gains(row, says)}; the baseline can answer {capacity:.3g}, predicted")
        return Sheet(f"{args.engine}: requests at random times, K = {args.k}", rows, notes)


def sheets(bench: Bench, folder: Path) -> list[Sheet]:
    args = bench.args
    slots = max(args.users)
    spec = spec_of(bench, k=args.k, tier="eager", batch=slots)
    asked = written(spec, max(args.per_user * slots, OPEN), folder / "prompts.jsonl")
    say("measuring the steps of the engine")
    steps = run(bench, asked, folder, 4 * max(args.steps), target=spec.target, draft=spec.draft, backend=args.engine,
                tier="eager", batch=args.steps)  # fmt: skip
    found, samples = arms(as_texts(steps.rows()), slots), as_texts(steps.samples())
    with ExitStack() as stack:
        urls = {}
        for option, one in (("url", spec), ("baseline_url", spec.baseline)):
            say(f"starting a server: {one.method}")
            urls[option] = stack.enter_context(starting(args.engine)(one, asked.places, folder / f"{option}.log"))
        servers = Measured(bench, asked, folder, urls, found, samples)
        return [servers.closed(), *([servers.opened()] if args.shares else [])]


def written(spec: RunSpec, count: int, file: Path) -> Asked:
    """So many requests in a file, by the prompts of a data set, again and again."""
    prompts = harness.prompts_for(open_pair([spec]), spec)
    every = ((number // len(prompts), prompts[number % len(prompts)]) for number in range(count))
    text = "".join(json.dumps({"id": f"{one.id} {again}", "prompt": one.text}) + "\n" for again, one in every)
    file.write_text(text, encoding="utf-8")
    return Asked(file, max(len(one.ids) for one in prompts) + spec.max_new_tokens + spec.k + SLACK)


def run(bench: Bench, asked: Asked, folder: Path, limit: int, **settings: Any) -> specbench.Result:
    """A run over so many of the requests; it must succeed."""
    args = bench.args
    common = {"dataset": f"jsonl:{asked.file}", "limit": limit, "max_new_tokens": args.new, "k": args.k,
              "ignore_eos": True, "seed": args.seed, "dtype": args.dtype, "chat_template": "none",
              "output_dir": folder / "runs"}  # fmt: skip
    found = specbench.run(**{**common, **settings})
    found.raise_for_status()
    return found


def starting(engine: str) -> Start:
    """How a server of an engine is started."""
    if engine == install.VLLM:
        python = install.vllm_python()
        return lambda spec, places, log: real_servers.vllm(python, spec, places, log)
    program = install.llama_server()
    return lambda spec, places, log: real_servers.llama_cpp(program, spec, places, log)


def beside(load: str, row: Row, line: Line) -> Row:
    """What was measured of an arm, each number beside its prediction."""
    arm = "baseline_" if line.arm.name == "baseline" else ""
    found: dict[str, Any] = {"load": load, "arm": line.arm.name}
    for label, column, of in FIGURES:
        found |= {label: row[f"{arm}{column}"], f"{label}, predicted": of(line.served)}
    return found


def gains(row: Row, says: Sequence[Line]) -> str:
    """What the draft does for throughput and for an answer, measured and predicted."""
    tokens = row["served_tokens_per_second"] / row["baseline_served_tokens_per_second"]
    answer = row["baseline_latency_median_ms"] / row["latency_median_ms"]
    bare, drafting = (line.served for line in says)
    told = drafting.tokens_per_second / bare.tokens_per_second, bare.latency[0] / drafting.latency[0]
    return (
        f"with the draft {tokens:.2f} times the tokens a second, predicted {told[0]:.2f}, and an answer {answer:.2f} "
        f"times as soon, predicted {told[1]:.2f}; alpha {row['alpha']:.3f}, texts {row['lossless']}"
    )


def as_texts(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Rows as a file has them."""
    return [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]


if __name__ == "__main__":
    main()
