"""Presets, the settings and numbers of published experiments, and acceptance profiles in JSON files.

Tools define acceptance at a position in different ways, so a profile names its kind: `conditional`, given that all
before it were accepted; `joint`, from the start of the draft; or vLLM's counters, `accepted_per_position` and the
number of `drafts` (vllm:spec_decode_num_accepted_tokens_per_pos, ..._num_drafts).
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from specbench.errors import UsageError
from specbench.files import CONFIGS, read_checked, read_whole, read_yaml
from specbench.settings import is_number
from specbench.wording import clean, first_line, near, redact

LARGEST = 1 << 20  # bytes of a file
DEEPEST = 512  # positions, as K
DIGITS = 6
KINDS = ("conditional", "joint", "accepted_per_position")


@dataclass(frozen=True)
class Preset:
    """A published experiment. published: settings and numbers of each cell; stated: the names of these settings."""

    name: str
    summary: str
    paper: str
    reproduces: str
    differs: str
    settings: Mapping[str, Any]
    published: Sequence[Mapping[str, Any]]

    @property
    def stated(self) -> set[str]:
        return {name for line in self.published for name in line if name in self.settings}


def presets() -> dict[str, Path]:
    """The shipped preset files, by name."""
    return {path.stem: path for path in sorted((CONFIGS / "presets").glob("*.yaml"))}


def preset(name: str) -> Preset:
    """Load a preset by name. UsageError if unknown."""
    known = presets()
    if name not in known:
        raise UsageError(f"unknown preset {name[:60]!r}{near(name, known)}: choose one of {', '.join(known)}")
    return Preset(name=name, **read_yaml(known[name]))


@dataclass(frozen=True)
class Profile:
    """Conditional acceptance by position, and a description of the source."""

    conditional: tuple[float, ...]
    source: str

    def text(self, **about: Any) -> str:
        """The content of a profile file, with conditional and joint acceptance; `about` adds details of its source."""
        joint = [round(chance, DIGITS) for chance in accumulate(self.conditional, mul)]
        content = {"source": {"text": self.source, **about}, "conditional": list(self.conditional), "joint": joint}
        return json.dumps(content, indent=2) + "\n"

    @property
    def forced(self) -> dict[str, str]:
        """What makes each engine accept as much, by its name: options, or environment variables, which come first.

        vLLM and llama.cpp take every position, the others the mean alone: AL, or AL − 1 without the bonus token.
        """
        joint = [round(chance, DIGITS) for chance in accumulate(self.conditional, mul)]
        accepted, k = round(sum(joint), 4), len(joint)
        synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": joint}
        return {
            "vllm": "--speculative-config " + shlex.quote(json.dumps({"num_speculative_tokens": k} | synthetic)),
            "sglang": f"SGLANG_SIMULATE_ACC_LEN={1 + accepted:g} SGLANG_SIMULATE_ACC_METHOD=match-expected",
            "llama-server": "--spec-synth-rates " + ",".join(f"{chance:g}" for chance in joint),
            "trtllm": f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={accepted:g}",
            "atom": f"--spec-decode-acceptance-length {1 + accepted:g}",
            "aiconfigurator": f"--nextn {k} --nextn-accepted {accepted:g}",
        }


def read_profile(path: Path) -> Profile:
    """Read a profile from a file. UsageError, with the reason, if it is invalid."""
    try:
        content = json.loads(read_whole(path, LARGEST))
    except OSError as error:
        raise UsageError(f"cannot read the profile {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not readable as JSON: {first_line(error)}") from None
    try:
        return profile_of(content)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def profile_of(content: Any) -> Profile:
    """Parse the content of a profile file. ValueError if it is invalid."""
    if not isinstance(content, dict) or not (kinds := [kind for kind in KINDS if kind in content]):
        raise ValueError(f"an acceptance profile has one of the keys {', '.join(KINDS)}")
    if not (source := source_of(content.get("source"))):
        raise ValueError("an acceptance profile must name where it was measured: add source, a text")
    found = [conditional(kind, numbers(kind, content[kind]), content) for kind in kinds]
    if any(len(one) != len(found[0]) or math.dist(one, found[0]) > 1e-3 for one in found):
        raise ValueError(f"{' and '.join(kinds)} are different profiles: keep one of them")
    return Profile(tuple(round(chance, DIGITS) for chance in found[0]), source)


def conditional(kind: str, given: Sequence[float], content: Mapping[str, Any]) -> list[float]:
    """Conditional acceptance by position; 0 after a position that is never accepted."""
    if kind == "conditional":
        chances = list(given)
    else:
        whole = 1.0
        if kind == "accepted_per_position":
            (whole,) = numbers("drafts", [content.get("drafts")])
        if not whole:
            raise ValueError("no drafts were counted")
        chances = [after / before if before else 0.0 for before, after in pairwise([whole, *given])]
    if not all(0 <= chance <= 1 for chance in chances):
        raise ValueError(
            f"{kind}: chances must be in [0, 1], and no position is accepted more often than the one before"
        )
    return chances


def numbers(key: str, given: Any) -> list[float]:
    if not isinstance(given, list) or not 1 <= len(given) <= DEEPEST or not all(map(is_number, given)):
        raise ValueError(f"{key}: expected 1 to {DEEPEST} numbers, found {str(given)[:60]}")
    return [float(one) for one in given]


def source_of(given: Any) -> str:
    """The source in one line: a text, a mapping's `text`, or the whole mapping."""
    if isinstance(given, dict):
        given = given.get("text") or ", ".join(f"{key} {value}" for key, value in given.items())
    return redact(" ".join(given.split()))[:200] if isinstance(given, str) else ""


def golden_length(text: str, k: int) -> float:
    """The acceptance length for K in a file of InferenceX, golden_al_distribution: {model: {thinking_on: {K: length}}}.

    FILE.yaml, or FILE.yaml:NAME with a part of the name of one of its curves. UsageError without a length for K.
    """
    file, _, name = text.partition(".yaml:")
    path = Path(file if file.endswith(".yaml") else f"{file}.yaml")
    content = read_checked(path, TypeAdapter(dict[str, dict[str, dict[int, float]]]).validate_python)
    curves = {f"{model} {mode}": curve for model, modes in content.items() for mode, curve in modes.items()}
    wanted = [curve for one, curve in curves.items() if name in one]
    if len(wanted) != 1:
        raise UsageError(f"--acceptance {text}: name one curve as {path}:NAME, from {clean(', '.join(curves), 300)}")
    if k not in wanted[0]:
        known = ", ".join(map(str, wanted[0]))
        raise UsageError(f"--acceptance {text}: it has no acceptance length for K = {k}, only for {known}")
    return wanted[0][k]
