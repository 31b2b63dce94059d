"""How llama-server decodes a method: its options for the same draft; or a refusal.

Knows specs, method files and checked pairs; must not know processes.
"""

from collections.abc import Sequence
from pathlib import Path

from specbench.backends.apart.files import files_of, refuse_ours
from specbench.backends.checked import CheckedPair
from specbench.backends.generation.ways import parts_of
from specbench.errors import UsageError
from specbench.models.checkpoints.gguf import gguf_of, refuse_unable
from specbench.models.execution.regions.folder import own_place
from specbench.spec import RunSpec

NAME = "llama.cpp"
INSTEAD = "use --backend native"
CACHES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}  # of keys and values, by the dtype of the weights


def refuse_settings(spec: RunSpec) -> None:
    """UsageError for settings that it has no place for."""
    unable = {
        "--schedule": spec.schedule != "constant" and "K is the same in every round of a server",
        "--acceptance": spec.acceptance is not None and "its verdicts cannot be made up",
        "--eta": spec.eta is not None and "it has no eta sampling",
        "--quantize": bool(spec.quantize or spec.draft_quantize) and "name a GGUF file that is quantised",
        "--device-map": spec.device_map is not None and "it divides models by options of its own",
        "--tensor-parallel": spec.tensor_parallel is not None and "it splits models by options of its own",
        "--draft-device": spec.draft_device is not None and "it places models by options of its own",
        "--attn-implementation": spec.attn_implementation is not None and "it has kernels of its own",
        "--tier": spec.tier not in ("auto", "eager") and "it has one way to execute rounds",
    }
    for option, why in unable.items():
        if why:
            raise UsageError(f"--backend {NAME}: {option}: {why}: leave it out, or {INSTEAD}")


def drafting(spec: RunSpec, pair: CheckedPair) -> list[str]:
    """The options of a method; none of the baseline. UsageError, naming the native backend, for others."""
    drafter, fields, rule = parts_of(spec)
    if drafter == "NoDraft" or spec.k == 0:
        return []
    k = str(spec.k if fields.get("k") == "k" else fields.get("k"))
    if drafter == "PromptLookup":
        sizes = {"size-n": str(fields.get("most", 3)), "size-m": k, "min-hits": "1"}
        return ["--spec-type", "ngram-simple", *(w for n, v in sizes.items() for w in (f"--spec-ngram-simple-{n}", v))]
    if drafter == "ModelDrafter" and rule in ("Rejection", "TokenMatch"):
        bounds = {"n-max": k, "n-min": "0", "p-min": "0"}
        draft = ["--spec-type", "draft-simple", "-md", drafter_of(str(fields["model"]), pair)]
        return [*draft, *(word for name, value in bounds.items() for word in (f"--spec-draft-{name}", value))]
    raise UsageError(
        f"--backend {NAME}: --method {spec.method} is {rule} over {drafter}, and it has only chains from a draft "
        f"and prompt lookup: {INSTEAD}"
    )


def drafter_of(name: str, pair: CheckedPair) -> str:
    """A model that drafts, by its name. UsageError for one that it cannot draft with."""
    if name in pair.kept or name in pair.foreign or pair.roles[name].head is not None:
        raise UsageError(f"--backend {NAME}: it drafts with networks of the target's vocabulary, and {name} is no such "
                         f"network: {INSTEAD}")  # fmt: skip
    refuse_files(name, pair)
    return name


def refuse_files(name: str, pair: CheckedPair) -> None:
    """UsageError or UnusableModelError for a checkpoint of which there is no GGUF file, and none can be made."""
    role = pair.roles[name]
    refuse_ours(NAME, role)
    if not role.checkpoint.file:
        refuse_unable(role.checkpoint.name, role.config, role.dtype)


def located(options: Sequence[str], pair: CheckedPair) -> list[str]:
    """The options of a server with files in the place of the names of models."""
    found = list(options)
    for place in [number for number, word in enumerate(options) if word in ("-m", "-md")]:
        found[place + 1] = str(file_of(options[place + 1], pair))
    return found


def file_of(name: str, pair: CheckedPair) -> Path:
    """The GGUF file of a role: the one that was named, or one that is made of its folder."""
    role = pair.roles[name]
    folder, found = files_of(role)
    if role.checkpoint.file:
        return folder / role.checkpoint.file
    return gguf_of(role.checkpoint.name, found, role.config, role.tokenizer, role.dtype, own_place() / "gguf")


def cache_of(pair: CheckedPair) -> str:
    """The type of cached keys and values. UsageError for a dtype that it does not have."""
    name = str(pair.roles["target"].dtype).removeprefix("torch.")
    if name not in CACHES:
        raise UsageError(f"--backend {NAME}: --dtype {name}: use {', '.join(CACHES)}")
    return CACHES[name]


def notes_on(spec: RunSpec, pair: CheckedPair) -> Sequence[str]:
    """What is different in llama.cpp, and changes numbers."""
    found = ["keys and values are kept in the dtype of the weights (its default is f16), without flash attention"]
    if pair.roles["target"].checkpoint.file:
        found.append("weights stay packed as in the GGUF file, which other engines unpack")
    if spec.ignore_eos:
        found.append("--ignore-eos forbids the end of a sequence, where others decode on after it")
    if spec.k and spec.method != "baseline":
        found.append("acceptance is told in totals of a prompt: by position it is a mean")
        if spec.temperature > 0:
            found.append("it judges by token match with the draft's likeliest token, which accepts less than p ÷ q")
    if parts_of(spec)[0] == "PromptLookup":
        found.append("its lookup has one n, the most of the method file")
    return found
