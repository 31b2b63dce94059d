"""Where rows of data come from: the shipped sets, the sets of the hub at pinned commits, local files.

Knows the names of data sets. Knows nothing of prompts, tokens or samples.
"""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from specbench import hub, plugins
from specbench.data.readers import READERS, DataRow, bounded, existing_file, jsonl_rows, parquet_rows
from specbench.errors import SpecbenchError, UsageError
from specbench.files import ASSETS
from specbench.hub import Repository
from specbench.wording import clean, first_line


@dataclass(frozen=True)
class HubFile:
    """The parquet file of one split, at one commit: what is loaded can neither change nor grow to other splits."""

    repo: str
    revision: str
    file: str


HUB = {
    "humaneval": HubFile(
        "openai/openai_humaneval",
        "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        "openai_humaneval/test-00000-of-00001.parquet",
    ),
    "xsum": HubFile(
        "EdinburghNLP/xsum",
        "30802a38d3f89b2fa8f19276008459e8c2b8b8e6",
        "data/test-00000-of-00001.parquet",
    ),
    "mt_bench": HubFile(
        "HuggingFaceH4/mt_bench_prompts",
        "e3a795c5e9a82ee40611c416b8a7786c73198991",
        "data/train-00000-of-00001-67c6c9fef07685a3.parquet",
    ),
}
PG19 = HubFile(
    "emozilla/pg19",
    "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8",
    "data/test-00000-of-00001-29a571947c0b5ccc.parquet",
)
LONG = ("needle", "passkey", "longdoc", "pg19")  # made or cut to a number of tokens: see `longtext`
SHIPPED = {"code": ASSETS / "prompts" / "code.jsonl", "articles": ASSETS / "prompts" / "articles.jsonl"}


def shipped_rows(dataset: str) -> int | None:
    """How many rows a shipped data set has; None of any other."""
    return SHIPPED[dataset].read_bytes().count(b"\n") if dataset in SHIPPED else None


def read_rows(dataset: str) -> tuple[list[DataRow], str | None]:
    """The rows of a data set, and the revision they are pinned at (None for files, which no revision pins)."""
    if dataset in HUB:
        return hub_rows(dataset, HUB[dataset]), HUB[dataset].revision
    if dataset in SHIPPED:
        return jsonl_rows(existing_file(str(SHIPPED[dataset]))), None
    kind, colon, path = dataset.partition(":")
    if kind in added():
        return plugin_rows(dataset), None
    if not colon or kind not in READERS:
        raise unknown(dataset)
    if not path:
        raise UsageError(f"data set {dataset} names no file; write {kind}:PATH")
    return READERS[kind](existing_file(path)), None


def added() -> list[str]:
    """The data sets that other packages add."""
    return plugins.names(plugins.DATASETS, (*SHIPPED, *HUB, *READERS, *LONG))


def plugin_rows(dataset: str) -> list[DataRow]:
    """The rows that another package gives for what stands after its name and a colon, if anything does."""
    name, _, text = dataset.partition(":")
    read = plugins.load(plugins.DATASETS, name)
    try:
        return list(bounded(read(text), dataset))
    except SpecbenchError:
        raise
    except Exception as error:  # the code of somebody else
        raise UsageError(clean(f"data set {dataset}: its package failed: {first_line(error)}", 500)) from error


def unknown(dataset: str) -> UsageError:
    forms = [*(f"{kind}:PATH" for kind in READERS), *(f"{kind}:LENGTH" for kind in LONG)]
    names = [*SHIPPED, *HUB, *added(), *forms]
    kind, colon, path = dataset.partition(":")
    if os.path.isfile(dataset):
        suffix = Path(dataset.removesuffix(".gz")).suffix.removeprefix(".")
        close = [f"{suffix if suffix in READERS else 'text'}:{dataset}"]
    elif colon:
        close = [f"{kind}:{path}" for kind in difflib.get_close_matches(kind.lower(), [*READERS, *LONG], n=1)]
    else:
        close = difflib.get_close_matches(dataset.lower(), names, n=2)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return UsageError(clean(f"unknown data set {dataset}{hint}; there are: {', '.join(names)}", 500))


def hub_file(dataset: str) -> HubFile | None:
    """The file of the hub that a data set is read from; None of any other."""
    return PG19 if dataset.startswith("pg19:") else HUB.get(dataset)


def repository(name: str, source: HubFile) -> Repository:
    return Repository(source.repo, source.revision, f"data set {name}", "dataset")


def hub_rows(name: str, source: HubFile) -> list[DataRow]:
    """From the hub's own cache if the pinned file lies there, so that `hf download` is enough to work offline.

    `datasets` reads the file and does not fetch it: it would ask for eight things more, and where a hub refuses it says
    that its cache of converted sets lacks this one.
    """
    try:
        return parquet_rows(hub.one_file(repository(name, source), source.file))
    except hub.UnavailableError as error:
        instead = " or ".join(SHIPPED)
        raise UsageError(f"{error}; or use the prompts that ship with specbench: --dataset {instead}") from error
