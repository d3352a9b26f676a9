"""Marks the blocks of the four packages in every Python that tests start; see `tests.mutants`.

This folder is first on PYTHONPATH while `tests.mutants.reach` records. It must not import more
than it needs: it runs before everything else, in every process.
"""

import json
import mmap
import os
import sys
import types
from importlib.machinery import PathFinder, SourceFileLoader

FOLDER = os.environ.get("JUDGEDRIFT_REACH", "")
ROOT = os.environ.get("JUDGEDRIFT_REACH_ROOT", "")


class _Map(mmap.mmap):
    """Bytes of a file; a function that is sent to another process finds the map of that one."""

    def __reduce__(self):
        return _own, ()


def _own():
    return sys.modules["_reach"].__reached__


def _opened(path: str, size: int) -> _Map:
    with open(path, "a+b") as file:
        file.truncate(size)
        return _Map(file.fileno(), size)


class _Loader(SourceFileLoader):
    """Compiles the marked tree; the byte code is kept beside that of no other run."""

    def source_to_code(self, data, path, *, _optimize=-1):
        from tests.mutants.blocks import marked

        name = os.path.relpath(path, ROOT)
        tree = marked(bytes(data).decode(), TABLE[name])
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)


class _Finder:
    """Finds the modules of the four packages below the root."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(name, [ROOT] if path is None else path, target)
        if spec and spec.origin and os.path.relpath(spec.origin, ROOT) in TABLE:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


if FOLDER:
    with open(os.path.join(FOLDER, "table.json")) as _file:
        TABLE = json.load(_file)
    PACKAGES = {name.partition("/")[0] for name in TABLE if name}
    sys.pycache_prefix = os.path.join(FOLDER, "pycache")
    _path = os.environ.setdefault(
        "JUDGEDRIFT_REACH_MAP", os.path.join(FOLDER, f"process-{os.getpid()}.map")
    )
    _module = types.ModuleType("_reach")
    _module.__reached__ = _opened(_path, TABLE[""])
    _module.opened = _opened
    sys.modules["_reach"] = _module
    sys.meta_path.insert(0, _Finder)
