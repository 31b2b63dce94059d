"""The body of `specbench import`: files of `vllm bench serve`, AIPerf and guidellm as requests, compared and printed.

Each tool names its times differently, so only the raw ones are read: when a request was sent, its first and its last
piece, its tokens. Sources: `vllm/benchmarks/serve.py` of vLLM 0.33, `common/models/record_models.py` of AIPerf 0.13,
`schemas/base/request_stats.py` of guidellm 0.8. Loads no torch.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from specbench.acceptance import BENCH, MOST, VLLM, Record, count, part, record_in
from specbench.errors import NotComparableError, RegressionError, UsageError
from specbench.files import read_whole
from specbench.judge.requests import Traffic, compared
from specbench.metrics import limits_of
from specbench.results.latency import Request
from specbench.results.named_runs import read_json
from specbench.show.engines import print_requests, sentence_of
from specbench.show.text import Format
from specbench.wording import clean, clean_path, first_line

LARGEST = 256 << 20  # bytes of a file; parsing takes several times as much memory
MOST_FILES = 100  # of a folder
RECORDS, SUMMARY, INPUTS = "profile_export.jsonl", "profile_export_aiperf.json", "inputs.json"  # files of AIPerf
KNOWN = (
    "known are the JSON file of `vllm bench serve --save-result --save-detailed`, profile_export.jsonl of AIPerf, and "
    "the JSON file of guidellm (--output kind=json)"
)


def start(base: Path, spec: Path, slo: str, style: Format, judges: bool) -> None:
    """Print the comparison of two files; with `judges`, end with the exit code of the worst answer."""
    try:
        limits = limits_of(slo) if slo else {}
    except ValueError as wrong:
        raise UsageError(f"--slo: {wrong}") from None
    found, left_out = compared(list(read(base)), list(read(spec)), limits)
    for line in left_out:
        typer.echo(f"note: {line}", err=True)
    print_requests(found, limits, style)
    for error, answers in ((RegressionError, ["NO"]), (NotComparableError, ["PROVISIONAL", "UNCLEAR"])):
        if judges and (those := [row for row in found if row["answer"] in answers]):
            raise error(sentence_of(those[0]))


def read(path: Path) -> Iterator[Traffic]:
    """The loads of a file or a folder. UsageError, with the flag that is missing, if one has no values per request."""
    for file in files_of(path):
        content = content_of(file)
        try:
            if {"metadata", "metrics"} <= content[0].keys():
                yield of_aiperf(content, file.parent)
            else:
                for one in content:
                    yield from of_object(one)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{clean_path(file)}: {clean(error, 400)}") from None


def files_of(path: Path) -> list[Path]:
    """The file itself, or the result files of a folder."""
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob(RECORDS)) or sorted(path.glob("*.json"))
    if not found or len(found) > MOST_FILES:
        raise UsageError(f"{clean_path(path)} has {len(found) or 'no'} result files: name one; {KNOWN}")
    return found


def content_of(file: Path) -> list[dict[str, Any]]:
    """The JSON object of a file, or those of its lines. UsageError if it has none."""
    try:
        text = read_whole(file, LARGEST).decode()
        try:
            found = [json.loads(text)]
        except ValueError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"cannot read {clean_path(file)}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{clean_path(file)} is not readable as JSON: {first_line(error)}; {KNOWN}") from None
    if not found or not all(isinstance(one, dict) for one in found):
        raise UsageError(f"{clean_path(file)} holds no results: {KNOWN}")
    return found


def of_object(found: dict[str, Any]) -> Iterator[Traffic]:
    """The loads of one JSON object, by the keys that its tool writes. ValueError if it is none of those."""
    if "benchmarks" in found and "guidellm_version" in part(found, "metadata"):
        yield from of_guidellm(found)
    elif "aiperf_version" in found:
        raise ValueError(f"it holds no values per request: give {RECORDS} (--export-level records)")
    elif {"request_rate", "num_prompts", "duration"} <= found.keys():
        yield of_vllm(found)
    else:
        raise ValueError(f"it is of no tool that is known: {KNOWN}")


# --- values that are not trusted --------------------------------------------------------------------------------------


def items(of: Mapping[str, Any], name: str, kind: type = object) -> list[Any]:
    """A list in an object, with values of one kind. ValueError if it is missing or another."""
    found = of.get(name)
    if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
        raise ValueError(f"{name} is missing, or not as the tool writes it")
    return found


def objects(of: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of a list in an object; empty if it is missing or something else."""
    found = of.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def number(value: Any, what: str) -> float:
    """A number from 0 to `MOST`: seconds, also of a clock. ValueError for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
        raise ValueError(f"{what} is {clean(value, 40)}, and a number from 0 to {MOST:,} was expected")
    return float(value)


def gap(seconds: float, gaps: int) -> float | None:
    """The mean time between two pieces of an answer; None if it came in one, or they were not counted."""
    return seconds / gaps if gaps > 0 else None


def digest(text: Any) -> str:
    """A short name for a text, or for a value as JSON; empty for none."""
    return hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:16] if text else ""


def named(body: Mapping[str, Any]) -> tuple[str, str]:
    """The key of a request and of its draw, by the prompt in its body; empty without one.

    Answers of earlier turns differ between two runs, so they are no part of the key.
    """
    content = body.get("prompt") or body.get("messages") or body.get("input")
    if isinstance(content, list):
        content = [one for one in content if not (isinstance(one, dict) and one.get("role") == "assistant")]
    users = objects({"content": content}, "content")[:1]
    return digest(content), digest(users or content)


def acceptance_in(fields: Mapping[str, Any], source: str = VLLM) -> Record | None:
    """The record in some fields; None without rounds. ValueError if it is impossible."""
    record = record_in(fields, source) if fields else None
    if record and (wrong := record.wrong(MOST)):
        raise ValueError(f"impossible counts: {wrong}")
    return record if record and record.rounds else None


# --- vllm bench serve -------------------------------------------------------------------------------------------------

PER_REQUEST = ("ttfts", "itls", "output_lens", "input_lens", "start_times", "errors", "generated_texts")


def of_vllm(found: dict[str, Any]) -> Traffic:
    """A result of `vllm bench serve`. It has no prompts, but lists its requests in the order of the data set."""
    if any(name not in found for name in PER_REQUEST):
        raise ValueError("it holds no values per request: repeat `vllm bench serve` with --save-result --save-detailed")
    columns = [items(found, name) for name in PER_REQUEST]
    if len({len(column) for column in columns}) != 1:
        raise ValueError("its lists per request have different lengths")
    requests = [vllm_request(n, *values) for n, values in enumerate(zip(*columns, strict=True))]
    rate, flying, bursts = (found.get(name) for name in ("request_rate", "max_concurrency", "burstiness"))
    return Traffic(
        "vllm bench serve",
        clean(found.get("model_id"), 200),
        in_words(flying, None if rate == "inf" else rate, None if bursts == 1 else bursts),
        count(flying, "max_concurrency") if rate == "inf" and flying is not None else None,
        tuple(requests),
        acceptance_in(found, BENCH) if found.get("spec_decode_num_drafts") else None,
        by_place=True,
    )


def vllm_request(n: int, first: Any, gaps: Any, tokens: Any, prompt: Any, began: Any, error: Any, text: Any) -> Request:
    """Request `n`; its times end with the last piece that has text, as `latencies` do."""
    key, sent = f"{n}: {count(prompt, 'input_lens')}", number(began, "start_times")
    if error or not tokens:
        return Request(key, key, sent, failed=True)
    steps = [number(one, "itls") for one in gaps] if isinstance(gaps, list) else []
    start = number(first, "ttfts")
    seconds = sum(steps)
    step = gap(seconds, len(steps))
    return Request(key, key, sent, start, start + seconds, count(tokens, "output_lens"), step, digest(text))


def in_words(flying: Any, rate: Any, bursts: Any = None) -> str:
    """A load: requests in flight, or a rate of arrivals."""
    words = [f"{number(rate, 'the request rate'):g} requests a second"] if rate is not None else []
    words += [f"burstiness {number(bursts, 'burstiness'):g}"] if rate is not None and bursts is not None else []
    words += [f"{'at most ' * bool(words)}{count(flying, 'the concurrency')} in flight"] if flying is not None else []
    return ", ".join(words) or "all requests at once"


# --- AIPerf -----------------------------------------------------------------------------------------------------------


def of_aiperf(lines: list[dict[str, Any]], folder: Path) -> Traffic:
    """The records of AIPerf, with the prompts and the load from the files next to them.

    It draws new identifiers of conversations in every run, so requests are named by their prompts if these are there.
    """
    inputs = objects(read_json(folder / INPUTS), "data")
    payloads = {str(one.get("session_id")): one.get("payloads") for one in inputs}
    config = part(read_json(folder / SUMMARY), "input_config")
    measured = [one for one in lines if part(one, "metadata").get("benchmark_phase") == "profiling"]
    phases = [one for one in objects(config, "phases") if one.get("kind") == "profiling"]
    flying, rate = (phases[0].get(name) if phases else None for name in ("concurrency", "rate"))
    return Traffic(
        "AIPerf",
        clean(", ".join(str(one.get("name")) for one in objects(part(config, "models"), "items")), 200),
        in_words(flying, rate) if phases else "a load that is not recorded",
        count(flying, "the concurrency") if flying is not None and rate is None else None,
        tuple(aiperf_request(one, payloads) for one in measured),
    )


def aiperf_request(line: dict[str, Any], payloads: Mapping[str, Any]) -> Request:
    """A line of the records; times in them are in milliseconds, clocks in nanoseconds."""
    about, metrics = part(line, "metadata"), part(line, "metrics")
    conversation, turn = str(about.get("conversation_id")), count(about.get("turn_index") or 0, "turn_index")
    sent = payloads.get(conversation)
    body = sent[turn] if isinstance(sent, list) and turn < len(sent) else None
    key, draw = named(body) if isinstance(body, dict) else (f"{conversation}:{turn}", conversation)
    clock = about.get("request_start_ns")
    began = number(clock / 1e9 if isinstance(clock, int) and clock < 1 << 63 else clock, "request_start_ns")
    if line.get("error") or about.get("was_cancelled"):
        return Request(key, draw, began, failed=True)
    if "time_to_first_token" not in metrics:
        raise ValueError("it has no time to the first token: repeat aiperf profile with --streaming")
    first, last = (number(value_of(metrics, name), name) / 1000 for name in ("time_to_first_token", "request_latency"))
    tokens = "usage_completion_tokens" if "usage_completion_tokens" in metrics else "output_sequence_length"
    gaps = value_of(metrics, "inter_chunk_latency")
    record = part(line, "spec_decode_acceptance")
    return Request(
        key, draw, began, first, last, count(value_of(metrics, tokens), tokens),
        gap(last - first, len(gaps) if isinstance(gaps, list) else 0), acceptance=acceptance_in(record),
    )  # fmt: skip


def value_of(metrics: Mapping[str, Any], name: str) -> Any:
    return part(metrics, name).get("value")


# --- guidellm ---------------------------------------------------------------------------------------------------------


def of_guidellm(found: dict[str, Any]) -> Iterator[Traffic]:
    """The benchmarks of a report of guidellm; requests that its end cut off are left out."""
    if part(found, "metadata").get("version") != 2:
        raise ValueError("it was written by another version of guidellm: its reports are read from 0.8 on (version 2)")
    model = part(part(part(found, "config"), "spec"), "backend").get("model")
    for one in items(found, "benchmarks", dict):
        strategy = part(part(one, "config"), "strategy")
        rate, flying = strategy.get("rate"), strategy.get("streams") or strategy.get("max_concurrency")
        requests = [guidellm_request(each) for each in items(part(one, "requests"), "successful", dict)]
        requests += [guidellm_request(each, True) for each in items(part(one, "requests"), "errored", dict)]
        yield Traffic(
            "guidellm",
            clean(model, 200),
            in_words(flying, rate),
            count(flying, "the concurrency") if flying is not None and rate is None else None,
            tuple(requests),
        )


def guidellm_request(found: dict[str, Any], failed: bool = False) -> Request:
    """A request; clocks are in seconds."""
    try:
        body = part(json.loads(found.get("request_args") or "{}"), "body")
    except (TypeError, ValueError, RecursionError):
        body = {}
    key, draw = named(body)
    if not key:
        raise ValueError("it holds no prompts: repeat guidellm run without sample_size in --metrics")
    clocks = part(part(found, "info"), "timings")
    sent = number(clocks.get("request_start", clocks.get("resolve_start")), "request_start")
    if failed:
        return Request(key, draw, sent, failed=True)
    if clocks.get("first_token_iteration") is None:
        raise ValueError("it has no time to the first token: repeat guidellm run with stream=true in --backend")
    first, last = (
        number(number(clocks.get(name), name) - sent, name)
        for name in ("first_token_iteration", "last_token_iteration")
    )
    record = part(part(found, "response_metrics"), "speculative_decoding")
    pieces = count(clocks.get("token_iterations") or 0, "token_iterations")
    return Request(
        key, draw, sent, first, last, count(found.get("output_tokens"), "output_tokens"), gap(last - first, pieces - 1),
        digest(found.get("output")), acceptance_in(record),
    )  # fmt: skip
