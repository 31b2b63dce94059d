"""The models that methods name, and the form of a method: everything known before its models exist."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from specbench.backends.engines import arms
from specbench.decoding.decode import buffer_length
from specbench.decoding.drafters.schedule import scheduled
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import leaves, needs, read_method, words
from specbench.decoding.methods import Around, build
from specbench.decoding.timing import Spans
from specbench.errors import UnusableModelError, UsageError
from specbench.files import PACKAGE
from specbench.models.checkpoints import names
from specbench.models.checkpoints.divided import AS_STORED, How
from specbench.models.checkpoints.reduced import Cut
from specbench.models.heads.recognition import Head
from specbench.models.heads.recursive import Recursive
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import known_tokens
from specbench.models.network.skipping import base_of, chosen, cut_of, shares
from specbench.settings import group
from specbench.spec import CHOOSING, PAIR_ROLES, RunSpec
from specbench.theory.optimum import Costs
from specbench.wording import clean, first_line

NOT_LOADED: Any = Causal  # placeholder for a model when only the form of a method matters
READS_ALONE = ("Speculate", "Streaming")  # parts that give a model its own sequence, or let it judge
OF_PROMPTS = tuple(one.name for name in ("excerpt", "chat", "limit") for one in group(name, RunSpec))


@dataclass(frozen=True)
class Found:
    """A head as read, the target layers that the user names for it, and its module without weights; no
    module for a separate network (PARD). target: the user's name for the target, and its source."""

    head: Head
    layers: tuple[int, ...] | None = None
    hollow: Any = None
    target: tuple[str, str] = ("", "")

    @property
    def at_once(self) -> bool:
        """Whether one pass drafts all tokens of a round."""
        return self.hollow is None or bool(self.hollow.at_once)


@dataclass(frozen=True)
class Role:
    """One resolved model of a run: its source, configuration, tokenizer, dtype and load
    settings. head: set for a head. device: its own, if not the target's."""

    checkpoint: names.Checkpoint
    config: Any
    tokenizer: Any
    dtype: torch.dtype
    how: How = AS_STORED
    head: Found | None = None
    device: torch.device | None = None

    @property
    def apart(self) -> bool:
        """Whether it is divided, or on a device of its own: then only the tier eager runs it."""
        return bool(self.how.device_map or self.how.parallel or self.device)

    @property
    def borrows(self) -> bool:
        """Whether it is a head that is not a network of its own."""
        return self.head is not None and self.head.hollow is not None

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; UnusableModelError if the tokenizer fails."""
        try:
            return list(self.tokenizer(text).input_ids)
        except Exception as error:  # the tokenizers library raises bare Exceptions
            reason = f"its tokenizer fails on a text: {first_line(error)}"
            raise UnusableModelError(f"{self.checkpoint.name}: {reason}") from error


def named_by(specs: Iterable[RunSpec]) -> dict[str, list[str]]:
    """The models that the methods of some specs name, each with its trail (see `trail`).

    UsageError for a model that is neither target nor draft nor given, and for a given one that no method leads to.
    """
    specs = list(specs)
    given = {name: text for spec in specs for name, text in spec.model}
    found = {"target": ["target"]}
    for method in dict.fromkeys(spec.method for spec in specs):
        found |= {name: trail(name, given, method) for name in sorted(needs(method))}
    used = {name for names in found.values() for name in names}
    if unused := [name for name in given if name not in used]:
        raise UsageError(
            f"--model {unused[0]}={given[unused[0]]}: no method of this run uses it; leave it out, or name it in a "
            f"method file of your own (model: {unused[0]})"
        )
    return found


def trail(name: str, given: Mapping[str, str], method: str) -> list[str]:
    """A name and what it resolves to: `skip` → `target[:3,7:]` → `target`. The last one has its own checkpoint."""
    names = [name]
    while (after := stands_for(names[-1], given)) is not None:
        if after in names:
            raise UsageError(f"--model {name}={given.get(name, after)}: these layers refer to themselves")
        names.append(after)
    role = names[-1]
    if role not in {*PAIR_ROLES, *given}:
        raise UsageError(
            f"{method}: it uses the model {role}, which is neither target nor draft: name it with --model "
            f"{role}=CHECKPOINT"
        )
    return names


def stands_for(name: str, given: Mapping[str, str]) -> str | None:
    """The meaning of a name: `target[:3]` for layers of `target`, a given name for its layers; None for a role."""
    if (base := base_of(name)) != name:
        return base
    text = given.get(name, "")
    return text if base_of(text) != text and base_of(text) in {*PAIR_ROLES, *given} else None


def cuts_of(trails: Mapping[str, Sequence[str]], roles: Mapping[str, Role], spec: RunSpec) -> dict[str, list[Cut]]:
    """The cuts of every model but the target in the order of `named_by`. UsageError for an impossible one."""
    shared = [] if spec.draft_vocabulary is None else [spec.draft_vocabulary]
    found: dict[str, list[Cut]] = {}
    for name in dict.fromkeys([*roles, *trails]):
        own = [cut for text in trails.get(name, ()) if (cut := cut_of(text)) is not None]
        if name == "target" or not (own or shared):
            continue
        if shares(name):
            raise UsageError(f"--draft-vocabulary {shared[0]}: {name} shares its passes with the target: leave it out")
        role = roles[trails.get(name, [name])[-1]]
        if role.head and role.borrows and (role.head.at_once or not hasattr(role.head.hollow, "lm_head")):
            what = f"{role.head.head.name} ({role.head.head.words})"
            raise UsageError(
                f"--draft-vocabulary: {what} has no single output that could be cut and drafts token by token: train "
                "one for fewer tokens (specbench train head)"
            )
        found[name] = [Cut.read(text) for text in (*shared, *own)]
    return found


def kept_layers(names: list[str], depth: int) -> list[int]:
    """The layers that the network of a trail keeps, of the `depth` layers of its role."""
    kept = list(range(depth))
    for text in reversed(names):
        if base_of(text) != text:
            kept = [kept[place] for place in chosen(text, len(kept))]
    return kept


def checkpoint_of(role: str, spec: RunSpec) -> names.Checkpoint:
    if role == "target":
        found = names.resolve(spec.target, spec.target_revision)
    elif role == "draft":
        if (name := spec.draft or names.default_draft(spec.target)) is None:
            raise UsageError(undrafted(spec.target))
        found = names.resolve(name, spec.draft_revision)
    else:
        found = names.resolve(dict(spec.model)[role])
    return replace(found, trusted=bool(spec.trust_remote_code))


def undrafted(target: str) -> str:
    """The remedy for a target without a known draft."""
    return (
        f"no draft is known for {clean(target)}: name one with --draft, use a method that needs none (--method "
        f"prompt-lookup), or train one (specbench train draft --target {quote(clean(target))})"
    )


def depth_of(role: Role) -> int:
    """The number of layers of a role's network."""
    return int(role.config.get_text_config(decoder=True).num_hidden_layers)


def end_ids(generation: Any, tokenizer: Any) -> list[int]:
    """The ids that end a sequence: those of a generation config, or of the tokenizer if it has none."""
    ids = getattr(generation, "eos_token_id", None)
    ids = tokenizer.eos_token_id if ids is None else ids
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def shipped_source(source: str) -> str:
    """A checkpoint's path; for a shipped one the path inside the package, which is the same on every machine."""
    path = Path(source)
    return str(Path("specbench", path.relative_to(PACKAGE))) if path.is_relative_to(PACKAGE) else source


def form(spec: RunSpec, costs: Costs | None, around: Around | None = None) -> Speculate:
    """The method of a spec with placeholders for its models; `around` as in `build`."""
    nothing = dict.fromkeys(needs(spec.method), NOT_LOADED)
    schedule = scheduled(spec.schedule, spec.confidence, costs)
    return build(spec.method, nothing, spec.k, schedule=schedule, around=around)


def bounded(spec: RunSpec) -> RunSpec:
    """The spec as executed: no round drafts more tokens than a sequence may have."""
    most = spec.max_new_tokens
    if spec.k <= most or spec.method == CHOOSING or form(spec, None).drafter.depth <= most:
        return spec
    return spec.with_(k=most)


def refuse_heads(spec: RunSpec, heads: Collection[str]) -> None:
    """UsageError for a method that needs a whole network if one of these models is a head."""
    named = needs(spec.method)
    if not (found := sorted(named & set(heads))):
        return
    models: dict[str, Any] = {name: Recursive if name in found else NOT_LOADED for name in named}
    parts = leaves(read_method(spec.method)["method"])
    unable = any(part in READS_ALONE and key == "model" and value in found for part, key, value in parts)
    try:
        build(spec.method, models, spec.k, schedule=scheduled(spec.schedule, spec.confidence, None))
    except UsageError:
        unable = True
    if unable:
        raise UsageError(
            f"--method {spec.method}: its {found[0]} must be a network by itself, and a head depends on its target: "
            "choose chain, a tree, or a draft that is a network"
        )


def carries(spec: RunSpec) -> str:
    """The part of a method that carries state from prompt to prompt; empty if prompts are independent."""
    if spec.backend in arms.ENGINES:
        return arms.memory_of(spec)
    carried = form(spec, None).carries
    return "" if carried is None else type(carried).__name__


def unthinking(specs: Iterable[RunSpec], spans: Spans) -> tuple[str, ...]:
    """A warning that a method with special handling of reasoning never uses it."""
    found = dict.fromkeys(spec.method for spec in specs if "thinking" in words(spec.method, "spans"))
    return tuple(
        f"--method {name}: the target's tokenizer has no thinking tokens (<think>, </think>), so the method would "
        "change nothing: name the tokens that open and close such spans in a copy of the file"
        for name in found
        if not spans.opens
    )


def refuse_carrying(spec: RunSpec) -> None:
    """UsageError for settings that would change the meaning of a method with carried state."""
    if not (carried := carries(spec)):
        return
    says = f"{carried if spec.backend in arms.ENGINES else f'--method {spec.method}'} learns from every prompt"
    if spec.repeat > 1:
        raise UsageError(
            f"--repeat {spec.repeat}: {says}, so a repetition would measure something else: leave it out, and give "
            "more prompts (--limit)"
        )
    if spec.until_ci is not None:
        raise UsageError(
            f"--until-ci: {says}, so where it stops would decide how much was learned: give a number of prompts "
            "(--limit)"
        )
    if spec.acceptance is not None:
        raise UsageError(f"--acceptance: {says}, and nothing can be learned from synthetic acceptance: leave it out")


def known_in(modules: Mapping[str, Any], drafts: Iterable[str], width: int) -> frozenset[int] | None:
    """The tokens that any of these models can propose; None if one of them can propose all, or there are no models."""
    found: set[int] = set()
    for name in drafts:
        known = known_tokens(modules[name], width)
        if known is None:
            return None
        found |= set(known.tolist())
    return frozenset(found) or None


def whatever_prompts(spec: RunSpec) -> RunSpec:
    """The common form of all specs that have the same arms and differ in their prompts only."""
    return spec.with_(**dict.fromkeys(OF_PROMPTS), dataset="", seed=0, warmup=0, repeat=1, until_ci=None)


def places(spec: RunSpec, longest: int, costs: Costs | None) -> int:
    """The slots of a spec's sequences after prompts of up to `longest` tokens."""
    return buffer_length(longest, spec.max_new_tokens, form(bounded(spec), costs).drafter.room)
