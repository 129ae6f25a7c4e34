"""Imports go downward only, and what need not import PyTorch does not."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import denoised_mdp

ROOT = Path(denoised_mdp.__file__).parent

# From the bottom to the top; a module may import from lower rows, and packages from within themselves.
LAYERS = (
    "errors",
    "optim options progress seeding",
    "plugins",
    "files",
    "models",
    "policies",
    "envs replay",
    "config",
    "device",
    "agents",
    "run",
    "rollout",
    "collector evaluation",
    "analysis",
    "trainer",
    "hooks",
    "session",
    "bench",
    "cli",
    "__main__",
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {
    ".".join((ROOT.name, *(part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__"))): path
    for path in FILES
}


def imports(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, at its top or inside functions."""
    package = [ROOT.name, *path.relative_to(ROOT).parts[:-1]]
    names = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body.clear()  # not imported at run time
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                names.add(full if base == ROOT.name or full in MODULES else base)
    return names


def parts(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(parts(path)))
def test_imports_go_downward(path):
    own = parts(path)[0]
    if own == "__init__":  # the front of the package only re-exports names
        return
    assert own in LEVEL, f"{own} has no layer yet: add it to LAYERS"
    for name in imports(path):
        if name.startswith(f"{ROOT.name}.") and not name.endswith(".__version__"):
            other = name.split(".")[1]
            assert LEVEL[other] < LEVEL[own] or other == own, f"{own} imports {other}, which is not below it"


@pytest.mark.parametrize(
    "path", [path for path in FILES if parts(path)[0] in ("envs", "replay")], ids=lambda path: "/".join(parts(path))
)
def test_environments_and_replay_know_nothing_of_the_agent(path):
    room = parts(path)[0]
    for name in imports(path):
        if name.startswith(f"{ROOT.name}."):
            assert name.split(".")[1] in ("errors", "files", "options", "plugins", "progress", "seeding", room)
        elif parts(path) not in (
            ("replay", "batches"),
            ("replay", "on_device"),
            ("replay", "prefetch"),
            ("replay", "starts"),
        ):  # they serve the learner
            assert name.split(".")[0] != "torch"


def test_no_module_imports_itself_in_a_circle():
    """Within packages too; a package stands for what its __init__ imports."""
    arrows = {name: {other for other in imports(path) if other in MODULES} - {name} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in sorted(arrows[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def test_every_layer_exists():
    assert {name for name in LEVEL if not ((ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file())} == set()


@pytest.mark.parametrize(
    "statement",
    [
        "import denoised_mdp; from denoised_mdp.envs import make_env; make_env('dot', suite='toy').reset(seed=0)",
        "import denoised_mdp; denoised_mdp.make_env('dot', suite='toy').reset(seed=0)",
        "import denoised_mdp.replay.ring",
        "from denoised_mdp.config import load_config; load_config(['preset=debug'])",
        "from denoised_mdp.cli.main import main; main(['train', 'env.taks=1'])",
        "from denoised_mdp.cli.main import main; main(['probe', 'factors', 'run', '--steps', '0'])",
        "from denoised_mdp.cli.main import main; [main([word, 'nope']) for word in ('evaluate', 'render')]",
        "from denoised_mdp.cli.main import main; main(['compare', 'a', 'b']); main(['export', 'a', '-o', 'b'])",
        "from denoised_mdp.cli.main import main; main(['config', 'sweep=evidence', 'sweep.method=2c', 'sweep.seed=0'])",
    ],
)
def test_pytorch_is_imported_only_where_it_is_needed(statement):
    program = f"{statement}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT.parent, capture_output=True).returncode == 0


def test_no_module_needs_a_newer_python_than_setup_says():
    """For example `typing.Self`, which 3.10 lacks: a newer Python does not notice."""
    checkout = ROOT.parent
    least = re.search(r'python_requires=">=([\d.]+)', (checkout / "setup.py").read_text())[1]
    command = [Path(sys.executable).parent / "vermin", f"-t={least}-", "--violations", "--no-tips"]
    asked = [*command, ROOT, checkout / "scripts", checkout / "setup.py"]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
