"""Tokenizers: the bytes of their tokens, and their chat templates.

Tokenizers write the same text in different alphabets (a space is Ġ in one and ▁ in another, a byte is a
letter or <0x0A>), so tokens can be compared by their bytes only. A chat template is code of the checkpoint.
transformers runs it in a sandbox of Jinja, which bounds neither time nor memory: so it runs in a separate
process, `serve`, which is started for the first chat, renders all of them, and does not import torch.
"""

import atexit
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate
from threading import Lock
from typing import Any, Literal

from specbench.chat import Message
from specbench.errors import UsageError, out_of_memory
from specbench.files import in_units
from specbench.wording import first_line

SECONDS = 10.0  # per prompt; templates take milliseconds
MEMORY = 512 << 20  # bytes of the rendering process
SHORT, GROWTH = 1 << 16, 4  # maximum length of a text: the first number, or this multiple of the template's input
SERVE = "import sys; sys.path[:] = sys.argv[1:]; from specbench.models.checkpoints import tokenizers as t; t.serve()"

# Templates that insert today's date would change prompts every day. This is Llama 3's default date.
DATE = "26 Jul 2024"
DATED = "{% macro strftime_now(format) %}" + DATE + "{% endmacro +%}"
THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))  # of published models


@dataclass(frozen=True)
class TokenizerChat:
    """A tokenizer of transformers as a `specbench.chat.Chat`."""

    tokenizer: Any
    columns: tuple[str, ...] = ()
    widest: int = 1

    @property
    def own(self) -> str | None:
        try:
            found: str = self.tokenizer.get_chat_template()
        except (ValueError, AttributeError):  # no template, several without a default, or a tokenizer without chats
            return None
        return found or None

    def ids(self, template: str, messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        request = {
            **self.tokenizer.special_tokens_map,
            **arguments,
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
    """(rendered text, error) of one request, a line of JSON."""
    with _ONE_AT_A_TIME:
        child = _renderer()
        try:
            child.stdin.write(f"{request}\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except OSError:  # it has already ended
            answer = ""
        except BaseException:  # an interrupt: a late answer would be read by the next request
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
    with suppress(OSError):  # unread output
        child.stdin.close()


def serve() -> None:
    """Answer requests from stdin with rendered templates, in bounds of time, memory and length."""
    from transformers.utils.chat_template_utils import render_jinja_template

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is meant for the calling process
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
    """Let the system end this process after this time, even within one operation of a template; 0 cancels."""
    if sys.platform != "win32":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _answer(render: Callable[..., Any], request: dict[str, Any], most: int) -> tuple[str, str]:
    """(the text, the error if it is not rendered)."""
    try:
        (text,), _ = render(**request)
    except Exception as error:  # templates raise arbitrary errors
        return "", f"it takes more than {in_units(MEMORY)} of memory" if out_of_memory(error) else first_line(error)
    return ("", f"it writes {len(text):,} letters, where {most:,} are possible") if len(text) > most else (text, "")


def runs_on(tokenizer: Any, eos: Collection[int]) -> list[str]:
    """A warning if the end token of a chat model's tokenizer does not end answers."""
    end = tokenizer.eos_token_id
    if TokenizerChat(tokenizer).own is None or end is None or end in eos:
        return []
    return [
        f"the tokenizer ends a turn with {tokenizer.eos_token!r} ({end}), which the generation config does not name "
        f"among {sorted(eos)}: answers may run on after their end"
    ]


def thinking_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that open and those that close a span of reasoning; empty if there are none."""
    known = tokenizer.get_vocab()
    there = [pair for pair in THINKING if known.keys() >= {*pair}]
    return tuple(known[opens] for opens, _ in there), tuple(known[closes] for _, closes in there)


Kind = Literal["bytes", "spaces", "pieces", "words", "plain"]
SPACE = "▁"  # of sentencepiece
PIECE = "##"  # of WordPiece: prefix of a token that continues a word
BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
ANCHOR = "\n"  # written before text from the middle: no tokenizer merges across it


def alphabet() -> dict[str, int]:
    """The letters that byte-level tokenizers use for bytes (GPT-2, Radford et al. 2019):
    printable ones are themselves, the others are mapped to letters from 256 on."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + i): byte for i, byte in enumerate(others)}


LETTERS = alphabet()


@dataclass(frozen=True, eq=False)
class Spelling:
    """The tokens of a tokenizer as bytes; `kind` is their encoding.

    bytes: letters for bytes; spaces: ▁ for a space, <0x0A> for a byte; pieces: a space before
    tokens without ##; words: a space before every token; plain: unchanged.
    """

    tokenizer: Any
    kind: Kind
    special: dict[int, str] = field(repr=False)  # the content of tokens that are not text, by id

    @cached_property
    def tokens(self) -> dict[int, bytes]:
        """The bytes of every token that is text, by id."""
        added = {number: one.content for number, one in self.tokenizer.added_tokens_decoder.items()}
        found = {n: spelled(token, self.kind) for token, n in self.tokenizer.get_vocab().items() if n not in added}
        found |= {number: content.encode() for number, content in added.items()}
        return {n: text for n, text in sorted(found.items()) if text and n not in self.special}

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The one id of every spelling: if there are several, one that is not a single byte, then the lowest."""
        single = {n for token, n in self.tokenizer.get_vocab().items() if byte_of(token) is not None}
        order = sorted(self.tokens, key=lambda n: (n in single and self.kind == "spaces", n), reverse=True)
        return {self.tokens[n]: n for n in order}

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.ids), default=0)

    @cached_property
    def begins(self) -> bytes:
        """The prefix that the tokenizer adds to a text: nothing, or a space."""
        return b"" if (found := self.bytes_of(self.encode("a"))) is None else found[: max(len(found) - 1, 0)]

    @cached_property
    def unknown(self) -> int:
        """The id for text that cannot be spelled."""
        known = (self.tokenizer.unk_token_id, self.tokenizer.eos_token_id)
        return next((int(number) for number in known if number is not None), 0)

    def bytes_of(self, ids: Sequence[int]) -> bytes | None:
        """The text of some tokens; None if one of them is not text."""
        found = [self.tokens.get(number) for number in ids]
        return None if None in found else b"".join(text for text in found if text is not None)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens around it."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def fragment(self, text: bytes) -> list[int]:
        """The tokens of bytes from anywhere in a text, as the tokenizer writes them if possible: an added
        prefix is cut off. Their bytes are exactly these, except for text that cannot be spelled."""
        return [
            number
            for part, whole in characters(text)
            for number in (self._inside(part) if whole else self.greedy(part))
        ]

    def beginning(self, text: bytes) -> list[int]:
        """The tokens of a text from its beginning, including the tokenizer's prefix."""
        (first, whole), *others = characters(text) or [(b"", True)]
        ids = self.encode(first.decode()) if whole else []
        if self.bytes_of(ids) != self.begins + first:
            return self.fragment(text)
        return [*ids, *(number for part, _ in others for number in self.fragment(part))]

    def _inside(self, text: bytes) -> list[int]:
        whole = text.decode()
        # a tokenizer may add a space before a text
        trials = [whole, *([whole[1:]] if whole.startswith(" ") else []), f"{ANCHOR}{whole}"]
        for trial in trials:
            ids = self.encode(trial)
            lengths = [len(self.tokens.get(number, b"")) for number in ids]
            left = [sum(lengths), *(sum(lengths) - end for end in accumulate(lengths))]
            if (self.bytes_of(ids) or b"").endswith(text) and len(text) in left:
                return ids[left.index(len(text)) :]
        return self.greedy(text)

    def greedy(self, text: bytes) -> list[int]:
        """Repeated longest matches: for bytes that are not characters."""
        found, at = [], 0
        while at < len(text):
            sizes = range(min(self.longest, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self.ids), 0)
            found.append(self.ids[text[at : at + size]] if size else self.unknown)
            at += size or 1
        return found

    def fragments(self, texts: Sequence[bytes]) -> Iterator[list[int]]:
        """`fragment` for many texts, most of them in one call of the tokenizer."""
        decoded = [text.decode(errors="replace") for text in texts]
        together = self.tokenizer(decoded, add_special_tokens=False).input_ids if decoded else []
        for text, ids in zip(texts, together, strict=True):
            yield list(ids) if self.bytes_of(ids) == text else self.fragment(text)


def spelling_of(tokenizer: Any) -> Spelling:
    added = tokenizer.added_tokens_decoder.items()
    special = {number: one.content for number, one in added if one.special}
    special |= dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    return Spelling(tokenizer, kind_of(tokenizer), special)


def kind_of(tokenizer: Any) -> Kind:
    """The encoding of a tokenizer's tokens, from its components; from the tokens if these do not show it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    made = [part_of(backend, name) for name in ("decoder", "pre_tokenizer", "normalizer")]
    if any("ByteLevel" in part for part in made[:2]):
        return "bytes"
    if any(SPACE in part or "Metaspace" in part for part in made):
        return "spaces"
    if "WordPiece" in made[0] or "WordPiece" in type(getattr(backend, "model", None)).__name__:
        return "pieces"
    if backend is not None:
        return "words" if not made[0] and "Whitespace" in made[1] else "plain"
    starts = {token[:1] for token in tokenizer.get_vocab()}
    return "spaces" if SPACE in starts else "bytes" if "Ġ" in starts else "plain"


def part_of(backend: Any, name: str) -> str:
    """A serialised component of a tokenizer; "" if missing."""
    part = getattr(backend, name, None)
    return "" if part is None else json.dumps(json.loads(part.__getstate__()), ensure_ascii=False)


def spelled(token: str, kind: Kind) -> bytes:
    if kind == "bytes":
        return bytes(LETTERS[c] for c in token) if all(c in LETTERS for c in token) else token.encode()
    if kind == "spaces":
        return byte if (byte := byte_of(token)) is not None else token.replace(SPACE, " ").encode()
    if kind == "pieces" and token.startswith(PIECE):
        return token.removeprefix(PIECE).encode()
    return (token if kind == "plain" else f" {token}").encode()


def byte_of(token: str) -> bytes | None:
    """The byte of a token such as <0x0A>."""
    found = BYTE.fullmatch(token)
    return bytes.fromhex(found[1]) if found else None


def characters(text: bytes) -> list[tuple[bytes, bool]]:
    """Bytes in parts: whole characters, and bytes that are not characters."""
    found: list[tuple[bytes, bool]] = []
    while text:
        try:
            text.decode()
            return [*found, (text, True)]
        except UnicodeDecodeError as error:
            good, bad, text = text[: error.start], text[error.start : error.end], text[error.end :]
            found += [(good, True)] * bool(good) + [(bad, False)]
    return found
