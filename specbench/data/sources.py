"""The sources of data rows: the shipped sets, the sets of the hub at pinned commits, local files."""

import csv
import difflib
import errno
import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from specbench import hub, plugins
from specbench.errors import SpecbenchError, UsageError
from specbench.files import ASSETS, LARGEST, check_regular, in_units, open_regular
from specbench.hub import Repository
from specbench.wording import clean, clean_path, first_line

# --- readers ----------------------------------------------------------------------------------------------------------
# Rows of local files, read by the standard library and within bounds, also when unpacked: other
# readers of JSON and CSV turn texts into dates and numbers, and name no line in their errors.

DataRow = Mapping[str, object]
Packed = BinaryIO | gzip.GzipFile

LONGEST = 16 << 20  # bytes of a line, or of a text in a table
MOST = 1_000_000  # rows; they are held in memory
TOGETHER = 8  # rows of a parquet file unpacked at once: a few bytes of it can expand to gigabytes
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


def existing_file(name: str) -> Path:
    shown = clean(name, 300)
    if "::" in name or "://" in name or "\0" in name:
        raise UsageError(f"{shown}: a data set file is a local path without '::' and '://'; rename or download it")
    path = Path(os.path.expanduser(name))
    try:
        check_regular(path, LARGEST)
    except FileNotFoundError:
        raise UsageError(f"no such file: {shown}") from None
    except IsADirectoryError:
        raise UsageError(f"{shown} is a directory; name the file in it") from None
    except OSError as error:
        cut = "; cut it to the rows you need" if error.errno == errno.EFBIG else ""
        raise UsageError(f"cannot read {shown}: {error.strerror}{cut}") from None
    return path


def bounded(rows: Iterable[DataRow], shown: str) -> Iterator[DataRow]:
    """The rows; UsageError if they exceed the limit of memory."""
    size = 0
    for number, row in enumerate(rows, 1):
        size += sum(len(value) for value in row.values() if isinstance(value, str | list))
        check_bounds(number, size, shown)
        yield row


def check_bounds(rows: int, size: int, shown: str) -> None:
    if rows > MOST:
        raise UsageError(f"{shown} has more than {MOST:,} rows: cut it to those that you need")
    if size > LARGEST:
        raise UsageError(f"{shown} holds more than {in_units(LARGEST)}, unpacked: cut it to the rows you need")


def parquet_rows(path: Path) -> list[DataRow]:
    """The rows of a parquet file, unpacked a few at a time."""
    from pyarrow import parquet

    try:
        with open_regular(path) as file:
            batches = parquet.ParquetFile(file).iter_batches(batch_size=TOGETHER, use_threads=False)
            return list(bounded((row for batch in batches for row in batch.to_pylist()), clean_path(path)))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"cannot read {clean_path(path)} as parquet: {first_line(error)}") from error


def jsonl_rows(path: Path) -> list[DataRow]:
    """One JSON object per line; blank lines are skipped."""
    return [json_object(line, f"{clean_path(path)}:{n}") for n, line in enumerate(lines_of(path), 1) if line.strip()]


def json_object(line: str, where: str) -> DataRow:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({first_line(error)}); jsonl: needs one object per line") from error
    if not isinstance(row, dict):
        raise UsageError(f"{where}: a JSON {type(row).__name__}, not an object; jsonl: needs one object per line")
    return row


def csv_rows(path: Path) -> list[DataRow]:
    """Rows of a CSV file; every cell stays text: "NA", "007" and "" are not converted."""
    reader, shown, found = csv.DictReader(lines_of(path), strict=True), clean_path(path), list[DataRow]()
    limit = csv.field_size_limit(LONGEST)  # its default of 128 KiB is less than a long document
    try:
        if twice := sorted(name for name, times in Counter(reader.fieldnames or ()).items() if times > 1):
            raise UsageError(f"{shown}:1: column {clean(', '.join(twice))} appears twice in the header")
        for row in reader:
            if None in row or None in row.values():  # most often a comma in a text without quotes
                wrong = "the row has more or fewer cells than the header; put texts with commas in quotes"
                raise UsageError(f"{shown}:{reader.line_num}: {wrong}")
            found.append(row)
    except csv.Error as error:
        begins = reader.line_num + 1  # of the failed row; an unclosed quote extends to the end of the file
        raise UsageError(f"{shown}:{begins}: not CSV ({first_line(error)})") from error
    finally:
        csv.field_size_limit(limit)
    return found


def lines_of(path: Path) -> list[str]:
    """The lines of a UTF-8 file, .gz or not, with their line ends. UsageError for more than fits in memory."""
    shown, found, size = clean_path(path), list[str](), 0
    try:
        with unpacked(path) as file:
            while line := file.readline(LONGEST + 1):
                number, size = len(found) + 1, size + len(line)
                if len(line) > LONGEST:
                    most = in_units(LONGEST)
                    raise UsageError(f"{shown}:{number}: the line is longer than {most}; put one prompt on a line")
                check_bounds(number, size, shown)
                found.append(text_of(line, shown, number))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{shown} is not a whole gzip file ({first_line(error)})") from error
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror or first_line(error)}") from error
    return found


def unpacked(path: Path, most: int = LARGEST) -> Packed:
    """A data file of at most `most` bytes, as bytes; .gz is unpacked while reading."""
    file = open_regular(path, most)
    return gzip.open(file) if path.suffix.lower() == ".gz" else file


def text_of(line: bytes, shown: str, number: int) -> str:
    """Decode one line; strip a BOM; normalise the line ending to \\n."""
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        if number == 1 and (packer := next((PACKED[begin] for begin in PACKED if line.startswith(begin)), None)):
            advice = "give it a name that ends in .gz" if packer == "gzip" else "unpack it, or use gzip"
            raise UsageError(f"{shown} is compressed with {packer}; {advice}") from error
        raise UsageError(f"{shown}:{number}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    return f"{text[:-2]}\n" if text.endswith("\r\n") else text


READERS: dict[str, Callable[[Path], list[DataRow]]] = {
    "jsonl": jsonl_rows,
    "parquet": parquet_rows,
    "csv": csv_rows,
    "text": lambda path: [{"text": line.rstrip("\n")} for line in lines_of(path)],  # one prompt per line
    "spec_bench": jsonl_rows,
}
TABLES = {"parquet": "parquet", "jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "json": "jsonl"}  # ending: reader
FILES = {**TABLES, "txt": "text", "text": "text"}


def ending(path: str) -> str:
    """The ending of a file's name, without .gz."""
    return Path(path.lower().removesuffix(".gz")).suffix.removeprefix(".")


# --- sources ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HubFile:
    """The parquet file of one split, at one commit: the data can neither change nor grow to other splits."""

    repo: str
    revision: str
    file: str


HUB = {
    "humaneval": HubFile("openai/openai_humaneval", "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
                         "openai_humaneval/test-00000-of-00001.parquet"),
    "xsum": HubFile("EdinburghNLP/xsum", "30802a38d3f89b2fa8f19276008459e8c2b8b8e6",
                    "data/test-00000-of-00001.parquet"),
    "mt_bench": HubFile("HuggingFaceH4/mt_bench_prompts", "e3a795c5e9a82ee40611c416b8a7786c73198991",
                        "data/train-00000-of-00001-67c6c9fef07685a3.parquet"),
    "gsm8k": HubFile("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866",
                     "main/test-00000-of-00001.parquet"),
    "cnn_dailymail": HubFile("abisee/cnn_dailymail", "96df5e686bee6baa90b8bee7c28b81fa3fa6223d",
                             "3.0.0/test-00000-of-00001.parquet"),
    "alpaca": HubFile("tatsu-lab/alpaca", "dce01c9b08f87459cf36a430d809084718273017",
                      "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet"),
    "math500": HubFile("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", "test.jsonl"),
    "aime": HubFile("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
                    "data/train-00000-of-00001.parquet"),
    "mbpp": HubFile("google-research-datasets/mbpp", "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
                    "full/test-00000-of-00001.parquet"),
    "livecodebench": HubFile("livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
                             "test6.jsonl"),
    "tool_call": HubFile("RedHatAI/speculator_benchmarks", "2ae86affa2cb97a972b7fc681dd51c04fbff083e",
                         "tool_call.jsonl"),
}  # fmt: skip
SYNONYMS = {"cnn_dm": "cnn_dailymail", "math-500": "math500", "aime24": "aime"}
PG19 = HubFile("emozilla/pg19", "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8",
               "data/test-00000-of-00001-29a571947c0b5ccc.parquet")  # fmt: skip
LONG = ("needle", "passkey", "longdoc", "pg19")  # made or cut to a number of tokens: see `longtext`
ON_DISK = {  # data sets that are not on the hub as files of prompts, and how to come by them
    "spec_bench": "download https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl "
    "and write spec_bench:question.jsonl",
    "speed_bench": "make it with prepare.py of nvidia/SPEED-Bench, and name its path",
}
SHIPPED = {"code": ASSETS / "prompts" / "code.jsonl", "articles": ASSETS / "prompts" / "articles.jsonl"}
HF, ANY = "hf", "hf:OWNER/NAME[:CONFIG][:SPLIT][@REVISION]"
WORDS = "(?![^/:@]{96})[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*"
NAMED = re.compile(
    rf"hf:(?P<repo>{WORDS}/{WORDS})(?<!\.git)(:(?P<one>[^:@]+))?(:(?P<two>[^:@]+))?(@(?P<revision>(?!.*\.\.)\w[\w./-]*))?"
)
DEFAULT, USUAL = "default", ("test", "validation", "train")


def shipped_rows(dataset: str) -> int | None:
    """The number of rows of a shipped data set; None for any other."""
    return SHIPPED[dataset].read_bytes().count(b"\n") if dataset in SHIPPED else None


def full_name(dataset: str) -> str:
    """The name of a data set in results; a path without a kind gets that of its ending."""
    reader = FILES.get(ending(dataset))
    if reader and not is_known(dataset) and os.path.exists(os.path.expanduser(dataset)):
        return f"{reader}:{dataset}"
    return SYNONYMS.get(dataset, dataset)


def read_rows(dataset: str) -> tuple[list[DataRow], str | None]:
    """The rows of a data set, and their pinned revision (None for files, which have none)."""
    if dataset in HUB or NAMED.fullmatch(dataset):
        return hub_rows(dataset)
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
    return plugins.names(plugins.DATASETS, (*SHIPPED, *HUB, *READERS, *LONG, HF))


def plugin_rows(dataset: str) -> list[DataRow]:
    """The rows from another package for the text after the data set's name and a colon, if any."""
    name, _, text = dataset.partition(":")
    read = plugins.load(plugins.DATASETS, name)
    try:
        return list(bounded(read(text), dataset))
    except SpecbenchError:
        raise
    except Exception as error:  # third-party code
        raise UsageError(clean(f"data set {dataset}: its package failed: {first_line(error)}", 500)) from error


def refuse_unknown(dataset: str) -> None:
    """UsageError for an unknown data set; a missing file is found when it is read."""
    if not is_known(dataset):
        raise unknown(dataset)


def is_known(dataset: str) -> bool:
    kind, colon, _ = dataset.partition(":")
    named = dataset in (*HUB, *SHIPPED) or kind in added() or bool(NAMED.fullmatch(dataset))
    return named or kind in LONG or (bool(colon) and kind in READERS)


def unknown(dataset: str) -> UsageError:
    kind, colon, path = dataset.partition(":")
    if dataset in ON_DISK:
        return UsageError(f"data set {dataset} is a file: {ON_DISK[dataset]}")
    if colon and kind == HF:
        return UsageError(clean(f"data set {dataset} is not {ANY}, such as hf:openai/gsm8k:main:test", 500))
    if not colon and ending(dataset) in FILES:
        return UsageError(f"no such file: {clean(dataset, 300)}")
    forms = [ANY, *(f"{kind}:PATH" for kind in READERS), *(f"{kind}:LENGTH" for kind in LONG)]
    names = [*SHIPPED, *HUB, *added(), *forms]
    if os.path.isfile(dataset):
        close = [f"text:{dataset}"]
    elif NAMED.fullmatch(f"{HF}:{dataset}"):
        close = [f"{HF}:{dataset}"]
    elif colon:
        close = [f"{kind}:{path}" for kind in difflib.get_close_matches(kind.lower(), [*READERS, *LONG, HF], n=1)]
    else:
        close = difflib.get_close_matches(dataset.lower(), [*names, *SYNONYMS], n=2)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return UsageError(clean(f"unknown data set {dataset}{hint}; there are: {', '.join(names)}", 500))


# --- the hub ----------------------------------------------------------------------------------------------------------
# From a data set of the hub one split is read: its files at the commit to which the revision resolves now.


def repository(dataset: str) -> Repository | None:
    """The hub repository of a data set; None for any other."""
    source = PG19 if dataset.partition(":")[0] == "pg19" else HUB.get(dataset)
    about = clean(f"data set {dataset}", 300)
    if named := NAMED.fullmatch(dataset):
        return Repository(named["repo"], named["revision"], about, "dataset")
    return Repository(source.repo, source.revision, about, "dataset") if source else None


def hub_files(dataset: str, found: Repository) -> tuple[Repository, list[str]]:
    """The repository at a commit, and the files of a data set in it. Raises hub.UnavailableError."""
    if (named := NAMED.fullmatch(dataset)) is None:
        return found, [HUB.get(dataset, PG19).file]
    folder = hub.snapshot(found, ["README.md"])  # brings the list of all files into the cache
    found = replace(found, revision=folder.name)
    sizes = listed(found, folder)
    names = sorted(name for name in sizes if ".." not in name)
    tables = next(filter(None, ([name for name in names if ending(name) == end] for end in TABLES)), [])
    files = chosen_split(dataset, tables, {part for part in (named["one"], named["two"]) if part})
    if (size := sum(sizes[file] for file in files)) > LARGEST:
        most = f"more than {in_units(LARGEST)}: choose another split, or download one file and name its path"
        raise UsageError(f"{found.name} has {size:,} bytes, {most}")
    return found, files


def listed(found: Repository, folder: Path) -> dict[str, int]:
    """The files of a repository at a commit, with their sizes; the cached ones if files came one by one."""
    from huggingface_hub import errors, get_cached_repo_tree

    try:
        return {one.path: one.size for one in get_cached_repo_tree(**found.place)}
    except errors.CachedRepoTreeNotFoundError:
        here = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in here}


def chosen_split(dataset: str, tables: list[str], named: set[str]) -> list[str]:
    """The files of the split that is named by configuration, split or both, or of the default split."""
    splits = list(dict.fromkeys(map(config_and_split, tables)))
    found = [key for key in splits if named <= set(key)]
    if len({config for config, _ in found}) > 1:
        found = [key for key in found if key[0] == DEFAULT]
    usual = [key for split in USUAL for key in found if key[1] == split]
    if len(found) == 1 or usual:
        return [file for file in tables if config_and_split(file) == (usual or found)[0]]
    there = [":".join(key).removeprefix(f"{DEFAULT}:") for key in splits]
    raise UsageError(
        f"data set {clean(dataset, 300)}: name one of its configurations and splits, which are: "
        f"{clean(', '.join(there), 300)}"
        if there
        else f"data set {clean(dataset, 300)} has no files of parquet, JSON lines or CSV: add @refs/convert/parquet, "
        "where the hub keeps most data sets as parquet, or download a file and name its path"
    )


def config_and_split(file: str) -> tuple[str, str]:
    """(configuration, split) of CONFIG/SPLIT-00000-of-00001.parquet, CONFIG/SPLIT/0000.parquet, or SPLIT.jsonl."""
    *folders, name = file.split("/")
    split = re.sub(r"-\d{5}-of-\d{5}.*|\.\w+(\.gz)?$", "", name)
    if folders and re.fullmatch(r"\d{4}", split):
        split = folders.pop()
    return (folders[-1] if folders and folders[-1] != "data" else DEFAULT), split


def hub_rows(dataset: str) -> tuple[list[DataRow], str | None]:
    """The rows of a data set of the hub, and their commit; from the hub's own cache if the files are there."""
    if (found := repository(dataset)) is None:
        raise unknown(dataset)
    try:
        found, files = hub_files(dataset, found)
        paths = [hub.one_file(found, file) for file in files]
    except hub.UnavailableError as error:
        instead = " or ".join(SHIPPED)
        raise UsageError(f"{error}; or use the prompts that ship with specbench: --dataset {instead}") from error
    rows = (row for path in paths for row in READERS[TABLES[ending(path.name)]](path))
    return list(bounded(rows, clean(dataset, 300))), found.revision
