"""From settings to cells: a list for a single-value option is an axis, and every combination is a cell."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specbench.backends.engines import arms
from specbench.data import sources
from specbench.decoding.method_files import SYNONYMS, needs, read_method
from specbench.errors import UsageError
from specbench.models.checkpoints import names
from specbench.presets import DIGITS, golden_length, read_profile
from specbench.settings import declared, part
from specbench.spec import BASELINE, CHOOSING, USUAL, RunSpec, methods_of, parsed
from specbench.theory.optimum import alpha_from_tokens
from specbench.wording import clean, grouped, near, redact

DEFAULT_DATASETS = ("code",)  # the shipped articles make a small model repeat itself
DEFAULT_LIMIT = 20
AUTO = "auto"
UNDER_WAY = 32  # default limit on concurrent requests with arrival times
AUTO_CEILING = 12  # default ceiling of an adaptive lookahead, in tokens
MOST_CELLS = 10_000  # default limit; checking and laying out this many takes a minute
LENGTH = re.compile(r"al:(\d+(?:\.\d+)?)(?:@(geometric|min-variance))?")  # an acceptance length, and how rounds vary
PAIR = tuple(setting.name for setting in part("loading", RunSpec))


def cells(settings: Mapping[str, Any], besides: Collection[str] = (), most: float = MOST_CELLS) -> list[RunSpec]:
    """Every distinct combination of the settings; by default with the pair's usual K and the shipped data sets.

    `pair` is a list of targets, or of mappings with target, draft and other settings that differ between
    pairs. `besides` are other settings allowed in the same file, which its reader removed. UsageError for an
    unknown setting, and for more than `most` cells, before any is built.
    """
    if (number := count(settings)) > most:
        raise UsageError(
            f"these settings make {number:,} cells, more than {most:,}: shorten a list (or, to measure them all, add "
            "--yes to run, sweep-k or sweep)"
        )
    settings, usual = dict(settings), dict[str, int]()
    if settings.get("dataset") is None:
        settings["dataset"] = list(DEFAULT_DATASETS)
        usual = {"limit": DEFAULT_LIMIT}
    try:
        chosen = ({**({} if one.get("until_ci") else usual), **one} for one in combinations(settings))
        return list(dict.fromkeys(map(cell, chosen)))
    except ValidationError as error:
        raise UsageError(one_line(error, besides)) from None


def count(settings: Mapping[str, Any]) -> int:
    """The maximum number of cells: the product of the lengths of the lists."""
    if settings.get("dataset") is None:
        settings = {**settings, "dataset": list(DEFAULT_DATASETS)}
    return math.prod(len(value) for value in settings.values() if isinstance(value, list))


def combinations(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One mapping per combination; later keys vary faster, K fastest of all."""
    axes = {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
    if empty := [name for name, values in axes.items() if not values]:
        raise UsageError(f"the list of {empty[0]} is empty")
    last = ("method", "schedule", "k")
    names = [*(n for n in ("pair", *PAIR) if n in axes), *(n for n in axes if n not in (*PAIR, *last, "pair"))]
    names += [name for name in last if name in axes]
    for values in product(*(axes[name] for name in names)):
        chosen = dict(zip(names, values, strict=True))
        axis = "method" if chosen.get("method") == CHOOSING else "spec_config"
        own = axis == "method" or arms.own_words(chosen.get(axis), None)
        if own and len(axes[axis]) > 1:  # K is for the others
            chosen = {name: value for name, value in chosen.items() if name not in ("k", "schedule")}
        yield chosen | pair_of(chosen.pop("pair", None), chosen)


def pair_of(pair: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an entry of the axis `pair`."""
    if pair is None:
        return {}
    found = {"target": pair} if isinstance(pair, str) else pair
    if not isinstance(found, dict) or set(found) - set(PAIR) or "target" not in found or set(found) & set(chosen):
        raise UsageError(f"pair: {pair!r} is neither a target nor a mapping of target, draft, dtype …, each set once")
    return dict(found)


def cell(chosen: Mapping[str, Any]) -> RunSpec:
    """One cell. K may be the word auto; a method without a draft has no lookahead and no acceptance."""
    chosen = dict(chosen)
    if isinstance(length := chosen.get("acceptance"), str) and (length.startswith("al:") or ".yaml" in length):
        return of_length(cell(chosen | {"acceptance": None}), length)
    if (method := chosen.get("method")) in SYNONYMS:
        chosen["method"] = SYNONYMS[method]
    if isinstance(data := chosen.get("dataset"), str):
        chosen["dataset"] = sources.full_name(data)
    if empty := [name for name, value in chosen.items() if value == ""]:
        raise UsageError(f"--{empty[0].replace('_', '-')} is empty: leave it out, or give it a value")
    if wrong := [
        name
        for name, value in chosen.items()
        if isinstance(value, bool) and not (name in RunSpec.model_fields and declared(RunSpec)[name].type is bool)
    ]:
        raise UsageError(f"--{wrong[0].replace('_', '-')} is {chosen[wrong[0]]}: expected a number or a word")
    if chosen.get("k") == AUTO:
        if (other := chosen.get("schedule", AUTO)) != AUTO:
            raise UsageError(f"--k auto is a schedule: leave out --schedule {other}, or make --k a number, its ceiling")
        chosen["schedule"] = AUTO
        del chosen["k"]
    chosen |= acceptance(chosen.get("acceptance"))
    if chosen.get("arrivals") is not None:
        chosen.setdefault("batch", UNDER_WAY)
    first = RunSpec(**chosen)
    check_secrets(first)
    chosen["draft"] = first.draft or names.default_draft(first.target)
    usual = names.usual_settings(first.target, chosen["draft"])
    if length := usual.get("max_new_tokens"):
        first = RunSpec(**{"max_new_tokens": length, **chosen})
        chosen["max_new_tokens"] = first.max_new_tokens
    if first.backend in arms.ENGINES and first.method != BASELINE and arms.passed_through(first):
        chosen["k"] = passed_k(first, chosen.get("k"))
    if first.method == BASELINE:
        return first.baseline.with_(draft=chosen["draft"])
    if first.method == CHOOSING:
        return choosing(chosen, first)
    if chosen.get("k") == 0:
        raise UsageError(
            f"--k 0 drafts nothing with --method {clean(first.method)}: use 1 or more, or --method baseline"
        )
    if first.choices is not None:
        raise UsageError(f"--choices is for --method {CHOOSING}: leave it out")
    if "k" not in chosen and first.schedule != "constant":
        chosen["k"] = AUTO_CEILING
    return RunSpec(**{**usual, **chosen})


def of_length(spec: RunSpec, text: str) -> RunSpec:
    """The cell with rates with which its rounds emit so many tokens on average: "al:3.24" or "al:3.24@min-variance".

    geometric (default): one rate at every position, as llama.cpp's --spec-synth-len. min-variance: ⌊AL⌋ − 1 drafts are
    always accepted, the next one with the rest, as vLLM's synthetic_acceptance_length. UsageError for another text, for
    a length that K cannot have, and where K varies.
    """
    if spec.method == BASELINE:
        return spec
    if not text.startswith("al:"):
        return of_length(spec, f"al:{golden_length(text, spec.k)}@min-variance")
    if (found := LENGTH.fullmatch(text)) is None:
        wrong = "write an acceptance length as al:3.24, al:3.24@geometric or al:3.24@min-variance"
    elif spec.method == CHOOSING or spec.schedule != "constant":
        wrong = "an acceptance length needs one K: give --k a number"
    elif not 1 <= (length := float(found[1])) <= spec.k + 1:
        wrong = f"with K = {spec.k} a round emits 1 to {spec.k + 1} tokens on average: choose a length there"
    else:
        shape, k = found[2] or "geometric", spec.k
        certain = [min(max(length - 1 - position, 0.0), 1.0) for position in range(k)]
        chances = [alpha_from_tokens(length, k)] * k if shape == "geometric" else certain
        rates = tuple(round(chance, DIGITS) for chance in chances)
        return spec.with_(acceptance=rates, acceptance_source=f"AL {length:g} at K = {k}, {shape}")
    raise UsageError(f"--acceptance {text[:60]!r}: {wrong}")


def passed_k(spec: RunSpec, given: object) -> object:
    """K as the words that go to an engine have it. UsageError if another one is given."""
    found = arms.expected_k(spec)
    if None not in (found, given) and found != spec.k:
        raise UsageError(f"--k {spec.k}: the words for the engine draft {found} tokens: leave --k out")
    return spec.k if found is None else found


def choosing(chosen: Mapping[str, Any], first: RunSpec) -> RunSpec:
    """A cell that chooses its method for each prompt; its K is the largest of its choices."""
    if wrong := [name for name in ("k", "schedule") if name in chosen]:
        raise UsageError(
            f"--method {CHOOSING} chooses K as well: leave out --{wrong[0]}, and name lookaheads with "
            "--choices chain:2,chain:4 (`specbench run` takes no K by itself, `sweep-k` does)"
        )
    if first.backend in arms.SERVED:
        raise UsageError(f"--method {CHOOSING}: a server decides by itself how it drafts: use another --backend")
    given = (
        first.choices.split(",")
        if first.choices
        else [one for one in USUAL if chosen["draft"] or not needs(parsed(one)[0]) - {"target"}]
    )
    try:
        found = dict.fromkeys(map(parsed, given))
        if len(found) < 2:
            raise ValueError(f"--method {CHOOSING} chooses from two or more, found {', '.join(given) or 'none'}")
        text = ",".join(method if method == BASELINE else f"{method}:{k}" for method, k in found)
    except ValueError as error:
        raise UsageError(f"--choices: {error}") from None
    for method, _ in map(parsed, text.split(",")):
        if not read_method(method)["lossless"]:
            raise UsageError(f"--choices {method}: it is lossy, so timing would change the output: leave it out")
    return RunSpec(**{**chosen, "choices": text, "k": max(k for _, k in map(parsed, text.split(",")))})


def check_secrets(spec: RunSpec) -> None:
    """Raise UsageError if a setting contains a credential: every file of a run contains the settings."""
    for name, value in spec.model_dump(mode="json").items():
        if isinstance(value, str) and redact(value) != value:
            raise UsageError(
                f"--{name.replace('_', '-')} {redact(value)[:300]!r} holds a password or a token, which the files of a "
                "run would keep: leave it out (a token of the hub belongs in HF_TOKEN, or `hf auth login`, a key of "
                "servers into OPENAI_API_KEY, a key of an engine into the environment variable that it reads)"
            )


def acceptance(given: Any) -> dict[str, Any]:
    """Parse synthetic acceptance: rates, or a profile file, with its source."""
    if not isinstance(given, str) or not given.strip().endswith(".json"):
        return {"acceptance": rates(given)}
    found = read_profile(Path(given.strip()))
    return {"acceptance": found.conditional, "acceptance_source": found.source}


def rates(given: Any) -> tuple[float, ...] | None:
    """Parse rates: one for all positions, or one per position joined by commas. None: the pair's own acceptance."""
    if given is None:
        return None
    try:
        found = tuple(float(part) for part in str(given).split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= rate <= 1 for rate in found):
        raise UsageError(
            f"--acceptance {str(given)[:60]!r}: write a rate from 0 to 1 (0.8), one per position "
            "(0.8,0.7,0.6), a mean length (al:3.2), or a file of a profile (.json) or of lengths (.yaml)"
        )
    return found


def one_line(error: ValidationError, besides: Collection[str]) -> str:
    """The first validation error of pydantic, in the words of the command line."""
    first = error.errors()[0]
    name = "--" + "-".join(str(part) for part in first["loc"]).replace("_", "-")
    if (one := declared(RunSpec).get(name[2:])) and one.setting.within:
        name = f"--{one.setting.within} {name[2:]}"
    if first["type"] == "extra_forbidden":
        known, given = sorted([*RunSpec.model_fields, "pair", *besides]), str(first["loc"][0])
        return f"unknown setting {given}{near(given, known) or ': specbench run --help-all shows all'}"
    if first["type"] == "literal_error":
        words = str(first["ctx"]["expected"])
        hint = near(str(first["input"]), words.split("'")[1::2])
        return f"{name} {first['input']!r}{hint}: choose {words}"
    said = first["msg"].removeprefix("Value error, ")
    return f"{name} {first.get('input')!r}: {said}" if first["loc"] else said


def refuse_unknown(specs: Sequence[RunSpec]) -> None:
    """Raise if the only pair has an unknown method, target or data set; loads no torch, which takes seconds.

    With several pairs, an error ends only the cells of its pair.
    """
    if len(by_pair(specs)) > 1:
        return
    if specs[0].backend in (None, "transformers"):
        for name in dict.fromkeys(one for spec in specs for one in methods_of(spec)):
            read_method(name)
        names.resolve(specs[0].target, specs[0].target_revision)
    for dataset in dict.fromkeys(spec.dataset for spec in specs):
        sources.refuse_unknown(dataset)


def by_pair(specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """Group cells by pair of checkpoints: each pair is loaded once."""
    return grouped(specs, lambda spec: tuple(getattr(spec, name) for name in PAIR))
