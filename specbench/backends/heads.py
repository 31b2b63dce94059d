"""Heads, and drafts with another tokenizer, as roles of a pair: found, checked against the target, loaded with it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from specbench.backends.roles import Found, Role
from specbench.decoding.protocols import Model
from specbench.errors import UsageError
from specbench.files import ASSETS
from specbench.models.checkpoints import names
from specbench.models.checkpoints.check import context_length
from specbench.models.checkpoints.divided import in_dtype, kept_by
from specbench.models.checkpoints.loading import Loaded
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.checkpoints.tokenizers import spelling_of
from specbench.models.checkpoints.vocabularies import Vocabularies
from specbench.models.heads import files
from specbench.models.heads.build import built, joined, through_masks
from specbench.models.heads.parts import Borrowed
from specbench.models.heads.taps import agreement, shifted
from specbench.models.network.causal import Causal
from specbench.spec import RunSpec
from specbench.theory.memory import Network

PROBE, PROBED = ASSETS / "prompts" / "articles.jsonl", 256  # maximum tokens of the first text


def head_at(checkpoint: Checkpoint, target: Role, spec: RunSpec) -> Found | None:
    """The head in a checkpoint, with its module as far as it can be built without the target's weights.

    UsageError or UnusableModelError for a head that does not fit, and for settings that it does not take.
    """
    layers, head = boundaries(spec.aux_layers), files.find(checkpoint, target.checkpoint)
    if head is None or head.kind == "pard":
        if layers is not None:
            raise UsageError(f"--aux-layers: {checkpoint.name} is a network, which reads no layers of the target")
        return None if head is None else Found(head)
    if spec.draft_quantize:
        raise UsageError(f"--draft-quantize {spec.draft_quantize}: {checkpoint.name} is a head, which is not quantised")
    network = in_dtype(target.config, target.dtype, target.how.attention_of(target.config))
    return Found(head, layers, built(head, network, layers), (target.checkpoint.name, target.checkpoint.place))


def boundaries(text: str | None) -> tuple[int, ...] | None:
    """`2,16,29` as numbers."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--aux-layers {text}: write numbers of layers of the target, such as 2,16,29") from None


def said(found: Found) -> tuple[str, ...]:
    """Remarks on a head before loading: its kind, the layers it reads and by which rule, and its target."""
    why = f", {found.hollow.why}" if found.hollow.why else ""
    return (f"{found.head.name}: {found.head.words}{why}", *found.head.warnings_for(*found.target))


def load(role: Role, found: Found, network: Any) -> Loaded:
    """The module of a head with the weights of its target."""
    module, name = built(found.head, network, found.layers), role.checkpoint.name
    notes = list(module.warnings)
    if not module.at_once:
        notes += [f"{name} {line}" for line in probed(role, module, network)]
    return Loaded(module, role.dtype, names.commit(found.head.folder), tuple(notes), found.head.words)


def probed(role: Role, module: Any, network: Any) -> Iterator[str]:
    """How often a head's most likely token is the target's on a shipped text, and whether layers counted
    from one less would raise that: such a mistake raises no error, it only lowers tokens per round."""
    document = json.loads(PROBE.read_text(encoding="utf-8").partition("\n")[0])["document"]
    most = min(PROBED, context_length(network.config))
    ids = torch.tensor([role.encode(document)[:most]], device=network.get_input_embeddings().weight.device)
    own = agreement(module, network, ids)
    yield f"drafts its target's most probable token at {own.share:.0%} of {own.rows} places of an article"
    taps = shifted(module.taps, Borrowed(network).layers)
    if taps is None or not own.clearly_below(other := agreement(module, network, ids, taps)):
        return
    listed = ",".join(map(str, taps))
    yield f"does so at {other.share:.0%} with one layer later each: it may have been trained so (--aux-layers {listed})"


def joined_in(models: Mapping[str, Model], heads: Mapping[str, Any], depth: int) -> dict[str, Model]:
    """The models of a method that drafts up to `depth` tokens, with these heads added by name: modules, for
    which the target keeps its hidden states, or None for a separate network that drafts through masks.

    UsageError for a target that keeps no hidden states, and for a head that drafts fewer tokens.
    """
    found = dict(models)
    for name, head in heads.items():
        target, draft = found["target"], found.get(name)
        if head is None and isinstance(draft, Causal):
            found[name] = through_masks(draft, name, depth)
        elif isinstance(target, Causal) and list(heads.values()).count(None) == len(heads) - 1:
            found["target"], found[name] = joined(target, head, depth)
        else:
            raise UsageError(f"{name}: one head can read the hidden rows of a target, which must keep all of its keys")
    return found


def refuse_deep(spec: RunSpec, heads: Mapping[str, Found], depth: int) -> None:
    """UsageError for a method that drafts more tokens than a head was trained for."""
    for name, found in heads.items():
        if found.hollow is not None and (most := found.hollow.steps) is not None and depth > most:
            raise UsageError(
                f"--k {spec.k}: {found.head.name} ({found.head.words}) drafts {most} tokens, and {spec.method} "
                f"requests {depth} from {name}: use --k {most} or less"
            )


def sizes_of(role: Role, found: Found, target: Role) -> Network:
    """The sizes of a head, including what its target keeps for it."""
    item, config, hollow = role.dtype.itemsize, role.config, found.hollow
    wide = target.config.get_text_config(decoder=True).hidden_size
    numbers = [tensor.numel() for tensor in found.head.tensors.values()]
    layers = [shape for name, shape in found.head.shapes.items() if name.startswith("layer") and len(shape) > 1]
    states = hollow.width + len(hollow.taps) * wide
    return Network(
        weights=sum(numbers) * item,
        read=max(numbers) * item,
        layers=config.num_hidden_layers + 1,
        kept=max(attended(found), states),
        hidden=config.hidden_size,
        inner=max([max(shape[-2:]) for shape in layers], default=config.hidden_size),
        heads=config.num_attention_heads,
        groups=1,
        vocabulary=config.vocab_size,
        item=item,
        masked=1,
    )


def attended(found: Found) -> int:
    """The numbers cached per token and layer of a head; for an MTP module the same as in its
    target, which may cache latents."""
    config = found.hollow.config
    if not config.num_hidden_layers:
        return 0
    if found.head.kind == "mtp":
        return kept_by(found.hollow.target.network)
    return int(2 * config.num_key_value_heads * config.head_dim)


def both_vocabularies(target: Role, role: Role, name: str, spec: RunSpec, longest: int) -> tuple[Vocabularies, str]:
    """Both vocabularies of a draft with another tokenizer, and a remark on the rule that joins them, their common
    tokens, and how far the draft reads. UnusableModelError or UsageError if no rule applies."""
    ours, theirs = (int(one.config.get_text_config(decoder=True).vocab_size) for one in (target, role))
    spellings = spelling_of(target.tokenizer), spelling_of(role.tokenizer)
    found = Vocabularies(*spellings, ours, theirs, name, spec.vocabulary or "auto")
    rule = {
        "common": "it drafts tokens that both have",
        "strings": "its text is re-tokenised with the target's tokenizer, on the host in every round",
    }[found.rule]
    context = context_length(role.config)
    reads = f"; it reads {context} of its own tokens only" if context < longest else ""
    return found, f"vocabulary {found.rule}: the {name} has another tokenizer; {found.shared}; {rule}{reads}"
