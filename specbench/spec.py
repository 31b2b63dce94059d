"""RunSpec: everything that can change a number of one cell, and nothing else. Pure; every layer may import it.

Every setting is declared here once: its name, type, default and bounds as a field, the rest as `Setting`. The
options of the commands, the keys of configuration files, the axes of grids, the columns that distinguish
cells and the table in the documentation follow from it.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_serializer, field_validator, model_validator

from specbench.chat import read, written_fields
from specbench.metrics import written_limits
from specbench.settings import (
    ANSWER,
    CELL,
    DETAIL,
    LOADED,
    LOOKAHEAD,
    NAMED,
    PAIR,
    Setting,
    declared,
    engine_options,
    written_options,
)
from specbench.wording import in_thousands

BASELINE = "baseline"
CHOOSING = "auto"  # the method that chooses among several, prompt by prompt
SCHEMA_VERSION = 4  # of the columns of results.csv and samples.csv, and of journal lines
UNDRAFTED: dict[str, Any] = {"method": BASELINE, "k": 0, "schedule": "constant", "confidence": 0.4} | dict.fromkeys(
    ("acceptance", "acceptance_source", "choices", "spec_config", "spec_args"))  # fmt: skip
DRAFTER = re.compile("--spec(?:ulative)?-(?:type|algo|algorithm|config)")  # the option of a server that chooses its arm
SHARE = Field(gt=0, le=1)
Quantisation = Literal["int8", "int4", "fp8", "w8a8", "w4a8", "w8a8+head", "w4a8+head"]
Tokens = Annotated[int, BeforeValidator(in_thousands), Field(ge=1, le=1 << 24)]
Limits = Annotated[str, BeforeValidator(written_limits)]
Rates = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)]


class RunSpec(BaseModel):
    """One cell: a pair, a method, a K, a data set and how it is decoded. Hashable, picklable, round-trips through JSON.

    Names of models, data sets and methods are kept as given; the record has what they resolved to. `k` is the lookahead
    of a constant schedule and the ceiling of the others; only the confidence schedule reads `confidence`. `model` lists
    further models by the names that method files use: (name, checkpoint), sorted by name. `choices` is what the method
    `auto` chooses from, with K the largest; only that method reads it. `acceptance` makes acceptance synthetic: one
    rate for every position, or one per position. `batch` rows are decoded together. `until_ci` ends the cell once the
    speedup's interval is that narrow (relative half width).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # fmt: off
    target: Annotated[str, Setting(
        "Pair", "pair", "Target model: alias, hub id (owner/name) or folder, also grown to a shape "
        "(demo@llama-7b).", of=PAIR,
        usual="the shipped pair", flags=("--target", "-t"))] = "demo"
    draft: Annotated[str | None, Setting(
        "Pair", "pair", "Draft model: alias, hub id or folder.", of=PAIR,
        usual="the one usually paired with the target", flags=("--draft", "-d"))] = None
    target_revision: Annotated[str | None, Setting(
        "Pair", "revisions", "Commit of the target on the hub.", of=LOADED)] = None
    draft_revision: Annotated[str | None, Setting(
        "Pair", "revisions", "Commit of the draft on the hub.", of=LOADED)] = None
    model: Annotated[tuple[tuple[str, str], ...], Setting(
        "Pair", "pair", "NAME=CHECKPOINT: a further model by the name that a method file uses. Also NAME=target[:50%]. "
        "Repeatable.", of=PAIR, typed=list[str], late=True)] = ()
    aux_layers: Annotated[str | None, Setting(
        "Pair", "precision", "Layers of the target that a head reads, as boundaries of the residual stream (2,16,29).",
        of=(*LOADED, "question", "heading"), usual="from its files", late=True)] = None
    method: Annotated[str, Setting(
        "Method", "method", "A method of configs/methods, or a YAML file.", of=ANSWER,
        flags=("--method", "-m"))] = "chain"
    choices: Annotated[str | None, Setting(
        "Method", "lookahead", "What --method auto chooses from, prompt by prompt: methods with their K "
        "(baseline,chain:2,chain:4,suffix:8).", of=ANSWER, usual="baseline, chain and prompt-lookup with K 2, 4 and 8",
        late=True)] = None
    k: Annotated[int, Field(ge=0, le=512), Setting(
        "Method", "lookahead", "Lookahead: drafted tokens per round, or auto (chosen round by round).", of=LOOKAHEAD,
        usual="the pair's", flags=("--k", "-k"), typed=str)] = 4
    schedule: Annotated[Literal["constant", "auto", "heuristic", "confidence"], Setting(
        "Method", "lookahead", "How the lookahead is chosen: constant, auto, heuristic, or confidence:P (drafts while "
        "the draft's own probability of a token is at least P, by default 0.4); --k is its ceiling.", of=LOOKAHEAD,
        typed=str)] = "constant"
    confidence: Annotated[float, Field(ge=0, le=1), Setting(
        "Method", "lookahead", "--schedule confidence drafts while a token's own probability is at least this; with a "
        "DSpark head, the chance that it gives the next one.", of=LOOKAHEAD, within="schedule")] = 0.4
    acceptance: Annotated[Rates | None, Setting(
        "Method", "acceptance", "Synthetic acceptance at the same compute: a rate (0.8), one per position "
        "(0.8,0.7,0.6), a mean length (al:3.2, al:3.2@min-variance), a profile (FILE.json, see specbench profile), or "
        "InferenceX's golden lengths (FILE.yaml, FILE.yaml:thinking_off).",
        typed=str)] = None
    acceptance_source: Annotated[str | None, Setting(
        "Method", "acceptance", "Source of the rates of --acceptance, for the results.", of=CELL,
        usual="from the profile", within="acceptance", late=True)] = None
    dataset: Annotated[str, Setting(
        "Data", "data", "code, articles (shipped), humaneval, xsum, mt_bench, gsm8k, math500, aime, mbpp, "
        "livecodebench, cnn_dailymail, alpaca, tool_call (hub), hf:OWNER/NAME (any other), needle:, passkey:, "
        "longdoc:, pg19: and a LENGTH in tokens, or the path of a file (of prompts in JSON lines, parquet, CSV or "
        "plain lines). Repeatable.", of=NAMED,
        usual="", typed=list[str])] = "code"
    column: Annotated[str | None, Setting(
        "Data", "excerpt", "Column that holds the prompt.", of=CELL, usual="found by its name", within="template",
        )] = None
    template: Annotated[str | None, Setting(
        "Data", "excerpt", "The column that holds the prompt (problem), or a text with its name in braces "
        "(\"Question: {problem} Answer:\").", of=CELL, usual="the column is found by its name")] = None
    context: Annotated[Tokens | None, Setting(
        "Data", "excerpt", "Tokens of every prompt, 4k being 4096: filled with other texts of the data set before its "
        "own. Or a list (1k,4k,16k).", typed=str, usual="prompts as they are", late=True)] = None
    chat_template: Annotated[str | None, Setting(
        "Data", "chat", "auto (the tokenizer's own, where rows are instructions or conversations), none, always (its "
        "own, for all rows), or a file with a Jinja template.", usual="auto", column="chat_template_resolved",
        late=True)] = None
    system: Annotated[str | None, Setting("Data", "chat", "System message of the chat template.", late=True)] = None
    thinking: Annotated[bool | None, Setting(
        "Data", "chat", "Switch the thinking of a chat template on or off, where it has such a switch.",
        usual="the template's", within="chat_template_kwargs", late=True)] = None
    chat_template_kwargs: Annotated[str | None, Setting(
        "Data", "chat", "NAME=VALUE: an argument of the chat template (reasoning_effort=high), or a JSON object of "
        "them; thinking=false switches thinking off, whatever the template calls it. Repeatable.", typed=list[str],
        late=True)] = None
    limit: Annotated[int | None, Field(ge=1), Setting(
        "Data", "limit", "Prompts per data set: a seeded sample over its categories.", of=ANSWER,
        usual="all; 20 where no data set is named")] = None
    max_new_tokens: Annotated[int, Field(ge=1, le=10**7), Setting(
        "Sampling", "length", "Tokens to decode per prompt.")] = 128
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False), Setting(
        "Sampling", "sampling", "0 is greedy.")] = 0.0
    top_k: Annotated[int | None, Field(ge=1), Setting("Sampling", "sampling", "Top-k: sample from the k most likely "
    "tokens.")] = None
    top_p: Annotated[float | None, SHARE, Setting("Sampling", "sampling", "Top-p: sample from the smallest set of "
    "tokens with this probability.")] = None
    min_p: Annotated[float | None, SHARE, Setting(
        "Sampling", "sampling", "Min-p: drop tokens below this share of the highest probability.")] = None
    eta: Annotated[float | None, SHARE, Setting("Sampling", "sampling", "Epsilon of eta sampling.")] = None
    ignore_eos: Annotated[bool, Setting(
        "Sampling", "length", "Ignore the end-of-sequence token: decode a fixed length.", usual="stop-at-eos",
        flags=("--ignore-eos/--stop-at-eos",))] = False
    dtype: Annotated[str, Setting(
        "Pair", "precision", "auto, float32, bfloat16, float16 or float64.", of=PAIR, column="dtype_resolved")] = "auto"
    draft_dtype: Annotated[str | None, Setting(
        "Pair", "precision", "As --dtype, for the draft model.", of=(*LOADED, "question", "heading"),
        usual="the target's", column="draft_dtype_resolved")] = None
    quantize: Annotated[Quantisation | None, Setting(
        "Pair", "precision", "Quantise the target's linear layers after loading: none, int8, int4, fp8, w8a8, on a CPU "
        "w4a8 (both with int8 activations), w8a8+head or w4a8+head (the head as well).", of=PAIR,
        usual="none", late=True)] = None
    draft_quantize: Annotated[Quantisation | None, Setting(
        "Pair", "precision", "Quantise the draft's linear layers: none, int8, int4, fp8, w8a8, w4a8, w8a8+head or "
        "w4a8+head.",
        of=(*LOADED, "question", "heading"), usual="none", late=True)] = None
    draft_vocabulary: Annotated[str | None, Setting(
        "Pair", "precision", "Tokens that the draft may propose, in a smaller head: a number or a share of the most "
        "frequent ones (8192, 25%), of a text or of counts (8192:FILE), or those of FILE.",
        of=(*LOADED, "question", "heading"), usual="all", column="draft_vocabulary_resolved", late=True)] = None
    attn_implementation: Annotated[str | None, Setting(
        "Pair", "precision", "auto (sdpa without copies of grouped keys, long contexts in parts), sdpa or eager.",
        of=PAIR, usual="auto", late=True)] = None
    vocabulary: Annotated[Literal["auto", "common", "strings"] | None, Setting(
        "Pair", "precision", "How a draft with another tokenizer drafts: common (tokens that both have), strings "
        "(re-tokenise the draft's text with the target's tokenizer) or auto.", of=PAIR, column="vocabulary_resolved",
        usual="auto", late=True)] = None
    device_map: Annotated[str | None, Setting(
        "Pair", "precision", "Divide a target that is larger than the device, which is slow: auto, or what device and "
        "host may hold (cuda:0=20GB,cpu=40GB); the rest is read from disk at every pass.", of=PAIR, usual="none",
        late=True)] = None
    tensor_parallel: Annotated[int | None, Field(ge=2, le=1024), Setting(
        "Pair", "precision", "Tensor parallelism: split every layer of the target over this many processes, started by "
        "torchrun.", of=PAIR,
        usual="as many as there are", late=True)] = None
    draft_device: Annotated[str | None, Setting(
        "Pair", "precision", "Put the draft on a device of its own: cpu, cuda:1.", of=(*LOADED, "question", "heading"),
        usual="the target's", late=True)] = None
    device: Annotated[str, Setting("Pair", "device", "auto, cpu or cuda.", of=(*LOADED, "heading"))] = "auto"
    trust_remote_code: Annotated[bool | None, Setting(
        "Pair", "device", "Run code that comes with a checkpoint, at a pinned commit or from a folder.", of=LOADED,
        usual="no", flags=("--trust-remote-code/--no-trust-remote-code",), late=True)] = None
    tier: Annotated[Literal["auto", "eager", "graph", "compile"], Setting(
        "Method", "execution", "How rounds are executed: eager, graph (CUDA graphs), compile, or auto (the best there "
        "is).", of=PAIR)] = "eager"
    backend: Annotated[str | None, Setting(
        "Method", "execution", "The engine: native (ours), transformers (its generate()), vllm, llama.cpp, openai (at "
        "--url), or vllm-serve, sglang, llama-server (started here). Or a list: native,transformers.", of=PAIR,
        usual="native", typed=str, column="engine", late=True)] = None
    engine_option: Annotated[tuple[tuple[str, str], ...], Setting(
        "Method", "execution", "ENGINE.NAME=VALUE: an option that goes to an engine as it is "
        "(vllm.tensor_parallel_size=2). Repeatable.", of=PAIR, typed=list[str], late=True)] = ()
    url: Annotated[str | None, Setting(
        "Method", "execution", "Server of completions, for --backend openai: http://localhost:8000.", of=PAIR,
        late=True)] = None
    baseline_url: Annotated[str | None, Setting(
        "Method", "execution", "Server of the same model without a draft, the baseline of the speedup; --method "
        "baseline needs none.", of=PAIR, late=True)] = None
    server_args: Annotated[str | None, Setting(
        "Method", "execution", "Words for the command line of servers that are started here, with and without a draft "
        "(\"--max-model-len 4096\").", of=PAIR, late=True)] = None
    spec_config: Annotated[str | None, Setting(
        "Method", "execution", "How such a server drafts: a name (draft-model, eagle3, mtp, dflash, dspark, pard, "
        "ngram, suffix, …), or the JSON of vLLM's --speculative-config. Repeatable.", of=ANSWER, usual="by --method",
        late=True)] = None
    spec_args: Annotated[str | None, Setting(
        "Method", "execution", "Words for the command line of the server with a draft alone, as its engine has them "
        "(\"--spec-type ngram-mod\"). Repeatable.", of=ANSWER, late=True)] = None
    endpoint: Annotated[Literal["auto", "chat", "completions"] | None, Setting(
        "Method", "execution", "Where servers get prompts: chat (as messages), completions (as text), or auto (chat "
        "where rows are instructions or conversations).", usual="auto", late=True)] = None
    request_field: Annotated[str | None, Setting(
        "Method", "execution", "NAME=VALUE: a field of every request to servers (stop=[\"END\"]), or a JSON object of "
        "them. Repeatable.", typed=list[str], late=True)] = None
    batch: Annotated[int, Field(ge=1, le=65536), Setting(
        "Measuring", "execution", "Rows decoded together: 4, or a list (1,4,16).", typed=str)] = 1
    arrivals: Annotated[float | None, Field(gt=0, le=10**6, allow_inf_nan=False), Setting(
        "Measuring", "execution", "Requests per second to servers, at random times: 2, or a list (1,2,4). --batch "
        "(here 32 by default) limits how many are in "
        "flight.", usual="as earlier ones end", typed=str, late=True)] = None
    burstiness: Annotated[float | None, Field(gt=0, le=10**6, allow_inf_nan=False), Setting(
        "Measuring", "execution", "How evenly the requests of --arrivals come, as in `vllm bench serve`: gaps are "
        "gamma distributed with this shape; below 1 they come in bursts.", usual="1, Poisson", late=True)] = None
    slo: Annotated[Limits | None, Setting(
        "Measuring", "execution", "Limits of latency (ttft=500ms,tpot=30ms,e2e=2s): the share of requests to servers "
        "within all of them, and goodput.", of=(*DETAIL, "heading"), late=True)] = None
    seed: Annotated[int, Field(ge=0), Setting(
        "Measuring", "draws", "Seed for the prompt sample and for every random draw.", of=(*DETAIL, "heading"))] = 0
    warmup: Annotated[int, Field(ge=0, le=1000), Setting(
        "Measuring", "draws", "Warm-up prompts per arm and cell.", of=DETAIL)] = 2
    repeat: Annotated[int, Field(ge=1, le=10**6), Setting(
        "Measuring", "draws", "How often every prompt is decoded.", of=DETAIL)] = 1
    until_ci: Annotated[float | None, Field(gt=0, lt=1), Setting(
        "Measuring", "stopping", "Add prompts until the speedup's interval is this narrow (0.02: ± 2 %), checked only "
        "after 20, 30, 45 … prompts.", of=("identity", "heading"))] = None
    # fmt: on

    @model_validator(mode="before")
    @classmethod
    def _read_halves(cls, given: Any) -> Any:
        found = {**given} if isinstance(given, Mapping) else given
        match found:
            case {"schedule": str(rule)} if rule.startswith("confidence:"):
                found |= dict(zip(("schedule", "confidence"), rule.split(":", 1), strict=True))
        match found:
            case {"template": str(column)} if "{" not in column and found.get("column") is None:
                found |= {"template": None, "column": column}
        return found

    @field_validator("model", mode="before")
    @classmethod
    def _read_models(cls, given: Any) -> tuple[tuple[str, str], ...]:
        return named_models(given)

    @field_validator("engine_option", mode="before")
    @classmethod
    def _read_options(cls, given: Any) -> tuple[tuple[str, str], ...]:
        return engine_options(given)

    @field_validator("chat_template_kwargs", "request_field", mode="before")
    @classmethod
    def _read_fields(cls, given: Any) -> str | None:
        return written_fields(given)

    @field_validator("chat_template", "attn_implementation", "vocabulary", "endpoint")
    @classmethod
    def _leave_auto(cls, given: str | None) -> str | None:
        return None if given == "auto" else given

    @field_validator("quantize", "draft_quantize", "device_map", "trust_remote_code", mode="before")
    @classmethod
    def _leave_none(cls, given: Any) -> Any:
        return None if given in ("none", False) else given  # as in tables older than these settings

    @field_validator("backend")
    @classmethod
    def _leave_native(cls, given: str | None) -> str | None:
        return None if given == "native" else given

    @field_serializer("model", when_used="json")
    def _write_models(self, model: tuple[tuple[str, str], ...]) -> str | None:
        return written_models(model) or None

    @field_serializer("engine_option", when_used="json")
    def _write_options(self, options: tuple[tuple[str, str], ...]) -> str | None:
        return written_options(options) or None

    @model_validator(mode="after")
    def _one_reading(self) -> "RunSpec":
        if self.until_ci is not None and self.repeat > 1:
            raise ValueError("an interval is narrowed by more prompts, not by repeating them: leave repeat at 1")
        if self.until_ci is not None and self.batch > 1:
            wrong = "leave --batch at 1" if self.arrivals is None else "leave --arrivals out"
            raise ValueError(f"--until-ci looks after every 20, 30, 45 … prompts decoded alone: {wrong}")
        if self.burstiness is not None and self.arrivals is None:
            raise ValueError("--burstiness is of requests that come at a rate: add --arrivals, or leave it out")
        return self

    def with_(self, **changes: Any) -> "RunSpec":
        """The same cell with `changes`, validated again."""
        return RunSpec(**{**self.model_dump(), **changes})

    @property
    def baseline(self) -> "RunSpec":
        """The cell that this one is compared with; cells with an equal baseline share its decodes."""
        return self.with_(**UNDRAFTED)

    @property
    def on_any_engine(self) -> "RunSpec":
        """The spec without its engine settings; equal for cells that differ only in their engine."""
        return self.with_(backend=None, url=None, baseline_url=None, server_args=None)

    @property
    def key(self) -> str:
        """Twelve hex digits; equal exactly for equal specs."""
        fields = self.model_dump(mode="json")
        late = [name for name, one in declared(type(self)).items() if one.setting.late]
        for name in late:  # cells measured before these fields existed keep their keys
            if getattr(self, name) == type(self).model_fields[name].default:
                del fields[name]
        canonical = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


# --- named models -----------------------------------------------------------------------------------------------------
# Models by the names that method files use: NAME=CHECKPOINT as text, and back.

PAIR_ROLES = ("target", "draft")  # the models that every run knows; the user names others
RESERVED = (*PAIR_ROLES, "k", "schedule")  # words of method files
NAME = r"[A-Za-z][A-Za-z0-9_-]*"  # of a model; part of column names
SEVERAL = re.compile(rf",(?={NAME}=)")  # separator between two models in one text


def named_models(given: Any) -> tuple[tuple[str, str], ...]:
    """Parse named models, sorted by name: NAME=CHECKPOINT, several of these, or a mapping.

    One text may hold several, joined by commas, as in results.csv. ValueError, in one line, for anything else.
    """
    items = SEVERAL.split(given) if isinstance(given, str) else given.items() if isinstance(given, Mapping) else given
    if not isinstance(items, Iterable | None):
        raise ValueError("write NAME=CHECKPOINT, or a mapping of names to checkpoints")
    found = sorted(_pair(item) for item in items or ())
    names = [name for name, _ in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the name {twice[0]} names two models: give each model a name of its own")
    return tuple(found)


def _pair(item: Any) -> tuple[str, str]:
    parts = item.partition("=")[::2] if isinstance(item, str) else item
    match parts:
        case str() as name, str() as checkpoint if checkpoint and re.fullmatch(NAME, name):
            pass
        case _:
            raise ValueError(
                f"{str(item)[:60]!r} is not NAME=CHECKPOINT (--target names the model to measure): the name has "
                "letters, digits, - and _, the checkpoint is an alias, a hub id, a folder, or layers of another model "
                "such as target[:50%]"
            )
    if name in RESERVED:
        raise ValueError(f"the name {name} is reserved in method files; choose another name")
    if SEVERAL.search(checkpoint):
        raise ValueError(f"{checkpoint[:60]!r} reads like several models: rename that folder, or name it by a link")
    return name, checkpoint


def written_models(models: Iterable[tuple[str, str]]) -> str:
    return ",".join(f"{name}={checkpoint}" for name, checkpoint in models)


# --- choices ----------------------------------------------------------------------------------------------------------
# The choices of `--method auto`: their notation, and the cell of each.

USUAL = (BASELINE, "chain:2", "chain:4", "chain:8", "prompt-lookup:2", "prompt-lookup:4", "prompt-lookup:8")


def parsed(text: str) -> tuple[str, int]:
    """(method, K) of one choice: a method and a lookahead joined by a colon, or the baseline. ValueError if neither."""
    method, _, k = text.strip().rpartition(":")
    if text.strip() == BASELINE:
        return BASELINE, 0
    if not method or method in (BASELINE, CHOOSING) or not k.isdigit() or not 1 <= int(k) <= 512:
        raise ValueError(f"{text.strip()[:60]!r} is not a choice: write METHOD:K (chain:4), or {BASELINE}")
    return method, int(k)


def choices(spec: RunSpec) -> Mapping[str, RunSpec]:
    """The cells that a spec chooses from, by name; for any other spec, itself alone."""
    if spec.method != CHOOSING:
        return {"": spec}
    named = {name: parsed(name) for name in (spec.choices or "").split(",")}
    return {name: chosen(spec, *one) for name, one in named.items()}


def chosen(spec: RunSpec, method: str, k: int) -> RunSpec:
    return spec.baseline if method == BASELINE else spec.with_(method=method, k=k, choices=None)


def expanded(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """The distinct cells that an engine decodes, with choices expanded."""
    return list(dict.fromkeys(one for spec in specs for one in choices(spec).values()))


def methods_of(spec: RunSpec) -> list[str]:
    return list(dict.fromkeys(one.method for one in choices(spec).values()))


def drafted_by(config: str | None, args: str | None, method: str) -> str:
    """How a cell drafts: the arm of a server by its name, or the method in its JSON or words; else its method."""
    given = config or ""
    with suppress(ValueError):  # words with an open quote
        words = [part for word in shlex.split(args or "") for part in word.split("=", 1)]
        given = given or next((value for name, value in pairwise(words) if DRAFTER.fullmatch(name)), "")
    found = read(given) if given.startswith("{") else given
    return str(found.get("method", "draft-model")) if isinstance(found, dict) else found or method
