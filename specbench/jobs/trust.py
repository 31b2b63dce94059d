"""What no file may decide: whose code runs on this machine, and which server gets the key. Both must be typed.

Knows cells and what was typed beside them; must not know how a checkpoint or a server is opened.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from specbench.backends.server.backend import NAME
from specbench.backends.server.client import KEY, api_key
from specbench.engine_options import Options, read
from specbench.errors import UsageError
from specbench.spec import RunSpec
from specbench.wording import clean

PORTS = {"http": 80, "https": 443}
# Engine options that name files, hosts, other models or code; and values that may be one of these.
NAMING = re.compile(
    r"file|path|dir|cls|class|plugin|module|model|tokenizer|load|format|url|host|config|lora|code|hf", re.I
)
NAMES = re.compile(r"[/\\:{\[]|[a-z_]\.", re.I)


@dataclass(frozen=True)
class Typed:
    """What the command line itself says, or the call of a function: that code may run, and the servers' URLs."""

    trust_remote_code: bool = False
    urls: tuple[str, ...] = ()
    engine_options: Options = ()


NOTHING = Typed()


def refuse_untyped(specs: Sequence[RunSpec], typed: Typed, file: str) -> None:
    """UsageError where cells that come from a file would run code, or send the key to a server, and nobody typed it."""
    if not typed.trust_remote_code and any(spec.trust_remote_code for spec in specs):
        raise UsageError(
            f"{clean(file, 300)} asks for trust_remote_code, which runs code of its checkpoints here, and no file may "
            "decide that: look at that code, then add --trust-remote-code"
        )
    given = [one for spec in specs for one in spec.engine_option if one not in typed.engine_options]
    if naming := [f"{name}={value}" for name, value in given if names_something(name, value)]:
        raise UsageError(
            f"{clean(file, 300)} gives an engine {clean(naming[0])}, which can name files or code, and no file may "
            f"decide that: add --engine-option {clean(naming[0])}"
        )
    named = {origin(url) for url in typed.urls}
    other = [origin(url) for url in servers(specs) if origin(url) not in named]
    if other and api_key():
        raise UsageError(
            f"{KEY} is set and {clean(file, 300)} names the server {clean(other[0])}: name it with --url URL (or "
            "--baseline-url URL), or unset the key"
        )


def refuse_unused(specs: Sequence[RunSpec], typed: Typed) -> None:
    """UsageError where something was typed for a run that goes on, and its cells have no use for it."""
    known = {origin(url) for url in servers(specs)}
    unused = [f"--url {clean(url)}" for url in typed.urls if origin(url) not in known]
    given = {one for spec in specs for one in spec.engine_option}
    unused += [f"--engine-option {clean('='.join(one))}" for one in typed.engine_options if one not in given]
    if typed.trust_remote_code and not any(spec.trust_remote_code for spec in specs):
        unused.append("--trust-remote-code")
    if unused:
        raise UsageError(
            f"the run that --resume continues has its own settings and no use for {unused[0]}: leave it out"
        )


def names_something(name: str, value: str) -> bool:
    """Whether an option of an engine may name a file, a host, a model or code; numbers, true and false do not."""
    return isinstance(read(value), str | list | dict) and bool(NAMING.search(name) or NAMES.search(value))


def servers(specs: Sequence[RunSpec]) -> list[str]:
    """The URLs of the servers that cells are measured on."""
    urls = [url for spec in specs if spec.backend == NAME for url in (spec.url, spec.baseline_url)]
    return list(dict.fromkeys(url for url in urls if url))


def origin(url: str) -> str:
    """The scheme, host and port of a URL, which say who gets what is sent; the text itself where it is no URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return url
    return f"{parts.scheme}://{parts.hostname}:{port}"
