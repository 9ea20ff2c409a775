"""The house rules that tools can check: style, types, layers, sizes, a README that is true."""

import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

ROOT = Path(__file__).parents[1]
SOURCES = [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
        ("lint-imports",),
    ],
    ids=lambda command: " ".join(command),
)
def test_tools(command: tuple[str, ...]) -> None:
    args = [sys.executable, "-m", *command]
    if command == ("lint-imports",):  # has no module to run
        entry = "from importlinter.cli import lint_imports_command as main; main()"
        args = [sys.executable, "-c", entry]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 600


def test_the_gate_runs_what_the_readme_says() -> None:
    readme, gate = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert 'python -m pip install -e ".[test]" && python -m pytest' in readme
    assert 'python -m pip install -e ".[test]"\npython -m pytest\n' in gate
    assert 'python -m pip install -e . && hotloop run -p "Why is the sky blue?"' in readme


def test_every_setting_is_read_somewhere() -> None:
    settings = (ROOT / "src/hotloop/util/settings.py").read_text()
    names = [line.split(" = ")[0] for line in settings.splitlines() if " = Setting[" in line]
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for name in names:
        uses = code.count(f"settings.{name}.get()") + settings.count(f"{name}.get()")
        assert uses > 0, name
