"""The body of `specbench verify`: proofs, the checks of a pair, a certificate and an exit code."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from specbench.backends.base import Backend, Held, networks_of
from specbench.backends.choose import backend_for
from specbench.backends.roles import undrafted
from specbench.data.prompts import PromptSet
from specbench.decoding.method_files import methods, needs, read_method
from specbench.errors import (
    CellsFailedError,
    MissingError,
    NotLosslessError,
    SpecbenchError,
    TooLargeError,
    UnusableModelError,
    UsageError,
    command_for,
)
from specbench.files import replace_text
from specbench.jobs.calibrate import tier_on_gpu
from specbench.jobs.output import Output, say
from specbench.judge.significance import z_tests
from specbench.measure import grid, proofs
from specbench.measure.calibrate import sizes_of
from specbench.measure.fit import Needed, fit_of, needed, roomiest
from specbench.measure.group import Failure, attempt
from specbench.measure.lossless import weights_sha256
from specbench.measure.pair import resolved_pair
from specbench.measure.plan import prompts_of
from specbench.measure.proofs import Judge, Tallies, proof_checks
from specbench.models.checkpoints.check import NO_LIMIT
from specbench.models.checkpoints.description import resolve_device
from specbench.results import documents, folder
from specbench.results.documents import GREEDY, SURPRISE, Certificate, Check
from specbench.results.machine import command_line, environment, now
from specbench.show import documents as shown
from specbench.show import run_output
from specbench.show.documents import memory_rows, memory_table
from specbench.show.fitting import draw, screen
from specbench.show.table import print_records
from specbench.show.text import Format
from specbench.spec import BASELINE, RunSpec, expanded
from specbench.theory.memory import Fit
from specbench.theory.roofline import Engine, shipped
from specbench.wording import gigabytes, grouped


def start_verify(settings: Mapping[str, Any], wanted: Sequence[str] | None, tokens: int, output: Output) -> None:
    """Check, write and print the certificate; raises the error for the exit code. Without a target, only the proofs."""
    began, names = now(), list(dict.fromkeys(wanted or methods()))
    err = Console(stderr=True, quiet=output.quiet)
    opened = opened_pair(settings, names, wanted is not None) if "target" in settings else None
    checks = proof_checks(names, lambda what: say(err, [f"{what} …"]))
    pair = opened.verified(tokens, lambda what: say(err, [what])) if opened else NOTHING
    device = resolve_device(str(settings.get("device", "auto")))
    found = Certificate(
        began, command_line(), [*checks, *pair.checks], pair.about, pair.settings, environment(device), pair.warnings
    )
    path = write(found, output.parent, [began, "verify", *map(folder.slug, pair.names)])
    print_certificate(found, output.style)
    say(err, [*(f"note: {note}" for note in (*pair.warnings, *shown.certificate_notes(found))), f"certificate: {path}"])
    if found.failed:
        first = shown.sentence(found.failed[0])
        raise NotLosslessError(f"{len(found.failed)} of {len(found.checks)} checks failed, the first: {first}")
    if found.broken:
        first = shown.sentence(found.broken[0])
        raise CellsFailedError(f"{len(found.broken)} checks could not be made, the first: {first}")


def write(found: Certificate, parent: Path, parts: Sequence[str]) -> Path:
    """Write the certificate as JSON and Markdown into its own folder; returns the path of the page."""
    with folder.writing_to(parent):
        made = folder.make_folder(parent, "_".join(parts))
        replace_text(made / documents.FILE, documents.certificate_json(found))
        replace_text(made / documents.PAGE, shown.certificate_page(found))
    return made / documents.PAGE


def print_certificate(found: Certificate, style: str) -> None:
    """Print on stdout: tables and the answer for readers, the certificate as json, its checks as csv or jsonl."""
    if style == "json":
        sys.stdout.write(documents.certificate_json(found))
    elif style == "md":
        sys.stdout.write(shown.certificate_page(found))
    elif style in ("csv", "jsonl"):
        sys.stdout.write(run_output.rendered(shown.certificate_records(found), style))
    else:
        for table in shown.certificate_tables(found):
            draw(screen(), table)
        say(screen(), [shown.certificate_summary(found)])


# --- verify pair ------------------------------------------------------------------------------------------------------
# The pair's part of `specbench verify`: the methods it can run, its checks, and its part of the certificate.

# For sampled text: rows decoded at once, each as it would be alone, and tokens per text. Both save time.
TOGETHER, LONGER = 8, 128
USUAL = {"dataset": "code", "limit": 8, "max_new_tokens": 48}
SAID = ("target", "draft", "k", "dataset", "limit", "max_new_tokens", "temperature", "tier", "batch", "seed")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Verified:
    """Results for a pair: its checks, what it resolved to, the settings, its names and notes."""

    checks: Sequence[Check] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[str] = ()
    warnings: Sequence[str] = ()


NOTHING = Verified()


@dataclass(frozen=True)
class Arm:
    """A method of a pair, greedy and sampled."""

    greedy: RunSpec
    sampled: RunSpec


@dataclass(frozen=True)
class Opened:
    """A pair checked without weights: the methods it can run, reasons against the others, its prompts."""

    backend: Backend
    arms: Sequence[Arm]
    refused: Sequence[Check]
    prompts: PromptSet

    def verified(self, tokens: int, note: Say) -> Verified:
        """Load the pair and check it with all methods, each with at least `tokens` sampled tokens."""
        try:
            self.backend.load(longest(self.prompts))
            note(f"{len(self.arms)} methods on {len(self.prompts.prompts)} prompts; generating with transformers …")
            checks = [*self.refused, *checked(self.backend, self.arms, self.prompts, tokens, note)]
            spec = self.arms[0].greedy
            found, names = about(self.backend, self.arms), [spec.target, spec.draft or "none"]
            return Verified(checks, found, said(self.arms, self.prompts), names, self.backend.warnings)
        finally:
            self.backend.unload()


def opened_pair(settings: Mapping[str, Any], names: Sequence[str], chosen: bool) -> Opened:
    """The pair with its methods; chosen ones must be runnable, others are included if they are."""
    if settings.get("backend") == "openai":
        servers = "use specbench audit --url … --baseline-url …"
        raise UsageError(f"specbench verify reads the networks of a pair, which a server does not give: {servers}")
    arms = [arm_of(settings, name) for name in dict.fromkeys([BASELINE, *names])]
    able, refused = usable(arms, chosen)
    backend = backend_for([arm.greedy for arm in able])
    return Opened(backend, able, refused, prompts_of([arm.sampled for arm in able], backend))


def arm_of(settings: Mapping[str, Any], name: str) -> Arm:
    """The cells of a method: greedy as requested, sampled with several rows at a time by default."""
    given = {**USUAL, **settings}
    cells = grid.cells({**given, "method": name, "warmup": 0})
    if len(cells) > 1:
        raise UsageError("a pair is verified with one value of every setting: give one --dataset, one --k, one --batch")
    (spec,) = cells
    temperature = spec.temperature if "temperature" in settings else 1.0
    if temperature == 0:
        raise UsageError("--temperature 0 samples nothing: greedy text is checked in any case; choose one above 0")
    rows, new = settings.get("batch", TOGETHER), settings.get("max_new_tokens", LONGER)
    return Arm(spec.with_(temperature=0.0), spec.with_(temperature=temperature, batch=rows, max_new_tokens=new))


def usable(arms: Sequence[Arm], chosen: bool) -> tuple[list[Arm], list[Check]]:
    """The methods whose models are available, and reasons against the others. Raises the error of a chosen one."""
    found, refused, known = list[Arm](), list[Check](), dict[frozenset[str], Backend | Failure]()
    for arm in arms:
        models = frozenset(needs(arm.greedy.method))
        if models not in known:
            known[models] = attempt(partial(backend_for, [arm.greedy]))
        missing = known[models]
        if not isinstance(missing, Failure):
            found.append(arm)
        elif missing.cause is not None and (chosen or arm.greedy.method == BASELINE):
            raise missing.cause
        else:
            refused.append(Check(GREEDY, "not checked", arm.greedy.method, detail=missing.error))
    return found, refused


def checked(backend: Backend, arms: Sequence[Arm], prompts: PromptSet, tokens: int, note: Say) -> list[Check]:
    first, judging = arms[0], backend.judge() or backend
    networks = networks_of(judging, "scoring text again")
    if judging.scores is None:
        raise UsageError(f"the backend {backend.name} gives no logits, which are what output is judged by")
    k = max(arm.greedy.k for arm in arms)
    greedy, sampled = first.greedy.with_(k=k), first.greedy.with_(k=k, temperature=first.sampled.temperature)
    judge = proofs.judge_of(networks, judging.scores, greedy, prompts.prompts)
    found = proofs.control_checks(judge, greedy, sampled, prompts.prompts)
    tallied: dict[str, Tallies] = {}
    for number, arm in enumerate(arms, 1):
        note(f"{number} of {len(arms)}: {arm.greedy.method} …")
        found += greedy_part(backend, judge, arm.greedy, prompts)
        found += sampled_part(backend, judge, arm.sampled, prompts, tokens, tallied)
        backend.keep([spec for later in arms[number:] for spec in (later.greedy, later.sampled)])
    return [*found, *z_checks(tallied)]


def greedy_part(backend: Backend, judge: Judge, spec: RunSpec, prompts: PromptSet) -> list[Check]:
    """The greedy checks of a method, or the reason for omitting them."""

    def checks() -> list[Check]:
        decode = backend.prepare(spec, longest(prompts))
        return proofs.greedy_checks(judge, spec, decode, prompts.prompts)

    found = attempt(checks)
    return [unable(GREEDY, spec, found)] if isinstance(found, Failure) else found


def sampled_part(
    backend: Backend, judge: Judge, spec: RunSpec, prompts: PromptSet, tokens: int, into: dict[str, Tallies]
) -> list[Check]:
    """Sample a method's text into its tallies, one row at a time if it cannot batch; or return why not."""

    def tallies(spec: RunSpec) -> Tallies:
        decode = backend.prepare(spec, longest(prompts))
        return proofs.sampled_tallies(judge, spec, decode, prompts.prompts, tokens)

    found = attempt(partial(tallies, spec))
    if isinstance(found, Failure) and isinstance(found.cause, UsageError) and spec.batch > 1:
        found = attempt(partial(tallies, spec.with_(batch=1)))
    if isinstance(found, Failure):
        return [unable(SURPRISE, spec, found)]
    into[spec.method] = found
    return []


def unable(name: str, spec: RunSpec, failure: Failure) -> Check:
    """A check that could not run: the pair cannot do it, or an error occurred."""
    refused = isinstance(failure.cause, SpecbenchError)
    return Check(name, "not checked" if refused else "error", spec.method, detail=failure.error)


def longest(prompts: PromptSet) -> int:
    return max(len(prompt.ids) for prompt in prompts.prompts)


def z_checks(tallied: Mapping[str, Tallies]) -> list[Check]:
    """The z-tests of all methods; those that claim to be lossless share one false-alarm rate."""
    every = {(method, name): tally for method, some in tallied.items() for name, tally in some.items()}
    family = {key: tally for key, tally in every.items() if read_method(key[0])["lossless"]}
    decided, found = z_tests(family), list[Check]()
    for (method, name), tally in every.items():
        test = decided.get((method, name))
        outcome: Any = "lossy" if test is None else "FAILED" if test.differs else "ok"
        detail = f"{tally.tokens} tokens, {tally.excess:+.4f} per token"
        found.append(Check(name, outcome, method, tally.z, None if test is None else test.limit, detail))
    return found


def about(backend: Backend, arms: Iterable[Arm]) -> dict[str, Any]:
    """What the pair resolved to, with the digests of the weights used."""
    networks, found = networks_of(backend.judge() or backend, "a certificate"), resolved_pair(backend)
    for name in [n for n in ("target", "draft", *dict(next(iter(arms)).greedy.model)) if f"{n}_source" in found]:
        digest = attempt(lambda name=name: weights_sha256(networks.network(name)))  # type: ignore[misc]
        found[f"{name}_weights_sha256"] = None if isinstance(digest, Failure) else digest
    return found


def said(arms: Sequence[Arm], prompts: PromptSet) -> dict[str, Any]:
    """The settings that all methods share."""
    spec = arms[-1].sampled
    shared = {name: getattr(spec, name) for name in SAID}
    return shared | {"prompts_sha256": prompts.sha256, "prompts": len(prompts.prompts)}


# --- check ------------------------------------------------------------------------------------------------------------
# The body of `specbench check`: requirements, compatibility of the pair, and memory; loads no weights.

TIGHT = 0.9  # share of the free memory
ASSUMED = 1024  # assumed tokens of the longest prompt of a data set that is not downloaded yet
LENGTHS = (512, 2048, 4096, 8192, 16384, 32768)  # contexts for which the time of attention is calculated


def start_check(cells: Sequence[RunSpec], style: Format, quiet: bool, *, method: bool) -> None:
    """Check every pair of some cells; the first that is not ready ends the command with its error.

    method: whether it was given; otherwise a target without a known draft is checked alone.
    """
    err = Console(stderr=True, quiet=quiet)
    alone = not method and cells[0].draft is None and cells[0].backend != "openai"
    for specs in grid.by_pair(list(dict.fromkeys(cell.baseline for cell in cells)) if alone else cells):
        check_pair(expanded(specs), style, err)
    if alone:
        say(err, [undrafted(cells[0].target)])


def check_pair(specs: Sequence[RunSpec], style: Format, err: Console) -> None:
    """Print the requirements of a pair. MissingError for unavailable items, UnusableModelError if models do not fit."""
    found = needed(specs)
    rows, title = [one.row for one in found], f"what {specs[0].target} needs"
    tables = {title: [one.line for one in found]}
    if lacking := [one.lacking for one in found if one.state == "missing"]:
        print_records(rows, tables, style)
        raise MissingError([*lacking, *(one.lacking for one in found if one.state == "to fetch")])
    try:
        backend = backend_for(specs)
    except UnusableModelError:
        print_records(rows, tables, style)
        raise
    groups, problem, left_out = held(specs, backend, found, err), None, {}
    try:
        backend, fitting = roomiest(backend, groups)
        left_out = {**fitting.left_out}
    except TooLargeError as error:  # raised after the table that shows it
        problem = error
    fit = fit_of(backend, groups)
    if fit:
        rows, tables = [*rows, *memory_rows(fit)], {**tables, f"memory of {fit.device}": memory_table(fit)}
    if lengths := attention_by_length(specs[0], backend.context):
        title = "a decode step by its context, calculated for this GPU"
        tables[title] = [{name.replace("_", " "): row[name] for name in row if name != "kind"} for row in lengths]
    print_records([*rows, *lengths], tables, style)
    said = [f"{s.method}, K {s.k}, batch {s.batch} would be left out: {why.error}" for s, why in left_out.items()]
    say(err, [*conclusion(found, fit, backend, specs[0].method == BASELINE), *said])
    if problem is not None:
        raise problem


def attention_by_length(spec: RunSpec, longest: int) -> list[dict[str, Any]]:
    """A step of the target and its attention by context, in ms; empty if the constants of the GPU are not known."""
    device = resolve_device(spec.device)
    name = torch.cuda.get_device_name(device).lower() if device.type == "cuda" and torch.cuda.is_available() else ""
    rows = list[dict[str, Any]]()
    with suppress(SpecbenchError):  # sizes that are not known
        for gpu in [one for one in shipped().gpus if one in name]:
            engine, net = Engine.of(gpu, tier_on_gpu(spec), spec.batch), sizes_of(spec)[0]
            for context in [one for one in LENGTHS if one <= longest]:
                masked, bare = (1000 * engine.attention(net, context, masked=m) for m in (True, False))
                step = 1000 * engine.step(net, context)
                rows.append({"kind": "attention", "context": context, "step_ms": round(step, 3),
                             "attention_ms": round(masked, 3), "at_full_bandwidth_ms": round(bare, 3)})  # fmt: skip
    return rows


def held(specs: Sequence[RunSpec], backend: Backend, found: Sequence[Needed], err: Console) -> list[Held]:
    """Groups of cells that share a baseline, with their longest prompts if the data sets are local."""
    absent = {one.name for one in found if one.what == "data set" and one.state == "to fetch"}
    if absent:
        say(err, [f"note: {', '.join(sorted(absent))} not here yet: prompts of {ASSUMED} tokens are assumed"])
    return [
        Held(group, ASSUMED if group[0].dataset in absent else prompts_of(group, backend).longest)
        for group in grouped(specs, lambda spec: spec.baseline)
    ]


def conclusion(found: Sequence[Needed], fit: Fit | None, backend: Backend, alone: bool) -> list[str]:
    """Notes and next steps, line by line; alone: for a target without a draft."""
    lines = [f"note: {warning}" for warning in backend.warnings]
    limit = "" if backend.context == NO_LIMIT else f"; texts have up to {backend.context:,} tokens"
    lines += [f"{'the target can be decoded' if alone else 'the pair fits together'}{limit}", backend.execution]
    if command := command_for([one.lacking for one in found]):
        lines.append(f"to fetch, with one command (a run does it, too): {command}")
    if fit is not None and fit.fits:
        free = "" if fit.free is None else f" of {gigabytes(fit.free)} free"
        enough = "just enough, by an estimate that may be off by 10 %" if fit.share > TIGHT else "enough"
        lines.append(f"memory is {enough}: about {gigabytes(fit.total)}{free} on {fit.device}")
    return lines
