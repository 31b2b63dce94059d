"""The results of a run, `specbench verify` and `specbench trace`, as data and as JSON."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from specbench import metrics
from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.results.machine import MEASURED_ON
from specbench.results.named_runs import csv_cell, json_rows
from specbench.spec import BASELINE, SCHEMA_VERSION
from specbench.wording import Row, clean, clean_path, text_in

# Of some 240 columns: the settings, speeds and their causes, and reliability. Others are in results.csv.
SUMMARY = (
    "run", "started", "command", "target", "draft", "method", "dataset", "k", "temperature", "batch", "dtype_resolved",
    "device_name", "prompts", "baseline_tokens_per_second", "tokens_per_second", "speedup", "speedup_low",
    "speedup_high", "slo_share", "baseline_slo_share", "slo_share_difference", "goodput", "baseline_goodput",
    "tokens_per_round", "accepted_per_drafted", "alpha", "c", "speedup_predicted", "speedup_calibrated",
    "lossless", "status",
)  # fmt: skip


@dataclass(frozen=True)
class About:
    """The identity of a run: its folder name, start (ISO 8601) and command; empty if unknown."""

    name: str = ""
    started: str = ""
    command: str = ""

    @classmethod
    def of(cls, path: Path, description: Mapping[str, Any]) -> "About":
        """The identity from the folder and the content of run.json."""
        return cls(path.resolve().name, iso_time(text_in(description, "started")), text_in(description, "command"))

    def rows(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The rows of results.csv with the columns `run`, `started` and `command` before them."""
        return [{"run": self.name, "started": self.started, "command": self.command, **row} for row in rows]

    def document(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The run as a JSON object, with machine columns once if all cells that have them agree."""
        cells = json_rows(rows)
        known = {name: [row[name] for row in cells if row.get(name) is not None] for name in MEASURED_ON}
        shared = {name: found[0] for name, found in known.items() if found and found == found[:1] * len(found)}
        cells = [{n: value for n, value in row.items() if n not in ("schema_version", *shared)} for row in cells]
        return {"schema": SCHEMA_VERSION, "run": asdict(self), "environment": shared, "cells": cells}


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The `SUMMARY` columns of the rows, without those empty in all of them."""
    names = [name for name in SUMMARY if any(csv_cell(row.get(name)) != "" for row in rows)]
    return [{name: row.get(name) for name in names} for row in rows]


def iso_time(started: str) -> str:
    """The time in run.json as ISO 8601 with its zone; empty for any other text."""
    try:
        return datetime.fromisoformat(started).isoformat()
    except ValueError:
        return ""


# --- certificates -----------------------------------------------------------------------------------------------------

FILE, PAGE = "certificate.json", "certificate.md"
CERTIFICATE = "specbench certificate 1"
LARGEST = 16 << 20  # bytes

# numeric: greedy output differs where the best tokens are closer than the noise between two computations.
# lossy: the method declares that it is not lossless, so it need not pass. error: the check itself failed.
Outcome = Literal["ok", "numeric", "lossy", "not checked", "error", "FAILED"]
# Check names: of the installation, of the pair, and of every method with it.
PROOF, CACHED, CONTROL = "proof", "proof with a cache", "control: a false q"
FLOOR, ACCEPTED, ALPHA = "noise floor", "draft = target: accepted", "draft = target: α"
GREEDY, RESCORED = "greedy = generate", "greedy re-scored"
SURPRISE, LEANING = "z of the surprise", "z of the leaning"
# Columns of results.csv that identify the target; those of the draft, which not every method has.
OF_TARGET = ("target_source", "target_commit", "target_weights", "dtype_resolved")
OF_DRAFT = ("draft_source", "draft_commit", "draft_weights", "draft_dtype_resolved")


@dataclass(frozen=True)
class Check:
    """One check of one method, or of the pair (method "").

    found and limit: the statistic and its threshold, None if there is no number; `detail` describes briefly
    what was checked, or why nothing could be.
    """

    name: str
    outcome: Outcome
    method: str = ""
    found: float | None = None
    limit: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Certificate:
    """All checks, and their subject: the pair as it resolved (with weight hashes), settings, machine."""

    started: str
    command: str
    checks: Sequence[Check]
    pair: Mapping[str, Any]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    warnings: Sequence[str] = ()

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.outcome == "FAILED"]

    @property
    def broken(self) -> list[Check]:
        return [check for check in self.checks if check.outcome == "error"]

    def is_of(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of a run is for the same pair: the same sources, commits and dtypes."""
        names = (*OF_TARGET, *(OF_DRAFT if row.get("draft_source") else ()))
        return bool(self.pair) and all((self.pair.get(name) or "") == (row.get(name) or "") for name in names)


def certificate_json(found: Certificate) -> str:
    """The certificate as ASCII JSON; NaN and infinity become words."""
    return json.dumps({"schema": CERTIFICATE, **worded(asdict(found))}, indent=1, allow_nan=False) + "\n"


def worded(value: Any) -> Any:
    """Convert a value to JSON types."""
    if isinstance(value, Mapping):
        return {key: worded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [worded(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_certificate(path: Path) -> Certificate:
    """Read a certificate file. UsageError if it is not one."""
    with reading(path, "certificate", "specbench verify writes one"):
        return TypeAdapter(Certificate).validate_python(content_of(read_whole(path, LARGEST), CERTIFICATE))


@contextmanager
def reading(path: Path, what: str, advice: str) -> Iterator[None]:
    """Raise UsageError if a file cannot be read, or is not a document of this version."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {clean_path(path)}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        reason = "wrong fields" if isinstance(error, ValidationError) else "not JSON of this version"
        raise UsageError(f"{clean_path(path)} is not a {what} ({reason}): {advice}") from error


def content_of(text: str | bytes, schema: str) -> dict[str, Any]:
    """The fields of a document of this schema; ValueError for anything else."""
    content: Any = json.loads(text)
    if not isinstance(content, dict) or content.pop("schema", None) != schema:
        raise ValueError(f"its schema is not {schema!r}")
    return content


# --- audits -----------------------------------------------------------------------------------------------------------

AUDITED, AUDIT = "audit.json", "specbench audit 1"
LOSSY: Literal["NOT LOSSLESS"] = "NOT LOSSLESS"
VERSION = re.compile(r"(?:^|; )((?:vllm|sglang|llama\.cpp|an unknown version)\b[^;]*)")  # in engine_notes
DEPLOYED = ("engine", "engine_option", "target", "draft", "method", "spec_config", "spec_args", "server_args", "dtype",
            "quantize", "draft_quantize")  # fmt: skip


def deployment(row: Row) -> dict[str, str]:
    """What an audit and a cell have in common if they are of the same deployment, whatever its K and load: the URL of
    its server and the model; or its engine with the version, and the settings that start it."""
    found = {name: text_in(row, name).removeprefix("'") for name in ("url", *DEPLOYED)}  # as of a table
    if url := found["url"]:
        return {"url": url.rstrip("/").removesuffix("/v1"), "target": found["target"]}
    version = VERSION.search(text_in(row, "engine_notes"))
    known = version[1] if version else " ".join(text_in(row, name) for name in ("specbench", "torch", "transformers"))
    return {**found, "version": known}


def read_audit(path: Path) -> dict[str, Any]:
    """Read the certificate of an audit. UsageError if it is not one."""
    with reading(path, "certificate of an audit", "specbench audit writes one"):
        return content_of(read_whole(path, LARGEST), AUDIT)


def failed_audits(results: Path) -> list[tuple[dict[str, str], str]]:
    """The deployments that are NOT LOSSLESS by the audits in a folder of results, each with a line on its fault.

    A later audit that ends without a fault, after at least as many requests, clears a deployment.
    """
    found: list[tuple[dict[str, str], int, str]] = []
    for file in sorted(results.glob(f"*_audit_*/{AUDITED}")):
        with suppress(UsageError, KeyError, TypeError, StopIteration):
            one = read_audit(file)
            what, requests = one["deployment"], int(one["requests"])
            if one["answer"] == LOSSY:
                fault = next(two for two in one["findings"] if two["kind"] == "fault")
                name, detail = clean(file.parent.name, 100), clean(f"{fault['cell']}: {fault['what']}", 100)
                found.append((what, requests, f"it fails the audit {name} ({detail})"))
            elif one["judged"] and not one["unfinished"]:
                found = [two for two in found if two[0] != what or two[1] > requests]
    return [(what, line) for what, _, line in found]


def fault_of(row: Row, failed: Sequence[tuple[dict[str, str], str]]) -> str:
    """The line on the audit that the deployment of a row failed; empty if there is none."""
    if not failed or text_in(row, "method") == BASELINE:
        return ""
    own = deployment(row)
    return next((line for what, line in reversed(failed) if what == own), "")


# --- a decode token by token ------------------------------------------------------------------------------------------


TRACE = "specbench trace 1"
Kind = Literal["accepted", "rejected", "unused", "correction", "bonus"]
Setting: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class TracedToken:
    """One drafted or emitted token.

    text: what it adds to the sequence; partial: its bytes in hexadecimal if they only start or continue a
    character, which is then in the text of the token that completes it. p: its probability under the target.
    q: its probability under the draft distribution at this position; None if nothing was drafted.
    """

    kind: Kind
    id: int
    text: str
    partial: str
    p: float
    q: float | None

    @property
    def emitted(self) -> bool:
        return self.kind in ("accepted", "correction", "bonus")


@dataclass(frozen=True)
class TracedRound:
    """One round: its tokens in the order of verification, and its counts."""

    tokens: tuple[TracedToken, ...]
    counts: metrics.RoundCounts


@dataclass(frozen=True)
class TokenView:
    """One decode of one prompt. It has no seconds: a traced decode is not a measurement."""

    prompt: str
    settings: Mapping[str, Setting]
    rounds: tuple[TracedRound, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """The emitted tokens, equal to those of `specbench run`."""
        return tuple(t.id for r in self.rounds for t in r.tokens if t.emitted)


def trace_json(view: TokenView) -> str:
    """The view as ASCII JSON; `trace_from_json` restores an equal one, lone surrogates included."""
    return json.dumps({"schema": TRACE, **asdict(view)}, indent=1, allow_nan=False) + "\n"


def trace_from_json(text: str | bytes) -> TokenView:
    """The view that `trace_json` wrote. ValueError for any other text."""
    return TypeAdapter(TokenView).validate_python(content_of(text, TRACE))


def read_trace(path: Path) -> TokenView:
    """Read a view from a file. UsageError if it is not one."""
    with reading(path, "trace", "write one with specbench trace --output"):
        return trace_from_json(read_whole(path))
