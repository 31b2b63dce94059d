"""Where rows of data come from: the shipped sets, the sets of the hub at pinned commits, local files."""

import csv
import difflib
import errno
import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from specbench import hub, plugins
from specbench.errors import SpecbenchError, UsageError
from specbench.files import ASSETS, LARGEST, check_regular, in_units, open_regular
from specbench.hub import Repository
from specbench.wording import clean, clean_path, first_line

# --- readers ----------------------------------------------------------------------------------------------------------
# Rows of local files, by the standard library and within bounds, also for what is packed: other
# readers of JSON and CSV turn texts into dates and numbers, and name no line when one is bad.

DataRow = Mapping[str, object]
Packed = BinaryIO | gzip.GzipFile

LONGEST = 16 << 20  # bytes of a line, or of a text in a table
MOST = 1_000_000  # rows; they are held in memory
TOGETHER = 8  # rows of a parquet file that are unpacked at once: a few bytes of it can stand for gigabytes
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
    """The rows; UsageError once they are more than can be held in memory."""
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
    try:
        return list(bounded(unpacked_rows(path), clean_path(path)))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"cannot read {clean_path(path)} as parquet: {first_line(error)}") from error


def unpacked_rows(path: Path) -> Iterator[DataRow]:
    """The rows of a parquet file, of which only a few are unpacked at a time."""
    from pyarrow import parquet

    with open_regular(path) as file:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=TOGETHER, use_threads=False):
            yield from batch.to_pylist()


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
    """Every cell is text, as it stands in the file: "NA", "007" and "" stay what they are."""
    reader = csv.DictReader(lines_of(path), strict=True)
    limit = csv.field_size_limit(LONGEST)  # its default of 128 KiB is less than a long document
    try:
        if twice := sorted(name for name, times in Counter(reader.fieldnames or ()).items() if times > 1):
            raise UsageError(f"{clean_path(path)}:1: column {clean(', '.join(twice))} appears twice in the header")
        return [whole_row(row, f"{clean_path(path)}:{reader.line_num}") for row in reader]
    except csv.Error as error:
        begins = reader.line_num + 1  # of the row that failed; a quote without an end reaches to the end of the file
        raise UsageError(f"{clean_path(path)}:{begins}: not CSV ({first_line(error)})") from error
    finally:
        csv.field_size_limit(limit)


def whole_row(row: Mapping[str | None, object], where: str) -> DataRow:
    """A cell too many or too few shifts the others; most often a comma in a text without quotes."""
    if None in row or None in row.values():
        raise UsageError(f"{where}: the row has more or fewer cells than the header; put texts with commas in quotes")
    return {str(name): value for name, value in row.items()}


def lines_of(path: Path) -> list[str]:
    """The lines of a UTF-8 file, .gz or not, with their ends."""
    shown = clean_path(path)
    try:
        with unpacked(path) as file:
            return [text_of(line, shown, number) for number, line in enumerate(bounded_lines(file, shown), 1)]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{shown} is not a whole gzip file ({first_line(error)})") from error
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror or first_line(error)}") from error


def unpacked(path: Path, most: int = LARGEST) -> Packed:
    """A file of data, of at most so many bytes, as bytes; .gz is unpacked while it is read."""
    file = open_regular(path, most)
    return gzip.open(file) if path.suffix.lower() == ".gz" else file


def bounded_lines(file: Packed, shown: str) -> Iterator[bytes]:
    """The lines of a file; UsageError for one without an end, and once they are more than can be held in memory."""
    number = size = 0
    while line := file.readline(LONGEST + 1):
        number, size = number + 1, size + len(line)
        if len(line) > LONGEST:
            raise UsageError(f"{shown}:{number}: the line is longer than {in_units(LONGEST)}; put one prompt on a line")
        check_bounds(number, size, shown)
        yield line


def text_of(line: bytes, shown: str, number: int) -> str:
    """A line as text that ends in \\n, if at all; a mark of the byte order before the first line is no part of it."""
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
}


# --- sources ----------------------------------------------------------------------------------------------------------


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


def refuse_unknown(dataset: str) -> None:
    """UsageError for a name that is no data set; whether its file exists is seen when it is read."""
    kind, colon, _ = dataset.partition(":")
    if dataset not in (*HUB, *SHIPPED) and kind not in added() and not (colon and kind in (*READERS, *LONG)):
        raise unknown(dataset)


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
    """From the hub's own cache if the pinned file lies there, so that `hf download` is enough to work offline."""
    try:
        return parquet_rows(hub.one_file(repository(name, source), source.file))
    except hub.UnavailableError as error:
        instead = " or ".join(SHIPPED)
        raise UsageError(f"{error}; or use the prompts that ship with specbench: --dataset {instead}") from error
