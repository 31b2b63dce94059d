"""What a head is, from its config.json and the names and shapes of its tensors, and which are refused by name.

The order of the tests is that of the formats' likeness: each is told from all that come after it. Knows formats; must
not know files, or read a weight.
"""

import re
from collections.abc import Mapping
from typing import Any

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.complete import some
from specbench.models.heads.head import WORDS, Kind, Recognised, Shapes
from specbench.models.heads.names import MTP_PREFIXES, SPECULATORS, cleaned, mtp_names

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
    """What some files are; None for what is no head, such as an ordinary network.

    config: config.json as it is. stored: the shapes of all tensors by their names in the files. UnusableModelError for
    a head that is known and not supported, in words that begin after the name of the checkpoint.
    """
    if isinstance(config.get("speculators_model_type"), str):
        return _speculators(config, stored)
    if kind := _block_diffusion(config, stored):
        return Recognised(kind, "", cleaned(stored))
    return _eagle(config, stored) or _heads_on_z(config, stored) or _whole(config, stored)


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config.json in one level: speculators keeps those of the decoder layer in a part of their own."""
    inner = part(config, "transformer_layer_config")
    top = {key: value for key, value in config.items() if key != "transformer_layer_config"}
    return {**top, **{key: value for key, value in inner.items() if key != "architectures"}}


def without_mtp(config: Mapping[str, Any], stored: Shapes) -> str:
    """Why a target has no MTP module that could be used, in words: none at all, or one of a family not known here."""
    known = f"known are those of {', '.join(MTP_PREFIXES)}"
    layers = part(config, "text_config").get("num_hidden_layers") or config.get("num_hidden_layers")
    beyond = [name for name in stored if MTP.match(name) or (type(layers) is int and f"layers.{layers}." in name)]
    if not beyond:
        return f"its files have no MTP module; {known}"
    return f"its MTP module is of a family that is not supported ({some(beyond)}); {known}"


def part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of a configuration that has keys of its own; empty where it is not there, or is something else."""
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
            "its weights have no mtp_layers.0.input_proj.weight, the module that its config.json speaks of"
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
    """Heads without attention: Medusa, and kinds that are known by name only."""
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
    """What lies in the files of a whole network: PARD, which is one, and MTP modules beside one."""
    if "pard_token" in config:
        return Recognised("pard", "", {})
    if found := mtp_names(stored, (part(config, "text_config") or config).get("num_hidden_layers")):
        return Recognised("mtp", *found)
    return None


def _above(config: Any, key: str, most: float) -> bool:
    """Whether a part of a configuration has a number above the one that is usual."""
    found = config.get(key) if isinstance(config, Mapping) else None
    return isinstance(found, int | float) and found > most


def _any(names: Mapping[str, Any], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)
