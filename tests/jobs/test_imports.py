"""`specbench import`: recorded files of other tools, against what these tools calculated from the same requests."""

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import SpecbenchError
from specbench.jobs import imports
from specbench.judge.requests import Traffic, compared
from specbench.metrics import limits_of
from specbench.results.latency import within
from tests.support.frontdoor import Command

FILES = Path(__file__).parent / "imported"
PAIRS = {
    "vllm": ("vllm-base.json", "vllm-spec.json"),
    "aiperf": ("aiperf-base", "aiperf-spec"),
    "guidellm": ("guidellm-base.json", "guidellm-spec.json"),
}


def loads(name: str) -> list[Traffic]:
    return list(imports.read(FILES / name))


def row(tool: str, slo: str = "") -> dict[str, Any]:
    rows, _ = compared(*(loads(name) for name in PAIRS[tool]), limits_of(slo) if slo else {})
    return rows[-1]


def changed(name: str, folder: Path, change: Callable[[Any], None]) -> Path:
    """A recorded JSON file with a change."""
    content = json.loads((FILES / name).read_text())
    change(content)
    file = folder / Path(name).name
    file.write_text(json.dumps(content))
    return file


# --- equal definitions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS["guidellm"])
def test_times_are_those_that_guidellm_computes(name: str) -> None:
    benchmarks = json.loads((FILES / name).read_text())["benchmarks"]
    for traffic, benchmark in zip(loads(name), benchmarks, strict=True):
        for ours, theirs in zip(traffic.requests, benchmark["requests"]["successful"], strict=True):
            assert 1000 * ours.first == pytest.approx(theirs["time_to_first_token_ms"], rel=1e-4)
            assert 1000 * ours.tpot == pytest.approx(theirs["inter_token_latency_ms"], rel=1e-4)
            assert 1000 * ours.last / ours.tokens == pytest.approx(theirs["time_per_output_token_ms"], rel=1e-4)
            assert ours.tokens == theirs["output_tokens"]


@pytest.mark.parametrize("name", PAIRS["aiperf"])
def test_times_are_those_that_aiperf_computes(name: str) -> None:
    (traffic,) = loads(name)
    records = [json.loads(line) for line in (FILES / name / imports.RECORDS).read_text().splitlines()]
    for ours, theirs in zip(traffic.requests, records, strict=True):
        assert 1000 * ours.tpot == pytest.approx(theirs["metrics"]["inter_token_latency"]["value"])
        assert 1000 * ours.decoding == pytest.approx(theirs["metrics"]["decode_duration"]["value"])
        gaps = theirs["metrics"]["inter_chunk_latency"]["value"]
        assert 1000 * (ours.step or 0) == pytest.approx(sum(gaps) / len(gaps))
    summary = json.loads((FILES / name / imports.SUMMARY).read_text())
    assert sum(one.tokens for one in traffic.requests) == summary["total_output_tokens"]["avg"]
    assert 1000 * sum(one.tpot for one in traffic.requests) / 8 == pytest.approx(summary["inter_token_latency"]["avg"])


@pytest.mark.parametrize("name", PAIRS["vllm"])
def test_times_and_goodput_are_those_that_vllm_computes(name: str) -> None:
    (traffic,), found = loads(name), json.loads((FILES / name).read_text())
    requests = traffic.requests
    assert [one.last for one in requests] == pytest.approx(found["latencies"])
    assert 1000 * sum(one.tpot for one in requests) / len(requests) == pytest.approx(found["mean_tpot_ms"])
    assert 1000 * sum(one.first for one in requests) / len(requests) == pytest.approx(found["mean_ttft_ms"])
    good = sum(within(one, limits_of("ttft=25ms,tpot=6ms")) for one in requests)  # the --goodput of the recording
    assert good / found["duration"] == pytest.approx(found["request_goodput"])


def test_acceptance_is_that_of_the_tool() -> None:
    summary = json.loads((FILES / "aiperf-spec" / imports.SUMMARY).read_text())
    found = row("aiperf")
    assert found["acceptance_length"] == pytest.approx(summary["spec_decode_token_weighted_acceptance_length"]["avg"])
    rate = summary["spec_decode_overall_draft_acceptance_rate"]["avg"]
    assert 100 * found["accepted_per_drafted"] == pytest.approx(rate)
    assert found["acceptance_length_low"] < found["acceptance_length"] < found["acceptance_length_high"]
    served = json.loads((FILES / "vllm-spec.json").read_text())
    assert row("vllm")["acceptance_length"] == pytest.approx(served["spec_decode_acceptance_length"])
    assert 100 * row("vllm")["accepted_per_drafted"] == pytest.approx(served["spec_decode_acceptance_rate"])


# --- pairs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", PAIRS)
def test_a_file_against_itself_is_exactly_as_fast_and_the_order_of_requests_does_not_matter(tool: str) -> None:
    base, spec = (loads(name) for name in PAIRS[tool])
    for one in compared(base, base, limits_of("ttft=1ms,tpot=1ms"))[0]:
        for name in ("speedup", "speedup_end_to_end", "speedup_ttft"):
            assert (one[name], one[f"{name}_low"], one[f"{name}_high"]) == (1.0, 1.0, 1.0)
        assert (one["answer"], one["requests"], one["prompts"], one["slo_share_difference"]) == ("UNCLEAR", 8, 8, 0.0)
    rows, _ = compared(base, spec, {})
    turned = [Traffic(**{**vars(one), "requests": one.requests[::-1]}) for one in spec]
    again, _ = compared(base, turned, {})
    assert [one["speedup"] for one in again] == pytest.approx([one["speedup"] for one in rows], rel=1e-12)
    assert rows[0]["speedup_low"] > 1.2  # the stub drafts, and each of its rounds takes 1.3 steps
    assert (rows[0]["answer"], rows[0]["leaning"]) == ("PROVISIONAL", "YES")


def test_prompts_are_the_key_where_identifiers_are_new_in_every_run(tmp_path: Path) -> None:
    for name in PAIRS["aiperf"]:
        shutil.copytree(FILES / name, tmp_path / name)
        (tmp_path / name / imports.INPUTS).unlink()
    with pytest.raises(SpecbenchError, match="same input file, kept with its results") as found:
        compared(*(list(imports.read(tmp_path / name)) for name in PAIRS["aiperf"]), {})
    assert found.value.exit_code == 7


def test_failed_requests_count_in_goodput_and_not_in_latency(tmp_path: Path) -> None:
    def fail(found: Any) -> None:
        found["errors"][3], found["output_lens"][3] = "500", 0

    plain, broken = loads("vllm-spec.json"), list(imports.read(changed("vllm-spec.json", tmp_path, fail)))
    for spec, good in ((plain, 8), (broken, 7)):
        (found,), _ = compared(loads("vllm-base.json"), spec, limits_of("e2e=100s"))
        assert (found["slo_share"], found["baseline_slo_share"], found["requests"]) == (good / 8, 1.0, good)
        assert found["requests_failed"] == 8 - good
        assert ("failed in SPEC" in found["doubts"]) == (good < 8)


def test_loads_of_one_side_are_left_out_and_none_in_common_is_refused() -> None:
    base, spec = (loads(name) for name in PAIRS["guidellm"])
    rows, left = compared(base, spec[1:], {})
    assert ([one["concurrency"] for one in rows], left) == ([2], ["1 in flight: only in BASE"])
    with pytest.raises(SpecbenchError, match="BASE was measured with 1 in flight, SPEC with 2 in flight") as found:
        compared(base[:1], spec[1:], {})
    assert found.value.exit_code == 7


# --- refusals ---------------------------------------------------------------------------------------------------------


def without_details(found: Any) -> None:
    for name in ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"):
        del found[name]


def without_prompts(found: Any) -> None:
    for one in found["benchmarks"][0]["requests"]["successful"]:
        one["request_args"] = None


def without_stream(found: Any) -> None:
    found["benchmarks"][0]["requests"]["successful"][0]["info"]["timings"]["first_token_iteration"] = None


def impossible(found: Any) -> None:
    found["benchmarks"][0]["requests"]["successful"][0]["response_metrics"]["speculative_decoding"][
        "num_accepted_draft_tokens"
    ] = 10_000


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("vllm-spec.json", without_details, "with --save-result --save-detailed"),
        ("vllm-spec.json", lambda found: found.pop("num_prompts"), "of no tool that is known"),
        ("vllm-spec.json", lambda found: found["ttfts"].pop(), "different lengths"),
        ("aiperf-spec/profile_export_aiperf.json", lambda found: None, "give profile_export.jsonl"),
        ("guidellm-spec.json", without_prompts, "without sample_size in --metrics"),
        ("guidellm-spec.json", without_stream, "stream=true in --backend"),
        ("guidellm-spec.json", impossible, "impossible counts: 13 rounds, 39 drafted and 10000 accepted tokens"),
        ("guidellm-spec.json", lambda found: found["metadata"].update(version=1), "another version of guidellm"),
    ],
)
def test_a_file_without_what_is_needed_names_the_flag(
    name: str, change: Callable[[Any], None], words: str, tmp_path: Path, command: Command
) -> None:
    command("import", FILES / "guidellm-base.json", changed(name, tmp_path, change)).refused(words)


@pytest.mark.parametrize("content", ["", "[]", "nonsense", "[" * 100_000, '{"a": 1}', "\x00", "[1]\n[2]"])
def test_other_files_are_refused_in_one_line(content: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / "other.json").write_text(content)
    command("import", tmp_path / "other.json", FILES / "guidellm-spec.json").refused(
        "known are the JSON file of `vllm bench serve"
    )


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values; of a list, only of its first item."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, one in inside:
        yield from places(one, (*path, name))


@pytest.mark.parametrize("tool", PAIRS)
def test_no_value_of_a_file_is_trusted(tool: str) -> None:
    """Every value is replaced by every wrong one: what comes out is a row, or one line for the user."""
    file, base = FILES / PAIRS[tool][1], loads(PAIRS[tool][0])
    content, *others = imports.content_of(file / imports.RECORDS if file.is_dir() else file)
    if tool == "guidellm":
        content["benchmarks"][1:], content["benchmarks"][0]["requests"]["successful"][2:] = [], []
    if tool == "aiperf":
        content["metrics"] = {name: one for name, one in content["metrics"].items() if not name.startswith("http_")}
    outcomes = []
    for path in list(places(content))[1:]:
        for wrong in (None, 10**400, math.nan, "x", [[True]]):
            broken = copy.deepcopy(content)
            inside = broken
            for name in path[:-1]:
                inside = inside[name]
            inside[path[-1]] = wrong
            try:
                found = [imports.of_aiperf([broken, *others], file)] if others else [*imports.of_object(broken)]
                outcomes.append(len(compared(base, found, {"ttft": 1.0})[0]))
            except (ValueError, SpecbenchError):
                outcomes.append(0)
    assert min(outcomes.count(0), outcomes.count(1)) > 20


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", PAIRS)
def test_the_command_prints_the_answer_and_both_sides(tool: str, command: Command) -> None:
    files = [FILES / name for name in PAIRS[tool]]
    found = command("import", *files, "--slo", "ttft=1s,tpot=20ms")
    assert (found.code, found.err) == (0, "")
    said = " ".join(found.out.split())
    for words in (
        "PROVISIONAL (leaning YES)",
        "only 8 prompts (20 needed)",
        "compare TPOT",
        "requests · within ttft ≤",
    ):
        assert words in said
    (shown, *_) = json.loads(command("import", *files, "--format", "json").out)
    assert shown["speedup_low"] < shown["speedup"] < shown["speedup_high"]
    judged = command("import", *files, "--exit-code")
    assert judged.code == 7
    turned = command("import", *files[::-1], "--exit-code")
    assert turned.code == 7
    assert "leaning NO" in turned.out


def test_the_turning_point_is_the_least_concurrency_that_does_not_pay(command: Command, tmp_path: Path) -> None:
    def slower(found: Any) -> None:
        for one in found["benchmarks"][1]["requests"]["successful"]:
            clocks = one["info"]["timings"]
            clocks["last_token_iteration"] += 2 * (clocks["last_token_iteration"] - clocks["first_token_iteration"])

    found = command("import", FILES / "guidellm-base.json", changed("guidellm-spec.json", tmp_path, slower))
    assert "speculation pays at 1, does not pay at 2: from 2 on it is not certain that it pays" in found.out


def test_limits_are_read_in_both_spellings_and_what_cannot_be_read_is_refused() -> None:
    assert limits_of("ttft=500ms,tpot=30ms,e2e=2s") == limits_of("ttft:0.5s, tpot: 30ms, e2e:2000ms")
    for text in ("", "x", "ttft=5", "ttft=5ms,ttft=6ms", "itl=5ms", "ttft=0ms", "ttft=-1ms", "e2e=1h"):
        with pytest.raises(ValueError, match="write ttft, tpot and e2e"):
            limits_of(text)
