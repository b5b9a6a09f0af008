"""The rules of the architecture as tests: allowed imports, largest sizes, banned names."""

from __future__ import annotations

import ast
import itertools
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("dataservice", "pstrain")
BANNED_FILES = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py"}

IMPURE = {
    "grpc",
    "pyarrow",
    "threading",
    "time",
    "random",
    "os",
    "socket",
    "subprocess",
    "datetime",
    "uuid",
    "secrets",
}
STDLIB_ONLY = (
    "dataservice/vocabulary.py",
    "dataservice/errors.py",
    "dataservice/config.py",
    "dataservice/public_names.py",
    "pstrain/public_names.py",
    "pstrain/vocabulary.py",
)
PURE = (
    "dataservice/sharding.py",
    "dataservice/packed_columns.py",
    "dataservice/split_table.py",
    "dataservice/windowing.py",
    "dataservice/job_options.py",
    "dataservice/ranges.py",
    "dataservice/stream_counts.py",
    "dataservice/client/positions.py",
    "dataservice/dispatcher/positions.py",
    "dataservice/dispatcher/resumption.py",
    "dataservice/dispatcher/ordering.py",
    "dataservice/dispatcher/events.py",
    "dataservice/dispatcher/state.py",
    "dataservice/dispatcher/decide.py",
    "dataservice/dispatcher/opening.py",
    "dataservice/dispatcher/window_records.py",
    "dataservice/dispatcher/windows.py",
    "dataservice/dispatcher/plans.py",
    "dataservice/dispatcher/images.py",
    "dataservice/dispatcher/compaction.py",
    "dataservice/dispatcher/leasing.py",
    "dataservice/dispatcher/quarantine.py",
    "dataservice/dispatcher/suspicion.py",
    "dataservice/omissions.py",
    "dataservice/dispatcher/lifecycle.py",
    "dataservice/dispatcher/roster.py",
    "dataservice/dispatcher/shares.py",
    "dataservice/dispatcher/rounds.py",
    "dataservice/dispatcher/round_events.py",
    "dataservice/dispatcher/snapshot_events.py",
    "dataservice/dispatcher/snapshot_requests.py",
    "dataservice/dispatcher/journal_frames.py",
    "dataservice/dispatcher/jobs.py",
    "dataservice/dispatcher/round_table.py",
    "dataservice/dispatcher/requests.py",
    "dataservice/dispatcher/liveness.py",
    "dataservice/dispatcher/presence.py",
    "dataservice/dispatcher/worker_set.py",
    "dataservice/dispatcher/reports.py",
    "dataservice/dispatcher/autoscale.py",
    "dataservice/dispatcher/status.py",
    "dataservice/monitoring/status_text.py",
    "dataservice/monitoring/status_metrics.py",
    "dataservice/runtime/monitoring/report.py",
    "dataservice/runtime/monitoring/metrics.py",
    "dataservice/dispatcher/invariants.py",
    "dataservice/worker/cache.py",
    "dataservice/client/tracker.py",
    "dataservice/client/wait_limits.py",
    "dataservice/client/known_workers.py",
    "dataservice/client/targets.py",
    "dataservice/client/rounds.py",
    "pstrain/partition.py",
    "pstrain/consistency.py",
    "pstrain/coordinator/events.py",
    "pstrain/coordinator/state.py",
    "pstrain/coordinator/decide.py",
    "pstrain/coordinator/assigning.py",
    "pstrain/coordinator/rounds.py",
    "pstrain/coordinator/propagation.py",
    "pstrain/coordinator/dependencies.py",
    "pstrain/coordinator/closure_queues.py",
    "pstrain/coordinator/priority_queue.py",
    "pstrain/coordinator/outboxes.py",
    "pstrain/coordinator/trainer_marks.py",
    "pstrain/coordinator/join_progress.py",
    "pstrain/coordinator/trainer_stats.py",
    "pstrain/coordinator/status.py",
    "pstrain/coordinator/end_errors.py",
    "pstrain/coordinator/whereabouts.py",
)
ONE_HOME = {
    "pyarrow.flight": {"dataservice/runtime/exchanges/flight.py"},
    "grpc": {f"dataservice/runtime/rpc/{end}.py" for end in ("client", "server", "streams")},
}
# Files that import modules by computed names: for public names, pickled plans, user functions
# and extras.
NAMING_MODULES = {
    "dataservice/public_names.py",
    "dataservice/dataset/dataset.py",
    "dataservice/dataset/function.py",
    "pstrain/__init__.py",
    "pstrain/__main__.py",
    "pstrain/kernels/__init__.py",
    "pstrain/public_names.py",
}


class Module(NamedTuple):
    """A module's text, its syntax tree, and all nodes of that, walked once for all tests."""

    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]


Modules = dict[str, Module]
Imports = dict[str, set[str]]
UNPICKLERS = {"dataservice/dataset/function.py", "pstrain/serialization/pickling.py"}


def _modules(*packages: str) -> Iterator[tuple[str, Module]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "_pb2" not in path.name:
                tree = ast.parse(text := path.read_text())
                module = Module(text, tree, tuple(ast.walk(tree)))
                yield path.relative_to(ROOT).as_posix(), module


@pytest.fixture(scope="module")
def modules() -> Modules:
    """Parses all modules of the packages, by path; they are freed after the tests of this file."""
    return dict(_modules(*PACKAGES))


@pytest.fixture(scope="module")
def imports(modules: Modules) -> Imports:
    return {path: _imports(module) for path, module in modules.items()}


def _imports(module: Module) -> set[str]:
    """Returns the full names that a module imports at run time, not for type checkers only."""
    skipped: set[ast.AST] = set()
    for node in module.nodes if "TYPE_CHECKING" in module.text else ():
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped.update(inner for child in node.body for inner in ast.walk(child))
    names: set[str] = set()
    for node in module.nodes:
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _called(node: ast.AST) -> str:
    """Returns the last part of the name of what a node calls, "" for other nodes."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def _dynamic_imports(module: Module) -> Iterator[ast.expr]:
    """Yields the first argument of each call of `import_module` and `__import__`."""
    for node in module.nodes:
        if _called(node) in {"import_module", "__import__"}:
            yield node.args[0]  # type: ignore[attr-defined]


def _needs(path: str, module: Module, known: set[str]) -> set[str]:
    """Returns the modules that one imports anywhere: in functions, for type checkers, by string."""
    names = {argument.value for argument in _dynamic_imports(module) if _is_text(argument)}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names.update(full & known or {node.module})
    return (names & known) - {_module_name(path)}


def _is_text(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Constant)


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _touches(names: set[str], module: str) -> bool:
    return any(name == module or name.startswith(module + ".") for name in names)


def _inside(folder: str, imports: Imports) -> list[str]:
    """Returns the modules inside a folder; it must have some, or else a rule about it is void."""
    paths = [path for path in imports if path.startswith(folder)]
    assert paths, f"{folder} has no modules"
    return paths


@pytest.mark.parametrize("path", PURE)
def test_pure_modules_import_nothing_impure(path: str, imports: Imports) -> None:
    found = {name for name in IMPURE if _touches(imports[path], name)}
    assert not found, f"{path} decides; it must not import {found}"


@pytest.mark.parametrize("path", STDLIB_ONLY)
def test_base_modules_import_only_standard_library(path: str, imports: Imports) -> None:
    third_party = {"numpy", "numba", "pyarrow", "grpc", "fsspec", "cloudpickle", "google"}
    found = {name for name in third_party if _touches(imports[path], name)}
    assert not found


@pytest.mark.parametrize("module", ONE_HOME)
def test_transport_library_is_imported_only_by_its_home_module(
    module: str, imports: Imports
) -> None:
    homes = {path for path, names in imports.items() if _touches(names, module)}
    assert homes == ONE_HOME[module]


def test_kernels_import_numpy_and_numba_only(imports: Imports) -> None:
    allowed = {"__future__", "typing", "math", "operator", "numpy", "numba", "pstrain"}
    kernels = [path for path in _inside("pstrain/kernels/", imports) if "__init__" not in path]
    for path in kernels:
        assert {name.split(".")[0] for name in imports[path]} <= allowed, path
        inside = {n for n in imports[path] if n.startswith("pstrain.")}
        assert all(n.startswith("pstrain.kernels") for n in inside), path


def test_dataservice_does_not_import_pstrain(imports: Imports) -> None:
    for path in _inside("dataservice/", imports):
        assert not _touches(imports[path], "pstrain"), path


def test_pstrain_imports_only_public_parts_of_dataservice(imports: Imports) -> None:
    allowed = ("dataservice.runtime", "dataservice.errors")
    for path, names in imports.items():
        if path.startswith("pstrain/"):
            for name in names:
                if name.startswith("dataservice."):
                    public = (
                        name.count(".") == 1
                        and not (ROOT / (name.replace(".", "/") + ".py")).exists()
                    )
                    inner = (ROOT / name.replace(".", "/")).is_dir()
                    assert name.startswith(allowed) or (public and not inner), (path, name)


def test_dispatcher_worker_and_client_do_not_import_each_other(imports: Imports) -> None:
    roles = ("dispatcher", "worker", "client")
    for role, other in itertools.permutations(roles, 2):
        for path in _inside(f"dataservice/{role}/", imports):
            assert not _touches(imports[path], f"dataservice.{other}"), path


def _import_cycle(needs: dict[str, set[str]]) -> list[str]:
    """Returns a circle of imports, which exists because every module here needs another one."""
    walked = [min(needs)]
    while walked[-1] not in walked[:-1]:
        walked.append(min(needs[walked[-1]]))
    return walked[walked.index(walked[-1]) :]


def test_modules_have_no_import_cycles(modules: Modules) -> None:
    """Counts hidden imports too: in functions, for type checkers only, and by a string."""
    modules = {**modules, **dict(_modules("bench", "tests/simulation"))}
    known = {_module_name(path) for path in modules}
    needs = {_module_name(path): _needs(path, module, known) for path, module in modules.items()}
    while needs:
        above = {m: others & needs.keys() for m, others in needs.items() if others & needs.keys()}
        assert len(above) < len(needs), f"a circle of imports: {_import_cycle(above)}"
        needs = above


def test_computed_import_names_occur_only_in_listed_modules(modules: Modules) -> None:
    for path, module in modules.items():
        if not all(_is_text(argument) for argument in _dynamic_imports(module)):
            assert path in NAMING_MODULES, path


def test_unpickling_occurs_only_in_listed_modules(modules: Modules, imports: Imports) -> None:
    for path, module in modules.items():
        calls = {
            ast.unparse(node.func)  # type: ignore[attr-defined]
            for node in module.nodes
            if _called(node) in {"load", "loads"}
        }
        loads = calls & {"pickle.loads", "pickle.load", "cloudpickle.loads"}
        if loads or _touches(imports[path], "pickle"):
            assert path in UNPICKLERS, path


def test_modules_and_functions_stay_within_size_limits(modules: Modules) -> None:
    for path, module in modules.items():
        lines = module.text.count("\n")
        assert lines <= 430, f"{path} has {lines} lines"
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 70, f"{path}: {node.name} has {length} lines"


def test_no_module_has_banned_file_name(modules: Modules) -> None:
    for path in modules:
        assert pathlib.Path(path).name not in BANNED_FILES, path
        assert "_v2" not in path, path


def test_every_module_has_docstring(modules: Modules) -> None:
    for path, module in modules.items():
        if module.text.strip():
            assert ast.get_docstring(module.tree), f"{path} has no docstring"


def test_no_handler_swallows_every_error(modules: Modules) -> None:
    for path, module in modules.items():
        for node in module.nodes:
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{path}:{node.lineno} catches everything"
                caught = ast.unparse(node.type)
                silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
                assert not (silent and caught in {"Exception", "BaseException"}), (
                    f"{path}:{node.lineno} swallows every error"
                )
