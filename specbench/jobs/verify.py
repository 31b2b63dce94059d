"""The body of `specbench verify`: proofs, the checks of a pair, a certificate and an exit code. May import torch."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.decoding.method_files import methods
from specbench.errors import CellsFailedError, NotLosslessError
from specbench.jobs import verify_pair
from specbench.jobs.output import Output, say
from specbench.measure.proofs import proof_checks
from specbench.models.checkpoints.description import resolve_device
from specbench.replacing import replace_text
from specbench.results import documents, folder
from specbench.results.documents import Certificate
from specbench.results.machine import command_line, environment, now
from specbench.show import documents as shown
from specbench.show import run_output
from specbench.show.fitting import draw, screen


def start(settings: Mapping[str, Any], wanted: Sequence[str] | None, tokens: int, output: Output) -> None:
    """Check, write the certificate, print it; raises what the exit code says. Without a target only the proofs."""
    began, names = now(), list(dict.fromkeys(wanted or methods()))
    err = Console(stderr=True, quiet=output.quiet)
    opened = verify_pair.opened(settings, names, wanted is not None) if "target" in settings else None
    checks = proof_checks(names, lambda what: say(err, [f"{what} …"]))
    pair = opened.verified(tokens, lambda what: say(err, [what])) if opened else verify_pair.NOTHING
    device = resolve_device(str(settings.get("device", "auto")))
    found = Certificate(
        began, command_line(), [*checks, *pair.checks], pair.about, pair.settings, environment(device), pair.warnings
    )
    path = write(found, output.parent, [began, "verify", *map(folder.slug, pair.names)])
    print_certificate(found, output.style)
    say(err, [*(f"note: {note}" for note in (*pair.warnings, *shown.certificate_notes(found))), f"certificate: {path}"])
    raise_for(found)


def write(found: Certificate, parent: Path, parts: Sequence[str]) -> Path:
    """The certificate as JSON and as Markdown in a folder of its own; the path of the page."""
    with folder.writing_to(parent):
        made = folder.make_folder(parent, "_".join(parts))
        replace_text(made / documents.FILE, documents.certificate_json(found))
        replace_text(made / documents.PAGE, shown.certificate_page(found))
    return made / documents.PAGE


def print_certificate(found: Certificate, style: str) -> None:
    """On stdout: tables and the answer for readers, the certificate as json, its checks as csv or jsonl."""
    if style == "json":
        sys.stdout.write(documents.certificate_json(found))
    elif style == "md":
        sys.stdout.write(shown.certificate_page(found))
    elif style in ("csv", "jsonl"):
        sys.stdout.write(run_output.rendered(shown.certificate_records(found), style))
    else:
        for table in shown.certificate_tables(found):
            draw(screen(), table)
        say(screen(), [shown.certificate_summary(found)])


def raise_for(found: Certificate) -> None:
    """5 where something is not lossless, 6 where a check broke."""
    if found.failed:
        first = shown.sentence(found.failed[0])
        raise NotLosslessError(f"{len(found.failed)} of {len(found.checks)} checks failed, the first: {first}")
    if found.broken:
        first = shown.sentence(found.broken[0])
        raise CellsFailedError(f"{len(found.broken)} checks could not be made, the first: {first}")
