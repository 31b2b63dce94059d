"""llama-server on a port of this machine, one process per arm, asked over HTTP for token ids.

Knows what its processes are started with and asked for; must not know methods or statistics.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, ClassVar

import torch

from specbench.backends.apart import guard
from specbench.backends.apart.backend import Apart, opened
from specbench.backends.apart.engine import Decoded, Request, Start
from specbench.backends.apart.pipe import PATIENCE, ending, reason
from specbench.backends.apart.rounds import Finished
from specbench.backends.checked import CheckedPair
from specbench.backends.llamacpp import install, ways
from specbench.backends.server.arrivals import sent_at
from specbench.backends.server.client import Bounds, Lines
from specbench.backends.server.counts import spread
from specbench.engine_options import of_engine
from specbench.errors import UnusableModelError
from specbench.spec import RunSpec
from specbench.wording import clean

NAME = ways.NAME
OPENING, DECODING = 600.0, 1800.0  # seconds after which a server that has not answered is given up
LARGEST = 64 << 20  # bytes of an answer
GUARD = Path(guard.__file__)
LAW = ("temperature", "top_k", "top_p", "min_p")  # in the order in which ours is applied


def open_pair(specs: Sequence[RunSpec]) -> Apart:
    """The pair of some specs, checked without weights. Raises UsageError or UnusableModelError."""
    return opened(LlamaCpp(install.program()), specs)


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp by its server."""

    program: Path
    patience: tuple[float, float] = (OPENING, DECODING)
    name: ClassVar[str] = NAME

    @property
    def about(self) -> str:
        return "llama-server on GGUF files, a process per arm"

    def start(self, spec: RunSpec, pair: CheckedPair, places: int) -> Start:
        ways.refuse_settings(spec)
        threads, cache = str(torch.get_num_threads()), ways.cache_of(pair)
        ways.refuse_files("target", pair)
        more = of_engine(spec.engine_option, self.name)
        options = {
            "-m": "target", "-c": str(places * spec.batch), "-np": str(spec.batch),
            "-t": threads, "-tb": threads, "-ctk": cache, "-ctv": cache, "-fa": "off",
            "-ngl": "0" if pair.device.type == "cpu" else "999", "--cache-ram": "0",
        }  # fmt: skip
        drafting = ways.drafting(spec, pair)
        if "-md" in drafting:
            drafting += ["-td", threads, "-tbd", threads, "-ctkd", cache, "-ctvd", cache, "-ngld", options["-ngl"]]
        own = [word for name, value in more.items() for word in (f"--{name}", str(value))]
        return {"options": [*(word for pair in options.items() for word in pair), *drafting, *own]}

    def serve(self, start: Start, pair: CheckedPair) -> "Server":
        server = Server(self.program, ways.located(start["options"], pair), self.patience[1])
        try:
            server.wait(self.patience[0])
        except BaseException:  # an interrupt as well: it would go on loading
            server.close()
            raise
        return server

    def tier(self, spec: RunSpec) -> str:
        return "eager"

    def notes(self, spec: RunSpec, pair: CheckedPair) -> Sequence[str]:
        return (install.version(self.program), *ways.notes_on(spec, pair))


class Server:
    """A llama-server that was started here, and ends with this process or before."""

    def __init__(self, program: Path, options: Sequence[str], patience: float) -> None:
        self.port, self.patience = free_port(), patience
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        command = [str(program), *options, "--host", "127.0.0.1", "--port", str(self.port), "--metrics", "--no-webui"]
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(GUARD), *command], stdin=subprocess.PIPE, stdout=self._log, stderr=self._log,
            env={**os.environ, **install.libraries(program)}, start_new_session=True,
        )  # fmt: skip

    def wait(self, seconds: float) -> None:
        """Until it answers. UnusableModelError where it ends before, or takes longer."""
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            with suppress(OSError, http.client.HTTPException):
                status, _ = self._ask(Lines(), seconds, "GET", "/health")
                if status == HTTPStatus.OK:
                    return
            time.sleep(0.05)
        raise self._lost(f"not ready after {seconds:g} seconds")

    def decode(self, request: Request) -> Decoded:
        asked = [body_of(request, *one) for one in zip(request.prompts, request.seeds, strict=True)]
        lines, began = Lines(), time.perf_counter()
        if request.spec.batch == 1:
            found = [self._complete(one, lines) for one in asked]
        else:
            sent = sent_at(
                [0.0] * len(asked), lambda number: self._complete(asked[number], lines), request.spec.batch,
                hang_up=lines.hang_up,
            )  # fmt: skip
            found = [one.answer for one in sent]
        return Decoded(found, time.perf_counter() - began)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # its guard ends it
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def _complete(self, body: Mapping[str, Any], lines: Lines) -> Finished:
        began = time.perf_counter()
        try:
            status, text = self._ask(lines, self.patience, "POST", "/completion", json.dumps(body))
        except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
            raise self._lost(str(error) or type(error).__name__) from error
        if status != HTTPStatus.OK:
            raise UnusableModelError(f"{NAME}: its server answered {status} ({clean(text, 200)})")
        return finished(text, time.perf_counter() - began)

    def _ask(self, lines: Lines, seconds: float, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with lines.open(connection, Bounds(seconds, LARGEST)):
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            return response.status, response.read(LARGEST).decode(errors="replace")

    def _lost(self, why: str) -> UnusableModelError:
        """What a server that does not answer says, in one line."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)  # what has crashed may not be gone yet
        code = self.process.poll()
        said = reason(self._logged())
        self.close()
        how = f"silent ({clean(why)})" if code is None else ending(code)
        return UnusableModelError(f"{NAME}: {how} ({said})")

    def _logged(self) -> str:
        if self._log.closed:  # another request has found out before
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def body_of(request: Request, prompt: Sequence[int], seed: int) -> dict[str, Any]:
    """A completion as it is asked for; nothing is kept from one to the next."""
    spec = request.spec
    law = {"temperature": spec.temperature, "top_k": spec.top_k or 0, "top_p": spec.top_p or 1.0}
    how = {"samplers": LAW, "seed": seed % (1 << 31), "ignore_eos": spec.ignore_eos, "min_p": spec.min_p or 0.0}
    kept = {"cache_prompt": False, "return_tokens": True, "stream": False}
    return {"prompt": list(prompt), "n_predict": spec.max_new_tokens, **law, **how, **kept}


def finished(text: str, seconds: float) -> Finished:
    """A completion as the server tells it. UnusableModelError for anything else."""
    try:
        said = json.loads(text)
        tokens, times = tuple(map(int, said["tokens"])), said["timings"]
        drafted, accepted = int(times.get("draft_n", 0)), int(times.get("draft_n_accepted", 0))
        if not 0 <= accepted <= drafted:
            raise ValueError
        first = min(float(times["prompt_ms"]) / 1000, seconds)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UnusableModelError(f"{NAME}: its server answered {clean(text)}, which is no completion") from error
    rounds = max(len(tokens) - 1 - accepted, 0) if drafted else 0
    counts = spread(drafted, rounds), spread(accepted, rounds)
    return Finished(tokens, first, seconds, *map(tuple, counts))
