"""The phases of a draft design: timing every shape, teaching the promising ones, measuring those that are left.

Knows the engine, the teacher and the folder in which each phase is kept; must not know what follows from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.backends.base import Backend, networks_of
from specbench.jobs import training_progress
from specbench.jobs.design_folder import LATENCIES, Workplace
from specbench.jobs.design_measured import measured, method_of
from specbench.jobs.design_networks import Engine, untrained
from specbench.jobs.design_shapes import Candidate, Count
from specbench.jobs.design_training import School, Taught, trained
from specbench.jobs.loading import load
from specbench.jobs.output import say
from specbench.jobs.train_data import Source, Teaching, teaching
from specbench.measure import draft_latency
from specbench.measure.calibrate import QUICK_CONTEXT
from specbench.replacing import filling
from specbench.results.cells import Cell
from specbench.spec import RunSpec
from specbench.theory.halving import amounts
from specbench.training.distil import Kept, train
from specbench.training.learner import DivergedError
from specbench.training.recipe import Recipe
from specbench.wording import counted

TOGETHER = 16  # prompts that the target answers at once where its answers are learned


@dataclass(frozen=True)
class Asked:
    """What a design is about: parameters and depths, how parameters are counted, the shape that all is grown to, the
    longest lookahead, how often everything is timed, the rungs of training, and what is learned."""

    budgets: Sequence[int]
    depths: Sequence[int]
    count: Count
    like: str | None
    k_max: int
    repeat: int
    rungs: int
    source: Source
    recipe: Recipe

    @property
    def row(self) -> dict[str, Any]:
        """As run.json has it; what may change between two calls that go on with each other is left out."""
        numbers = {name: value for name, value in asdict(self).items() if name not in ("source", "recipe")}
        return {**numbers, "source": self.source.identity, "recipe": self.recipe.model_dump(mode="json")}

    @property
    def steps(self) -> list[int]:
        """The tokens that a draft has learned in all after each rung."""
        return amounts(self.recipe.tokens, self.rungs)


@dataclass(frozen=True)
class Design:
    """A design that has begun: what was asked, for which target, where, and with which engine."""

    asked: Asked
    settings: Mapping[str, Any]
    spec: RunSpec
    backend: Backend
    engine: Engine
    place: Workplace
    candidates: Sequence[Candidate]
    err: Console

    def latencies(self) -> draft_latency.Latencies:
        """What every shape costs, timed once for all calls."""
        rows = self.place.read(LATENCIES)
        if rows is None:
            rows = self.timed()
            self.place.write(LATENCIES, rows)
        return draft_latency.latencies(rows)

    def timed(self) -> list[dict[str, Any]]:
        load(self.backend, self.spec, QUICK_CONTEXT, self.err)
        networks = networks_of(self.backend, "a draft design")
        shapes = counted(len(self.candidates), "shape")
        say(self.err, [f"timing {shapes} {self.asked.repeat} times, {self.backend.execution} …"])
        for one in self.candidates:
            self.hold(one, untrained(one, self.engine.target, self.spec.seed))
        methods = {one.name: method_of(self.place, one) for one in self.candidates}
        try:
            return draft_latency.timed_turns(networks, self.spec, methods, self.asked.k_max, self.asked.repeat)
        finally:
            self.backend.unload()

    def hold(self, one: Candidate, network: Any) -> None:
        networks_of(self.backend, "a draft design").hold(one.model, self.engine.ready(one, network))

    def school(self) -> School:
        """The target as a teacher, never grown, and what is learned from it."""
        settings = {name: value for name, value in self.settings.items() if name != "limit"} | {"batch": TOGETHER}
        given = teaching(settings, self.asked.source, self.asked.recipe, self.place.path, self.err, again=True)
        embedding = given.network.get_input_embeddings().weight.detach().float()

        def finish(place: Path) -> None:
            with filling(place) as scratch:
                given.tokenizer.save_pretrained(scratch)

        seed, target = self.asked.recipe.seed, self.engine.target
        return School(self.place, target, embedding, seed, lambda *call: self.teach(given, *call), finish)

    def teach(self, given: Teaching, student: Any, tokens: int, rung: int, checkpoints: Path) -> Taught:
        """Go on with a draft for so many tokens; every rung goes over the data in an order of its own."""
        recipe = self.asked.recipe.model_copy(update={"tokens": tokens, "seed": self.asked.recipe.seed + rung})
        kept = Kept(checkpoints, lambda student, done: None)
        try:
            with training_progress.shown(self.err) as watch:
                done = train(student.to(given.device), given.teacher, given.cache, recipe, kept, watch)
        except DivergedError as error:  # of one shape, which is worth nothing then; the others go on
            say(self.err, [f"note: {error}"])
            return Taught(0.0, 1.0, recipe.k)
        return Taught(done.figures.alpha, done.figures.accepted, recipe.k)

    def measured(self, finals: Mapping[Candidate, int], quiet: bool) -> Mapping[str, Cell]:
        """Some trained drafts, each at its lookahead, interleaved with each other and with the baseline."""
        load(self.backend, self.spec, QUICK_CONTEXT, self.err)
        for one in finals:
            self.hold(one, trained(self.place, one, self.asked.steps[-1]))
        arms = {one.name: (method_of(self.place, one), k) for one, k in finals.items()}
        try:
            return measured(self.place, self.backend, self.spec, arms, quiet)
        finally:
            self.backend.unload()
