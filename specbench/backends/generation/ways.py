"""Which of its ways to generate transformers takes for a method: the same draft, judged by the same law; or a refusal.

Knows specs, method files and checked pairs; must not know networks, or how anything is called.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specbench.backends.checked import CheckedPair
from specbench.backends.roles import Role
from specbench.decoding.method_files import read_method
from specbench.errors import UsageError
from specbench.models.network.layers import shares
from specbench.spec import RunSpec

Kind = Literal["plain", "assisted", "universal", "lookup", "early exit", "mtp"]
INSTEAD = "use --backend native"
RULES = ("Rejection", "TokenMatch")  # one and the same where a draft is a point mass, as one that was looked up is
GREEDY_RULE, DRAWN_RULE = "strings", "common"  # what universal assisted decoding does at temperature 0, and above


@dataclass(frozen=True)
class Way:
    """A kind of generation: K tokens from the model of that name, from so many layers of the target, looked up by at
    most so many tokens before, or one from each of the K MTP modules of that name."""

    kind: Kind
    k: int = 0
    model: str = ""
    layers: int = 0
    ngram: int = 0


PLAIN = Way("plain")


def way_of(spec: RunSpec, pair: CheckedPair) -> Way:
    """The way of a spec. UsageError, naming the native backend, where transformers has none."""
    refuse_settings(spec)
    drafter, fields, rule = parts_of(spec)
    if drafter == "NoDraft" or spec.k == 0:
        return PLAIN
    k = fields.get("k")
    number = spec.k if k == "k" else k
    if drafter == "PromptLookup" and isinstance(number, int) and fields.get("least", 1) == 1 and rule in RULES:
        return Way("lookup", number, ngram=fields.get("most", 3))
    if drafter == "ModelDrafter" and isinstance(number, int) and rule == "Rejection":
        return from_model(spec, str(fields["model"]), number, pair)
    what = f"{rule} over {drafter}" if drafter == "ModelDrafter" else drafter
    raise UsageError(
        f"--backend transformers: --method {spec.method} is {what}, and generate() has only chains from a draft or "
        f"from the first layers of the target, judged token by token, and prompt lookup: {INSTEAD}"
    )


def parts_of(spec: RunSpec) -> tuple[str, dict[str, Any], str]:
    """The drafter of a method, its fields, and the rule that judges; all by name."""
    outermost = read_method(spec.method)["method"]
    inner = outermost.get("Speculate") if isinstance(outermost, dict) else None
    if not isinstance(inner, dict) or inner.get("model") != "target":
        return "something else", {}, ""
    drafter, rule = inner.get("drafter"), inner.get("verifier")
    ((name, fields),) = drafter.items() if isinstance(drafter, dict) else [(str(drafter), {})]
    return str(name), dict(fields or {}), rule if isinstance(rule, str) else "a rule with settings"


def from_model(spec: RunSpec, name: str, k: int, pair: CheckedPair) -> Way:
    """A chain from a model: a network, the first layers of the target, or one with another tokenizer."""
    if name in pair.kept:
        base, layers = pair.kept[name]
        if base != "target" or layers != list(range(len(layers))) or shares(name) or name in pair.cuts:
            raise UsageError(
                f"--backend transformers: its early exit drafts with the first layers of the target and a cache of "
                f"their own, and {name} is something else: {INSTEAD}"
            )
        return Way("early exit", k, layers=len(layers))
    if pair.roles[name].head is not None:
        return from_mtp(name, pair.roles[name], k, pair.roles["target"])
    if name in pair.foreign:
        refuse_vocabulary(spec, name, pair)
        return Way("universal", k, name)
    return Way("assisted", k, name)


def from_mtp(name: str, role: Role, k: int, target: Role) -> Way:
    """A chain from the MTP modules of the target. UsageError for any other trained head, and for another K."""
    assert role.head is not None
    if role.head.head.kind != "mtp" or role.checkpoint.source != target.checkpoint.source:
        raise UsageError(
            f"--backend transformers: the {name} is a trained head, of which only MTP modules in the files of the "
            f"target are run there: {INSTEAD}"
        )
    modules = getattr(target.config.get_text_config(decoder=True), "num_mtp_layers", None)
    if not modules:
        raise UsageError(f"--backend transformers: it knows no MTP modules of {target.config.model_type}: {INSTEAD}")
    if k != modules:
        raise UsageError(
            f"--backend transformers: generate(use_mtp=True) drafts one token with each of the {modules} MTP modules "
            f"of the target: use --k {modules}, or {INSTEAD}"
        )
    return Way("mtp", k, name)


def refuse_vocabulary(spec: RunSpec, name: str, pair: CheckedPair) -> None:
    """UsageError where universal assisted decoding does not do what is asked of a draft with another tokenizer."""
    sizes = {int(pair.roles[one].config.get_text_config(decoder=True).vocab_size) for one in ("target", name)}
    if len(sizes) == 1:
        raise UsageError(
            f"--backend transformers: the {name} has another tokenizer with as many tokens as the target's, which "
            f"generate() takes for the same one: {INSTEAD}"
        )
    if spec.vocabulary not in (None, rule_of(spec)):
        raise UsageError(
            f"--backend transformers: at temperature {spec.temperature:g} generate() drafts by the rule "
            f"{rule_of(spec)}: leave out --vocabulary {spec.vocabulary}, or {INSTEAD}"
        )


def rule_of(spec: RunSpec) -> str:
    """How universal assisted decoding drafts: texts when greedy, tokens that both have when sampling."""
    return GREEDY_RULE if spec.temperature == 0 else DRAWN_RULE


def refuse_settings(spec: RunSpec) -> None:
    """UsageError for settings that generate() has no place for."""
    unable = {
        "--batch": spec.batch > 1 and "its assisted generation decodes one prompt at a time",
        "--schedule": spec.schedule != "constant" and "K must be the same in every round to be comparable",
        "--acceptance": spec.acceptance is not None and "its verdicts cannot be made up",
        "--tier": spec.tier == "graph" and "it captures no graphs of whole rounds",
        "--device-map": spec.device_map is not None and "the weights are shared with the native backend",
        "--draft-device": spec.draft_device is not None and "its assistant lies beside its model",
        "--tensor-parallel": spec.tensor_parallel is not None and "its processes would not decide together",
    }
    for option, why in unable.items():
        if why:
            raise UsageError(f"--backend transformers: {option}: {why}: leave it out, or {INSTEAD}")


def notes_on(way: Way, tier: str) -> Sequence[str]:
    """What is different in this engine, and changes numbers."""
    first = "" if way.kind == "mtp" else " and judges the first draft at once"
    found = [f"its first pass reads the prompt{first}; what a later pass takes of it counts as decoding, the rest as "
             "prefill"]  # fmt: skip
    if way.kind != "plain":
        found.append("alpha is accepted ÷ tested, counted from the passes")
    if way.kind == "mtp":
        found.append("the first token comes with the prompt and is a round without a draft")
    elif way.kind != "plain":
        found.append("a draft ends one token before the last one wanted, and at the end of the sequence")
    if way.kind != "plain" and tier == "compile":
        found.append("the baseline is compiled, assisted generation is not: it refuses a static cache")
    if way.kind == "universal":
        found.append("texts are written anew in every round, with ten tokens before them")
        found.append("vocabularies are given in the order of their ids, without which sampling is not lossless in 5.23")
    return found
