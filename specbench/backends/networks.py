"""The networks of a pair: read, cut, joined to the target's vocabulary, and turned into the models of a method."""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.backends.base import Loading
from specbench.backends.checked import CheckedPair
from specbench.backends.roles import Role, form
from specbench.decoding.drafters.strings import Strings
from specbench.decoding.method_files import LEARNS, learners, leaves, needs, read_method
from specbench.decoding.protocols import Dictionary, Drafter, Model
from specbench.decoding.verifiers.lossy import synthetic
from specbench.decoding.views import Common
from specbench.errors import TooLargeError, UsageError, out_of_memory
from specbench.models.checkpoints import loading
from specbench.models.checkpoints.check import context_length
from specbench.models.checkpoints.description import recurrent
from specbench.models.checkpoints.reduced import special_tokens
from specbench.models.checkpoints.vocabularies import Rewriter, Vocabularies
from specbench.models.heads.parts import reduce_output
from specbench.models.network.causal import Causal
from specbench.models.network.recurrent import Recurrent, Rollback, rollback_of
from specbench.models.network.sampling import Sampling, known_tokens, reduce_head
from specbench.models.network.skipping import shares, with_layers
from specbench.spec import RunSpec

VIEWS = ("Streaming", "Retrieval")  # parts that look into the drafting model
HOST = "texts are re-tokenised with the target's tokenizer, on the host in every round"
WRITTEN = {"ModelDrafter", "Expand", "Planned", "Dynamic"}  # the parts whose drafts can be re-tokenised
# the likeliest of several texts: a point mass is accepted with the target's probability of it
GREEDY = Sampling(temperature=0.0)
CHAINS = "baseline, chain, block, token-match, prompt-lookup, suffix-lookup, maxgram, jacobi"  # among those that work
REPLAY = "rejected tokens are taken back by a copy of its state, and accepted ones read again: that is part of"
SINGLE = "it continues from a state one token at a time only"


def read_weights(role: Role, width: int, device: torch.device, watch: Loading) -> tuple[loading.Loaded, Rollback]:
    """The network of a role, for rows of `width`; `watch` receives the bytes fetched and read.

    UnusableModelError if it cannot be read or rolled back; TooLargeError if memory is insufficient.
    """

    def named(verb: str, done: int, total: int) -> None:
        watch(f"{verb} {role.checkpoint.name}", done, total)

    try:
        loaded = loading.load_model(role.checkpoint, role.dtype, device, named, role.how)
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise TooLargeError(
            f"{role.checkpoint.name}: its weights do not fit into the memory of {device}; "
            "choose a smaller --dtype, a smaller model or --device cpu"
        ) from error
    return loaded, rollback_of(loaded.model, recurrent(role.config), width, role.checkpoint.name)


def complete(
    pair: CheckedPair, modules: MutableMapping[str, Any], rollbacks: MutableMapping[str, Any], ends: Collection[int]
) -> dict[str, str]:
    """Cut the heads of loaded networks, and add the networks derived from them; return the cuts in words, by name."""
    said = {name: cut_head(pair, name, modules, ends) for name in pair.roles if name in pair.cuts}
    for name, (base, layers) in pair.kept.items():
        modules[name], rollbacks[name] = with_layers(modules[base], layers), rollbacks[base]
        if name in pair.cuts:
            said[name] = cut_head(pair, name, modules, ends)
    return said


def cut_head(pair: CheckedPair, name: str, modules: Mapping[str, Any], ends: Collection[int]) -> str:
    """Cut the head of one model in place; return the number and the choice of the tokens that are left."""
    role = pair.roles[pair.kept.get(name, (name, ()))[0]]
    config = role.config.get_text_config(decoder=True)
    width = pair.width if role.borrows else int(config.vocab_size)
    for cut in pair.cuts[name]:
        ids = cut.kept(role.encode, width, special_tokens(role.tokenizer, ends))
        if role.borrows:
            reduce_output(modules[name], modules["target"], ids)
        else:
            reduce_head(modules[name], ids)
    known = known_tokens(modules[name], width)
    assert known is not None, "it was cut"
    sources = " and ".join(dict.fromkeys(cut.source for cut in pair.cuts[name]))
    return f"{len(known):,} of {width:,} tokens, the most frequent of {sources}"


@dataclass(frozen=True, eq=False)
class Joins:
    """How the models of a pair are joined to its target's vocabulary."""

    pair: CheckedPair
    _dictionaries: dict[str, Dictionary] = field(default_factory=dict, init=False)

    def role(self, name: str) -> str:
        """The role of a model, or the role whose layers it uses."""
        return self.pair.kept.get(name, (name, ()))[0]

    def found(self, name: str) -> Vocabularies | None:
        return self.pair.foreign.get(self.role(name))

    def width(self, name: str) -> int:
        """The length of a row of logits of a model."""
        found = self.found(name)
        return self.pair.width if found is None else found.draft_width

    def sampling(self, name: str, sampling: Sampling) -> Sampling:
        found = self.found(name)
        return GREEDY if found is not None and found.rule == "strings" else sampling

    def joined(self, models: Mapping[str, Model]) -> dict[str, Model]:
        """The models, with those of another vocabulary joined to the target's by the rule "common"."""
        found = {**models}
        for name, model in models.items():
            known = self.found(name)
            if known is not None and known.rule == "common":
                assert isinstance(model, Causal | Recurrent), "models of the target alone are of another kind"
                dictionary = self.dictionary(self.role(name))
                ids, drawn = model.known, dictionary.theirs
                model.known = drawn if ids is None else ids[torch.isin(ids, drawn)]
                found[name] = Common(model, dictionary, self.limit(name))
        return found

    def refuse_looking(self, names: Collection[str]) -> None:
        """UsageError for models whose rows are not over the target's tokens: only their drafts can be re-tokenised."""
        for name in sorted(names):
            if (found := self.found(name)) is not None and found.rule == "strings":
                raise UsageError(
                    f"the {name} has another tokenizer than the target, and its logits are not over the target's "
                    "tokens: use --vocabulary common"
                )

    @property
    def around(self) -> dict[str, Callable[[Drafter], Drafter]]:
        """The wrappers of drafters over a model of another vocabulary by the rule "strings"."""
        names = [*self.pair.roles, *self.pair.kept]
        found = {name: self.found(name) for name in names}
        return {name: self.wrapper(name, one) for name, one in found.items() if one and one.rule == "strings"}

    def wrapper(self, name: str, found: Vocabularies) -> Callable[[Drafter], Drafter]:
        return lambda drafter: Strings(drafter, Rewriter(found), self.limit(name))

    def limit(self, name: str) -> int:
        return context_length(self.pair.roles[self.role(name)].config)

    def dictionary(self, role: str) -> Dictionary:
        """The dictionary of a role, made once: it takes a second or two for a large vocabulary."""
        if role not in self._dictionaries:
            self._dictionaries[role] = self.pair.foreign[role].dictionary().to(self.pair.device)
        return self._dictionaries[role]


def joined_reason(pair: CheckedPair, specs: Sequence[RunSpec]) -> str:
    """Why the rule that joins the vocabularies of a pair requires the tier eager; empty if it does not.
    UsageError, with alternatives, for methods that models of another vocabulary do not support."""
    joins = Joins(pair)
    for spec in specs:
        for name in sorted(needs(spec.method)):
            if (found := joins.found(name)) is not None:
                refuse_unable(spec, name, found)
    if all(found.rule != "strings" for found in pair.foreign.values()):
        return ""
    for spec in specs:
        if spec.tier not in ("auto", "eager"):
            raise UsageError(f"--tier {spec.tier}: {HOST}: use --tier eager")
        synthetic(form(spec, None, joins.around), spec.acceptance)  # refuses impossible chains
    return HOST


def refuse_unable(spec: RunSpec, name: str, found: Vocabularies) -> None:
    """UsageError for a method that needs more of a model of another vocabulary than its rule gives."""
    says = f"--method {spec.method}: the {name} has another tokenizer than the target"
    parts = {part for part, key, value in leaves(read_method(spec.method)["method"]) if value == name}
    views = sorted((parts & {*VIEWS}) | ({LEARNS} if name in learners(spec.method) else set()))
    if views or shares(name):
        what = views[0] if views else "a shared cache"
        raise UsageError(f"{says}, and {what} needs one that reads the target's tokens: use another method")
    if found.rule == "strings" and not parts <= WRITTEN:
        other = " or --vocabulary common" if found.common else ""
        raise UsageError(
            f"{says}; its text is re-tokenised with the target's tokenizer (--vocabulary strings), which needs a chain "
            f"or a tree from it, and {', '.join(sorted(parts - WRITTEN))} is neither: use --method chain{other}"
        )


def recurrent_reason(pair: CheckedPair, specs: Sequence[RunSpec]) -> str:
    """Why networks with a recurrent state require the tier eager; empty if there are none.
    UsageError, with alternatives, for specs that they do not support."""
    if not (found := {name: role for name, role in pair.roles.items() if recurrent(role.config)}):
        return ""
    role = next(iter(found.values()))
    keeps = f"{role.checkpoint.name} ({role.config.model_type}) keeps a recurrent state"
    for part, (base, _) in pair.kept.items():
        if base in found:
            raise UsageError(f"{part}: {keeps}, and drafts from some of its layers are not known: methods are {CHAINS}")
    for spec in specs:
        if form(spec, None).drafter.branches:
            raise UsageError(f"--method {spec.method} drafts trees, and {keeps}, which has no branches: use {CHAINS}")
        if spec.batch > 1:
            raise UsageError(f"--batch {spec.batch}: {keeps}, which has no padding: use --batch 1")
        if spec.tier not in ("auto", "eager"):
            raise UsageError(f"--tier {spec.tier}: {keeps}, and its passes vary in length: use --tier eager")
    return keeps


def recurrent_notes(role: str, rollback: Rollback) -> list[str]:
    """Remarks on a network, by its method of rollback."""
    if rollback == "position":
        return []
    cost, width = ("v", ", so v is about K + 1") if role == "target" else ("c", "")
    return [f"{role}: {REPLAY} {cost}{f'; {SINGLE}{width}' if rollback == 'single' else ''}"]
