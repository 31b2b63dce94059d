"""Certificates in the folder of a run: shown in its report where they are of its pair, else named in a note."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.results.documents import FILE, Certificate, Check, certificate_json, read_certificate
from specbench.show.documents import certificate_notes, certificate_page, certificate_summary
from tests.show.test_report_page import HOSTILE, check_harmless, page_of
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import write_run

PAIR = {"target_source": "big", "draft_source": "small", "dtype_resolved": "float32", "draft_dtype_resolved": "float32"}
CHECKS = (
    Check("noise floor", "ok", found=1e-5, detail="places"),
    Check("proof", "ok", "chain", 1e-16, 1e-12),
    Check("z of the surprise", "FAILED", "chain", -7.25, 3.3, "2000 tokens"),
    Check("greedy = generate", "not checked", "mine", detail="no draft"),
    Check("z of the leaning", "lossy", "typical", float("inf"), None, HOSTILE[0]),
)
FOUND = Certificate("20260101T000000Z", "specbench verify big small", CHECKS, PAIR, {"k": 2}, {"torch": "2"})


def test_a_certificate_is_read_as_it_was_written_and_nothing_else_is_one(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_text(certificate_json(FOUND))
    assert certificate_json(read_certificate(file)) == certificate_json(FOUND)
    for text in ("", "[]", '{"schema": "specbench certificate 1"}', "[" * 100_000):
        file.write_text(text)
        with pytest.raises(UsageError, match="is not a certificate"):
            read_certificate(file)
    file.unlink()
    file.symlink_to("/dev/null")
    with pytest.raises(UsageError, match=r"cannot read .*: it is a pipe or a device"):
        read_certificate(file)


def test_readers_are_told_what_failed_and_what_was_not_checked() -> None:
    assert certificate_summary(FOUND) == "NOT LOSSLESS: 1 of 5 checks failed (2 ok, 1 lossy)"
    assert certificate_notes(FOUND) == [
        "not checked: mine: no draft", "FAILED: z of the surprise of chain: -7.25, limit 3.30 (2000 tokens)",
    ]  # fmt: skip
    assert certificate_summary(replace(FOUND, checks=CHECKS[:2])) == "LOSSLESS as far as was checked: 2 ok"
    assert "| z of the surprise | chain | FAILED | \\-7.25 | 3.30 | 2000 tokens |" in certificate_page(FOUND)


def test_the_report_shows_the_certificates_of_its_pair(tmp_path: Path) -> None:
    run = write_run(tmp_path, [cell(sample(), resolved=PAIR)])
    (run / FILE).write_text(certificate_json(FOUND))
    (run / "certificate-2.json").write_text(
        certificate_json(replace(FOUND, pair=PAIR | {"dtype_resolved": "bfloat16"}))
    )
    (run / "certificate-3.json").write_text("{}")
    found = page_of(run)
    check_harmless(found)
    assert "Certificate: certificate.json" in found.visible
    assert certificate_summary(FOUND) in found.visible
    assert "certificate-2.json certifies another pair, commit or dtype" in found.visible
    assert "certificate-3.json is not a certificate" in found.visible
    assert HOSTILE[0] in found.visible
