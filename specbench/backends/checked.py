"""From the specs of a pair to its checkpoints, checked without weights: they exist and fit together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from specbench.backends import heads
from specbench.backends.roles import (
    Found,
    Role,
    checkpoint_of,
    cuts_of,
    depth_of,
    kept_layers,
    named_by,
    shipped_source,
)
from specbench.decoding.method_files import learners, leaves, read_method
from specbench.decoding.timing import Spans
from specbench.errors import Missing, MissingError, UsageError
from specbench.models.checkpoints import check, description, loading, names, quantise
from specbench.models.checkpoints.description import device_named, recurrent
from specbench.models.checkpoints.divided import PARALLEL, How
from specbench.models.checkpoints.loading import lacking_extra, unavailable, without_extra
from specbench.models.checkpoints.reduced import Cut
from specbench.models.checkpoints.tokenizers import thinking_tokens
from specbench.models.checkpoints.vocabularies import Vocabularies
from specbench.models.execution import compiled, machine
from specbench.models.scale import growth
from specbench.spec import RunSpec

Named = Mapping[str, str | None]  # a property of each role, by the role's name
DRAFT_DEVICE = "--draft-device"
APART = ("Retrieval", "Distilled")  # parts that read the target's own keys, or change weights during decoding


@dataclass(frozen=True)
class CheckedPair:
    """The models of some specs that have the same checkpoints.

    kept: for every model made of layers of another one, the role of that model and the kept layers.
    foreign: for every role with another tokenizer than the target's, both vocabularies and the rule
    that joins them. cuts: for every model whose head is cut to some tokens after loading, the cuts.
    """

    device: torch.device
    roles: dict[str, Role]
    kept: dict[str, tuple[str, list[int]]]
    context: int
    warnings: tuple[str, ...]
    foreign: Mapping[str, Vocabularies] = field(default_factory=dict)
    cuts: Mapping[str, Sequence[Cut]] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The length of a row of the target's logits."""
        return int(self.roles["target"].config.get_text_config(decoder=True).vocab_size)

    @property
    def thinking(self) -> Spans:
        """The spans in which the target reasons."""
        return Spans(*thinking_tokens(self.roles["target"].tokenizer))

    @property
    def heads(self) -> dict[str, Found]:
        return {name: role.head for name, role in self.roles.items() if role.head is not None}

    def columns(self, commits: Named, weights: Named, rollbacks: Named) -> dict[str, Any]:
        """The columns that describe every resolved role, with the facts known after loading.
        `scale_model` names the roles that are scale models; it may be empty."""
        scaled = [f"{name} {label}" for name, role in self.roles.items() if (label := growth.label(role.config))]
        rules = [found.rule if name == "draft" else f"{name} {found.rule}" for name, found in self.foreign.items()]
        shared = [found.shared for found in self.foreign.values()]
        found: dict[str, Any] = {
            "scale_model": ", ".join(scaled),
            "vocabulary_resolved": ", ".join(rules),
            "vocabulary_shared": "; ".join(shared),
        }
        for name, role in self.roles.items():
            found |= {
                f"{name}_source": shipped_source(role.checkpoint.place),
                f"{name}_commit": commits.get(name) or role.checkpoint.revision,
                f"{name}_weights": weights.get(name),
                **({f"{name}_head": role.head.head.words, f"{name}_at_once": role.head.at_once} if role.head else {}),
                f"{name}_rollback": rollbacks.get(name),
                f"{'' if name == 'target' else f'{name}_'}dtype_resolved": str(role.dtype).removeprefix("torch."),
            }
        return found


def check_models(specs: Sequence[RunSpec], device: torch.device, tier: str) -> CheckedPair:
    """Read configurations and tokenizers. Raises UsageError or UnusableModelError if they do not fit."""
    spec, named, checkpoints = specs[0], named_by(specs), checkpoints_of(specs)
    lacking = [reason for name, checkpoint in checkpoints.items() if (reason := unavailable(name, checkpoint))]
    if lacking := [*lacking, *lacking_extras(checkpoints, spec)]:
        raise MissingError(lacking)
    target = role_of("target", spec, spec.dtype, device, tier)
    loading.refuse_unable(target.checkpoint, target.config, target.dtype, device, target.how)
    alone = CheckedPair(device, {"target": target}, {}, check.context_length(target.config), ())
    drafters = [name for name in checkpoints if name != "target"]
    pair = reduce(lambda found, name: with_drafter(found, name, spec, tier), drafters, alone)
    for name, role in pair.roles.items():
        if role.device is not None:
            refuse_apart(name, role.config, role.borrows, specs)
    kept = {
        name: (trail[-1], kept_layers(trail, depth_of(pair.roles[trail[-1]])))
        for name, trail in named.items()
        if name not in pair.roles
    }
    if spec.device_map and (parts := [name for name, (base, _) in kept.items() if base == "target"]):
        raise UsageError(f"--device-map: {parts[0]} drafts from layers of the target, which needs it in one place")
    refuse_out_of_step(specs, [*kept, *pair.heads])
    return replace(pair, kept=kept, cuts=cuts_of(named, pair.roles, spec))


def checkpoints_of(specs: Sequence[RunSpec]) -> dict[str, names.Checkpoint]:
    """The checkpoints of the roles of some specs, the target's first."""
    names = {names[-1] for names in named_by(specs).values()} - {"target"}
    return {name: checkpoint_of(name, specs[0]) for name in ("target", *sorted(names))}


def lacking_extras(checkpoints: Mapping[str, names.Checkpoint], spec: RunSpec) -> list[Missing]:
    """The missing extras needed to read or quantise these checkpoints; each once."""
    kinds = [kind for kind in (spec.quantize, spec.draft_quantize) if kind and quantise.needs_torchao(kind)]
    found = [without_extra(checkpoint) for checkpoint in checkpoints.values()]
    found += [lacking_extra("quant", f"quantising to {kind}") for kind in kinds[:1]]
    return list({extra.name: extra for extra in found if extra}.values())


def with_drafter(pair: CheckedPair, name: str, spec: RunSpec, tier: str) -> CheckedPair:
    """The pair with a drafting model added under its role name; refused if it does not fit the target."""
    target = pair.roles["target"]
    head = heads.head_at(checkpoint_of(name, spec), target, spec)
    device = drafting_device(spec, pair.device)
    if head is not None and head.hollow is not None:  # what it lacks it takes from its target
        own = Role(
            checkpoint_of(name, spec), head.hollow.config, target.tokenizer, target.dtype, head=head, device=device
        )
        return replace(pair, roles={**pair.roles, name: own}, warnings=(*pair.warnings, *heads.said(head)))
    role = role_of(name, spec, spec.draft_dtype or spec.dtype, device or pair.device, tier)
    role = replace(role, head=head, device=device)
    if spec.draft_dtype is None:
        role = replace(role, dtype=target.dtype)  # two dtypes in one pair would inflate c
    loading.refuse_unable(role.checkpoint, role.config, role.dtype, device or pair.device, role.how)
    foreign, roles = pair.foreign, {**pair.roles, name: role}
    if check.alike(target.tokenizer, role.tokenizer):
        context, remarks = check.check_pair(target.tokenizer, role.tokenizer, target.config, role.config, name)
    else:
        found, remark = heads.both_vocabularies(target, role, name, spec, pair.context)
        foreign, remarks, context = {**foreign, name: found}, [remark], check.context_length(role.config)
    warnings = (*pair.warnings, *remarks)
    return replace(pair, roles=roles, context=min(pair.context, context), warnings=warnings, foreign=foreign)


def role_of(name: str, spec: RunSpec, dtype: str, device: torch.device, tier: str) -> Role:
    """The resolved role; in the tier compile a half-precision one computes in bfloat16 if that is fast."""
    checkpoint = checkpoint_of(name, spec)
    config = description.load_config(checkpoint)
    tokenizer = description.load_tokenizer(checkpoint)
    if tier == "compile":
        quantise.refuse_compiled(checkpoint, config, device)
    own = config.dtype or config.get_text_config(decoder=True).dtype
    half = isinstance(own, torch.dtype) and own.itemsize == 2
    if dtype == "auto" and tier == "compile" and half and compiled.fast_bfloat16(device):
        dtype = "bfloat16"
    how = How(spec.draft_quantize, spec.attn_implementation)
    if name == "target":
        how = How(spec.quantize, spec.attn_implementation, spec.device_map, spec.tensor_parallel)
    return Role(checkpoint, config, tokenizer, description.resolve_dtype(dtype, config, device), how)


def drafting_device(spec: RunSpec, device: torch.device) -> torch.device | None:
    """The draft's device, if it is not the target's. UsageError if this machine has no such device."""
    if spec.draft_device is None:
        return None
    found = device_named(spec.draft_device)
    if found.type == "cuda":
        found = torch.device("cuda", found.index or 0)
    return None if found == device else found


def refuse_apart(name: str, config: Any, borrows: bool, specs: Sequence[RunSpec]) -> None:
    """UsageError if a drafter cannot be on a separate device."""
    reason = ""
    if borrows:
        reason = "it is a head, which reads its target"
    elif recurrent(config):
        reason = "its recurrent state is kept with the target's tokens"
    elif specs[0].tensor_parallel is not None:
        reason = "each process has one device, with the whole draft"
    elif any(learners(spec.method) for spec in specs):
        reason = "it learns from the target's logits, on the target's device"
    if reason:
        raise UsageError(f"{DRAFT_DEVICE} {specs[0].draft_device}: {name}: {reason}: leave it out")


def agreeing(spec: RunSpec) -> Callable[[Tensor], Tensor] | None:
    """The function that makes all processes agree on decisions; None in a single process."""
    return machine.decided if spec.tensor_parallel else None


def refuse_out_of_step(specs: Sequence[RunSpec], parts: Sequence[str]) -> None:
    """UsageError for features that the processes of a sharded target cannot run in step, or that are untested there."""
    if specs[0].tensor_parallel is None:
        return
    if parts:
        raise UsageError(f"{PARALLEL}: {parts[0]} drafts from parts of the target, which needs it whole")
    for method in dict.fromkeys(spec.method for spec in specs):
        found = {part for part, _, _ in leaves(read_method(method)["method"])}
        if wrong := [part for part in APART if part in found]:
            raise UsageError(f"{PARALLEL}: {method} uses {wrong[0]}, which needs a target in one process")
