"""Imports go downward only, and what need not import PyTorch does not."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import denoised_mdp

ROOT = Path(denoised_mdp.__file__).parent

# From the bottom to the top; a module may import from lower rows, and packages from within themselves.
LAYERS = (
    "errors optim options progress reading",
    "disk",
    "columns event_files models",
    "schema",
    "envs replay checkpoint runs logging runtime machine stopping",
    "composition validation finite lanes run_state",
    "acting compare completion config manual read_ahead resident",
    "arguments environments policies sweep",
    "agent",
    "loading",
    "collector evaluation",
    "analysis",
    "trainer doctor probe_cli run_cli benchmark_around benchmark_plain",
    "benchmark",
    "cli",
    "__main__",
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, at its top or inside functions."""
    package = [ROOT.name, *path.relative_to(ROOT).parts[:-1]]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names |= {f"{base}.{alias.name}" for alias in node.names} if base == ROOT.name else {base}
    return names


def parts(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(parts(path)))
def test_imports_go_downward(path):
    own = parts(path)[0]
    if own == "__init__":  # the front of the package only passes names on
        return
    assert own in LEVEL, f"{own} has no layer yet: add it to LAYERS"
    for name in imports(path):
        if name.startswith(f"{ROOT.name}.") and not name.endswith(".__version__"):
            other = name.split(".")[1]
            assert LEVEL[other] < LEVEL[own] or other == own, f"{own} imports {other}, which is not below it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(parts(path)))
def test_environments_and_replay_know_nothing_of_the_agent(path):
    if parts(path)[0] in ("envs", "columns", "replay"):
        for name in imports(path):
            assert name.split(".")[0] != "torch"
            allowed = ("errors", "envs", "columns", "disk", "progress", "reading")
            assert not name.startswith(ROOT.name) or name.split(".")[1] in allowed


def test_every_layer_exists():
    assert {name for name in LEVEL if not ((ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file())} == set()


@pytest.mark.parametrize(
    "statement",
    [
        "import denoised_mdp; from denoised_mdp.envs import make_env; make_env('dot', suite='toy').reset(seed=0)",
        "import denoised_mdp; denoised_mdp.make_env('dot', suite='toy').reset(seed=0)",
        "import denoised_mdp.replay",
        "from denoised_mdp.config import load_config; load_config(['preset=debug'])",
        "from denoised_mdp.cli import main; main(['train', 'env.taks=1'])",
    ],
)
def test_pytorch_is_imported_only_where_it_is_needed(statement):
    program = f"{statement}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT.parent, capture_output=True).returncode == 0
