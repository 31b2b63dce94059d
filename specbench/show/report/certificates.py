"""The certificates in the folder of a run, for its report: those of its pair are shown, others are named in a note.

Knows certificates and rows of results.csv; must not know HTML or how anything was checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import UsageError
from specbench.results.documents import read_certificate
from specbench.show.cell_text import one_line
from specbench.show.certificate_table import LINES, notes, records, summary, word
from specbench.wording import Row, clean

MOST = 5  # certificates of one run that are shown


@dataclass(frozen=True)
class CertificatePart:
    """One certificate: its file, its answer, what to know of it, and every check as cells under `header`."""

    name: str
    answer: str
    notes: Sequence[str]
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


def certificates(path: Path, rows: Sequence[Row]) -> tuple[list[CertificatePart], list[str]]:
    """The certificates of the pair of any row, and a note for each file that is none, or is of another pair."""
    found, unread = list[CertificatePart](), list[str]()
    for file in sorted(path.glob("certificate*.json"))[:MOST]:
        try:
            certificate = read_certificate(file)
        except UsageError as error:
            unread.append(str(error))
            continue
        if any(certificate.is_of(row) for row in rows):
            lines = [[one_line(word(row[name])) for name in LINES] for row in records(certificate)]
            found.append(CertificatePart(clean(file.name), summary(certificate), notes(certificate), LINES, lines))
        else:
            unread.append(f"{clean(file.name)} certifies another pair, commit or dtype than this run measured")
    return found, unread
