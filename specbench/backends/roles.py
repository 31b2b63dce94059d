"""The models that methods name: which of them have a checkpoint of their own, and which are layers of another one.

Knows names, specs and configurations; must not know weights or how anything is decoded.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from specbench.decoding.method_files import needs
from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints import names
from specbench.models.checkpoints.divided import AS_STORED, How
from specbench.models.checkpoints.reduced import Cut
from specbench.models.heads.parts import cuttable
from specbench.models.heads.recognition import Head
from specbench.models.network.layers import base_of, chosen, cut_of, shares
from specbench.named_models import PAIR_ROLES
from specbench.shipped import PACKAGE
from specbench.spec import RunSpec
from specbench.wording import clean, first_line


@dataclass(frozen=True)
class Found:
    """A head as it was read, the layers of the target that a user names for it, and its module without its weights;
    no module of one that is a network of its own (PARD). target: what the user calls that, and where it comes from."""

    head: Head
    layers: tuple[int, ...] | None = None
    hollow: Any = None
    target: tuple[str, str] = ("", "")

    @property
    def at_once(self) -> bool:
        """Whether one pass of it drafts all tokens of a round."""
        return self.hollow is None or bool(self.hollow.at_once)


@dataclass(frozen=True)
class Role:
    """One model of a run as it resolved: where it comes from, its configuration, tokenizer and dtype, and how else it
    is to be loaded. head: where it is one. device: its own, where that is not the target's."""

    checkpoint: names.Checkpoint
    config: Any
    tokenizer: Any
    dtype: torch.dtype
    how: How = AS_STORED
    head: Found | None = None
    device: torch.device | None = None

    @property
    def borrows(self) -> bool:
        """Whether it is a head, and no network of its own."""
        return self.head is not None and self.head.hollow is not None

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; UnusableModelError where the tokenizer fails on it."""
        try:
            return list(self.tokenizer(text).input_ids)
        except Exception as error:  # the tokenizers library raises bare Exceptions
            reason = f"its tokenizer fails on a text: {first_line(error)}"
            raise UnusableModelError(f"{self.checkpoint.name}: {reason}") from error


def named_by(specs: Iterable[RunSpec]) -> dict[str, list[str]]:
    """The models that the methods of some specs name, each with what it leads to (see `trail`).

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
    """A name and what it leads to: `skip` → `target[:3,7:]` → `target`. The last one has a checkpoint of its own."""
    names = [name]
    while (after := stands_for(names[-1], given)) is not None:
        if after in names:
            raise UsageError(f"--model {name}={given.get(name, after)}: these layers are layers of themselves")
        names.append(after)
    role = names[-1]
    if role not in {*PAIR_ROLES, *given}:
        raise UsageError(
            f"{method}: it uses the model {role}, which is neither target nor draft: say which one it is with "
            f"--model {role}=CHECKPOINT"
        )
    return names


def stands_for(name: str, given: Mapping[str, str]) -> str | None:
    """What a name stands for: `target[:3]` for layers of `target`, a given name for its layers; None for a role."""
    if (base := base_of(name)) != name:
        return base
    text = given.get(name, "")
    return text if is_layers(text, {*PAIR_ROLES, *given}) else None


def is_layers(text: str, known: Collection[str]) -> bool:
    """Whether a text names layers of a known model, and not a checkpoint."""
    return base_of(text) != text and base_of(text) in known


def cuts_of(trails: Mapping[str, Sequence[str]], roles: Mapping[str, Role], spec: RunSpec) -> dict[str, list[Cut]]:
    """The cuts of every model but the target, in the order in which they are made; trails as of `named_by`.

    UsageError for a cut that cannot be made.
    """
    asked = [] if spec.draft_vocabulary is None else [spec.draft_vocabulary]
    found: dict[str, list[Cut]] = {}
    for name in dict.fromkeys([*roles, *trails]):
        own = [cut for text in trails.get(name, ()) if (cut := cut_of(text)) is not None]
        if name == "target" or not (own or asked):
            continue
        if shares(name):
            raise UsageError(f"--draft-vocabulary {asked[0]}: {name} shares its passes with the target: leave it out")
        role = roles[trails.get(name, [name])[-1]]
        if role.borrows and role.head is not None and not cuttable(role.head.hollow):
            what = f"{role.head.head.name} ({role.head.head.words})"
            raise UsageError(
                f"--draft-vocabulary: {what} has no single output that could be cut and drafts token by token: train "
                "one for fewer tokens (specbench train head)"
            )
        found[name] = [Cut.read(text) for text in (*asked, *own)]
    return found


def kept_layers(names: list[str], depth: int) -> list[int]:
    """The layers that the network of a trail keeps, of the `depth` layers of its role."""
    kept = list(range(depth))
    for text in reversed(names):
        if base_of(text) != text:
            kept = [kept[place] for place in chosen(text, len(kept))]
    return kept


def checkpoint_of(role: str, spec: RunSpec) -> names.Checkpoint:
    """Where the weights of a role come from."""
    return replace(_named_checkpoint(role, spec), trusted=bool(spec.trust_remote_code))


def _named_checkpoint(role: str, spec: RunSpec) -> names.Checkpoint:
    if role == "target":
        return names.resolve(spec.target, spec.target_revision)
    if role == "draft":
        return names.resolve(draft_name(spec), spec.draft_revision)
    return names.resolve(dict(spec.model)[role])


def how_of(role: str, spec: RunSpec) -> How:
    """How the network of a role is wanted. What drafts is quantised only where that is said of the draft, and whole."""
    if role == "target":
        return How(spec.quantize, spec.attn_implementation, spec.device_map, spec.tensor_parallel)
    return How(spec.draft_quantize, spec.attn_implementation)


def draft_name(spec: RunSpec) -> str:
    """The draft that a spec names, or the usual one of its target."""
    name = spec.draft or names.default_draft(spec.target)
    if name is None:
        raise UsageError(undrafted(spec.target))
    return name


def undrafted(target: str) -> str:
    """What to do about a target for which no draft is known."""
    return (
        f"no draft is known for {clean(target)}: name one with --draft, use a method that needs none (--method "
        f"prompt-lookup), or train one (specbench train draft --target {quote(clean(target))})"
    )


def half(config: Any) -> bool:
    """Whether a checkpoint is stored in a type of 16 bits."""
    own = config.dtype or config.get_text_config(decoder=True).dtype
    return isinstance(own, torch.dtype) and own.itemsize == 2


def depth_of(role: Role) -> int:
    """How many layers the network of a role has."""
    return int(role.config.get_text_config(decoder=True).num_hidden_layers)


def end_ids(network: Any, tokenizer: Any) -> list[int]:
    """The ids that end a sequence: those of the network's generation config, or its tokenizer's where it has none."""
    ids = getattr(getattr(network, "generation_config", None), "eos_token_id", None)
    ids = tokenizer.eos_token_id if ids is None else ids
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def shipped_source(source: str) -> str:
    """A checkpoint's place; of a shipped one the place inside the package, which is the same on every machine."""
    path = Path(source)
    return str(Path("specbench", path.relative_to(PACKAGE))) if path.is_relative_to(PACKAGE) else source
