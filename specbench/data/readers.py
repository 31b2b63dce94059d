"""Rows of local files, read through `datasets`; an error names the file, the line and what is wrong in one line.

Knows formats. Knows nothing of the names of data sets, of prompts, tokens or samples.

Files are streamed: `datasets` then keeps no converted copy in its cache, so that nothing is written and a changed file
is never served stale. JSON and CSV come as lines of its text reader and are parsed here with the standard library: its
own readers turn texts that look like dates or numbers into dates and numbers, and name no line when one is bad.
"""

import csv
import glob
import gzip
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specbench.errors import UsageError
from specbench.wording import clean, clean_path, first_line

DataRow = Mapping[str, object]

LARGEST = 1 << 30  # bytes; rows are held in memory


def existing_file(name: str) -> Path:
    shown = clean(name, 300)
    if "::" in name or "://" in name or "\0" in name:
        raise UsageError(f"{shown}: a data set file is a local path without '::' and '://'; rename or download it")
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):
        raise UsageError(f"{shown} is a directory; name the file in it")
    if not os.path.isfile(path):
        raise UsageError(f"no such file: {shown}")
    if path.stat().st_size > LARGEST:
        raise UsageError(f"{shown} is larger than {LARGEST >> 30} GiB; cut it to the rows you need")
    return path


def stream(builder: str, path: Path, **options: object) -> list[DataRow]:
    import datasets

    silence_datasets()
    # The name is a pattern to `datasets`: unescaped, `a[1].txt` would read a1.txt, and `*.txt` every file.
    files = {"train": glob.escape(str(path.absolute()))}
    rows = datasets.load_dataset(builder, data_files=files, split="train", streaming=True, **options)
    return [dict(row) for row in rows]


def parquet_rows(path: Path) -> list[DataRow]:
    try:
        return stream("parquet", path)
    except Exception as error:
        raise UsageError(f"cannot read {clean_path(path)} as parquet: {first_line(error)}") from error


def text_rows(path: Path) -> list[DataRow]:
    """One prompt per line; prompts of several lines need jsonl:."""
    return [{"text": line.rstrip("\n")} for line in lines_of(path)]


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
    limit = csv.field_size_limit(LARGEST)  # its default of 128 KiB is less than a long document
    try:
        check_header(reader.fieldnames or (), path)
        return [whole_row(row, f"{clean_path(path)}:{reader.line_num}") for row in reader]
    except csv.Error as error:
        begins = reader.line_num + 1  # of the row that failed; a quote without an end reaches to the end of the file
        raise UsageError(f"{clean_path(path)}:{begins}: not CSV ({first_line(error)})") from error
    finally:
        csv.field_size_limit(limit)


def check_header(names: Sequence[str], path: Path) -> None:
    if twice := sorted({clean(name) for name in names if names.count(name) > 1}):
        raise UsageError(f"{clean_path(path)}:1: column {', '.join(twice)} appears twice in the header")


def whole_row(row: Mapping[str | None, object], where: str) -> DataRow:
    """A cell too many or too few shifts the others; most often a comma in a text without quotes."""
    if None in row or None in row.values():
        raise UsageError(f"{where}: the row has more or fewer cells than the header; put texts with commas in quotes")
    return {str(name): value for name, value in row.items()}


def lines_of(path: Path) -> list[str]:
    """The lines of a UTF-8 file, .gz or not, with their ends."""
    try:
        return [str(row["text"]) for row in stream("text", path, encoding="utf-8-sig", keep_linebreaks=True)]
    except UnicodeDecodeError as error:
        raise UsageError(not_utf8(path)) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{clean_path(path)} is not a whole gzip file ({first_line(error)})") from error
    except Exception as error:
        raise UsageError(f"cannot read {clean_path(path)}: {first_line(error)}") from error


def not_utf8(path: Path) -> str:
    with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.startswith(b"\x1f\x8b"):
                return f"{clean_path(path)} is compressed with gzip; give it a name that ends in .gz"
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"{clean_path(path)}:{number}: not UTF-8 ({error.reason}); save the file as UTF-8"
    return f"{clean_path(path)} is not UTF-8; save the file as UTF-8"


READERS: dict[str, Callable[[Path], list[DataRow]]] = {
    "jsonl": jsonl_rows,
    "parquet": parquet_rows,
    "csv": csv_rows,
    "text": text_rows,
}


def silence_datasets() -> None:
    """No progress bars, no log lines and no usage telemetry (a request even for a local file)."""
    import datasets

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is None:  # else the user's environment has decided
        datasets.disable_progress_bars()
