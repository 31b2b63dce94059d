"""The body of `specbench audit`: two servers, a journal that can be continued, a certificate and an exit code."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.audit import certificate
from specbench.audit.cells import Cell, Plan, share_of
from specbench.audit.certificate import INTERRUPTED, TIMED_OUT, Audit, audit_json, headline, page, sentences, summaries
from specbench.audit.course import ARMS, Bounds, Course, Floors, Trial, floors_of
from specbench.audit.findings import acceptance_in, findings_of, score_trial, tests_of
from specbench.audit.forks import Found
from specbench.audit.probes import Probe, ServerProbe
from specbench.backends.choose import backend_for
from specbench.backends.engines.dialects import CHAT, text_of
from specbench.backends.engines.server import Server
from specbench.backends.engines.started import Started
from specbench.data.prompts import PromptSet
from specbench.errors import InterruptedRunError, NotLosslessError, ServerError, UsageError
from specbench.files import replace_text
from specbench.jobs.output import Output, say
from specbench.measure import grid
from specbench.measure.pair import resolved_pair
from specbench.measure.parsing import with_lists
from specbench.measure.plan import read_prompts
from specbench.results import folder, journal
from specbench.results.documents import AUDITED, deployment
from specbench.results.machine import command_line, now
from specbench.results.named_runs import read_json
from specbench.show import run_output
from specbench.show.fitting import draw, screen
from specbench.spec import BASELINE, RunSpec
from specbench.wording import clean, clean_path

DESCRIPTION, KEPT = "settings.json", ("settings", "requests", "at_once")
SAID = ("target", "dataset", "limit", "seed")
USUAL = {"dataset": "code", "limit": 32}
LONGEST = 1024  # tokens of a prompt
ROOM = 160  # tokens of an answer, at most

LOST = (ServerError, KeyboardInterrupt)  # what leaves an audit unfinished


@dataclass(frozen=True)
class Wanted:
    """What an audit is of, and its bounds: two servers or a pair on a backend, data, requests and minutes."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    url: str | None = None
    baseline_url: str | None = None
    requests: int | None = None
    minutes: float | None = None
    at_once: int = 8


def start_audit(wanted: Wanted, output: Output, resumed: Path | None = None) -> None:
    """Audit, write and print the certificate. NotLosslessError if a fault is proven."""
    show(*audited(wanted if resumed is None else continued(wanted, resumed), output, resumed), output)


def audited(wanted: Wanted, output: Output, resumed: Path | None = None) -> tuple[Audit, Path]:
    """Audit one arm against another; returns the audit and its folder, with the certificate."""
    err, spec = Console(stderr=True, quiet=output.quiet), spec_of(wanted)
    with opened(spec, wanted) as (baseline, arm, plan, deployed):
        say(err, [f"auditing {arm.name} ({spec.target}) against {baseline.name}"])
        began = now()
        with folder.writing_to(output.parent):
            place = resumed or folder.make_folder(output.parent, "_".join([began, "audit", folder.slug(spec.target)]))
            replace_text(place / DESCRIPTION, json.dumps({name: getattr(wanted, name) for name in KEPT}) + "\n")
        own = () if spec.backend == "openai" else ("draft", "method", "backend", "spec_config", "spec_args")
        settings = {name: getattr(spec, name) for name in (*SAID, *own)} | {"k": plan.k, "at_once": plan.at_once}
        with journaled(place) as (known, keep):
            bounds = Bounds(wanted.requests, None if wanted.minutes is None else time.monotonic() + 60 * wanted.minutes)
            course = Course(baseline, arm, plan, bounds, known, keep, lambda name: say(err, [f"  {name} …"]))
            if draft := draft_of(spec, wanted):
                from specbench.audit.local import Agreement

                course.agrees = Agreement(draft)
            clock = time.monotonic()
            found, left = answers(course)
            clock = time.monotonic() - clock
            rate = course.sent / len(ARMS) / clock  # without those of an earlier start
            made = judged(course, found, left, began, settings, deployed, clock, rate)
            write(place, made, course)
    return made, place


def continued(wanted: Wanted, place: Path) -> Wanted:
    """The settings of an earlier start, with the servers and bounds of this one: a file names no server that gets a
    key."""
    if wanted.settings:
        name = min(wanted.settings).replace("_", "-")
        raise UsageError(f"--resume takes all settings from the audit that it continues: leave out --{name}")
    if not (place / journal.FILE).is_file():
        raise UsageError(f"{clean_path(place)} is not the folder of an audit: see --output-dir of the one to continue")
    before = read_json(place / DESCRIPTION)
    try:
        settings, at_once = dict(before["settings"]), int(before["at_once"])
        return replace(wanted, settings=settings, at_once=at_once, requests=wanted.requests or before["requests"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{clean_path(place / DESCRIPTION)} is not usable ({clean(error)}): start again") from None


def spec_of(wanted: Wanted) -> RunSpec:
    """The data, the pair and the method of an audit as a cell."""
    given = {**USUAL, **wanted.settings}
    if wanted.url is None:
        spec = cell_of({"tier": "eager", **given})
        if spec.method == BASELINE or spec.backend == "openai":
            raise UsageError("specbench audit: name two servers with --url and --baseline-url, or a --method of a pair")
        return spec
    if "target" not in given:
        raise UsageError("specbench audit: name the served model with --target")
    given.pop("draft", None)  # see `draft_of`
    if others := sorted({"method", "backend"} & given.keys()):
        raise UsageError(f"--{others[0]} is about a pair that specbench decodes itself: leave it out with --url")
    servers = {"backend": "openai", "url": wanted.url, "baseline_url": wanted.baseline_url}
    return cell_of({**given, **servers, "max_new_tokens": 1})


def draft_of(spec: RunSpec, wanted: Wanted) -> RunSpec | None:
    """The model that drafts token by token, as a target; None if there is none, or it is not named."""
    arm = spec.spec_config or ""
    alone = spec.method == "chain" and (
        arm in ("", "draft-model") or ('"draft_model"' in arm and "parallel" not in arm)
    )
    draft = wanted.settings.get("draft") if wanted.url else spec.draft if alone else None
    return cell_of({"target": draft, "method": BASELINE, "tier": "eager", "device": "cpu"}) if draft else None


def cell_of(settings: Mapping[str, Any]) -> RunSpec:
    """The only cell of some settings."""
    spec, *more = grid.cells(with_lists(settings))
    if more:
        raise UsageError("an audit has one value of every setting: give one --dataset, one --method, one --k")
    return spec


@contextmanager
def opened(spec: RunSpec, wanted: Wanted) -> Iterator[tuple[Probe, Probe, Plan, dict[str, str]]]:
    """The two arms, what they are asked, and the deployment of the audited one."""
    share = 1.0 if wanted.requests is None else share_of(wanted.requests)
    backend = backend_for([spec] if spec.backend == "openai" else [spec.baseline, spec])
    resolved = {**resolved_pair(backend), "engine_notes": "; ".join(backend.notes(spec))}
    deployed = deployment({**spec.model_dump(mode="json"), **resolved})
    if isinstance(backend, Server):
        both = (spec.baseline, spec)
        started = [backend.ready(one).url for one in both] if isinstance(backend, Started) else []
        urls = started or [str(wanted.baseline_url), str(wanted.url)]
        try:
            baseline, audited = (ServerProbe.of(url, spec.target) for url in urls)
            yield baseline, audited, served_plan(spec, wanted, backend, baseline, audited, share), deployed
        finally:
            backend.unload()
        return
    from specbench.audit.local import LocalProbe

    places = min(LONGEST + ROOM, backend.context - spec.k - 2)
    prompts = [one.ids[-(places - ROOM) :] for one in read_prompts(spec, backend, ROOM).prompts]
    backend.load(places)
    try:
        plan = Plan(prompts, spec.k, places - ROOM, wanted.at_once, share)
        yield LocalProbe(backend, spec.baseline, places), LocalProbe(backend, spec, places), plan, deployed
    finally:
        backend.unload()


def served_plan(
    spec: RunSpec, wanted: Wanted, backend: Server, baseline: ServerProbe, audited: ServerProbe, share: float
) -> Plan:
    """The prompts as ids of the baseline server, and the longest draft of the audited one."""
    prompts = read_prompts(spec, backend, 1)
    context = max(min(baseline.context(), audited.context(), LONGEST + ROOM) - ROOM, 16)
    chats = conversations(prompts)
    ids = [baseline.render(messages, text)[-context:] for messages, text in chats]
    counters = audited.client.counters()
    k = int(wanted.settings.get("k") or (len(counters.by_position) if counters else 0) or spec.k)
    return Plan(ids, min(k, 32), context, wanted.at_once, share, [tuple(messages) for messages, _ in chats])


def conversations(prompts: PromptSet) -> list[tuple[list[Mapping[str, Any]], str]]:
    """The prompts as messages and as text."""
    found: list[tuple[list[Mapping[str, Any]], str]] = []
    for prompt in prompts.prompts:
        if prompt.ids[:1] == (CHAT,):
            messages = json.loads(text_of(prompt.ids[1:]))["messages"]
            found.append((messages, "\n".join(str(one.get("content") or "") for one in messages)))
        else:
            found.append(([{"role": "user", "content": text_of(prompt.ids)}], text_of(prompt.ids)))
    return found


@contextmanager
def journaled(place: Path) -> Iterator[tuple[dict[str, Any], Any]]:
    """What the journal of an audit holds already, and how to add to it."""
    with folder.writing_to(place):
        lines = journal.Journal(place / journal.FILE)
    known = {name: value for body in journal.read_bodies(place / journal.FILE) for name, value in body.items()}
    try:
        yield known, lines.append
    finally:
        lines.close()


def answers(course: Course) -> tuple[list[tuple[Cell, list[Trial]]], str]:
    """All trials, and why they ended early, if they did. Scores are requested after every cell, so that the time of
    an audit holds them."""
    found: list[tuple[Cell, list[Trial]]] = []
    try:
        for cell, trials in course.trials():
            found.append((cell, trials))
            with suppress(ServerError):  # later ones may be answered all the same
                if len(found) == 1:
                    floors_of(course, found)
                for one in trials if not course.lost else []:
                    score_trial(course, cell, one)
    except LOST as error:
        return found, f"{error}, in the part {course.part}" if isinstance(error, ServerError) else INTERRUPTED
    short = found and len(found[-1][1]) < len(found[-1][0].asks) * found[-1][0].passes
    return found, TIMED_OUT if short else ""


def scored(course: Course, found: Sequence[Found]) -> tuple[Floors, list[Found]]:
    """The floors, and the trials with all scores that judge them: in order, until the baseline is lost."""
    floors, kept = Floors(), [(cell, list[Trial]()) for cell, _ in found]
    try:
        floors = floors_of(course, found)
        for (cell, trials), (_, own) in zip(found, kept, strict=True):
            for one in trials:
                score_trial(course, cell, one)
                own.append(one)
    except LOST as error:
        lost = f"{error}, while answers were judged" if isinstance(error, ServerError) else INTERRUPTED
        course.lost = course.lost or lost
    return floors, list(kept)


def judged(
    course: Course, found: Sequence[Found], left: str, began: str, settings: Mapping[str, Any],
    deployed: Mapping[str, str], seconds: float, rate: float,
) -> Audit:  # fmt: skip
    floors, kept = scored(course, found)
    tests = tests_of(course, kept, floors)
    findings = findings_of(course, found, kept, floors, tests)
    shown = [{"part": cell, "test": one.name, "tokens": one.tokens, "found": one.found, "expected": one.expected,
              "p": p, "smallest": one.smallest} for (cell, _), (one, p) in tests.items()]  # fmt: skip
    arms = {"baseline": course.baseline.name, "audited": course.audited.name}
    return Audit(
        began, command_line(), arms, floors, summaries(kept, findings), findings, floors.positions > 0, seconds,
        settings, deployed, shown, rate, left or course.lost, acceptance_in(found),
    )  # fmt: skip


def write(place: Path, made: Audit, course: Course) -> None:
    """The certificate as JSON and Markdown, and requests that show every fault."""
    with folder.writing_to(place):
        replace_text(place / AUDITED, audit_json(made))
        replace_text(place / certificate.PAGE, page(made))
        certificate.write_reproductions(place, made, course)


def show(made: Audit, place: Path, output: Output) -> None:
    """Print the certificate, and raise the error for the exit code."""
    err = Console(stderr=True, quiet=output.quiet)
    if output.style == "json":
        sys.stdout.write(audit_json(made))
    elif output.style == "md":
        sys.stdout.write(page(made))
    elif output.style in ("csv", "jsonl"):
        sys.stdout.write(run_output.rendered([vars(cell) for cell in made.cells], output.style))
    else:
        draw(screen(), certificate.table(made).drawn())
        say(screen(), [*headline(made), *sentences(made)])
    say(err, [f"certificate: {place / certificate.PAGE}"])
    same = "" if "backend" in made.settings else " and the same --url and --baseline-url"
    more = f"continue with specbench audit --resume {place}{same}"
    if made.faults:
        say(err, [more] * made.unfinished)
        first = made.faults[0]
        shown = f" (requests that show it: {place}/fault-1.sh)" if first.trial else ""
        many = f"{len(made.faults)} faults, the first" if len(made.faults) > 1 else "a fault"
        raise NotLosslessError(f"{many}: {first.cell}: {clean(first.detail, 300)}{shown}")
    if made.unfinished:
        raise InterruptedRunError(more) if made.left == INTERRUPTED else ServerError(f"{made.left}; {more}")
