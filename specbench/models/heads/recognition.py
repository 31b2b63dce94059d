"""The kind of a head, from its config.json and the names and shapes of its tensors; some kinds are refused by name.

The tests are ordered by similarity: each format is distinguished from all later ones. Every
engine has its own names of tensors; here they are renamed to those of the modules.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from specbench.errors import UnusableModelError
from specbench.wording import clean, some

Kind = Literal["eagle1", "eagle3", "mtp", "medusa", "pard", "peagle", "dflash", "dspark"]
Shapes = Mapping[str, tuple[int, ...]]  # of tensors, by name

WORDS: Mapping[Kind, str] = {
    "eagle1": "EAGLE-1",
    "eagle3": "EAGLE-3",
    "mtp": "MTP module",
    "medusa": "Medusa",
    "pard": "PARD",
    "peagle": "P-EAGLE",
    "dflash": "DFlash",
    "dspark": "DSpark",
}


@dataclass(frozen=True)
class Recognised:
    """The kind of a head's files. format: the program that wrote them, if relevant; "" for the authors' own.

    names: the tensors of the head by module name, each with its name in the files. Empty for
    PARD, which is a whole network and is loaded as such.
    """

    kind: Kind
    format: str
    names: Mapping[str, str]


@dataclass(frozen=True)
class Head:
    """A head of some kind and format (see `Recognised`): `config` has the flattened keys of config.json.

    tensors are as stored, by module name. folder: its files. name: the user's name for it.
    """

    kind: Kind
    format: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    folder: Path
    name: str

    @property
    def words(self) -> str:
        """Its name in tables and errors."""
        return f"{WORDS[self.kind]} ({self.format} format)" if self.format else WORDS[self.kind]

    @property
    def trained_for(self) -> str | None:
        """The target named in its config.json, as its trainer wrote it."""
        about = self.config.get("speculators_config")
        verifier = about.get("verifier") if isinstance(about, Mapping) else None
        named = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
        named = named or self.config.get("base_model_name_or_path")
        return clean(named, 100) if isinstance(named, str) and named else None

    def warnings_for(self, target: str, source: str = "") -> tuple[str, ...]:
        """A warning if its config.json names another target than this one, ignoring folders and
        owners; `source` is the target's origin, if its name differs."""
        named = self.trained_for
        if named is None or _last(named) in (_last(target), _last(source)):
            return ()
        return (f"{self.name}: it was trained for {named}, and the target is {target}: its drafts may be worse",)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


PREFIXES = ("model.", "draft_model.", "speculator.", "eagle_module.", "medusa_heads.", "medusa_head.")
OLD_SPECULATORS = {"fusion_fc.": "fc.", "transformer.": "layers.0."}  # EAGLE-1 of speculators before version 0.2
MIDLAYER = re.compile(r"midlayers?\.(?:(\d+)\.)?")

# MTP modules: the prefix of every family, and its names for the parts outside the decoder
# layer. {L} is the number of layers of the target.
DEEPSEEK, QWEN, MIMO, SPECULATORS = "DeepSeek", "Qwen3-Next", "MiMo", "speculators"
MTP_PREFIXES = {DEEPSEEK: "model.layers.{L}.", QWEN: "mtp.", MIMO: "model.mtp_layers.0.", SPECULATORS: "mtp_layers.0."}
MIMO_PARTS = {
    "token_layernorm.": "embed_norm.",
    "hidden_layernorm.": "hidden_norm.",
    "input_proj.": "proj.",
    "final_layernorm.": "norm.",
}
MTP_PARTS = {
    DEEPSEEK: {
        "enorm.": "embed_norm.",
        "hnorm.": "hidden_norm.",
        "eh_proj.": "proj.",
        "shared_head.norm.": "norm.",
        "shared_head.head.": "lm_head.",
        "embed_tokens.": "embed_tokens.",
    },
    QWEN: {
        "pre_fc_norm_embedding.": "embed_norm.",
        "pre_fc_norm_hidden.": "hidden_norm.",
        "fc.": "proj.",
        "norm.": "norm.",
        "layers.0.": "layer.",
    },
    MIMO: MIMO_PARTS,
    SPECULATORS: MIMO_PARTS,
}


def cleaned(stored: Iterable[str]) -> dict[str, str]:
    """The tensors of a head in separate files: module name → name in the files.

    SafeAILab's `midlayer.` and SGLang's `midlayers.{i}.` become `layers.{i}.`; prefixes are dropped. Of two with one
    name the second keeps its file name, which no module has.
    """
    found: dict[str, str] = {}
    for name in stored:
        ours = name
        while prefix := next((prefix for prefix in PREFIXES if ours.startswith(prefix)), None):
            ours = ours.removeprefix(prefix)
        ours = MIDLAYER.sub(lambda layer: f"layers.{layer[1] or 0}.", ours) if MIDLAYER.match(ours) else ours
        ours = renamed(ours, OLD_SPECULATORS)
        found[name if ours in found else ours] = name
    return found


def renamed(name: str, parts: Mapping[str, str], otherwise: str = "") -> str:
    """The name with its prefix replaced by the table; an unlisted one gets the prefix `otherwise`."""
    for theirs, ours in parts.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return otherwise + name


def mtp_names(stored: Iterable[str], layers: int | None) -> tuple[str, dict[str, str]] | None:
    """The family of the first MTP module among some tensors, and its names (see `cleaned`).

    The module is in the files of a target of `layers` layers. None if missing.
    """
    names = list(stored)
    for family, pattern in MTP_PREFIXES.items():
        prefix = pattern.format(L=layers)
        inside = [name for name in names if name.startswith(prefix)]
        parts, rest = MTP_PARTS[family], "" if family == QWEN else "layer."
        found = {renamed(name.removeprefix(prefix), parts, rest): name for name in inside}
        if "proj.weight" in found:
            return family, found
    return None


SPECULATORS_KINDS: Mapping[str, Kind] = {
    "eagle": "eagle1",
    "eagle3": "eagle3",
    "peagle": "peagle",
    "dflash": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
}
MEDUSA = re.compile(r"\d+\.0\.linear\.weight|blocks\.0\.layers\.0\.weight")
MEDUSA_2 = "medusa_head."
MTP = re.compile(r"(model\.)?mtp")
TRANSFORMERS_KEYS = {"block_size", "mask_token_id", "target_layer_ids"}  # of any model that drafts as DFlash does
UNSUPPORTED = {  # by a part of the names of their tensors
    "hydra_mlp.": "Hydra heads",
    "emb.0.weight": "MLP speculators",
    "rnn_u.weight": "ReDrafter heads",
}


def recognise(config: Mapping[str, Any], stored: Shapes) -> Recognised | None:
    """The kind of some files; None if they are not a head, such as an ordinary network.

    config: the original config.json. stored: the shapes of all tensors by their names in the files.
    UnusableModelError for a known unsupported head, in words that follow the name of the checkpoint.
    """
    if isinstance(config.get("speculators_model_type"), str):
        return _speculators(config, stored)
    if kind := _block_diffusion(config, stored):
        return Recognised(kind, "", cleaned(stored))
    return _eagle(config, stored) or _heads_on_z(config, stored) or _whole(config, stored)


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The flattened keys of a config.json: speculators nests those of the decoder layer."""
    inner = part(config, "transformer_layer_config")
    top = {key: value for key, value in config.items() if key != "transformer_layer_config"}
    return {**top, **{key: value for key, value in inner.items() if key != "architectures"}}


def without_mtp(config: Mapping[str, Any], stored: Shapes) -> str:
    """Why a target has no usable MTP module, in words: none at all, or one of an unknown family."""
    known = f"known are those of {', '.join(MTP_PREFIXES)}"
    layers = part(config, "text_config").get("num_hidden_layers") or config.get("num_hidden_layers")
    beyond = [name for name in stored if MTP.match(name) or (type(layers) is int and f"layers.{layers}." in name)]
    if not beyond:
        return f"its files have no MTP module; {known}"
    return f"its MTP module is of a family that is not supported ({some(beyond)}); {known}"


def part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested part of a configuration; empty if missing or of another type."""
    found = config.get(key)
    return found if isinstance(found, Mapping) else {}


def _speculators(config: Mapping[str, Any], stored: Shapes) -> Recognised:
    said = config["speculators_model_type"]
    if said not in SPECULATORS_KINDS:
        raise UnusableModelError(
            f"a head of speculators type {said!r} is not supported; known are {', '.join(SPECULATORS_KINDS)}"
        )
    methods = part(config, "speculators_config").get("proposal_methods")
    for method in methods if isinstance(methods, list) else ():
        if _above(method, "verifier_accept_k", 1) or _above(method, "accept_tolerance", 0):
            raise UnusableModelError(
                "its speculators_config accepts tokens that the target would not have drawn (verifier_accept_k, "
                "accept_tolerance); set them to 1 and 0 to have it verified exactly"
            )
    kind = SPECULATORS_KINDS[said]
    if kind != "mtp":
        return Recognised(kind, SPECULATORS, cleaned(stored))
    found = mtp_names(stored, None)
    if found is None:
        raise UnusableModelError(
            "its weights have no mtp_layers.0.input_proj.weight, the module that its config.json names"
        )
    return Recognised(kind, *found)


def _block_diffusion(config: Mapping[str, Any], stored: Shapes) -> Kind | None:
    architectures = str(config.get("architectures"))
    if "Domino" in architectures or any("prefix_gru" in name for name in stored):
        raise UnusableModelError("Domino heads are not supported: use DFlash or DSpark heads")
    if "DSpark" in architectures or ("dflash_config" in config and any("markov_head." in name for name in stored)):
        return "dspark"
    known = "DFlash" in architectures or "dflash_config" in config or config.keys() >= TRANSFORMERS_KEYS
    return "dflash" if known else None


def _eagle(config: Mapping[str, Any], stored: Shapes) -> Recognised | None:
    names = cleaned(stored)
    shapes = {ours: stored[theirs] for ours, theirs in names.items()}
    query, fc = shapes.get("layers.0.self_attn.q_proj.weight", (0, 0)), shapes.get("fc.weight", ())
    doubled = query[-1:] == tuple(2 * size for size in shapes.get("layers.0.post_attention_layernorm.weight", ()))
    fused = len(fc) == 2 and _any(names, "layers.0.")
    marked = "layers.0.hidden_norm.weight" in shapes or any("midlayer" in name for name in stored)
    if doubled or marked or (fused and fc[1] != 2 * fc[0]):
        if _above(config.get("eagle_config"), "parallel_draft_step", 1) or _any(names, "parallel_draft_heads."):
            raise UnusableModelError("EAGLE-3 heads with parallel draft heads (parallel_draft_step) are not supported")
        return Recognised("peagle" if "mask_hidden" in names else "eagle3", "", names)
    return Recognised("eagle1", "", names) if fused else None


def _heads_on_z(config: Mapping[str, Any], stored: Shapes) -> Recognised | None:
    """Heads without attention: Medusa, and kinds known by name only."""
    if whole := [name for name in stored if name.startswith(MEDUSA_2)]:
        return Recognised("medusa", "Medusa-2" if len(whole) < len(stored) else "", cleaned(whole))
    if "medusa_num_heads" in config or config.get("model_type") == "medusa":
        return Recognised("medusa", "", cleaned(stored))
    names = cleaned(stored)
    for prefix, kind in UNSUPPORTED.items():
        if _any(names, prefix):
            raise UnusableModelError(f"{kind} are not supported: use one of {', '.join(WORDS.values())}")
    if any(MEDUSA.fullmatch(name) for name in names):
        return Recognised("medusa", "", names)
    return None


def _whole(config: Mapping[str, Any], stored: Shapes) -> Recognised | None:
    """Kinds in the files of a whole network: PARD, which is one, and MTP modules next to one."""
    if "pard_token" in config:
        return Recognised("pard", "", {})
    if found := mtp_names(stored, (part(config, "text_config") or config).get("num_hidden_layers")):
        return Recognised("mtp", *found)
    return None


def _above(config: Any, key: str, most: float) -> bool:
    """Whether a number in a part of a configuration exceeds the usual one."""
    found = config.get(key) if isinstance(config, Mapping) else None
    return isinstance(found, int | float) and found > most


def _any(names: Mapping[str, Any], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)
