"""How long until a compiled method decodes, and how fast then: compiled region by region, and as a whole.

    python -m tests.benchmarks.ready [--pairs demo:demo-draft,MODEL:] [--method chain] [--k 4] [--dtype float32]
        [--new 64] [--turns 12] [--save FILE]

Every pair, "target:draft" with or without a draft, is made ready in processes of its own: with an empty cache, with the
one that the first has left, and as a whole, as on a GPU, the first and the second time. Seconds are those from loaded
weights to the first round, of the method and of the baseline. Then one process decodes the same text both ways, in
turns: milliseconds per round (median, least – most), and their ratio.
"""

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from specbench.backends.native import Native, open_pair
from specbench.backends.tiers import Tier
from specbench.decoding.decode import begin
from specbench.decoding.rounds import Whole
from specbench.models.execution.compiled import Compiled
from specbench.spec import RunSpec
from tests.benchmarks.harness import Bench, Sheet, in_turns, listed, middle, parser, say
from tests.benchmarks.harness import begin as begun
from tests.benchmarks.startup import process

CODE = "from tests.benchmarks.ready import once; once()"
PROMPT = [[5, 6, 7, 8] * 8]
REACH = 512


def spec_of(pair: str, method: str, k: int, dtype: str) -> RunSpec:
    target, _, draft = pair.partition(":")
    made = RunSpec(target=target, draft=draft or None, method=method, k=k, dtype=dtype)
    return made.with_(tier="compile", ignore_eos=True)


def rounds(backend: Native, spec: RunSpec, as_a_whole: bool) -> tuple[Whole, float]:
    """The rounds of a method, ready, and the seconds that took."""
    method, tier = backend.method(spec), Tier("compile", backend.device)
    ready: Callable[..., Any] = (lambda play: Compiled(play, backend.device)) if as_a_whole else tier._called
    began = time.perf_counter()
    found = Whole(method, REACH, (REACH,), ready)
    with backend.gradless():
        context = begin([[0, 0]], 1, method.drafter.room, [], backend.device, REACH)
        found.prime(context, backend.source(spec, [0]))
    return found, time.perf_counter() - began


def once() -> None:
    """The body of a process: seconds until the arms are ready, as JSON."""
    import sys

    pair, method, k, dtype, whole, threads = sys.argv[1:]
    torch.set_num_threads(int(threads) or torch.get_num_threads())
    specs = [spec_of(pair, name, int(k), dtype) for name in ("baseline", method)]
    backend = open_pair(specs[1:])
    backend.load()
    print(json.dumps([rounds(backend, spec, whole == "whole")[1] for spec in specs]))


def decoded(backend: Native, spec: RunSpec, found: Whole, new: int) -> float:
    """Milliseconds of a round, over a text of so many tokens."""
    method = found.method
    with backend.gradless():
        context = begin(PROMPT, new, method.drafter.room, [], backend.device, REACH)
        method.start(found.begin(context))
        left, source, count, began = new, backend.source(spec, [1]), 0, time.perf_counter()
        while left > 0:
            left, count = found.advance(left, source), count + 1
    return 1e3 * (time.perf_counter() - began) / count


def row(bench: Bench, pair: str) -> dict[str, Any]:
    """Everything about a pair."""
    args, found = bench.args, {"pair": pair, "method": bench.args.method}
    with tempfile.TemporaryDirectory() as folder:
        for how in ("regions", "whole"):
            kept = {"SPECBENCH_CACHE": f"{folder}/{how}", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/{how}-machine"}
            for name in ("cold", "warm"):
                say(f"{pair}: {how}, {name}")
                given = [pair, args.method, str(args.k), args.dtype, how, str(args.threads or 0)]
                seconds = json.loads(process(CODE, given, folder, kept)[1].splitlines()[-1])
                found |= {f"{how}, {name}: baseline + method, s": " + ".join(f"{one:.1f}" for one in seconds)}
    return found | speeds(bench, pair)


def speeds(bench: Bench, pair: str) -> dict[str, str]:
    """Rounds of the baseline and of the method, both ways, in turns."""
    args, found = bench.args, dict[str, str]()
    for name in ("baseline", args.method):
        spec = spec_of(pair, name, args.k, args.dtype)
        backend = open_pair([spec])
        backend.load()
        ways = {how: rounds(backend, spec, how == "whole")[0] for how in ("regions", "whole")}
        calls = {how: partial(decoded, backend, spec, way, args.new) for how, way in ways.items()}
        times = in_turns(calls, args.turns, args.seed)
        ratios = [a / b for a, b in zip(times["whole"], times["regions"], strict=True)]
        found |= {f"{name}, {how}: ms per round": middle(values) for how, values in times.items()}
        found |= {f"{name}: whole ÷ regions": middle(ratios)}
        backend.unload()
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--pairs", default="demo:demo-draft", help="(demo:demo-draft)")
    options.add_argument("--method", default="chain", help="(chain)")
    options.add_argument("--k", type=int, default=4, help="(4)")
    options.add_argument("--dtype", default="float32", help="(float32)")
    options.add_argument("--new", type=int, default=64, help="tokens of a text (64)")
    options.add_argument("--turns", type=int, default=12, help="(12)")
    bench = begun("ready", "Until a compiled method decodes", options.parse_args())
    found = [row(bench, pair) for pair in listed(bench.args.pairs)]
    columns = [{"": name, **{str(one["pair"]): one[name] for one in found}} for name in found[0] if name != "pair"]
    note = f"{bench.args.dtype}, K = {bench.args.k}, passes that read {REACH} places, texts of {bench.args.new} tokens"
    bench.publish([Sheet("Seconds until ready, and rounds", columns, [note])])


if __name__ == "__main__":
    main()
