"""The shape of the house: one-way imports, a torch-free part, hand-listed exports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import apportion

SOURCE = Path(apportion.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Later may import earlier, never the reverse.
ORDER = [
    "errors",
    "_checks",
    "_version",
    "canonical",
    "durable",
    "budget",
    "events",
    "schedules",
    "bell",
    "randomness",
    "by_epoch",
    "units",
    "batching",
    "clipping",
    "accounting",
    "stages",
    "plan",
    "solver",
    "selection_plan",
    "adaptive",
    "outlook",
    "public",
    "ledger",
    "recording",
    "publication",
    "scores",
    "plain_words",
    "certificate",
    "drawing",
    "components",
    "bundle",
    "report",
    "data",
    "settings",
    "settings_file",
    "pipeline",
    "selection_settings",
    "described",
    "training",
    "cli",
]


def imports_of(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            deeper = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "apportion" else []
            found += [(node.lineno, name) for name in deeper or [node.module]]
    return found


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_later_imports_earlier_never_the_reverse(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    assert part in ORDER, f"{part} has no place in the flow"
    for line, name in imports_of(path):
        pieces = name.split(".")
        if pieces[0] == "apportion" and len(pieces) > 1 and pieces[1] in ORDER:
            assert ORDER.index(pieces[1]) <= ORDER.index(part), f"{path}:{line} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_training_imports_torch(path: Path) -> None:
    if part_of(path) != "training":
        torchlike = {"torch", "safetensors"}
        assert not [name for _, name in imports_of(path) if name.split(".")[0] in torchlike]


def in_fresh_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


BLOCK_TORCH = "import sys; sys.modules |= dict.fromkeys(('torch', 'safetensors', 'numba'))\n"


def test_import_loads_nothing_heavy() -> None:
    heavy = ("torch", "numba", "matplotlib", "pandas", "scipy.stats")
    code = f"import sys, apportion; print([m for m in {heavy} if m in sys.modules])"
    result = in_fresh_process(code)
    assert result.stdout.strip() == "[]", result.stderr


def test_verify_works_without_torch(bundle: Path) -> None:
    code = BLOCK_TORCH + "sys.argv = ['apportion', 'verify', sys.argv[1]]\nfrom apportion.cli.main import main\nmain()"
    result = in_fresh_process(code, str(bundle))
    assert result.returncode == 0, result.stderr
    assert "VERIFIED" in result.stdout


def test_train_without_torch_says_how_to_get_it(tmp_path: Path) -> None:
    code = (
        BLOCK_TORCH
        + "sys.argv = ['apportion', 'train', '--dataset', 'wisconsin', '--epsilon', '1', '--delta', '1e-5', "
        "'--batches', '4', '--out', sys.argv[1]]\nfrom apportion.cli.main import main\nmain()"
    )
    result = in_fresh_process(code, str(tmp_path / "run"))
    assert result.returncode == 2
    assert "apportion[train]" in result.stderr
    assert not (tmp_path / "run").exists()


def test_exported_names_are_listed_by_hand_and_exist() -> None:
    for name in apportion.__all__:
        assert hasattr(apportion, name)
    assert list(apportion.__all__) == sorted(apportion.__all__, key=lambda n: (n.islower(), n))


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert apportion.__version__ == version("apportion")
