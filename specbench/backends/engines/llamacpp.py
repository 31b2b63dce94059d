"""llama-server on a local port, one process per arm, queried over HTTP with token ids."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import torch

from specbench.acceptance import spread
from specbench.backends.base import drafting, parts_of, refuse_settings
from specbench.backends.checked import CheckedPair
from specbench.backends.engines.client import Lines, Watch, connections, whole
from specbench.backends.engines.external import Finished, Prompts, Start, files_of, refuse_ours
from specbench.backends.engines.install import LLAMA_CPP, libraries, llama_version
from specbench.backends.engines.process import Listening
from specbench.backends.engines.server import sent_at
from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints.gguf import gguf_of, refuse_unable
from specbench.models.execution.compile_cache import own_place
from specbench.settings import of_engine
from specbench.spec import RunSpec
from specbench.wording import clean

OPENING, DECODING = 600.0, 1800.0  # timeouts in seconds of starting and of an answer
LARGEST = 64 << 20  # bytes of an answer
LAW = ("temperature", "top_k", "top_p", "min_p")  # in the order in which the native backend applies them
CACHES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}  # dtype of keys and values, by that of the weights


@dataclass(frozen=True)
class LlamaCpp:
    program: Path
    patience: tuple[float, float] = (OPENING, DECODING)
    name: ClassVar[str] = LLAMA_CPP
    about: ClassVar[str] = "llama-server on GGUF files, a process per arm"

    def start(self, spec: RunSpec, pair: CheckedPair, places: int) -> Start:
        refuse_settings(LLAMA_CPP, spec)
        kept = str(pair.roles["target"].dtype).removeprefix("torch.")
        if kept not in CACHES:
            raise UsageError(f"--backend {LLAMA_CPP}: --dtype {kept}: use {', '.join(CACHES)}")
        threads, cache = str(torch.get_num_threads()), CACHES[kept]
        refuse_files("target", pair)
        more = of_engine(spec.engine_option, self.name)
        options = {
            "-m": "target", "-c": str(places * spec.batch), "-np": str(spec.batch),
            "-t": threads, "-tb": threads, "-ctk": cache, "-ctv": cache, "-fa": "off",
            "-ngl": "0" if pair.device.type == "cpu" else "999", "--cache-ram": "0",
        }  # fmt: skip
        drafting = drafting_options(spec, pair)
        if "-md" in drafting:
            drafting += ["-td", threads, "-tbd", threads, "-ctkd", cache, "-ctvd", cache, "-ngld", options["-ngl"]]
        own = [word for name, value in more.items() for word in (f"--{name}", str(value))]
        return {"options": [*(word for pair in options.items() for word in pair), *drafting, *own]}

    def serve(self, start: Start, pair: CheckedPair) -> "Server":
        server = Server(self.program, located(start["options"], pair), self.patience[1])
        try:
            server.wait_until(lambda: server.healthy(self.patience[0]), self.patience[0])
        except BaseException:  # also on an interrupt: it would continue loading
            server.close()
            raise
        return server

    def tier(self, spec: RunSpec) -> str:
        return "eager"

    def notes(self, spec: RunSpec, pair: CheckedPair) -> Sequence[str]:
        return (llama_version(self.program), *notes_on(spec, pair))


class Server(Listening):
    """A llama-server started here."""

    def __init__(self, program: Path, options: Sequence[str], patience: float) -> None:
        command = [str(program), *options, "--metrics", "--no-webui"]
        super().__init__(LLAMA_CPP, command, {**os.environ, **libraries(program)})
        self.patience = patience

    def healthy(self, seconds: float) -> bool:
        """Whether it says that it can answer."""
        with suppress(OSError, httpx2.HTTPError):
            return self._ask(Lines(), seconds, "GET", "/health")[0] == HTTPStatus.OK
        return False

    def decode(
        self, spec: RunSpec, prompts: Prompts, seeds: Sequence[int], ends: Sequence[int]
    ) -> tuple[list[Finished], float]:
        bodies = [body_of(spec, *one) for one in zip(prompts, seeds, strict=True)]
        lines, began = Lines(), time.perf_counter()
        if spec.batch == 1:
            found = [self._complete(one, lines) for one in bodies]
        else:
            sent = sent_at(
                [0.0] * len(bodies), lambda number: self._complete(bodies[number], lines), spec.batch,
                hang_up=lines.hang_up,
            )  # fmt: skip
            found = [one.answer for one in sent]
        return found, time.perf_counter() - began

    def _complete(self, body: Mapping[str, Any], lines: Lines) -> Finished:
        began = time.perf_counter()
        try:
            status, text = self._ask(lines, self.patience, "POST", "/completion", json.dumps(body))
        except (OSError, httpx2.HTTPError) as error:
            raise self.lost(str(error) or type(error).__name__) from error
        if status != HTTPStatus.OK:
            raise UnusableModelError(f"{LLAMA_CPP}: its server answered {status} ({clean(text, 200)})")
        return finished(text, time.perf_counter() - began)

    def _ask(self, lines: Lines, seconds: float, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        request = httpx2.Request(
            method, f"{self.url}{path}", content=body, headers={"Content-Type": "application/json"},
            extensions={"timeout": httpx2.Timeout(seconds).as_dict()},
        )  # fmt: skip
        with lines.ask(request, Watch(seconds, LARGEST), connections(own=True)) as response:
            return response.status_code, whole(response)


def body_of(spec: RunSpec, prompt: Sequence[int], seed: int) -> dict[str, Any]:
    """The body of a completion request; the server keeps nothing between requests."""
    sampling = {"temperature": spec.temperature, "top_k": spec.top_k or 0, "top_p": spec.top_p or 1.0}
    how = {"samplers": LAW, "seed": seed % (1 << 31), "ignore_eos": spec.ignore_eos, "min_p": spec.min_p or 0.0}
    kept = {"cache_prompt": False, "return_tokens": True, "stream": False}
    return {"prompt": list(prompt), "n_predict": spec.max_new_tokens, **sampling, **how, **kept}


def finished(text: str, seconds: float) -> Finished:
    """A completion from the server's answer. UnusableModelError for anything else."""
    try:
        said = json.loads(text)
        tokens, times = tuple(map(int, said["tokens"])), said["timings"]
        drafted, accepted = int(times.get("draft_n", 0)), int(times.get("draft_n_accepted", 0))
        if not 0 <= accepted <= drafted:
            raise ValueError
        first = min(float(times["prompt_ms"]) / 1000, seconds)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UnusableModelError(
            f"{LLAMA_CPP}: its server answered {clean(text)}, which is not a completion"
        ) from error
    rounds = max(len(tokens) - 1 - accepted, 0) if drafted else 0
    counts = spread(drafted, rounds), spread(accepted, rounds)
    return Finished(tokens, first, seconds, *map(tuple, counts))


def drafting_options(spec: RunSpec, pair: CheckedPair) -> list[str]:
    """The options of a method; none for the baseline. UsageError, naming the native backend, for others."""
    parts = drafting(LLAMA_CPP, spec)
    if parts is None:
        return []
    k, fields = str(parts.k(spec)), parts.fields
    if parts.drafter == "PromptLookup":
        sizes = {"size-n": str(fields.get("most", 3)), "size-m": k, "min-hits": "1"}
        return ["--spec-type", "ngram-simple", *(w for n, v in sizes.items() for w in (f"--spec-ngram-simple-{n}", v))]
    name = str(fields["model"])
    if name in pair.kept or name in pair.foreign or pair.roles[name].head is not None:
        raise UsageError(
            f"--backend {LLAMA_CPP}: it drafts with networks of the target's vocabulary, and {name} is not such a "
            "network: use --backend native"
        )
    refuse_files(name, pair)
    bounds = {"n-max": k, "n-min": "0", "p-min": "0"}
    draft = ["--spec-type", "draft-simple", "-md", name]
    return [*draft, *(word for name, value in bounds.items() for word in (f"--spec-draft-{name}", value))]


def refuse_files(name: str, pair: CheckedPair) -> None:
    """UsageError or UnusableModelError for a checkpoint without a GGUF file that cannot be converted to one."""
    role = pair.roles[name]
    refuse_ours(LLAMA_CPP, role)
    if not role.checkpoint.file:
        refuse_unable(role.checkpoint.name, role.config, role.dtype)


def located(options: Sequence[str], pair: CheckedPair) -> list[str]:
    """The server's options with files in place of model names."""
    found = list(options)
    for place in [number for number, word in enumerate(options, 1) if word in ("-m", "-md")]:
        role = pair.roles[options[place]]
        folder, files = files_of(role)
        if role.checkpoint.file:
            found[place] = str(folder / role.checkpoint.file)
        else:
            name, cache = role.checkpoint.name, own_place() / "gguf"
            found[place] = str(gguf_of(name, files, role.config, role.tokenizer, role.dtype, cache))
    return found


def notes_on(spec: RunSpec, pair: CheckedPair) -> Sequence[str]:
    """Differences of llama.cpp that change numbers."""
    found = ["keys and values are kept in the dtype of the weights (its default is f16), without flash attention"]
    if pair.roles["target"].checkpoint.file:
        found.append("weights stay packed as in the GGUF file, which other engines unpack")
    if spec.ignore_eos:
        found.append("--ignore-eos forbids the end of a sequence, where others decode on after it")
    if spec.k and spec.method != "baseline":
        found.append("acceptance is reported in totals per prompt: by position it is a mean")
        if spec.temperature > 0:
            found.append("it judges by token match with the draft's likeliest token, which accepts less than p ÷ q")
    if parts_of(spec).drafter == "PromptLookup":
        found.append("its lookup has one n, the most of the method file")
    return found
