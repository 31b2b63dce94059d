"""`--resume`: continue an interrupted run, or add prompts to a finished one, if its numbers would not mix.

A file may not decide whose code runs on this machine or which server gets the key: both must be typed.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from specbench.backends.engines.client import KEY, api_key
from specbench.backends.engines.server import NAME
from specbench.chat import read
from specbench.decoding.method_files import content_sha256, python_files
from specbench.errors import UsageError
from specbench.jobs.cluster import Spread
from specbench.jobs.output import Output
from specbench.jobs.run import Executor, Outcome, Plan, Terminal, Watch, conclude, measure, refuse_several
from specbench.jobs.worker import RayCluster
from specbench.measure import grid
from specbench.measure.group import Failure, Past
from specbench.measure.pair import Pair, Prepared, Unusable
from specbench.measure.plan import prepared, refuse_unusable, usable
from specbench.models.execution import machine as processes
from specbench.results.cells import UNFINISHED, Cell
from specbench.results.folder import RunFolder
from specbench.results.machine import environment
from specbench.results.reading import DESCRIPTION, Run, read_run
from specbench.settings import Options
from specbench.spec import RunSpec, methods_of
from specbench.wording import clean, clean_path

ENDED = Failure("skipped", "")  # for a pair whose cells had all ended; no cell shows it
VERSIONS = ("specbench", "torch", "transformers")
MACHINE = ("device_name", "threads", *VERSIONS)
HOST = ("cpu", "cores", "platform", "python")  # without the threads, which some backends set on opening
PORTS = {"http": 80, "https": 443}
# Engine options that name files, hosts, other models or code; and values that could be one of these.
NAMING = re.compile(
    r"file|path|dir|cls|class|plugin|module|model|tokenizer|load|format|url|host|config|lora|code|hf", re.I
)
NAMES = re.compile(r"[/\\:{\[]|[a-z_]\.", re.I)


@dataclass(frozen=True)
class Typed:
    """Permissions given on the command line or in the function call: trust of code, server URLs, methods, and words for
    the command lines of servers."""

    trust_remote_code: bool = False
    urls: tuple[str, ...] = ()
    engine_options: Options = ()
    methods: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


NOTHING = Typed()


def resume(
    path: Path, output: Output, executor: Executor = "local", limit: int | None = None, typed: Typed = NOTHING
) -> None:
    """Continue a killed or interrupted run; with a larger limit, add prompts."""
    with processes.together():
        done = record_rest(path, Terminal(output), executor, limit, typed)
        if processes.first():
            conclude(done, output)


def record_rest(
    path: Path, watch: Watch, executor: Executor = "local", limit: int | None = None, typed: Typed = NOTHING
) -> Outcome:
    """Measure the missing part of a run into its folder, up to a larger limit if given.

    UsageError, before opening anything that the folder names, if it is from another machine or needs trust.
    """
    refuse_several(executor)
    if not processes.first():
        elsewhere: Any = None  # the first process's data
        run, past = processes.agreed(elsewhere)
        return measure(Plan(pairs_left(run, past), executor, {}), None, watch, past)
    with closing(RunFolder.resume(path)) as folder:
        run = read_run(path)
        if executor != "local" and (limit is not None or run.limits):
            raise UsageError(f"prompts are added to a run in one process: leave out --executor {executor}")
        described_machine(run)
        if left := unfinished(run.specs, folder.past) if limit is None else run.specs:
            names = VERSIONS if executor == "ray" else (*VERSIONS, *HOST)
            refuse_other(described_machine(run), environment(torch.device("cpu")), names)
            refuse_untyped(left, typed, str(path / DESCRIPTION))
        refuse_unused(run.specs, typed)
        if limit is not None:
            grow(folder, run, limit)
            run = read_run(path)
        processes.agreed((run, folder.past))
        on_ray: list[Spread] = [Spread(run.specs, RayCluster())] if executor == "ray" else []
        return measure(Plan(on_ray or pairs_left(run, folder.past), executor, run.description), folder, watch)


def pairs_left(run: Run, past: Past) -> list[Pair]:
    """The pairs of a continued run. Raises the error of a sole pair, and UsageError if numbers would mix."""
    pairs = [
        prepared(group, run.limits) if unfinished(group, past) else Unusable(group, ENDED)
        for group in grid.by_pair(run.specs)
    ]
    refuse_unusable(pairs)
    for pair in usable(pairs):
        same_ground(run.description, pair, past)
    return pairs


def described_machine(run: Run) -> Mapping[str, Any]:
    """The recorded machine of a run. UsageError if it is missing."""
    found = run.description.get("environment")
    if not isinstance(found, dict):
        raise UsageError(f"{run.path / DESCRIPTION} is damaged (it has no environment): start a new run")
    return found


def unfinished(specs: Sequence[RunSpec], past: Past) -> list[RunSpec]:
    """The cells that a continued run has to measure."""
    return [spec for spec in specs if spec not in past or past[spec].status in UNFINISHED]


def same_ground(description: Mapping[str, Any], pair: Prepared, past: Past) -> None:
    """Raise UsageError if a continued run would mix machines, versions or sets of prompts."""
    before, today = description["environment"], environment(pair.backend.device)
    # A grid may have a second device; run.json holds the fingerprint of the first.
    names = VERSIONS if before.get("device") != today["device"] else (*VERSIONS, "fingerprint")
    refuse_other(before, today, names)
    for cell in past.values():
        refuse_changed(cell, pair.specs)
    for spec in pair.specs:
        refuse_elsewhere(past.get(spec), today)
        if spec in past and past[spec].resolved["prompts_sha256"] != pair.prompts[spec].sha256:
            raise UsageError(f"the prompts of {spec.dataset} have changed since this run was begun: start a new run")


def refuse_other(before: Mapping[str, Any], today: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise UsageError if two environments differ in these facts."""
    other = [name for name in names if before.get(name) != today[name]]
    if other:
        shown = [name for name in other if name != "fingerprint"] or MACHINE
        raise UsageError(
            f"this run was begun on another machine or with other versions ({in_words(before, shown)}; here "
            f"{in_words(today, shown)}): its numbers would mix; start a new run"
        )


def refuse_elsewhere(cell: Cell | None, today: Mapping[str, Any]) -> None:
    """Raise UsageError for an unfinished cell whose samples come from another node of a cluster."""
    if cell is None or not cell.samples or cell.status not in UNFINISHED or "node" not in cell.resolved:
        return
    if cell.resolved.get("fingerprint") != today["fingerprint"]:
        raise UsageError(
            f"cell {cell.spec.key} was begun on {cell.resolved['node']}, another machine than this one: its numbers "
            "would mix; continue with --executor ray"
        )


def refuse_changed(cell: Cell, specs: Sequence[RunSpec]) -> None:
    """Raise UsageError if a method is needed again, has samples, and its files have changed."""
    if not any(cell.spec.method == spec.method and cell.spec.choices == spec.choices for spec in specs):
        return
    if (now := content_sha256(methods_of(cell.spec))) != cell.resolved.get("method_sha256", now):
        raise UsageError(
            f"{clean(cell.spec.choices or cell.spec.method, 300)}, or a Python file that it names, has changed since "
            "this run was begun: its numbers would mix; start a new run"
        )


def in_words(machine: Mapping[str, Any], names: Sequence[str] = MACHINE) -> str:
    """Facts about a machine and its versions, for a message."""
    return ", ".join(f"{name} {clean(machine.get(name))}" for name in names)


def grow(folder: RunFolder, run: Run, limit: int) -> None:
    """Set all cells of a run to `limit` prompts of each data set.

    UsageError, with nothing changed, if new prompts would change how earlier ones were decoded, or there are no more.
    """
    limits = {spec.limit for spec in run.specs}
    if len(limits) > 1 or None in limits:
        said = "was given all prompts of its data sets" if limits == {None} else "has cells with several limits"
        raise UsageError(f"{clean_path(run.path)} {said}: --limit adds none to it; start a new run")
    (before,) = (one for one in limits if one is not None)
    if limit <= before:
        where = clean_path(run.path)
        raise UsageError(f"--limit {limit}: {where} has {before} already; give a larger one to add prompts")
    refuse_dependent(run, folder.past)
    groups = grid.by_pair(run.specs)
    more = [one for group in groups for one in pair_columns(group, run, folder.past, before, limit)]
    if not any(new for new, _, _ in more):
        raise UsageError(f"--limit {limit}: the data sets of {clean_path(run.path)} have no more prompts that fit")
    folder.grow(before, limit, {key: columns for _, key, columns in more})


def refuse_dependent(run: Run, past: Past) -> None:
    """Raise UsageError if the decoding of a prompt depends on the others."""
    for spec in run.specs:
        carries = spec in past and past[spec].resolved.get("carries")
        why = {
            "it decodes prompts in batches": spec.batch > 1,
            "it repeats them": spec.repeat > 1,
            "--until-ci decides how many it takes": spec.until_ci is not None,
            f"{carries} learns from prompt to prompt": bool(carries),
        }
        if reasons := [reason for reason, holds in why.items() if holds]:
            raise UsageError(
                f"no prompts can be added to {clean_path(run.path)}: {reasons[0]}, so that the new ones would come "
                "between the others; start a new run"
            )


def pair_columns(
    specs: Sequence[RunSpec], run: Run, past: Past, before: int, limit: int
) -> list[tuple[int, str, Mapping[str, Any]]]:
    """For every cell of a pair: its number of new prompts, its current key, and its new columns about prompts."""
    grown = [spec.with_(limit=limit) for spec in specs]
    old, new = prepared(specs, run.limits), prepared(grown, [*run.limits, before])
    pairs: list[Pair] = [old, new]
    for pair in pairs:
        refuse_unusable([pair])
    for earlier in usable([old]):
        same_ground(run.description, earlier, past)
    prompts = [pair.prompts for pair in usable(pairs)]
    return [
        (prompts[1][then].turns - prompts[0][now].turns, now.key, prompts[1][then].row())
        for now, then in zip(specs, grown, strict=True)
        if len(prompts) == len(pairs)
    ]


def refuse_untyped(specs: Sequence[RunSpec], typed: Typed, file: str) -> None:
    """Raise UsageError if cells from a file would run code, or send the key to a server, without typed permission."""
    if not typed.trust_remote_code and any(spec.trust_remote_code for spec in specs):
        raise UsageError(
            f"{clean(file, 300)} sets trust_remote_code, which runs code of its checkpoints here, and a file must not "
            "decide that: review that code, then add --trust-remote-code"
        )
    given = [one for spec in specs for one in spec.engine_option if one not in typed.engine_options]
    if naming := [
        f"{name}={value}"
        for name, value in given
        if isinstance(read(value), str | list | dict) and (NAMING.search(name) or NAMES.search(value))
    ]:
        raise UsageError(
            f"{clean(file, 300)} gives an engine {clean(naming[0])}, which can name files or code, and a file must not "
            f"decide that: add --engine-option {clean(naming[0])}"
        )
    known = [read(one) for one in typed.words]
    if foreign := next((one for spec in specs for one in words_of(spec) if read(one[1]) not in known), None):
        raise UsageError(
            f"{clean(file, 300)} starts servers with {clean(foreign[1], 300)}, which can name files or code, and a "
            f"file must not decide that: review it, then give the same --{foreign[0].replace('_', '-')} on the command "
            "line"
        )
    for method in dict.fromkeys(name for spec in specs for name in methods_of(spec) if name not in typed.methods):
        if code := code_of(method):
            raise UsageError(
                f"{clean(file, 300)} has the method {clean(method, 300)}, which runs {clean_path(code[0])}, and a file "
                f"must not decide that: review the code, then add --method {clean(method, 300)}"
            )
    named = {origin(url) for url in typed.urls}
    other = [origin(url) for url in servers(specs) if origin(url) not in named]
    if other and api_key():
        raise UsageError(
            f"{KEY} is set and {clean(file, 300)} names the server {clean(other[0])}: name it with --url URL (or "
            "--baseline-url URL), or unset the key"
        )


def refuse_unused(specs: Sequence[RunSpec], typed: Typed) -> None:
    """Raise UsageError for a typed permission that no cell of the continued run uses."""
    known = {origin(url) for url in servers(specs)}
    unused = [f"--url {clean(url)}" for url in typed.urls if origin(url) not in known]
    given = {one for spec in specs for one in spec.engine_option}
    unused += [f"--engine-option {clean('='.join(one))}" for one in typed.engine_options if one not in given]
    words = [read(one) for spec in specs for _, one in words_of(spec)]
    unused += [f"the words {clean(one)}" for one in typed.words if read(one) not in words]
    if typed.trust_remote_code and not any(spec.trust_remote_code for spec in specs):
        unused.append("--trust-remote-code")
    ours = {name for spec in specs for name in methods_of(spec) if code_of(name)}
    unused += [f"--method {clean(name)}" for name in typed.methods if name not in ours]
    if unused:
        raise UsageError(
            f"the run that --resume continues has its own settings and no use for {unused[0]}: leave it out"
        )


def words_of(spec: RunSpec) -> list[tuple[str, str]]:
    """The words of a cell for command lines of servers, by their setting; the name of an arm is none."""
    found = [("server_args", spec.server_args), ("spec_args", spec.spec_args), ("spec_config", spec.spec_config)]
    return [(name, words) for name, words in found if words and not (name == "spec_config" and words[0] != "{")]


def code_of(method: str) -> list[Path]:
    """The Python files of a method; none if it cannot be read, which its cell then reports."""
    try:
        return python_files(method)
    except UsageError:
        return []


def servers(specs: Sequence[RunSpec]) -> list[str]:
    """The URLs of the servers of the cells."""
    urls = [url for spec in specs if spec.backend == NAME for url in (spec.url, spec.baseline_url)]
    return list(dict.fromkeys(url for url in urls if url))


def origin(url: str) -> str:
    """The scheme, host and port of a URL, which identify the receiver; the text itself if it is not a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return url
    return f"{parts.scheme}://{parts.hostname}:{port}"
