"""The chat of a tokenizer: transformers renders the template, and nothing is added to what the template writes.

Knows transformers' tokenizers; must not know data sets or prompts. A template is code of the checkpoint. transformers
runs it in a sandbox of Jinja, which bounds neither time nor memory: so it runs in a process of its own, `serve`, which
the system ends. That process is started for the first chat and renders all of them; it imports no torch.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

from specbench.chat import Message
from specbench.errors import UsageError, out_of_memory
from specbench.files import in_units
from specbench.wording import first_line

SECONDS = 10.0  # for one prompt; templates take milliseconds
MEMORY = 512 << 20  # bytes of the process that renders
SHORT, GROWTH = 1 << 16, 4  # letters of a text at most: the first, and this multiple of what the template reads
SERVE = "import sys; sys.path[:] = sys.argv[1:]; from specbench.models.checkpoints import chat; chat.serve()"

# Templates that ask for today's date would make other prompts every day. Llama 3 has this one for its default.
DATE = "26 Jul 2024"
DATED = "{% macro strftime_now(format) %}" + DATE + "{% endmacro +%}"
THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))  # of published models


@dataclass(frozen=True)
class TokenizerChat:
    """A tokenizer of transformers as a `specbench.chat.Chat`."""

    tokenizer: Any

    @property
    def own(self) -> str | None:
        try:
            found: str = self.tokenizer.get_chat_template()
        except (ValueError, AttributeError):  # none, several without a default, or a tokenizer that knows no chats
            return None
        return found or None

    def ids(self, template: str, messages: Sequence[Message], switches: Mapping[str, bool]) -> list[int]:
        request = {
            **self.tokenizer.special_tokens_map,
            **switches,
            "conversations": [[dict(message) for message in messages]],
            "chat_template": DATED + template if "strftime_now" in template else template,
            "add_generation_prompt": True,
        }
        text, wrong = _rendered(json.dumps(request, default=str))
        try:
            ids = [] if wrong else list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        except Exception as error:  # the tokenizers library raises bare Exceptions
            wrong = first_line(error)
        if wrong:
            raise UsageError(
                f"the chat template does not render these messages ({wrong}): change them, or give another one, or "
                "none, with --chat-template"
            )
        return ids

    def text(self, ids: Sequence[int]) -> str:
        found: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return found


_ONE_AT_A_TIME = Lock()


def _rendered(request: str) -> tuple[str, str]:
    """(what a template writes, why it writes nothing) of one request, a line of JSON."""
    with _ONE_AT_A_TIME:
        child = _renderer()
        try:
            child.stdin.write(f"{request}\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except OSError:  # it has ended already
            answer = ""
        except BaseException:  # an interrupt: what it answers now is of no later request
            _ended(child)
            raise
        if answer:
            text, wrong = json.loads(answer)
            return text, wrong
        child.wait()
        _ended(child)
    late = sys.platform != "win32" and child.returncode == -signal.SIGALRM
    return "", f"it takes more than {SECONDS:g} seconds" if late else f"its process ended: code {child.returncode}"


@cache
def _renderer() -> Any:
    """The process that runs `serve`. It ends with this one."""
    command = [sys.executable, "-P", "-c", SERVE, *sys.path]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each thread reserves memory
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=one_thread, encoding="utf-8"
    )
    atexit.register(_ended, child)
    return child


def _ended(child: Any) -> None:
    """End a renderer; the next request starts another."""
    _renderer.cache_clear()
    child.kill()
    child.wait()
    child.stdout.close()
    with suppress(OSError):  # of what was written and not read
        child.stdin.close()


def serve() -> None:
    """Answer requests from stdin with what their templates write, in bounds of time, memory and length."""
    from transformers.utils.chat_template_utils import render_jinja_template

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is meant for the process that asks
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = MEMORY if hard == resource.RLIM_INFINITY else min(hard, MEMORY)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    for line in sys.stdin:
        _end_after(SECONDS)
        answer = _answer(render_jinja_template, json.loads(line), SHORT + GROWTH * len(line))
        _end_after(0)
        print(json.dumps(answer), flush=True)


def _end_after(seconds: float) -> None:
    """The system ends this process then, even within one operation of a template; 0 calls that off."""
    if sys.platform != "win32":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _answer(render: Callable[..., Any], request: dict[str, Any], most: int) -> tuple[str, str]:
    """(the text, why it is not rendered)."""
    try:
        (text,), _ = render(**request)
    except Exception as error:  # a template raises whatever it likes
        return "", f"it takes more than {in_units(MEMORY)} of memory" if out_of_memory(error) else first_line(error)
    return ("", f"it writes {len(text):,} letters, where {most:,} are possible") if len(text) > most else (text, "")


def runs_on(tokenizer: Any, eos: Collection[int]) -> list[str]:
    """That answers do not end at the token which the tokenizer of a chat model ends them with; else nothing."""
    end = tokenizer.eos_token_id
    if TokenizerChat(tokenizer).own is None or end is None or end in eos:
        return []
    return [
        f"the tokenizer ends a turn with {tokenizer.eos_token!r} ({end}), which the generation config does not name "
        f"among {sorted(eos)}: answers may run on after their end"
    ]


def thinking_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens between which a text thinks aloud, those that open and those that close; none if there are none."""
    known = tokenizer.get_vocab()
    there = [pair for pair in THINKING if known.keys() >= {*pair}]
    return tuple(known[opens] for opens, _ in there), tuple(known[closes] for _, closes in there)
