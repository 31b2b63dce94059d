"""How vLLM decodes a method: its arguments for the same draft, judged by the same law; or a refusal.

Knows specs, method files and checked pairs; must not know processes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.backends.apart.files import files_of, refuse_ours
from specbench.backends.checked import CheckedPair
from specbench.backends.generation.ways import parts_of
from specbench.engine_options import of_engine
from specbench.errors import UsageError
from specbench.spec import RunSpec

INSTEAD = "use --backend native"
BUG = (
    "vLLM on a CPU samples wrongly with a draft at temperatures above 0 in version 0.32 (vLLM issue 55005), so that "
    "acceptance and speed are not those of a lossless method: see the z-test of specbench verify --backend vllm"
)
POINT_MASS = ("Rejection", "TokenMatch")  # one and the same where drafted tokens are point masses


def refuse_settings(spec: RunSpec) -> None:
    """UsageError for settings that it has no place for."""
    unable = {
        "--schedule": spec.schedule != "constant" and "K is the same in every round of an engine",
        "--acceptance": spec.acceptance is not None and "its verdicts cannot be made up on every device",
        "--eta": spec.eta is not None and "it has no eta sampling",
        "--min-p": spec.min_p is not None and "it heeds no such bound while it drafts",
        "--quantize": bool(spec.quantize or spec.draft_quantize) and "it reads the checkpoints as they are",
        "--draft-dtype": spec.draft_dtype is not None and "its draft has the dtype of the target",
        "--device-map": spec.device_map is not None and "it divides models by engine options of its own",
        "--tensor-parallel": spec.tensor_parallel is not None and "it splits models by engine options of its own",
        "--draft-device": spec.draft_device is not None and "it places models by engine options of its own",
        "--attn-implementation": spec.attn_implementation is not None and "it has kernels of its own",
        "--engine-option vllm.trust_remote_code": "trust_remote_code" in of_engine(spec.engine_option, "vllm")
        and "--trust-remote-code alone says whether code of a checkpoint runs",
        "--tier": spec.tier == "graph" and "take eager, or compile, which captures graphs on a GPU",
    }
    for option, why in unable.items():
        if why:
            raise UsageError(f"--backend vllm: {option}: {why}: leave it out, or {INSTEAD}")


def speculation(spec: RunSpec, pair: CheckedPair) -> Mapping[str, Any] | None:
    """`speculative_config` for a method; None of the baseline. UsageError, naming the native backend, for others."""
    drafter, fields, rule = parts_of(spec)
    if drafter == "NoDraft" or spec.k == 0:
        return None
    k = spec.k if fields.get("k") == "k" else fields.get("k")
    common = {"num_speculative_tokens": k}
    if drafter == "PromptLookup" and rule in POINT_MASS:
        most, least = fields.get("most", 3), fields.get("least", 1)
        return {**common, "method": "ngram", "prompt_lookup_max": most, "prompt_lookup_min": least}
    if drafter == "Suffix" and rule in POINT_MASS:
        return {**common, "method": "suffix", **suffix(fields)}
    if drafter == "ModelDrafter" and rule in ("Rejection", "Block"):
        return {**common, **judged(spec, rule, pair), **model(str(fields["model"]), pair)}
    raise UsageError(
        f"--backend vllm: --method {spec.method} is {rule} over {drafter}, and it has only chains from a draft or an "
        f"EAGLE-3 head, judged token by token or as a block, prompt lookup and suffix decoding: {INSTEAD}"
    )


def suffix(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of suffix decoding. Without carried answers it knows the prompt and the answer alone, as ours."""
    texts = fields.get("texts", 1000) if fields.get("carry") else 0
    return {
        "suffix_decoding_max_tree_depth": fields.get("most", 64),
        "suffix_decoding_max_spec_factor": fields.get("factor", 1.0),
        "suffix_decoding_min_token_prob": fields.get("least", 0.1),
        "suffix_decoding_max_cached_requests": texts,
    }


def judged(spec: RunSpec, rule: str, pair: CheckedPair) -> dict[str, Any]:
    """How drafts are drawn and judged: above temperature 0 from the draft's law, which is not its default."""
    if rule == "Block" and pair.device.type == "cpu":
        raise UsageError(
            f"--backend vllm: --method {spec.method}: on a CPU it takes block verification and judges token by token "
            f"all the same: choose chain, or {INSTEAD}"
        )
    found: dict[str, Any] = {"rejection_sample_method": "block"} if rule == "Block" else {}
    return found | ({"draft_sample_method": "probabilistic"} if spec.temperature > 0 else {})


def model(name: str, pair: CheckedPair) -> dict[str, Any]:
    """What drafts: a network of the target's tokens, or an EAGLE-3 head in the speculators format."""
    if name in pair.kept or name in pair.foreign:
        why = "is layers of another model" if name in pair.kept else "has another tokenizer"
        raise UsageError(f"--backend vllm: the {name} {why}, and it drafts with networks of one vocabulary: {INSTEAD}")
    refuse_files(name, pair)
    role = pair.roles[name]
    if role.head is None:
        return {"method": "draft_model", "model": name}
    head = role.head.head
    if head.kind != "eagle3" or head.format != "speculators":
        raise UsageError(
            f"--backend vllm: the {name} is {head.words}, and of trained heads it is given EAGLE-3 in the speculators "
            f"format: {INSTEAD}"
        )
    return {"method": "eagle3", "model": name}


def refuse_files(name: str, pair: CheckedPair) -> None:
    """UsageError for a checkpoint that it cannot read."""
    role = pair.roles[name]
    if role.checkpoint.file:
        raise UsageError(
            f"--backend vllm: {role.checkpoint.name} is a GGUF file: name the folder or hub id of the model"
        )
    refuse_ours("vllm", role)


def located(llm: Mapping[str, Any], pair: CheckedPair) -> dict[str, Any]:
    """The arguments of an engine with folders in the place of the names of models."""
    found = {**llm, "model": folder_of(str(llm["model"]), pair)}
    if (drafting := llm.get("speculative_config")) and "model" in drafting:
        found["speculative_config"] = {**drafting, "model": folder_of(str(drafting["model"]), pair)}
    return found


def folder_of(name: str, pair: CheckedPair) -> str:
    """The folder of a role's checkpoint, with its weights."""
    role = pair.roles[name]
    return str(files_of(role)[0] if role.head is None else role.head.head.folder)


def notes_on(spec: RunSpec, pair: CheckedPair, asked: Mapping[str, Any] | None) -> Sequence[str]:
    """What is different in vLLM, and changes numbers."""
    if asked is None:
        return []
    found = []
    if asked["method"] in ("ngram", "suffix"):
        found.append("steps without a draft are counted, but not where they were")
    if asked["method"] == "draft_model" and spec.temperature > 0:
        found.append("drafts are drawn from the draft's law (draft_sample_method probabilistic; its default is greedy)")
    if asked["method"] == "eagle3" and spec.temperature > 0:
        found.append("heads draft by the same law (draft_sample_method probabilistic)")
    if spec.temperature > 0 and pair.device.type == "cpu":
        found.append(BUG)
    return found
