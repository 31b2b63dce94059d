"""Results made by hand for every kind of table and figure that specbench shows: the scenes of the golden files."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console, Group, RenderableType

from specbench.judge.compare import Comparison
from specbench.judge.compare import Finding as Compared
from specbench.judge.fleet import Arm
from specbench.metrics import FIRST_PIECE, LAST_PIECE, PIECE_GAP, TURN_PART, Trace
from specbench.presets import preset
from specbench.results.calibration import AtContext, Calibration, Point
from specbench.results.cells import Cell, Losslessness
from specbench.results.documents import Certificate, Check
from specbench.results.samples import Sample
from specbench.show import compare, documents
from specbench.show.engines import published_table
from specbench.show.fitting import draw
from specbench.show.predictions import Line, fleet_table
from specbench.show.run_output import Shown, print_run, rendered
from specbench.show.table import framed
from specbench.theory.fleet import Engine, Load, simulate
from specbench.wording import Row
from tests.support.many_methods import methods
from tests.support.measured import baseline_trace, cell, sample
from tests.support.nested_samples import ROUNDS, believing, nested_sample, tree_sample
from tests.support.simulated_sweeps import sweep

LLAMAS = {"target": "meta-llama/Llama-3.1-8B-Instruct", "draft": "meta-llama/Llama-3.2-1B-Instruct"}
LONG = "jsonl:/data/questions-of-all-kinds-and-their-answers-2026.jsonl"
PAIR = (sample("p1", (4, 2)), sample("p2", (0, 2)))
NEST = (nested_sample("p1"), nested_sample("p2"))
MIXED = tuple(
    sample(f"p{n}", ((4, 2), (0, 2), (1, 3))[n % 3], category=name)
    for n, name in enumerate(("qa", "math", "qa", "math", "math", "writing"))
)
LOSSY = Losslessness("lossy")


# --- runs -------------------------------------------------------------------------------------------------------------


def engine(name: str, speed: float = 1.0, **resolved: Any) -> Cell:
    """A cell of this engine, faster than the others by a factor."""
    trace = sample().method
    method = replace(trace, seconds=trace.seconds / speed)
    common = {"engine": name, "tier_resolved": "eager", "threads": 2, "prompts_sha256": "0", "engine_notes": ""}
    samples = (sample(f"p{n}", method=method) for n in range(3))
    return cell(*samples, backend=name, resolved={**common, **resolved})


def served(trace: Trace, first: float, last: float) -> Trace:
    gap = (last - first) / 2
    return replace(trace, spans={FIRST_PIECE: first, LAST_PIECE: last, PIECE_GAP: gap, TURN_PART: 0.5})


def request(name: str, turn: int, longer: float) -> Sample:
    one = sample(name, turn=turn, cluster=f"batch {turn}")
    baseline, method = served(one.baseline, 0.25, 1.25 + longer), served(one.method, 0.125, 0.625 + longer)
    return replace(one, baseline=baseline, method=method)


LIMITS = "ttft=300ms,e2e=1s"


def requests(rate: float) -> Cell:
    samples = (request(f"p{n}", n, (rate - 0.5) / 3) for n in range(3))
    return cell(*samples, backend="openai", url="http://a", baseline_url="http://b", arrivals=rate, batch=8, slo=LIMITS)


def many() -> list[Cell]:
    """Seven methods, two of them lossy, a nest, a tree and one that failed."""
    failed = cell(status="error", error="stopped", draft="demo-draft", method="early-exit", k=3)
    others = [cell(*NEST, method="nest", k=3, draft="demo-draft"), cell(tree_sample(1, 0, 2), method="tree", k=3)]
    return [*methods(7, prompts=3), *others, failed]


RUNS: Mapping[str, Callable[[], list[Cell]]] = {
    "one cell": lambda: [cell(*PAIR, **LLAMAS)],
    "data sets": lambda: [
        *(cell(*PAIR, dataset=name) for name in ("code", "articles", LONG)),
        cell(dataset="xsum", status="oom", error="out of memory: try less", resolved={"rejected": "3 too long"}),
        cell(*NEST, method="cascade"),
    ],
    "lookaheads": lambda: [
        *(one for name in ("code", "articles") for one in sweep(name, 6, (1, 2, 4, 7), **LLAMAS)),
        *(cell(*PAIR, dataset="xsum", k=k, schedule="confidence") for k in (4, 8)),
        cell(dataset="xsum", k=2, schedule="confidence", status="nan", error="gave NaN"),
    ],
    "methods": many,
    "methods over K": lambda: methods(5, prompts=2, ks=(1, 2, 4)),
    "batches": lambda: [
        *(one for batch in (1, 2, 8) for one in sweep("code", prompts=6, ks=(1, 4), batch=batch)),
        replace(sweep("code", prompts=6, ks=(1,), batch=64)[0], samples=(), status="oom", error="too much"),
    ],
    "contexts": lambda: [
        *(one for length in (4096, 1000) for one in sweep("code", prompts=6, ks=(1, 4), context=length)),
        replace(sweep("code", prompts=6, ks=(1,), context=8192)[0], samples=(), status="oom", error="too much"),
    ],
    "engines": lambda: [
        engine("native"),
        engine("transformers", 0.5, tier_resolved="compile", threads=4, engine_notes="counted; no tree"),
        replace(engine("vllm"), samples=(), status="error", error="no wheel"),
    ],
    "servers": lambda: [requests(0.5), requests(2.0)],
    "schedules": lambda: [
        cell(*PAIR, k=3),
        cell(believing("p1"), believing("p2"), schedule="confidence", confidence=0.5),
        cell(believing("p1", ROUNDS[:1]), believing("p2", ROUNDS[:1]), schedule="auto"),
    ],
    "categories": lambda: [cell(*MIXED), cell(*MIXED, dataset="articles"), cell(*MIXED[::-1], k=2)],
    "methods by category": lambda: [
        cell(*MIXED, method=name) for name in ("chain", "block", "token-match", "lookahead", "jacobi")
    ],
    "nests and trees": lambda: [
        cell(*NEST, method="cascade"),
        cell(tree_sample(1, 0, 0, 1), tree_sample(1, 0, 0, 1), method="tree-top"),
        cell(*PAIR, method="lenience", lossless=LOSSY, temperature=1.0),
    ],
    "caveats": lambda: [
        cell(*PAIR, acceptance=(0.8, 0.5), resolved={"scale_model": "8B shape from demo"}),
        cell(*PAIR, dataset="articles", quantize="int8", lossless=Losslessness("numeric", 1, 2, 5, 1e-6, 2e-6)),
    ],
    "hostile": lambda: [cell(*PAIR, dataset="[b]|\x1b[31m", target="a|b", error="x\ry", status="partial"), cell(*PAIR)],
}
STYLES = ("csv", "json", "jsonl", "md")


def shown_of(cells: Sequence[Cell], explain: bool) -> Shown:
    return Shown.of(cells, "specbench run", "67981ce0", explain=explain)


def console(width: int, terminal: bool) -> Console:
    """As stdout is, without colours: a terminal, or a pipe."""
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, markup=False, highlight=False
    )


def text_of(out: Console) -> str:
    return out.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def run_tables(cells: Sequence[Cell], width: int, terminal: bool, explain: bool) -> str:
    out = console(width, terminal)
    print_run([one.row() for one in cells], "table", out, shown_of(cells, explain))
    return text_of(out)


def run_text(cells: Sequence[Cell], style: str, explain: bool) -> str:
    return rendered([one.row() for one in cells], style, shown_of(cells, explain))


# --- other documents: what is drawn of them, and their Markdown -------------------------------------------------------

Scene = tuple[Sequence[RenderableType], str]


def compared() -> Scene:
    """Names of many words, a long metric, a reason."""
    numbers: Row = {"base": 1.2345, "new": (1.201, 1.199), "change": -0.027, "low": -0.04, "high": 0.01}
    rows = [Compared(f"{data} prompt-lookup K{k} · temperature 0.7", "ratios", what, outcome, "by chance", **numbers,
                     smallest=0.025) for data, k, what, outcome in (("code", 1, "c", "REGRESSION"),
                     ("articles", 4, "baseline_tokens_per_second", "ok"))]  # fmt: skip
    found = Comparison(tuple(rows), ("xsum chain K4: only in the base",))
    return [compare.table(found, 0.95)], compare.markdown(found, 0.95)


def level(context: int) -> AtContext:
    slower = {width: 1 + 0.06 * (width - 1) for width in (1, 2, 5)}
    target = tuple(Point("target", context, width, 5.6 * v, 5.5, 5.9, v) for width, v in slower.items())
    draft = tuple(Point("draft", context, w, 0.8 * w, 0.7 * w, 0.9 * w, float(w)) for w in (1, 2, 5))
    return AtContext(context, 6.2, 0.05, target, draft)


def calibrated() -> Scene:
    found = documents.calibration_tables(Calibration(tuple(map(level, (128, 512, 2048)))))
    return [table.drawn() for table in found], "\n".join(table.markdown(str) for table in found)


def noise() -> Scene:
    def twice(*steps: float) -> Cell:
        arms = [{"baseline": baseline_trace(range(8)), "method": baseline_trace(range(8), step)} for step in steps]
        return cell(*(sample(f"p{n}", turn=n, **arm) for n, arm in enumerate(arms)), method="baseline", k=0)

    rows = [documents.noise_row(twice(*steps)) for steps in ((0.010, 0.011, 0.009, 0.010), (0.0119, 0.0120, 0.0121))]
    cells = documents.noise_grid(rows)
    return [framed(cells[0], cells[1:])], documents.noise_markdown(cells) + "\n".join(documents.noise_notes(rows))


def certified() -> Scene:
    checks = (
        Check("noise floor", "ok", found=1e-5, detail="places"),
        Check("proof", "ok", "chain", 1e-16, 1e-12),
        Check("z of the surprise", "FAILED", "chain", -7.25, 3.3, "2000 tokens"),
        Check("greedy = generate", "not checked", "mine", detail="no draft"),
        Check("z of the leaning", "lossy", "typical", float("inf"), None, "<b>"),
    )
    found = Certificate("20260101T000000Z", "specbench verify big small", checks, {"target": "big"}, {"k": 2}, {})
    return documents.certificate_tables(found), documents.certificate_page(found)


def fleet() -> Scene:
    """Three methods under a light and a heavy load, with a price."""
    slow = Engine(((1, 12.3456), (8, 45.6789)), (0.25, 0.75), 1.2345, 8)
    arms = [Arm("articles", name, slow, (1, 8), "c1") for name in ("baseline", "chain K12", "tree-specinfer K12")]
    loads = (Load(20, [128], rate=0.0123), Load(20, [128], rate=12.5))
    lines = [[Line(arm, load, 2, 0.05, simulate(slow, load, 2)) for arm in arms] for load in loads]
    found = [fleet_table(some, 12.5, "a legend") for some in lines]
    return [table.drawn() for table in found], found[0].markdown()


def published() -> Scene:
    one = cell(*PAIR, dataset="humaneval", temperature=0.8, top_p=0.95).row()
    found = published_table(preset("chen2023-humaneval"), [one])
    return [found.drawn()], found.markdown()


DOCUMENTS: Mapping[str, Callable[[], Scene]] = {
    "compare": compared, "calibrate": calibrated, "noise": noise, "verify": certified, "predict --fleet": fleet,
    "published": published,
}  # fmt: skip


def drawn(what: Sequence[RenderableType], width: int) -> str:
    out = console(width, terminal=True)
    draw(out, Group(*what))
    return text_of(out)
