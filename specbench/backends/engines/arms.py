"""Arms of servers: how each engine is started with a draft and without one, as words of its command line.

An arm is given by name, or passed through: words that go to the engine as they are. Pure. Sources: vLLM
`config/speculative.py` (0.32, 0.33), SGLang `srt/arg_groups/speculative_hook.py` (0.5.23), llama.cpp `common/arg.cpp`.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.errors import UsageError
from specbench.spec import BASELINE, RunSpec
from specbench.wording import clean, near

# Places in named arms: the draft, K, the tokens of a pass, and those that a lookup compares: llama.cpp's drafts nothing
# if they are more than K.
DRAFT, K, WIDTH, COMPARED = "{draft}", "{k}", "{k+1}", "{n}"
CONFIG = "--speculative-config"
METHODS = {"chain": "draft-model", "prompt-lookup": "ngram", "suffix": "suffix"}  # methods that name an arm


@dataclass(frozen=True)
class Engine:
    """A server program.

    model, label: its options for the model, and for the name that requests use. both: words of every arm. drafting:
    words of arms with a draft. slots: its option for requests at once, where the default is small. off: words that
    speculation turns off by itself. named: arms by name, as a JSON object (vLLM) or as words. speculative: beginnings
    of the words of speculation. widths: options that hold K, and how much more than K they hold. memories: words of
    lookups that keep earlier answers, and find them again when the same prompt returns.
    """

    model: str
    label: str
    both: str
    named: Mapping[str, Mapping[str, Any] | str]
    speculative: tuple[str, ...]
    widths: Mapping[str, int] = field(default_factory=dict)
    drafting: str = ""
    slots: str = ""
    off: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()


CHAIN = f"--speculative-num-steps {K} --speculative-eagle-topk 1 --speculative-num-draft-tokens {WIDTH}"
HEAD = f"--speculative-draft-model-path {DRAFT}"
MAXIMUM = f"--spec-draft-n-max {K}"
HEADS: dict[str, dict[str, Any]] = {
    name: {"method": name, "model": DRAFT} for name in ("eagle", "eagle3", "dflash", "dspark")
}
MODEL = {"method": "draft_model", "model": DRAFT}
ENGINES = {
    "vllm-serve": Engine(
        "--model", "--served-model-name", both="", drafting="--per-request-spec-decode-metrics detailed",
        named={
            "draft-model": MODEL, **HEADS, "pard": {**MODEL, "parallel_drafting": True}, "mtp": {"method": "mtp"},
            "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5},
            "suffix": {"method": "suffix"}, "fly": {**MODEL, "rejection_sample_method": "fly"},
            "adaptive": {**HEADS["dspark"], "enable_adaptive_verification": True},
        },
        speculative=(CONFIG, "-sc", "--per-request-spec-decode-metrics"), memories=("suffix",),
    ),
    "sglang": Engine(
        "--model-path", "--served-model-name", both="--enable-metrics --max-running-requests 48",
        named={
            "draft-model": f"--speculative-algorithm STANDALONE {HEAD} {CHAIN}",
            "eagle": f"--speculative-algorithm EAGLE {HEAD} {CHAIN}",
            "eagle3": f"--speculative-algorithm EAGLE3 {HEAD} {CHAIN}",
            "mtp": f"--speculative-algorithm EAGLE {CHAIN}",
            "dflash": f"--speculative-algorithm DFLASH {HEAD} --speculative-num-draft-tokens {WIDTH}",
            "dspark": f"--speculative-algorithm DSPARK {HEAD} --speculative-dspark-block-size {K}",
            "ngram": f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {WIDTH}",
            "adaptive": f"--speculative-algorithm EAGLE3 {HEAD} {CHAIN} --speculative-adaptive",
        },
        speculative=("--speculative-",), off=("--enable-mixed-chunk",), memories=("NGRAM",),
        widths={
            "--speculative-num-steps": 0, "--speculative-dspark-block-size": 0, "--speculative-num-draft-tokens": 1,
        },
    ),
    "llama-server": Engine(
        "-m", "-a", both="--metrics --no-webui --kv-unified", slots="--parallel",
        named={
            "draft-model": f"--spec-type draft-simple -md {DRAFT} {MAXIMUM}",
            "eagle3": f"--spec-type draft-eagle3 -md {DRAFT} {MAXIMUM}", "mtp": f"--spec-type draft-mtp {MAXIMUM}",
            "dflash": f"--spec-type draft-dflash -md {DRAFT} {MAXIMUM}",
            "dspark": f"--spec-type draft-dspark -md {DRAFT} {MAXIMUM}",
            "ngram": f"--spec-type ngram-simple --spec-ngram-simple-size-n {COMPARED} --spec-ngram-simple-size-m {K}",
            "ngram-mod": f"--spec-type ngram-mod --spec-ngram-mod-n-min 0 --spec-ngram-mod-n-max {K}",
        },
        speculative=("--spec-", "-md", "--model-draft", "-hfd"),
        memories=("ngram-mod", "ngram-cache", "--spec-default"),
        widths={
            "--spec-draft-n-max": 0, "--spec-ngram-simple-size-m": 0, "--spec-ngram-map-k-size-m": 0,
            "--spec-ngram-map-k4v-size-m": 0, "--spec-ngram-mod-n-max": 0,
        },
    ),
}  # fmt: skip
SERVED = ("openai", *ENGINES)  # backends that send requests to servers
# TensorRT-LLM's `speculative_config` (`llmapi/llm_args.py`, 1.2 to 1.4) of arms by name, without K.
TENSORRT: Mapping[str, Mapping[str, Any]] = {
    "draft-model": {"decoding_type": "Draft_Target", "speculative_model": DRAFT},
    "eagle3": {"decoding_type": "Eagle3", "speculative_model": DRAFT},
    "mtp": {"decoding_type": "MTP"},
    "ngram": {"decoding_type": "NGram", "max_matching_ngram_size": 5},
}
DRAFTS = ("--speculative-draft-model-path", "-md", "--model-draft", "--spec-draft-model")  # options that hold a draft
THRESHOLDS = ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc")  # SGLang's
SIMULATED = {  # environment variables that replace acceptance, by engine
    "sglang": ("SGLANG_SIMULATE_ACC_LEN",),
    "llama-server": ("LLAMA_ARG_SPEC_SYNTH_LEN", "LLAMA_ARG_SPEC_SYNTH_RATES"),
}


def engine_of(spec: RunSpec) -> Engine:
    return ENGINES[str(spec.backend)]


def passed_through(spec: RunSpec) -> bool:
    return own_words(spec.spec_config, spec.spec_args)


def own_words(config: Any, args: Any) -> bool:
    """Whether the words of an arm decide how it drafts, and not its name or method. A list of names does not."""
    return args is not None if config is None else str(config).startswith("{")


def common(spec: RunSpec) -> list[str]:
    """The words of both arms. UsageError for words of speculation among them."""
    engine, given = engine_of(spec), split(spec.server_args)
    if wrong := [word for word in given if word.startswith(engine.speculative)]:
        raise UsageError(
            f"--server-args {clean(wrong[0])}: these words go to the server without a draft as well: move what is of "
            "speculation to --spec-args"
        )
    both = engine.both.split()
    limit = "--max-running-requests"  # SGLang changes it with a draft
    if limit in both and value(given, limit) is not None:
        both = both[: both.index(limit)]
    return [*both, *(word for word in given if word not in engine.off)]


def split(text: str | None) -> list[str]:
    """The words of a command line. UsageError for an open quotation."""
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise UsageError(f"--server-args or --spec-args {clean(text)!r}: {error}") from None


def speculative(spec: RunSpec, draft: str | None) -> list[str]:
    """The words of a draft; none for the baseline. UsageError for an arm that the engine does not have."""
    if spec.method == BASELINE:
        return []
    engine, given = engine_of(spec), split(spec.spec_args)
    more = engine.drafting.split()
    more = [] if more and value(given, more[0]) is not None else more
    if not passed_through(spec):
        return [*filled(spec, name_of(spec), draft), *given, *more]
    if spec.spec_config and CONFIG not in engine.speculative:
        raise UsageError(f"--spec-config: {spec.backend} takes no JSON: use --spec-args, or the name of an arm")
    return [*([CONFIG, spec.spec_config] if spec.spec_config else []), *given, *more]


def name_of(spec: RunSpec) -> str:
    """The name of an arm. UsageError for one that the engine does not have."""
    name, known = spec.spec_config or METHODS.get(spec.method, spec.method), engine_of(spec).named
    if name not in known:
        option = "--spec-config" if spec.spec_config else "--method"
        ours = [method for method, arm in METHODS.items() if arm in known]
        names = f"--method {' or '.join(ours)}, or --spec-config {', '.join(known)}"
        raise UsageError(
            f"--backend {spec.backend}: {option} {clean(name)} names no arm{near(name, known)}: use {names}, or pass "
            "words through with --spec-args"
        )
    return name


def filled(spec: RunSpec, name: str, draft: str | None) -> list[str]:
    """A named arm with its draft and its K. UsageError if it has no draft."""
    arm = engine_of(spec).named[name]
    if draft is None and DRAFT in (arm if isinstance(arm, str) else arm.values()):
        raise UsageError(f"--backend {spec.backend}: {name} drafts with a model: name it with --draft")
    if isinstance(arm, str):
        places = {DRAFT: str(draft), K: str(spec.k), WIDTH: str(spec.k + 1), COMPARED: str(min(3, spec.k))}
        return [places.get(word, word) for word in arm.split()]
    config = {key: draft if one == DRAFT else one for key, one in arm.items()}
    return [CONFIG, json.dumps({**config, "num_speculative_tokens": spec.k})]


def elsewhere(spec: RunSpec, name: str) -> dict[str, str]:
    """A named arm on engines that are not started here: the YAML of TensorRT-LLM, and a NIM with vLLM inside, which
    takes vLLM's words (docs.nvidia.com/nim/large-language-models 2.1, advanced configuration)."""
    found = dict[str, str]()
    if (config := TENSORRT.get(name)) is not None:
        given = {key: spec.draft if one == DRAFT else one for key, one in config.items()}
        counts = {"1.4": "max_draft_len"} | ({"before 1.4": "num_nextn_predict_layers"} if name == "mtp" else {})
        for version, count in counts.items():
            text = json.dumps({**given, count: spec.k})
            found[f"trtllm-serve --config FILE ({version})"] = f"speculative_config: {text}"
    if name in ENGINES["vllm-serve"].named:
        words = filled(spec.with_(backend="vllm-serve"), name, spec.draft)
        found["NIM with vLLM"] = f"NIM_PASSTHROUGH_ARGS={shlex.quote(shlex.join(words))}"
    return found


def draft_of(spec: RunSpec) -> str | None:
    """The model that an arm drafts with; None without one, or if it is in the target."""
    words = speculative(spec, spec.draft)
    return config_in(words).get("model") or next((one for option in DRAFTS if (one := value(words, option))), None)


def memory_of(spec: RunSpec) -> str:
    """The lookup of an arm that keeps earlier answers; empty if every request starts fresh."""
    given = " ".join(speculative(spec, spec.draft))
    return next((word for word in engine_of(spec).memories if re.search(rf"(?<![\w-]){word}(?![\w-])", given)), "")


def needed(spec: RunSpec) -> list[str]:
    """Words that the installed version of an engine must know, as a named arm uses them."""
    if spec.method == BASELINE or passed_through(spec):
        return []
    arm = engine_of(spec).named[name_of(spec)]
    if isinstance(arm, str):
        return [word for word in arm.split() if word[0] not in "-{" and not word.isdigit()]
    return [word if word is not True else key for key, word in arm.items() if word != DRAFT and type(word) is not int]


def expected_k(spec: RunSpec) -> int | None:
    """K as the words of an arm have it; None if they leave it to the engine."""
    if not passed_through(spec):
        return spec.k
    words = speculative(spec, spec.draft)
    config = config_in(words)
    number = config.get("num_speculative_tokens")
    if number is None and config.get("method") == "suffix":
        number = config.get("suffix_decoding_max_tree_depth", 24)
    found = [number] if type(number) is int else []
    for option, more in engine_of(spec).widths.items():
        given = value(words, option)
        found += [int(given) - more] if given and given.isdigit() else []
    return max(found, default=None)


def lossy(spec: RunSpec) -> str:
    """What in an arm changes the distribution of tokens; empty if nothing does."""
    if spec.backend not in ENGINES or spec.method == BASELINE:
        return ""
    words = speculative(spec, spec.draft or "")
    config = config_in(words)
    rule = config.get("rejection_sample_method")
    found = [f"rejection_sample_method {rule}"] if rule in ("fly", "synthetic") else []
    found += [option for option in THRESHOLDS if (given := value(words, option)) and given not in ("1", "1.0")]
    found += [word.partition("=")[0] for word in words if word.startswith("--spec-synth-")]
    found += [name for name in SIMULATED.get(str(spec.backend), ()) if os.environ.get(name)]
    return ", ".join(found)


def config_in(words: Sequence[str]) -> Mapping[str, Any]:
    """vLLM's configuration of speculation among some words. UsageError if it is not a JSON object."""
    text = next((found for option in (CONFIG, "-sc") if (found := value(words, option)) is not None), "{}")
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        raise UsageError(f"{CONFIG} {clean(text)!r} is not a JSON object") from None


def value(words: Sequence[str], option: str) -> str | None:
    """The value of an option among some words, as `--option value` or `--option=value`; the last one counts."""
    found = None
    for number, word in enumerate(words):
        name, equals, given = word.partition("=")
        if name == option:
            found = given if equals else next(iter(words[number + 1 :]), "")
    return found
