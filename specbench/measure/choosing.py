"""The arm that chooses: every choice is ready to decode, and a bandit says which one decodes the prompts of a turn.

Knows decodes, and the bandit; must not know groups, or how anything is decoded. The choice follows from earlier turns
alone and is made before anything of the turn is drawn, so its tokens have the law of the choice that decodes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from specbench.backends.base import Backend, Decode
from specbench.backends.forms import carries
from specbench.choices import choices, parsed
from specbench.decoding.recited import looks_up, rounds_over
from specbench.errors import UsageError
from specbench.metrics import Trace
from specbench.models.execution import processes
from specbench.spec import RunSpec
from specbench.theory.choosing import Arm, Bandit, Decoded


@dataclass(frozen=True)
class Choosing:
    """The decodes of the choices by name, and what is known of them."""

    decodes: dict[str, Decode]
    bandit: Bandit = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandit", Bandit([arm_of(name) for name in self.decodes]))

    @cached_property
    def lookups(self) -> list[Arm]:
        """Of every method that looks tokens up the longest: it tells the shorter ones."""
        longest = {arm.method: arm for arm in sorted(self.bandit.arms, key=lambda arm: arm.k)}
        return [arm for arm in longest.values() if arm.k and looks_up(arm.method)]

    @staticmethod
    def over(spec: RunSpec, backend: Backend, longest: int) -> "Choosing":
        """All choices of a spec made ready, one after the other."""
        return Choosing({name: backend.prepare(one, longest) for name, one in choices(spec).items()})

    def decode(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
        """The prompts of a turn, by the choice that is made for them."""
        arm = processes.agreed(self.bandit.choose())
        name = next(name for name in self.decodes if arm_of(name) == arm)
        found = [replace(trace, choice=name) for trace in self.decodes[name](prompts, seeds)]
        self.learn(prompts, found)
        return found

    def learn(self, prompts: Sequence[Sequence[int]], traces: Sequence[Trace]) -> None:
        """See what became of a turn; also one of a run that is continued."""
        self.count(traces)
        self.overhear(prompts, traces)

    def count(self, traces: Sequence[Trace]) -> None:
        """See what the choices made of a turn. Prompts of a batch share its seconds."""
        for name in dict.fromkeys(trace.choice for trace in traces if trace.choice in self.decodes):
            some = [trace for trace in traces if trace.choice == name]
            seconds = sum(trace.seconds for trace in some)
            self.bandit.seen.append(Decoded(arm_of(name), [trace.rounds for trace in some], seconds))

    def overhear(self, prompts: Sequence[Sequence[int]], traces: Sequence[Trace]) -> None:
        """Count in how many rounds the lookups would have emitted the texts of a turn, where another choice did."""
        for arm in self.lookups:
            others = [(prompt, trace) for prompt, trace in zip(prompts, traces, strict=True)
                      if trace.tokens and arm_of(trace.choice).method != arm.method]  # fmt: skip
            if others:
                texts = [rounds_over(arm.method, arm.k, prompt, trace.tokens) for prompt, trace in others]
                self.bandit.seen.append(Decoded(arm, texts, None))

    def look(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], first: bool) -> None:
        """Decode with every choice, uncounted, and learn from it; not from the first calls, which allocate."""
        for name, decode in self.decodes.items():
            traces = decode(prompts, seeds)
            if not first:
                self.count([replace(trace, choice=name) for trace in traces])


def arm_of(name: str) -> Arm:
    return Arm(*parsed(name))


def refuse_choices(spec: RunSpec) -> None:
    """UsageError for a choice that carries something: which prompts it has seen would depend on times."""
    for name, one in choices(spec).items():
        if name and carries(one):
            raise UsageError(
                f"--choices {name}: it learns from prompt to prompt, and would learn from those alone that it is "
                "chosen for: leave it out"
            )
