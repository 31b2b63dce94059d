"""The plan of a job: from cells to checked pairs, with every refusal and without loading weights.

It resolves names and checks that files and data are available, the engine supports the cells, and memory suffices.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from specbench import hub
from specbench.backends.base import Backend, Held, networks_of
from specbench.backends.checked import checkpoints_of
from specbench.backends.choose import backend_for
from specbench.backends.roles import refuse_carrying
from specbench.data import sources
from specbench.data.forms import ALWAYS, NONE, ChatSettings
from specbench.data.loading import load_prompts
from specbench.data.prompts import PromptSet, digest
from specbench.errors import Missing, MissingError, UsageError
from specbench.measure import grid
from specbench.measure.course import refuse_choices
from specbench.measure.fit import roomiest
from specbench.measure.grid import AUTO
from specbench.measure.group import Failure, attempt
from specbench.measure.pair import Pair, Prepared, Unusable
from specbench.models.execution import machine
from specbench.spec import RunSpec, expanded
from specbench.wording import grouped


def check(specs: Sequence[RunSpec]) -> list[Pair]:
    """Check the pairs of some cells, as far as possible without weights. Raises the error of a sole pair."""
    pairs = [prepared(group) for group in grid.by_pair(specs)]
    refuse_unusable(pairs)
    return pairs


def check_names(specs: Sequence[RunSpec]) -> None:
    """Raise the error of a sole pair if its models are unknown by name, or a method file is invalid."""
    pairs = grid.by_pair(specs)
    if len(pairs) == 1 and specs[0].backend in (None, "transformers"):
        checkpoints_of(pairs[0])


def refuse_unusable(pairs: Sequence[Pair]) -> None:
    """Raise the error of a sole pair; with several, an error ends only the cells of its pair."""
    for pair in pairs:
        if isinstance(pair, Unusable) and len(pairs) == 1 and pair.failure.cause is not None:
            raise pair.failure.cause


def usable(pairs: Sequence[object]) -> list[Prepared]:
    """The pairs that can be loaded, as far as is known yet."""
    return [pair for pair in pairs if isinstance(pair, Prepared)]


def device_of(pairs: Sequence[object]) -> torch.device:
    """The device of the first usable pair."""
    return next((pair.backend.device for pair in usable(pairs)), torch.device("cpu"))


def prepared(specs: Sequence[RunSpec], limits: Sequence[int | None] = ()) -> Pair:
    """The cells of one pair, checked as far as possible without weights; `limits`: see `prompts_of`."""
    found = attempt(lambda: checked(specs, limits))
    return Unusable(specs, found) if isinstance(found, Failure) else found


def checked(specs: Sequence[RunSpec], limits: Sequence[int | None] = ()) -> Prepared:
    """Like `prepared`, but raises if the pair is unusable."""
    decoded = expanded(specs)
    backend = complete_backend(decoded)
    if any(spec.schedule == AUTO for spec in specs):
        networks_of(backend, "--k auto")
    for spec in specs:
        refuse_choices(spec)
    for spec in decoded:
        refuse_carrying(spec)
    prompts: dict[RunSpec, PromptSet] = {}
    for group in grouped(specs, lambda spec: spec.baseline):
        prompts |= dict.fromkeys(group, prompts_of(group, backend, limits))
    groups = grouped(specs, lambda spec: spec.baseline)
    held = [Held(expanded(one), prompts[one[0]].longest) for one in groups]
    backend, fitting = roomiest(backend, held)
    fitting = replace(fitting, left_out=machine.agreed(fitting.left_out))  # free memory differs between machines
    return Prepared(specs, backend, prompts, fitting)


def complete_backend(specs: Sequence[RunSpec]) -> Backend:
    """The backend of a pair whose checkpoints and data sets are local or can be fetched; else MissingError.

    If only a data set is missing, its reader reports that.
    """
    try:
        backend = backend_for(specs)
    except MissingError as error:
        raise MissingError([*error.parts, *lacking_data(specs)]) from error
    if len(lacking := lacking_data(specs)) > 1:
        raise MissingError(lacking)
    return backend


def lacking_data(specs: Iterable[RunSpec]) -> list[Missing]:
    """The data sets that are neither on this machine nor available for download."""
    found = []
    for dataset in dict.fromkeys(spec.dataset for spec in specs):
        if (repository := sources.repository(dataset)) is None:
            continue
        file = ""
        try:
            repository, files = sources.hub_files(dataset, repository)
            for file in files:
                hub.one_file(repository, file)
        except hub.UnavailableError as error:
            refusal = str(error).removeprefix(f"{repository.subject} ") if hub.refused(error.__cause__) else ""
            found.append(Missing("data set", dataset, str(error), repository.command(file), refusal))
    return found


def prompts_of(group: Sequence[RunSpec], backend: Backend, limits: Sequence[int | None] = ()) -> PromptSet:
    """Prompts of cells with a common baseline: they leave room for the new tokens and the longest draft of any.

    limits: earlier limits of an extended run; earlier prompts keep their positions, and the new ones follow.
    If `until_ci` sets how many are decoded, the order is random by seed, so that any prefix is a fair sample.
    """
    spec = group[0]
    room = spec.max_new_tokens + max(one.k for one in group) + 1
    found = read_prompts(spec, backend, room)
    if limits:
        return found.after([read_prompts(spec.with_(limit=limit), backend, room) for limit in limits])
    if spec.until_ci is None:
        return found
    return found.in_order(sorted(range(len(found.prompts)), key=lambda row: digest(spec.seed, row)))


def read_prompts(spec: RunSpec, backend: Backend, room: int) -> PromptSet:
    """The prompts of a cell that leave this many tokens of room in the context of its models."""
    longest = backend.context - room
    if longest < 1:
        raise UsageError(
            f"{spec.max_new_tokens} new tokens and a draft leave no room for a prompt: the context of these models is "
            f"{backend.context} tokens; lower --max-new-tokens"
        )
    return load_prompts(
        spec.dataset,
        backend.encode,
        limit=spec.limit,
        seed=spec.seed,
        longest=longest,
        column=spec.column,
        template=spec.template,
        context=spec.context,
        chat=chat_settings(spec, backend),
    )


def chat_settings(spec: RunSpec, backend: Backend) -> ChatSettings:
    """The chat settings of a spec, for the tokenizer of its target. A chosen endpoint of servers is a template."""
    template = {"chat": ALWAYS, "completions": NONE}.get(spec.endpoint or "", spec.chat_template)
    answer = spec.max_new_tokens * (backend.chat.widest if backend.chat else 1)
    arguments = json.loads(spec.chat_template_kwargs or "{}")
    thinking = arguments.pop("thinking", spec.thinking)
    if not isinstance(thinking, bool | None):
        raise UsageError(f"--chat-template-kwargs thinking={str(thinking)[:60]}: write true or false")
    return ChatSettings(
        backend.chat, template, spec.system, thinking, answer, json.dumps(arguments) if arguments else None
    )
