"""The package as it is installed: a wheel with all modules and its types, that imports by itself."""

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
