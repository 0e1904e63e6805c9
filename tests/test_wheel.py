"""What strangers install: the wheel, in an environment that has nothing else."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_wheel_installs_and_runs_without_the_repository(tmp_path: Path) -> None:
    """`make wheel`; downloads what constraints.txt names."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def call(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    copy = ["git", "-C", ROOT, "archive", "--format=tar", "-o", tmp_path / "source.tar", "HEAD"]
    call(*copy)
    (tmp_path / "source").mkdir()
    call("tar", "-xf", "source.tar", "-C", "source")
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    call(sys.executable, *pip, "wheel", "--no-deps", "-w", tmp_path, tmp_path / "source")
    (wheel,) = tmp_path.glob("fedkin-*.whl")
    venv.create(tmp_path / "fresh", with_pip=True)
    programs = tmp_path / "fresh" / "bin"
    call(programs / "python", *pip, "install", "-c", ROOT / "constraints.txt", wheel)

    version = call(programs / "fedkin", "--version")
    assert call(programs / "python", "-m", "fedkin", "--version") == version
    where = call(programs / "python", "-c", "import fedkin; print(fedkin.__file__)")
    assert str(tmp_path / "fresh") in where
    call(programs / "fedkin", "run", "perm")
    run = tmp_path / "runs" / "perm-rotated-digits-001"
    assert (run / "config.toml").exists()
    assert len(list((run / "models").iterdir())) >= 24
    assert "fedkin" in call(programs / "fedkin", "doctor")
