"""The journal of a run: JSON lines with a checksum, written to disk first; the source of truth of a folder.

A line is `{"crc32":"<8 hex digits>","body":{…}}`, with the checksum over the body's text as in the file.
Texts are escaped to ASCII, so that any prompt (lone surrogates, NUL, line ends) is restored exactly.
A turn has every arm's decode of its prompts, the shared baseline stored once. A line that no measurement can
produce is refused with a ValueError, KeyError, TypeError or the like.
"""

import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any, get_args

from specbench.errors import UsageError
from specbench.files import open_own, read_whole
from specbench.metrics import LevelCounts, RoundCounts, Trace
from specbench.results.cells import Cell, Comparison, Losslessness, Status
from specbench.results.machine import Reading, peaks_of, reading_of
from specbench.results.samples import ALONE, Sample
from specbench.settings import is_number
from specbench.spec import RunSpec
from specbench.wording import clean_path

FILE = "journal.jsonl"
LARGEST = 8 << 30  # bytes; it is read into memory
HEAD = b'{"crc32":"'  # of every line
_LINE = re.compile(rb'\{"crc32":"([0-9a-f]{8})","body":(\{.*\})\}', re.DOTALL)


class Journal:
    """Appends to a journal; opening it drops an incomplete last line of a killed process.

    UsageError for anything else, such as a link or other content, which would be lost.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_own(path, os.O_APPEND)
        self._end = sum(len(line) for line, _ in _sound(path))
        # a torn first line may be shorter, or empty
        if not self._end and not HEAD.startswith(os.pread(self._file, len(HEAD), 0)):
            self.close()
            raise UsageError(
                f"{clean_path(path)} is not the journal of a run, and continuing would empty it: start a new run"
            )
        os.ftruncate(self._file, self._end)
        # without this a new file is not safely on disk
        if os.name == "posix":
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def append(self, body: Mapping[str, Any]) -> None:
        """Write one line and wait until it is on disk; after an OSError the journal is unchanged."""
        line = encode(body)
        try:
            left = memoryview(line)
            while left:  # if only a part fits, the next write raises the reason
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def encode(body: Mapping[str, Any]) -> bytes:
    """One line of the journal, including its line end."""
    text = json.dumps(body, separators=(",", ":")).encode("ascii")
    return b'{"crc32":"%08x","body":%s}\n' % (zlib.crc32(text), text)


def read_bodies(path: Path) -> list[dict[str, Any]]:
    """The bodies of all complete lines. UsageError if a line before the last is damaged: then none can be trusted."""
    try:
        return [body for _, body in _sound(path)]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give the folder of a specbench run") from error


def _sound(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The complete lines of a journal with their bodies; a damaged last line is dropped as an interrupted write."""
    lines = read_whole(path, LARGEST).splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        found, body = _LINE.fullmatch(line[:-1]) if line.endswith(b"\n") else None, None
        if found and int(found[1], 16) == zlib.crc32(found[2]):
            with suppress(ValueError, RecursionError):  # invalid content with a valid checksum was forged
                body = json.loads(found[2])
        if body is not None:
            yield line, body
        elif number < len(lines):
            raise UsageError(
                f"{path}:{number}: a damaged line (its checksum does not fit): the journal was edited or the disk "
                "failed; start a new run"
            )


# --- the lines --------------------------------------------------------------------------------------------------------


DEEPEST = 4096  # drafted tokens of a round, eight times the largest K: there is a column for each
ROUNDING = 0.01  # tolerance for a sum of probabilities in a low-precision dtype, above 1
SHARED = ("prompt", "category", "repeat", "prompt_tokens", "turn", "load")  # shared by all samples of a turn


def turn_line(samples: Mapping[RunSpec, Sequence[Sample]]) -> dict[str, Any]:
    """The samples of one turn, by cell: a line for one prompt, or for a batch."""
    prompts = [dict(zip(samples, one, strict=True)) for one in zip(*samples.values(), strict=True)]
    if next(iter(samples)).batch > 1:
        clusters = {sample.cluster for one in prompts for sample in one.values()}
        cluster = clusters.pop() if len(clusters) == 1 else ""
        return {"cluster": cluster, "batch": [_prompt(one, cluster) for one in prompts]}
    return _prompt(prompts[0])


def _prompt(samples: Mapping[RunSpec, Sample], cluster: str = "") -> dict[str, Any]:
    """The samples of one prompt, by cell. They share one baseline decode."""
    first = next(iter(samples.values()))
    arms = {
        spec.key: {
            "place": s.order[1],
            **({"block": s.cluster} if s.cluster != cluster else {}),
            **_machine(s.readings[1]),
            "trace": _written(s.method),
        }
        for spec, s in samples.items()
    }
    baseline = {"place": first.order[0], **_machine(first.readings[0]), "trace": _written(first.baseline)}
    talk = {} if first.conversation == ALONE else {"conversation": list(first.conversation)}
    return {**{name: getattr(first, name) for name in SHARED}, **talk, "baseline": baseline, "arms": arms}


def _machine(reading: Reading) -> dict[str, Any]:
    known = reading.written()
    return {"machine": known} if known else {}


def samples_of(line: Mapping[str, Any]) -> dict[str, list[Sample]]:
    """The samples of a line, by the key of their cell."""
    found: dict[str, list[Sample]] = {}
    for one in line.get("batch", [line]):
        for key, sample in _samples(one, str(line.get("cluster", ""))).items():
            found.setdefault(key, []).append(sample)
    return found


def _samples(line: Mapping[str, Any], cluster: str) -> dict[str, Sample]:
    turn, turns = line.get("conversation", ALONE)
    if not (type(turn) is type(turns) is int and 1 <= turn <= turns):
        raise ValueError(f"turn {turn} of {turns}")
    shared = {name: line[name] for name in SHARED} | {"conversation": (turn, turns)}
    first, found = line["baseline"], {}
    baseline, reading = _read(first["trace"]), reading_of(first.get("machine", {}))
    for key, arm in line["arms"].items():
        own = shared | {"order": (first["place"], arm["place"]), "cluster": cluster or arm.get("block", "")}
        texts = [own[name] for name in ("prompt", "category", "cluster")]
        counts = [own[name] for name in ("repeat", "prompt_tokens", "turn")] + list(own["order"])
        load = own["load"]
        known = load is None or (is_number(load) and 0 <= load < math.inf)
        if not (known and all(type(text) is str for text in texts) and all(map(is_count, counts))):
            raise ValueError(f"a sample of {str(own)[:200]}")
        readings = (reading, reading_of(arm.get("machine", {})))
        found[key] = Sample(**own, baseline=baseline, method=_read(arm["trace"]), readings=readings)
    return found


def _written(trace: Trace) -> dict[str, Any]:
    return {
        "tokens": list(trace.tokens),
        "rounds": [_counts(one) for one in trace.rounds],
        "seconds": trace.seconds,
        "prefill_seconds": trace.prefill_seconds,
        "spans": trace.spans,
        **({} if trace.draftable is None else {"draftable": trace.draftable}),
        **({"choice": trace.choice} if trace.choice else {}),
        **({"source": trace.source} if trace.source else {}),
    }


def _counts(one: RoundCounts) -> list[Any]:
    inner = [list(astuple(level)) for level in one.inner]
    whole = [one.drafted, one.surplus, one.tested, one.accepted, one.emitted]
    return [*whole, list(one.overlap), one.nodes, one.distance, inner, *([list(one.belief)] if one.belief else [])]


def _round(line: Sequence[Any]) -> RoundCounts:
    drafted, surplus, tested, accepted, emitted, overlap, nodes, distance, levels, *held = line
    inner, (belief,) = tuple(LevelCounts(*level) for level in levels), held or [()]
    return RoundCounts(
        drafted, tested, accepted, emitted, tuple(overlap), nodes, distance, inner, surplus, tuple(belief)
    )


def _read(written: Mapping[str, Any]) -> Trace:
    rounds = tuple(_round(one) for one in written["rounds"])
    spans = {str(phase): float(seconds) for phase, seconds in written["spans"].items()}
    seconds, prefill = float(written["seconds"]), float(written["prefill_seconds"])
    what = (written.get("draftable"), written.get("choice", ""), written.get("source", ""))
    trace = Trace(tuple(written["tokens"]), rounds, seconds, prefill, spans, *what)
    check_trace(trace)
    return trace


def begin_line(spec: RunSpec, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A started cell, with what its names resolved to."""
    return {"spec": spec.model_dump(mode="json"), "resolved": dict(resolved)}


def end_line(cell: Cell) -> dict[str, Any]:
    """How a cell ended; its samples are in the lines of its turns."""
    lossless = vars(cell.lossless)
    return {
        "cell": cell.spec.key,
        "status": cell.status,
        "error": cell.error,
        "detail": cell.detail,
        "lossless": lossless,
        "ready": list(cell.ready),
        "peaks": cell.peaks.line(),
    }


def cell_of(begun: Mapping[str, Any], turns: Sequence[Sequence[Sample]], ended: Mapping[str, Any] | None) -> Cell:
    """A cell from its lines, with samples by turn. A cell without an end was interrupted by a kill."""
    samples = [sample for turn in turns for sample in turn]
    spec, resolved = RunSpec(**begun["spec"]), begun["resolved"]
    if ended is None:
        status = "partial" if samples else "skipped"
        return Cell(spec, resolved, samples, status, "the run was cut off; continue with --resume")  # type: ignore[arg-type]
    if ended["status"] not in get_args(Status) or (ended["status"] in ("ok", "mismatch") and not samples):
        raise ValueError(f"a cell with {len(samples)} samples that ended as {ended['status']!r}")
    lossless = Losslessness(**ended["lossless"])
    check_lossless(lossless)
    if not all(type(ended[name]) is str for name in ("error", "detail")):
        raise ValueError("an error that is not text")
    ready = (float(ended["ready"][0]), float(ended["ready"][1]))
    peaks = peaks_of(ended.get("peaks", {}))
    return Cell(spec, resolved, samples, ended["status"], ended["error"], lossless, ended["detail"], ready, peaks)


# --- what no measurement can have written -----------------------------------------------------------------------------


def check_trace(trace: Trace) -> None:
    """Raise ValueError for numbers that no clock and no loop can produce."""
    for name, seconds in {"seconds": trace.seconds, "prefill_seconds": trace.prefill_seconds, **trace.spans}.items():
        if not 0 <= seconds < math.inf:  # also excludes NaN
            raise ValueError(f"{name} of {seconds}")
    length, emitted = len(trace.tokens), sum(one.emitted for one in trace.rounds)
    if length and not trace.seconds:
        raise ValueError(f"{length} tokens in 0 seconds")
    known = trace.draftable is None or (is_count(trace.draftable) and trace.draftable <= length)
    if not (known and type(trace.choice) is type(trace.source) is str and all(map(is_count, trace.tokens))):
        raise ValueError(f"tokens {str(trace.tokens)[:40]}, {str((trace.draftable, trace.choice))[:80]}")
    for one in trace.rounds:
        check_round(one)
    if emitted != length:
        raise ValueError(f"{length} tokens, where its rounds emitted {emitted}")


def check_round(one: RoundCounts) -> None:
    """Raise ValueError for impossible counts of a round.

    Accepted levels must be tested, tested ones drafted and with a probability. A round emits at most one token more
    than it accepted, fewer at the end of a sequence.
    """
    sound = (
        is_ordered(one)
        and all(map(is_ordered, one.inner))
        and 1 <= one.emitted <= one.accepted + 1
        and is_count(one.surplus)
        and one.surplus <= one.drafted - one.tested
        and one.drafted <= DEEPEST
        and len(one.overlap) == one.tested
        and all(map(is_chance, (*one.overlap, *(level.overlap / max(level.tested, 1) for level in one.inner))))
        and len(one.belief) in (0, one.tested)
        and all(belief is None or is_chance(belief) for belief in one.belief)
        and is_count(one.nodes)
        and 0 <= one.distance < math.inf
    )
    if not sound:
        raise ValueError(f"a round of {str(one)[:300]}")


def is_ordered(one: RoundCounts | LevelCounts) -> bool:
    counts = (one.accepted, one.tested, one.drafted, one.emitted)
    return all(map(is_count, counts)) and one.accepted <= one.tested <= one.drafted


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_chance(value: Any) -> bool:
    return is_number(value) and -ROUNDING <= value <= 1 + ROUNDING


def check_lossless(found: Losslessness) -> None:
    """Raise ValueError if an output comparison contradicts itself."""
    sound = (
        found.verdict in get_args(Comparison)
        and is_count(found.identical)
        and is_count(found.compared)
        and found.identical <= found.compared
        and (found.verdict != "identical" or found.identical == found.compared)
        and all(one is None or is_number(one) for one in (found.first_divergence, found.gap, found.noise))
    )
    if not sound:
        raise ValueError(f"outputs compared as {str(found)[:200]}")
