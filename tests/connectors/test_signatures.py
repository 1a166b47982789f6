"""Connectors against the recorded interfaces of their engines, read from source: no engine is needed.

Every abstract method is defined, and every method that the engine may call takes what it is called with:
the recorded parameters by name and place, nothing further without a default.  Where an engine is installed
the record itself is compared with it.
"""

import ast
import json
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record  # noqa: E402

TREE = Path(__file__).resolve().parents[2]
SOURCES = {engine: TREE / "clients" / engine / "src" / f"prefixd_{engine}" for engine in record.ENGINES}
# Of each group at least one interface is implemented.
WANTED = {
    "vllm": (("KVConnectorBase_V1",), ("SupportsHMA",), ("SecondaryTierManager",)),
    "sglang": (("HiCacheStorage",),),
    "lmcache": (("RemoteConnector", "StoragePluginInterface", "L2AdapterInterface"),),
}
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23", "lmcache": "0.5.6"}


def recorded(engine):
    """Classes of a record by name."""
    data = json.loads((record.SIGNATURES / f"{engine}.json").read_text(encoding="utf-8"))
    return {name: cls for classes in data["files"].values() for name, cls in classes.items()}


def is_abstract(interface):
    return any(method.get("abstract") for method in interface.get("methods", {}).values())


def lineage(name, classes):
    """A recorded class and its recorded bases, the class first."""
    out = [name]
    for base in classes[name]["bases"]:
        if base in classes:
            out += [cls for cls in lineage(base, classes) if cls not in out]
    return out


def interface_methods(name, classes):
    """All methods of an interface, nearest definition first."""
    out = {}
    for cls in lineage(name, classes):
        for method, what in classes[cls].get("methods", {}).items():
            out.setdefault(method, what)
    return out


class Package:
    """The classes of a connector's folder, by name, with what they inherit within it."""

    def __init__(self, folder):
        self.classes = {}
        for path in sorted(Path(folder).glob("*.py")):
            for name, node in record.classes(path).items():
                self.classes.setdefault(name, (path.name, node))

    def bases(self, name):
        """Every base class by name, near ones first, those of other packages too."""
        out = []
        for node in self.classes[name][1].bases:
            base = record.last_name(node)
            out.append(base)
            if base in self.classes and base != name:
                out += self.bases(base)
        return out

    def methods(self, name):
        """name -> (where, record) of methods of the class and of its bases in the package."""
        out = {}
        for cls in [name] + [base for base in self.bases(name) if base in self.classes]:
            file, node = self.classes[cls]
            for item in node.body:
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    out.setdefault(item.name, (f"{file}:{item.lineno}", record.method(item)))
                elif isinstance(item, (ast.Assign, ast.AnnAssign)):
                    # A property may be answered by an attribute of the class.
                    targets = item.targets if isinstance(item, ast.Assign) else [item.target]
                    for target in targets:
                        if isinstance(target, ast.Name):
                            out.setdefault(
                                target.id, (f"{file}:{item.lineno}", {"kind": "attribute", "params": []})
                            )
        return out

    def implementations(self, interface):
        return [name for name in self.classes if interface in self.bases(name)]


def split(params):
    """(positional, keyword only, has *args, has **kwargs); "=" marks defaults."""
    positional, keyword, stars, double, target = [], [], False, False, None
    target = positional
    for param in params:
        if param.startswith("**"):
            double = True
        elif param.startswith("*"):
            stars, target = len(param) > 1, keyword
        elif param != "/":
            target.append(param)
    return positional, keyword, stars, double


def incompatible(theirs, ours):
    """Why a call that the interface promises would fail on our method; None: it would not."""
    if ours.get("kind") == "attribute":
        return None if theirs.get("kind") == "property" else "is an attribute, not a method"
    if theirs.get("kind") != ours.get("kind"):
        return f"is a {ours.get('kind', 'method')}, not a {theirs.get('kind', 'method')}"
    if bool(theirs.get("async")) != bool(ours.get("async")):
        return "is async" if ours.get("async") else "is not async"
    want, want_keyword, want_stars, want_double = split(theirs["params"])
    have, have_keyword, have_stars, have_double = split(ours["params"])
    for i, param in enumerate(want):
        name = param.rstrip("=")
        if i >= len(have):
            if have_stars and (have_double or i == 0):
                continue
            return f"lacks parameter {name}"
        if have[i].rstrip("=") != name and i > 0:
            return f"has {have[i]} where {name} is"
        if param.endswith("=") and not have[i].endswith("="):
            return f"needs {name}, which may be left out"
    for extra in have[len(want) :]:
        if not extra.endswith("="):
            return f"needs {extra}, which nobody gives"
    ours_by_name = {p.rstrip("="): p for p in have + have_keyword}
    for param in want_keyword:
        name = param.rstrip("=")
        if name not in ours_by_name and not have_double:
            return f"lacks keyword {name}"
        if param.endswith("=") and not ours_by_name.get(name, "=").endswith("="):
            return f"needs {name}, which may be left out"
    theirs_by_name = {p.rstrip("=") for p in want + want_keyword}
    for param in have_keyword:
        if not param.endswith("=") and param not in theirs_by_name:
            return f"needs keyword {param}, which nobody gives"
    if want_double and not have_double:
        return "lacks **kwargs"
    if want_stars and not have_stars:
        return "lacks *args"
    return None


def complaints(package, classes):
    """What would go wrong when the engine uses the package, as sentences."""
    out = []
    for interface in sorted(
        name for name in classes if is_abstract(classes[name]) or "methods" in classes[name]
    ):
        promised = interface_methods(interface, classes)
        for cls in package.implementations(interface):
            have = package.methods(cls)
            for name, theirs in promised.items():
                if name == "__init__" and name not in have:
                    continue
                if name not in have:
                    if theirs.get("abstract"):
                        out.append(f"{cls} has no {name}, which is abstract in {interface}")
                    continue
                why = incompatible(theirs, have[name][1])
                # Constructors are called by the engine with what the interface's own takes, but may be made
                # by a factory of the package; those that are not take what they like.
                if why and not (
                    name == "__init__"
                    and not promised["__init__"].get("abstract")
                    and interface not in CONSTRUCTED
                ):
                    out.append(f"{have[name][0]}: {cls}.{name} {why} ({interface})")
    return out


# Interfaces whose implementations the engine itself constructs, with the arguments recorded.
CONSTRUCTED = {"KVConnectorBase_V1", "ConnectorAdapter", "StoragePluginInterface"}


def make_engine_tests(engine):
    class Signatures(unittest.TestCase):
        def test_the_record_is_of_the_version_that_is_supported(self):
            data = json.loads((record.SIGNATURES / f"{engine}.json").read_text(encoding="utf-8"))
            self.assertEqual(data["version"], VERSIONS[engine])
            wanted = {cls for classes in record.ENGINES[engine]["files"].values() for cls in classes}
            self.assertEqual(set(recorded(engine)), wanted)

        def test_connector_fits_the_record(self):
            package, classes = Package(SOURCES[engine]), recorded(engine)
            for group in WANTED[engine]:
                found = [cls for interface in group for cls in package.implementations(interface)]
                self.assertTrue(found, f"no class of {SOURCES[engine]} is a {' or '.join(group)}")
            self.assertEqual(complaints(package, classes), [])

        def test_identity_imports_no_engine(self):
            path = SOURCES[engine] / "identity.py"
            self.assertTrue(path.is_file(), f"{path} is missing")
            foreign = {"vllm", "sglang", "lmcache", "torch"}
            for file in (path, SOURCES[engine] / "__init__.py"):
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                    names = []
                    if isinstance(node, ast.Import):
                        names = [alias.name for alias in node.names]
                    elif isinstance(node, ast.ImportFrom) and node.level == 0:
                        names = [node.module or ""]
                    for name in names:
                        self.assertNotIn(name.split(".")[0], foreign, f"{file}:{node.lineno}")

        def test_the_record_is_what_is_installed(self):
            if record.package_folder(engine) is None:
                self.skipTest(f"{engine} is not installed")
            have = json.loads((record.SIGNATURES / f"{engine}.json").read_text(encoding="utf-8"))
            self.assertEqual(record.record(engine), have)

    Signatures.__name__ = Signatures.__qualname__ = f"Signatures_{engine}"
    return Signatures


for _engine in record.ENGINES:
    globals()[f"Signatures_{_engine}"] = make_engine_tests(_engine)


class Checker(unittest.TestCase):
    """The checker finds what it is for: each fault is planted, and the sound class passes."""

    INTERFACE = """
        from abc import ABC, abstractmethod
        class Store(ABC):
            @abstractmethod
            def get(self, key, out=None): ...
            @abstractmethod
            async def put(self, key, obj): ...
            def stats(self, *, reset=False): ...
            @property
            def name(self): ...
            @classmethod
            @abstractmethod
            def build(cls, config, **kwargs): ...
    """
    SOUND = """
        class Base(engine.Store):
            def get(self, key, out=None, more=1): ...
            @classmethod
            def build(cls, config, **kwargs): ...
        class Ours(Base):
            async def put(self, key, obj): ...
            def stats(self, *, reset=False): ...
            name = "ours"
    """

    def complaints(self, ours):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "theirs.txt").write_text(textwrap.dedent(self.INTERFACE))
            theirs = record.classes(Path(folder) / "theirs.txt")
            (Path(folder) / "ours.py").write_text(textwrap.dedent(ours))
            # Base is abstract itself: only what can be made is asked for everything.
            package = Package(folder)
            out = complaints(package, {"Store": record.class_record(theirs["Store"])})
            return [line for line in out if "Base has no put" not in line]

    def test_sound(self):
        self.assertEqual(self.complaints(self.SOUND), [])

    def test_faults(self):
        for old, new, why in (
            ("out=None, more=1", "out=None, more", "SyntaxError"),
            ("out=None, more=1", "out, more=1", "needs out, which may be left out"),
            ("key, out=None, more=1", "key", "lacks parameter out"),
            ("key, out=None, more=1", "out=None, key=1", "has out= where key is"),
            ("async def put", "def put", "is not async"),
            (
                "async def put(self, key, obj)",
                "async def put(self, key, obj, n)",
                "needs n, which nobody gives",
            ),
            ("async def put", "async def put_it", "has no put"),
            ("*, reset=False", "", "lacks keyword reset"),
            ("*, reset=False", "*, reset", "needs reset"),
            ("*, reset=False", "*, reset=False, force", "needs keyword force"),
            ('name = "ours"', "def name(self): ...", "is a method, not a property"),
            ("@classmethod", "", "is a method, not a classmethod"),
            ("config, **kwargs", "config", "lacks **kwargs"),
        ):
            with self.subTest(new=new):
                if why == "SyntaxError":
                    with self.assertRaises(SyntaxError):
                        self.complaints(self.SOUND.replace(old, new))
                    continue
                found = self.complaints(self.SOUND.replace(old, new))
                self.assertTrue(found and all(why in line for line in found), found)

    def test_record_says_what_is_abstract(self):
        node = ast.parse(textwrap.dedent(self.INTERFACE)).body[1]
        methods = record.class_record(node)["methods"]
        self.assertEqual(
            {name for name, what in methods.items() if what.get("abstract")}, {"get", "put", "build"}
        )
        self.assertEqual(methods["get"]["params"], ["self", "key", "out="])
        self.assertEqual(methods["put"]["async"], True)
        self.assertEqual(methods["stats"]["params"], ["self", "*", "reset="])
        self.assertEqual((methods["build"]["kind"], methods["name"]["kind"]), ("classmethod", "property"))
        self.assertEqual(methods["build"]["params"], ["cls", "config", "**kwargs"])


if __name__ == "__main__":
    unittest.main()
