"""Models with another tokenizer than the target's, joined to it by the rule that their pair has; and what they cannot.

Knows pairs, models and drafters by what they share; must not know how text is split, or how a draft is judged.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.backends.checked import CheckedPair
from specbench.backends.forms import form
from specbench.decoding.drafters.strings import Strings
from specbench.decoding.method_files import LEARNS, learners, leaves, needs, read_method
from specbench.decoding.protocols import Drafter, Model
from specbench.decoding.translation import Dictionary
from specbench.decoding.verifiers.synthetic import synthetic
from specbench.decoding.views.common import Common
from specbench.errors import UsageError
from specbench.models.checkpoints.check import context_length
from specbench.models.checkpoints.vocabularies import Rewriter, Vocabularies
from specbench.models.execution.compiled import EAGER, Name
from specbench.models.network.causal import Causal
from specbench.models.network.law import Law
from specbench.models.network.layers import shares
from specbench.models.network.recurrent import Recurrent
from specbench.spec import RunSpec

VIEWS = ("Streaming", "Retrieval")  # parts that look into the model that drafts
HOST = "texts are written anew in the target's tokens by the host in every round"
WRITTEN = {"ModelDrafter", "Expand", "Planned", "Dynamic"}  # the parts whose drafts can be written anew
GREEDY = Law(temperature=0.0)  # of several texts the likeliest: a point mass is accepted with the target's chance of it


@dataclass(frozen=True, eq=False)
class Joins:
    """How the models of a pair are joined to its target's vocabulary."""

    pair: CheckedPair
    _dictionaries: dict[str, Dictionary] = field(default_factory=dict, init=False)

    def role(self, name: str) -> str:
        """The role that a model is, or is made of some layers of."""
        return self.pair.kept.get(name, (name, ()))[0]

    def found(self, name: str) -> Vocabularies | None:
        return self.pair.foreign.get(self.role(name))

    def width(self, name: str) -> int:
        """The length of a row of logits of a model."""
        found = self.found(name)
        return self.pair.width if found is None else found.draft_width

    def law(self, name: str, law: Law) -> Law:
        found = self.found(name)
        return GREEDY if found is not None and found.rule == "strings" else law

    def joined(self, models: Mapping[str, Model]) -> dict[str, Model]:
        """The models, those of another vocabulary by the rule "common" as models of the target's."""
        found = {**models}
        for name, model in models.items():
            known = self.found(name)
            if known is not None and known.rule == "common":
                assert isinstance(model, Causal | Recurrent), "models of the target alone are of another kind"
                dictionary = self.dictionary(self.role(name))
                model.known = within(model.known, dictionary)
                found[name] = Common(model, dictionary, self.limit(name))
        return found

    def refuse_looking(self, names: Collection[str]) -> None:
        """UsageError for models whose rows are not over the target's tokens: only their drafts can be written anew."""
        for name in sorted(names):
            if (found := self.found(name)) is not None and found.rule == "strings":
                raise UsageError(
                    f"the {name} has another tokenizer than the target, and its rows say nothing of the target's "
                    "tokens: take --vocabulary common"
                )

    @property
    def around(self) -> dict[str, Callable[[Drafter], Drafter]]:
        """What is put around drafters over a model of another vocabulary by the rule "strings"."""
        names = [*self.pair.roles, *self.pair.kept]
        found = {name: self.found(name) for name in names}
        return {name: self.wrapper(name, one) for name, one in found.items() if one and one.rule == "strings"}

    def wrapper(self, name: str, found: Vocabularies) -> Callable[[Drafter], Drafter]:
        return lambda drafter: Strings(drafter, Rewriter(found), self.limit(name))

    def limit(self, name: str) -> int:
        return context_length(self.pair.roles[self.role(name)].config)

    def dictionary(self, role: str) -> Dictionary:
        """Made once: it takes a second or two for a large vocabulary."""
        if role not in self._dictionaries:
            self._dictionaries[role] = self.pair.foreign[role].dictionary().to(self.pair.device)
        return self._dictionaries[role]


def within(known: Tensor | None, dictionary: Dictionary) -> Tensor:
    """The draft's ids that it may draw: of those that its head knows."""
    if known is None:
        return dictionary.theirs
    return known[torch.isin(known, dictionary.theirs)]


def checked(pair: CheckedPair, specs: Sequence[RunSpec]) -> tuple[Name, str] | None:
    """The tier that the rule of a pair asks for, and what to know about it; None where any will do. UsageError, saying
    what works, for methods that models of another vocabulary cannot serve."""
    joins = Joins(pair)
    for spec in specs:
        for name in sorted(needs(spec.method)):
            if (found := joins.found(name)) is not None:
                refuse_unable(spec, name, found)
    if all(found.rule != "strings" for found in pair.foreign.values()):
        return None
    for spec in specs:
        if spec.tier not in ("auto", "eager"):
            raise UsageError(f"--tier {spec.tier}: {HOST}: take --tier eager")
        synthetic(form(spec, None, joins.around), spec.acceptance)  # what its chains cannot be is refused here
    return "eager", f"{HOST}; {EAGER.partition(';')[0]}"


def refuse_unable(spec: RunSpec, name: str, found: Vocabularies) -> None:
    """UsageError for a method that needs more of a model of another vocabulary than its rule gives."""
    says = f"--method {spec.method}: the {name} has another tokenizer than the target"
    parts = {part for part, key, value in leaves(read_method(spec.method)["method"]) if value == name}
    views = sorted((parts & {*VIEWS}) | ({LEARNS} if name in learners(spec.method) else set()))
    if views or shares(name):
        what = views[0] if views else "a shared cache"
        raise UsageError(f"{says}, and {what} needs one that reads the target's tokens: take another method")
    if found.rule == "strings" and not parts <= WRITTEN:
        other = " or --vocabulary common" if found.common else ""
        raise UsageError(
            f"{says}; its text is written anew in the target's tokens (--vocabulary strings), which takes a chain or a "
            f"tree from it, and {', '.join(sorted(parts - WRITTEN))} is neither: take --method chain{other}"
        )
