"""The package as users meet it: the README's start, and a wheel with all modules that imports by itself."""

import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import kit

SOURCE = kit.TREE / "clients/python"


def lacking():
    """What is missing to build without a network, or nothing."""
    for module in ("pip", "setuptools", "wheel"):
        if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode:
            return f"{sys.executable} has no {module}"
    return ""


class Start(unittest.TestCase):
    def test_the_start_of_the_readme_prints_what_it_says(self):
        text = (SOURCE / "README.md").read_text(encoding="utf-8")
        program = text.split("```python\n", 1)[1].split("```", 1)[0]
        said = [line[4:] for line in text.split("It prints\n", 1)[1].split("\nRun it", 1)[0].splitlines() if line]
        self.assertEqual(len(said), 2)
        with kit.Daemon(pool_bytes="64MiB") as daemon:
            for turn in range(2):
                ran = subprocess.run(
                    [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60,
                    env={**os.environ, "PYTHONPATH": str(SOURCE / "src"), "PREFIXD_SOCKET": daemon.socket},
                )  # fmt: skip
                self.assertEqual(ran.returncode, 0, ran.stderr)
                again = said[1].replace("second", "first")
                self.assertEqual(ran.stdout.splitlines(), said if turn == 0 else [again, said[1]])


class Wheel(unittest.TestCase):
    @unittest.skipIf(lacking(), lacking())
    def test_it_builds_holds_everything_and_imports(self):
        with tempfile.TemporaryDirectory(prefix="prefixd-test-") as folder:
            # From a copy: setuptools leaves its work beside the sources.
            copy = Path(folder) / "source"
            for path in [SOURCE / "pyproject.toml", SOURCE / "README.md", *SOURCE.glob("src/prefixd/*")]:
                if path.is_file():
                    target = copy / path.relative_to(SOURCE)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(path.read_bytes())
            built = subprocess.run(
                [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q",
                 "-w", folder, str(copy)],
                capture_output=True, text=True, timeout=100, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            )  # fmt: skip
            self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
            (wheel,) = Path(folder).glob("*.whl")
            self.assertTrue(wheel.name.startswith("prefixd-0.1.0-py3-none-any"), wheel.name)
            with zipfile.ZipFile(wheel) as archive:
                held = {name for name in archive.namelist() if name.startswith("prefixd/")}
                archive.extractall(Path(folder) / "installed")
            sources = {f"prefixd/{path.name}" for path in SOURCE.glob("src/prefixd/*") if path.is_file()}
            self.assertIn("prefixd/py.typed", held)
            self.assertEqual(held, sources)
            words = subprocess.run(
                [sys.executable, "-c", "import prefixd, prefixd.aio; print(prefixd.__file__, prefixd.__version__)"],
                env={"PYTHONPATH": str(Path(folder) / "installed"), "PATH": os.environ["PATH"]},
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            self.assertEqual(words.returncode, 0, words.stderr)
            self.assertIn("installed/prefixd", words.stdout)


if __name__ == "__main__":
    unittest.main()
