"""What may import what: heavy libraries only where they are needed, and layers only downwards."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import specbench

PACKAGE = Path(specbench.__file__).parent
BASELINE = str(Path(__file__).parents[1] / "results" / "baseline")
HEAVY = {"torch", "transformers", "datasets", "pandas", "scipy", "pyarrow", "matplotlib", "jinja2", "numpy"}
TORCH = {"torch", "transformers", "datasets"}
PURE = "pure"
MAY_IMPORT = {  # the folders of each folder, those of the pure files besides; the first line is the top
    "cli": {
        "jobs",
        "training",
        "show",
        "judge",
        "measure",
        "backends",
        "models",
        "results",
        "decoding",
        "data",
        "theory",
    },
    "library": {"jobs", "show", "judge", "measure", "results"},
    "jobs": {
        "audit",
        "training",
        "show",
        "judge",
        "measure",
        "backends",
        "models",
        "results",
        "decoding",
        "data",
        "theory",
    },
    "audit": {"show", "judge", "measure", "backends", "results"},
    "show": {"judge", "results", "data", "theory"},
    "judge": {"results", "data", "theory"},
    "training": {"models", "decoding", "data", "theory"},
    "measure": {"backends", "models", "results", "decoding", "data", "theory"},
    "backends": {"models", "decoding", "theory"},
    "models": {"decoding", "theory"},
    "results": {"theory"},
    "decoding": {"theory"},
    "data": set(),
    "theory": set(),
    PURE: set(),
}
DOORS = {PACKAGE.name: "library", f"{PACKAGE.name}.__main__": "cli"}  # what stands at the top for a folder
WITHOUT_TORCH = ("results", "judge", "show", "theory", "data", PURE)

LIGHT_COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "run --help": ["run", "--help"],
    "predict": ["predict", "--alpha", ".7", "--c", ".05", "--k", "4"],
    "usage error": ["run", "--nope"],
    "unknown command": ["resume"],
    "sweep-k --help": ["sweep-k", "--help"],
    "compare --help": ["compare", "--help"],
    "verdict --help": ["verdict", "--help"],
    "calibrate --help": ["calibrate", "--help"],
    "check --help": ["check", "--help"],
    "methods": ["methods"],
    "tree --help": ["tree", "--help"],
    "skip-layers --help": ["skip-layers", "--help"],
    "design-draft --help": ["design-draft", "--help"],
    "models list": ["models", "list"],
    "models grow --help": ["models", "grow", "--help"],
    "report --help": ["report", "--help"],
    "profile --help": ["profile", "--help"],
    "import --help": ["import", "--help"],
    "trace --help": ["trace", "--help"],
    "train draft --help": ["train", "draft", "--help"],
    "train head --help": ["train", "head", "--help"],
    "verify --help": ["verify", "--help"],
    "audit --help": ["audit", "--help"],
    "noise --help": ["noise", "--help"],
    "config show": ["config", "show", "--preset", "chen2023-xsum"],
}
WATCH = """
import json, sys
from specbench.cli.app import main
for command in json.loads(sys.argv[1]):
    sys.argv[:] = ["specbench", *command]
    try:
        main()
    except SystemExit:
        pass
    loaded = {name.partition(".")[0] for name in sys.modules} | {"scipy.stats"} & sys.modules.keys()
    print("LOADED", *sorted(loaded), file=sys.stderr)
"""


# --- heavy libraries --------------------------------------------------------------------------------------------------


def loaded_by(*commands: list[str], folder: Path | None = None, **environment: str) -> tuple[list[set[str]], str]:
    """The top-level modules that are loaded after each of some commands in one process, and what they printed."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH, json.dumps(commands)],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    loaded = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("LOADED ")]
    assert len(loaded) == len(commands), done.stderr
    return [set(names) for names in loaded], done.stdout


def test_commands_that_need_no_model_load_no_heavy_library() -> None:
    found, _ = loaded_by(*LIGHT_COMMANDS.values())
    assert all("typer" in names for names in found)
    heavy = {name: names & HEAVY for name, names in zip(LIGHT_COMMANDS, found, strict=True)}
    assert not any(heavy.values()), heavy  # of the first that loads one, and of all after it


READING_COMMANDS = {
    "methods": ["methods"],
    "verdict": ["verdict", BASELINE],
    "compare": ["compare", "--checks", "deterministic", BASELINE, BASELINE],
    "predict": ["predict", "--from-run", BASELINE],
    "report": ["report", BASELINE, "--output", "report.html"],
}


def test_help_draws_no_table_and_simulates_no_fleet() -> None:
    found, _ = loaded_by(["--help"], ["help", "all"], ["run", "--help"], ["predict", "--help"])
    assert not any(names & {"rich", "simpy", *HEAVY} for names in found)
    assert not any(names & {"pydantic", "yaml"} for names in found[:1])  # commands are imported when they are called


def test_a_list_loads_no_scipy_without_runs_and_else_no_scipy_stats(tmp_path: Path) -> None:
    (names,), _ = loaded_by(["list"], folder=tmp_path)
    assert "numpy" in names
    assert not names & {"scipy", *TORCH}
    (names,), out = loaded_by(["list", str(Path(BASELINE).parent)])
    assert "baseline" in out
    assert not names & {"scipy.stats", *TORCH, "pandas"}


def test_a_wrong_name_is_refused_before_torch_is_loaded() -> None:
    wrong = {"--method": "nope", "--dataset": "nope", "--target": "nope", "--k": "0"}
    found, _ = loaded_by(*(["run", *words] for words in wrong.items()))
    assert not any(names & TORCH for names in found)


@pytest.mark.slow
def test_commands_that_read_results_finish_without_torch(tmp_path: Path) -> None:
    found, out = loaded_by(*READING_COMMANDS.values(), folder=tmp_path)
    loaded = {name: names & TORCH for name, names in zip(READING_COMMANDS, found, strict=True)}
    assert not any(loaded.values()), loaded
    assert "16 ok" in out
    assert (tmp_path / "report.html").is_file()


def test_shell_completion_loads_no_heavy_library() -> None:
    environment = {"_SPECBENCH_COMPLETE": "complete_bash", "COMP_WORDS": "specbench ru", "COMP_CWORD": "1"}
    (names,), out = loaded_by([], **environment)
    assert out.split() == ["run"]
    assert not names & HEAVY


# --- layers -----------------------------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = [PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@cache
def imports_of(name: str) -> frozenset[str]:
    """Everything that a module imports anywhere, as dotted names; relative imports are not used here."""
    found: set[str] = set()
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def inner_imports(name: str) -> set[str]:
    """The modules of specbench that a module imports: the longest prefix of each name that is one."""
    return {module for full in imports_of(name) if (module := as_module(full)) and module != PACKAGE.name}


def as_module(full: str) -> str | None:
    prefixes = [full.rsplit(".", cut)[0] for cut in range(full.count(".") + 1)]
    return next((prefix for prefix in prefixes if prefix in modules()), None)


def folder_of(name: str) -> str:
    parts = name.split(".")
    if name in DOORS:
        return DOORS[name]
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else PURE


def is_upward(importer: str, imported: str) -> bool:
    ours, theirs = folder_of(importer), folder_of(imported)
    return theirs not in {ours, PURE, *MAY_IMPORT[ours]}


def test_every_module_belongs_to_a_folder_with_rules() -> None:
    assert {folder_of(name) for name in modules()} == set(MAY_IMPORT)


def test_the_rules_themselves_point_down() -> None:
    order = list(MAY_IMPORT)
    assert all(order.index(below) > order.index(above) for above, belows in MAY_IMPORT.items() for below in belows)


def test_imports_point_down_only() -> None:
    upward = [f"{name} → {other}" for name in modules() for other in inner_imports(name) if is_upward(name, other)]
    assert upward == []


def test_models_know_the_algebra_and_not_the_loop() -> None:
    algebra = {
        f"{PACKAGE.name}.decoding.{name}" for name in ("types", "protocols", "tokens", "rows", "randomness", "timing")
    }
    known = {other for name in modules() if folder_of(name) == "models" for other in inner_imports(name)}
    assert {name for name in known if folder_of(name) == "decoding"} <= algebra
    assert "specbench.decoding.loop" in inner_imports("specbench.decoding.rounds")  # what the test would see


def test_an_import_upwards_would_be_seen() -> None:
    """The control of the test above."""
    assert is_upward("specbench.decoding.loop", "specbench.measure.runner")
    assert is_upward("specbench.theory.formulas", "specbench.decoding.loop")
    assert is_upward("specbench.show.details", "specbench.measure.runner")  # from wing to wing
    assert is_upward("specbench.wording", "specbench.results.cells")
    assert not is_upward("specbench.cli.measuring", "specbench.theory.formulas")
    assert as_module("specbench.measure.runner.Job") == "specbench.measure.runner"


# --- two wings --------------------------------------------------------------------------------------------------------


@cache
def loaded_with(name: str) -> frozenset[str]:
    """Everything that importing a module imports with it, packages outside specbench by their first name."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for full in on_loading(modules()[waiting.pop()]):
            module = as_module(full)
            known = module or full.partition(".")[0]
            if known not in found and module:
                waiting.append(module)
            found.add(known)
    return frozenset(found)


def on_loading(node: ast.AST) -> Iterator[str]:
    """What is imported as soon as a module is loaded: not inside functions, not for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not isinstance(child, ast.FunctionDef) and "TYPE_CHECKING" not in ast.unparse(
            getattr(child, "test", child)
        ):
            yield from on_loading(child)


@pytest.mark.parametrize("folder", WITHOUT_TORCH)
def test_what_reads_judges_and_shows_loads_no_torch(folder: str) -> None:
    found = {name: loaded_with(name) & TORCH for name in modules() if folder_of(name) == folder}
    assert found
    assert {name: heavy for name, heavy in found.items() if heavy} == {}


def test_torch_would_be_seen_through_other_modules() -> None:
    """The control of the test above."""
    assert "torch" in loaded_with("specbench.measure.runner")
    assert "torch" in loaded_with("specbench.models.network.causal")


def cycle_from(name: str, path: tuple[str, ...], done: set[str]) -> tuple[str, ...] | None:
    if name in path:
        return (*path[path.index(name) :], name)
    if name in done:
        return None
    for other in sorted(inner_imports(name)):
        if found := cycle_from(other, (*path, name), done):
            return found
    done.add(name)
    return None


def test_no_module_imports_itself_through_others() -> None:
    done: set[str] = set()
    assert [found for name in modules() if (found := cycle_from(name, (), done))] == []


def test_only_typers_public_names_are_used() -> None:
    """typer carries a copy of click of its own; the one on the index is another library by now."""
    for name in modules():
        roots = {full.split(".")[0] for full in imports_of(name)}
        assert "click" not in roots, name
        assert not [full for full in imports_of(name) if full.startswith("typer.") and "_" in full], name
