"""What `--method auto` chooses from: how choices are written, and the cell of each.

Pure; must not know method files.
"""

from collections.abc import Mapping, Sequence

from specbench.spec import BASELINE, CHOOSING, RunSpec

USUAL = (BASELINE, "chain:2", "chain:4", "chain:8", "prompt-lookup:2", "prompt-lookup:4", "prompt-lookup:8")


def parsed(text: str) -> tuple[str, int]:
    """(method, K) of one choice: a method and a lookahead joined by a colon, or the baseline. ValueError if neither."""
    method, _, k = text.strip().rpartition(":")
    if text.strip() == BASELINE:
        return BASELINE, 0
    if not method or method in (BASELINE, CHOOSING) or not k.isdigit() or not 1 <= int(k) <= 512:
        raise ValueError(f"{text.strip()[:60]!r} is not a choice: write METHOD:K (chain:4), or {BASELINE}")
    return method, int(k)


def written(choices: Sequence[str]) -> str:
    """Choices as a spec holds them, each once. ValueError where one is none, or there are fewer than two."""
    found = dict.fromkeys(map(parsed, choices))
    if len(found) < 2:
        raise ValueError(f"--method {CHOOSING} chooses from two or more, found {', '.join(choices) or 'none'}")
    return ",".join(method if method == BASELINE else f"{method}:{k}" for method, k in found)


def choices(spec: RunSpec) -> Mapping[str, RunSpec]:
    """The cells that a spec chooses from, by name; of any other spec itself alone."""
    if spec.method != CHOOSING:
        return {"": spec}
    named = {name: parsed(name) for name in (spec.choices or "").split(",")}
    return {name: chosen(spec, *one) for name, one in named.items()}


def chosen(spec: RunSpec, method: str, k: int) -> RunSpec:
    return spec.baseline if method == BASELINE else spec.with_(method=method, k=k, choices=None)


def expanded(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """The cells that an engine decodes, each once: choices in the place of those that choose."""
    return list(dict.fromkeys(one for spec in specs for one in choices(spec).values()))


def methods_of(spec: RunSpec) -> list[str]:
    """The methods that a spec decodes with."""
    return list(dict.fromkeys(one.method for one in choices(spec).values()))
