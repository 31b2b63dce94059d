"""`specbench design-draft`: shapes of equal parameters are timed, the promising ones trained, the best ones measured.

Timings and measurements are ordinary runs, and drafts are trained as by `train draft`; all resume after an interrupt.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich.console import Console

from specbench.errors import InterruptedRunError, UnusableModelError, UsageError
from specbench.files import replace_text
from specbench.jobs.output import Output, say
from specbench.jobs.resume import record_rest
from specbench.jobs.run import Terminal, described, record
from specbench.jobs.training.data import CACHE, Source, teaching
from specbench.jobs.training.design_results import PROMISING, Candidate, DraftTimes, Found, Speed, Spread, rising, short
from specbench.jobs.training.start import Start, save_network
from specbench.jobs.training.train import Draft, locked, record_of, trained
from specbench.measure import grid
from specbench.measure.calibrate import LOOKAHEAD, TOKENS
from specbench.measure.parsing import write_method
from specbench.measure.plan import complete_backend
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.names import resolve
from specbench.results import folder
from specbench.results.cells import Cell
from specbench.results.machine import command_line
from specbench.results.named_runs import write_csv
from specbench.results.numbers import timing
from specbench.results.reading import DESCRIPTION, read_run
from specbench.results.samples import Sample
from specbench.show import documents
from specbench.show.report import page as report_page
from specbench.show.text import Format
from specbench.spec import BASELINE, RunSpec
from specbench.theory.optimum import measured_costs
from specbench.training.learner import DivergedError
from specbench.training.recipe import Recipe
from specbench.training.start import LAST, fresh, sized
from specbench.wording import clean_path, counted, finite_or_none, grouped, interval_text

TOGETHER = 16  # prompts that the target answers at once
Rungs = list[list[Candidate]]
FACTS = ("specbench", "torch", "transformers", "fingerprint")  # of the machine; timings of two must not mix
NEAR = 0.05  # tolerance for agreement of a fitted and a measured optimum, as the optimum is flat
SHAPES, DOCUMENT = "design.csv", "design.json"
PAPER = "Leviathan et al. 2022 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318)"


@dataclass(frozen=True)
class Design:
    """A requested design. settings: the target's; count: the parameters that budgets count; k_max: the longest
    lookahead; repeat: timings per shape; rungs: of training; output: None for the default folder."""

    settings: Mapping[str, Any]
    budgets: Sequence[int]
    depths: Sequence[int]
    count: Literal["all", "layers"]
    k_max: int
    repeat: int
    rungs: int
    source: Source
    recipe: Recipe
    output: Path | None
    err: Console

    @cached_property
    def spec(self) -> RunSpec:
        """The spec for measuring the target. UsageError for more than one."""
        cells = grid.cells({**self.settings, "method": BASELINE})
        if len(cells) > 1:
            raise UsageError(f"a design is measured on one data set, not on {len(cells)}: name it with --dataset")
        return cells[0].with_(draft=None)

    @property
    def place(self) -> Path:
        return self.output or Path("results") / f"design-{folder.slug(self.spec.target)}"

    @property
    def identity(self) -> dict[str, Any]:
        """The values that must match to continue a design."""
        names = ("budgets", "depths", "count", "k_max", "repeat", "rungs")
        settings = {name: getattr(self, name) for name in names} | {"source": self.source.identity}
        return {**settings, "recipe": self.recipe.model_dump(mode="json"), "spec": self.spec.key}

    @property
    def steps(self) -> list[int]:
        """The training tokens of a shape after every rung: doubled each time, all of them on the last."""
        return [max(1, self.recipe.tokens >> (self.rungs - 1 - number)) for number in range(self.rungs)]

    def start(self, style: Format) -> None:
        """Run the design, without its completed steps, and print its results and the findings."""
        target = resolve(self.spec.target, self.spec.target_revision)
        config = load_config(target)
        shapes, notes = self.candidates(config)
        description = described([self.spec], complete_backend([self.spec]).device, kind="draft design")
        if self.source.generate and self.spec.dataset in self.source.data:
            notes.append(f"{self.spec.dataset} is training data, too, which biases acceptance upwards; name another "
                         "--dataset")  # fmt: skip
        try:
            with locked(self.place):
                record_of(self.place, {**self.identity, **{name: description["environment"][name] for name in FACTS}})
                replace_text(self.place / DESCRIPTION, json.dumps(description, indent=2) + "\n")
                say(self.err, [f"note: {line}" for line in notes])
                speed = self.timed(shapes, config, load_tokenizer(target))
                found = Found(self.count, shapes, speed, self.steps, *self.trained(shapes, speed))
                # the finalists, each at its best lookahead, interleaved with each other and the baseline
                arms = [(one, found.best_of(one.name).k) for one in found.rungs[-1]]
                cells = self.run("measured", self.spec, arms, self.steps[-1], Output(quiet=self.err.quiet))
                found = replace(found, cells={one.name: cell for (one, _), cell in zip(arms, cells, strict=True)})
                lines = [*findings(found), found.command(self.spec.target, self.source.data, self.source.generate)]
                document = json.dumps({**found.document, "findings": lines}, indent=2, default=asdict)
                with folder.writing_to(self.place):
                    write_csv(self.place / SHAPES, found.rows)
                    replace_text(self.place / DOCUMENT, document + "\n")
                if runs := sorted(self.place.glob("measured/*/journal.jsonl"), key=lambda file: file.parent.name):
                    report_page.write_report([runs[-1].parent], self.place / "report.html", svg=True)
        except KeyboardInterrupt as stop:
            raise InterruptedRunError("the same command continues it") from stop
        documents.print_design(found.rows, style)
        say(self.err, [*lines, f"results: {clean_path(self.place)}"])

    def candidates(self, target: Any) -> tuple[list[Candidate], list[str]]:
        """The widest shape of every budget and depth, and a line for impossible ones. UsageError if all are."""
        vocabulary = target.get_text_config(decoder=True).vocab_size
        found, impossible = list[Candidate](), list[str]()
        for budget, layers in product(self.budgets, self.depths):
            try:
                shape = sized(budget, layers, target, in_layers=self.count == "layers")
                found.append(Candidate(budget, shape, shape.parameters(vocabulary)))
            except UsageError as error:
                impossible.append(f"--budget {short(budget)}: {error}")
        if not found:
            raise UsageError(impossible[0])
        return found, impossible

    def draft(self, one: Candidate, tokens: int) -> Path:
        return self.place / "drafts" / one.name / f"tokens-{tokens}"

    def timed(self, shapes: Sequence[Candidate], config: Any, tokenizer: Any) -> Speed:
        """Time all shapes with random weights, which take as long as trained ones, and passes at several lookaheads."""
        for one in shapes:
            if not (self.draft(one, 0) / LAST).exists():
                save_network(fresh(one.shape, config, self.spec.seed), self.draft(one, 0), tokenizer)
        ks = sorted({1 << n for n in range(self.k_max.bit_length())} | {self.k_max})
        arms = dict.fromkeys([*((one, min(LOOKAHEAD, self.k_max)) for one in shapes), *((shapes[0], k) for k in ks)])
        new = max(TOKENS, self.k_max + 1)
        brief = self.spec.with_(limit=1, repeat=self.repeat, max_new_tokens=new, ignore_eos=True)
        line = f"timing {counted(len(shapes), 'shape')} {self.repeat} times …"
        cells = self.run("timed", brief, list(arms), 0, Output(quiet=True), line)
        for (one, _), cell in zip(arms, cells, strict=True):
            if not cell.samples:
                raise UnusableModelError(f"{one.name} cannot be timed: {cell.error}")
        return speed_of({(one.name, k): cell.samples for (one, k), cell in zip(arms, cells, strict=True)}, self.k_max)

    def trained(self, shapes: Sequence[Candidate], speed: Speed) -> tuple[Rungs, Mapping[str, Mapping[int, float]]]:
        """The rungs of training, best first, and α after each by name; the deepest shapes continue for comparison."""
        settings = {name: value for name, value in self.settings.items() if name != "limit"} | {"batch": TOGETHER}
        source = replace(self.source, cache=self.source.cache or self.place / CACHE)
        given = teaching(settings, source, self.recipe, self.place, self.err, again=True)
        draft = Draft(settings, Start(), source, self.recipe, self.place, command=command_line())
        chosen, alphas = to_be_trained(shapes, speed), dict[str, dict[int, float]]()
        say(self.err, [f"training {counted(len(chosen), 'shape')} of {len(shapes)}, {self.steps[0]:,} tokens each …"])

        def score(one: Candidate, tokens: int) -> float:
            number = self.steps.index(tokens)
            before = self.steps[number - 1] if number else 0
            begin = Start(str(self.draft(one, before))) if before else Start(**asdict(one.shape))
            recipe = self.recipe.model_copy(update={"tokens": tokens - before, "seed": self.recipe.seed + number})
            job = replace(draft, start=begin, recipe=recipe, output=self.draft(one, tokens))
            try:
                alpha = trained(job, given, self.err)[1].figures.alpha
            except DivergedError as error:  # the others continue
                say(self.err, [f"note: {error}"])
                alpha = 0.0
            alphas.setdefault(one.name, {})[tokens] = alpha
            speedup = speed.best(one.name, alpha).speedup
            say(self.err, [f"{one.name} after {tokens:,} tokens: α {alpha:.3f}, {speedup:.2f}× predicted"])
            return speedup

        return halved(chosen, self.steps, score), alphas

    def run(
        self, name: str, spec: RunSpec, arms: Sequence[tuple[Candidate, int]], tokens: int, output: Output,
        line: str = "",
    ) -> list[Cell]:  # fmt: skip
        """Run or resume an ordinary run of some drafts, each with a lookahead; returns their cells."""
        models = {one.model: str(self.draft(one, tokens)) for one, _ in arms}
        specs = [spec.with_(method=self.method(one), k=k, model=models) for one, k in arms]
        runs = [file.parent for file in (self.place / name).glob(f"*/{DESCRIPTION}")]
        begun = next((run for run in runs if list(read_run(run).specs) == specs), None)
        if begun is None and line:
            say(self.err, [line])
        done = record_rest(begun, Terminal(output)) if begun else record(specs, self.place / name, Terminal(output))
        if done.stop is not None:
            raise done.stop
        by_spec = {cell.spec: cell for cell in done.cells}
        return [by_spec[one] for one in specs]

    def method(self, one: Candidate) -> str:
        """The method file of a draft: a chain from its network."""
        file = self.place / "methods" / f"{one.name}.yaml"
        file.parent.mkdir(exist_ok=True)
        drafter = {"ModelDrafter": {"model": one.model, "k": "k", "schedule": "schedule"}}
        summary = f"A chain from a draft of {counted(one.shape.layers, 'layer')} of width {one.shape.hidden}"
        chain = {"Speculate": {"drafter": drafter, "model": "target", "verifier": "Rejection"}}
        write_method(file, {"summary": summary, "paper": PAPER, "lossless": True, "method": chain})
        return str(file)


def speed_of(timed: Mapping[tuple[str, int], Sequence[Sample]], k_max: int) -> Speed:
    """Medians and quartiles of times, from the turns of each (draft, lookahead), others being interpolated."""
    turns = {arm: pd.DataFrame(map(turn_of, samples)) for arm, samples in timed.items()}
    every = pd.concat(turns, names=["name", "k"])
    by_k = every.groupby("k")[["v", "verify"]].median()
    ks = by_k.index.tolist()
    verify = np.interp(range(k_max + 1), [0, *ks], [1.0, *by_k["verify"]])
    return Speed(
        step=Spread.of(next(iter(turns.values()))["step"]),
        verify=tuple(verify.clip(0).tolist()),
        overhead=float(every["overhead"].median()),
        v=dict(zip(ks, by_k["v"].tolist(), strict=True)),
        drafts={
            name: DraftTimes(Spread.of(some["token"]), Spread.of(some["c"]), *some[["first", "later"]].median())
            for (name, k), some in turns.items()
            if k == min(LOOKAHEAD, k_max)
        },
        k_max=k_max,
    )


def turn_of(sample: Sample) -> dict[str, float]:
    """The costs that a turn measures for a draft and for the target's pass over its tokens; times in seconds. In
    steps: verify, a step with that pass in it, and overhead, the remaining cost of a round."""
    baseline, method = timing([sample.baseline]), timing([sample.method])
    cost = measured_costs(baseline, method)
    token, later = method.draft / method.drafted, method.drafted - method.rounds
    verify = 1 + (method.verify / method.rounds - baseline.verify / baseline.rounds) / cost.baseline_step_seconds
    return {
        "step": cost.baseline_step_seconds,
        "token": token,
        "first": method.draft_first / method.rounds,
        "later": (method.draft - method.draft_first) / later if later else token,
        "c": cost.c,
        "v": cost.v,
        "verify": verify,
        "overhead": cost.v + cost.overhead - verify,
    }


def deepest(some: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """The deepest shape for the budget of each of the others."""
    return [max((o for o in some if o.budget == one.budget), key=lambda o: o.shape.layers) for one in others]


def to_be_trained(shapes: Sequence[Candidate], speed: Speed) -> list[Candidate]:
    """The promising shapes and, for comparison, the deepest of their budgets; all shapes if none is promising."""
    pays = [one for one in shapes if speed.promises(one.name)]
    return [one for one in shapes if not pays or one in pays or one in deepest(shapes, pays)]


def halved(chosen: Sequence[Candidate], steps: Sequence[int], score: Callable[[Candidate, int], float]) -> Rungs:
    """Successive halving (arXiv 1502.07943): the shapes of every rung, best first. score: trains a shape up to so many
    tokens in total. The better half continues, and the deepest shape of each of their budgets, for comparison."""
    rungs, going, kept = Rungs(), list(chosen), len(chosen)
    for tokens in steps:
        scores = {one: score(one, tokens) for one in going}
        rungs.append(sorted(scores, key=lambda one: -scores[one]))
        kept = max(1, (kept + 1) // 2)
        better = rungs[-1][:kept]
        going = list(dict.fromkeys([*better, *deepest(going, better)]))
    return rungs


def findings(found: Found) -> list[str]:
    speed = found.speed
    passes = ", ".join(f"{v:.2f}× at K {k}" for k, v in speed.v.items())
    lines = [
        f"a step of the target takes {milliseconds(speed.step, ' ms')}; its pass over K + 1 tokens, in passes over one "
        f"(v): {passes}"
    ]
    for some in grouped(found.candidates, lambda one: one.budget):
        ordered = sorted(some, key=lambda one: one.shape.layers)
        times = [found.speed.drafts[one.name].token for one in ordered]
        depths, shown = ", ".join(str(one.shape.layers) for one in ordered), ", ".join(map(milliseconds, times))
        if len(some) > 1:
            lines.append(
                f"{short(some[0].budget)} parameters: the latency {rising(times)}: {shown} ms per token "
                f"at {depths} layers (quartiles)"
            )
    if (time := found.latency_fit) is not None:
        lines.append(
            f"latency ≈ {1000 * time.fixed:.3g} ms + {1000 * time.per_layer:.3g} ms per layer + "
            f"{1e9 * time.per_parameter:.3g} ms per million parameters; error {time.residual:.1%} (root mean square), "
            f"at most {time.worst:.1%}, over {counted(time.points, 'shape')}"
        )
    if (gain := found.acceptance_fit) is not None:
        lines.append(
            f"logit α ≈ {gain.constant:.3g} {gain.by_parameters:+.3g} ln parameters {gain.by_layers:+.3g} ln layers "
            f"{gain.by_tokens:+.3g} ln tokens; error of α {gain.residual:.3f} over "
            f"{counted(gain.points, 'trained draft')}"
        )
    return [*lines, *optimum_lines(found), *best_lines(found)]


def milliseconds(time: Spread, unit: str = "") -> str:
    return f"{1000 * time.value:.3g}{unit} [{1000 * time.low:.3g}, {1000 * time.high:.3g}]"


def optimum_lines(found: Found) -> list[str]:
    """The optimum by the fits next to the measured one, with their agreement."""
    one, best = found.optimum_by_fits, found.best
    same = found.by_fits(best["layers"], best["parameters"])
    if one is None or same is None:
        return ["too few shapes were timed or trained for fits, and so for an optimum by the formula"]
    agree = same.choice.speedup >= (1 - NEAR) * one.choice.speedup
    return [
        f"best by the fits and the formula: {counted(one.layers, 'layer')} and {short(round(one.parameters))} "
        f"parameters, {one.choice.speedup:.2f}× at K {one.choice.k}; best "
        f"{'measured' if best['status'] == 'ok' else 'predicted, nothing being measured,'}: {best['name']}, for which "
        f"they give {same.choice.speedup:.2f}×: {'they agree' if agree else 'they DISAGREE'}"
    ]


def best_lines(found: Found) -> list[str]:
    """The best shape against the deepest of its budget, in measured tokens per second; which one to train further."""
    best, lines = found.best, []
    measured = best["status"] == "ok"
    others = [row for row in found.rows if row["budget"] == best["budget"] and row["status"] == "ok"]
    deep = max(others, key=lambda row: int(row["layers"]), default=best)
    if deep is not best:
        gain = found.gain(best["name"], deep["name"])
        lines.append(
            f"{best['name']} decodes {best['tokens_per_second']:.1f} tokens/s, {gain.value:.2f}× "
            f"{interval_text(finite_or_none(gain.low), finite_or_none(gain.high))} those of {deep['name']}, the "
            f"deepest of its budget that was trained as long ({deep['tokens_per_second']:.1f} tokens/s)"
        )
    elif len(others) > 1:
        lines.append(f"{best['name']} is the deepest of its budget that was measured")
    if not any(found.speed.promises(one.name) for one in found.candidates):
        return [*lines, f"no shape pays below α = {PROMISING} here; the best of them is {best['name']}"]
    value, word = (best["speedup"], "measured") if measured else (best["speedup_predicted"], "predicted")
    pays = "" if value > 1 else ", which does not pay yet"
    return [*lines, f"train on {best['name']}: {value:.2f}× {word} at K {best['k']}{pays}"]
