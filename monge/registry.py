"""The models of the library and of user files, and which of them support some data.

Every public file under models/ is one model.
Listing reads syntax trees and imports nothing; only `find` imports, and only the file it needs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.config import USER_MODULE, Config
from .core.errors import DataError, UsageError, nearest, shown
from .core.limits import exceeded

if TYPE_CHECKING:
    from .core.model import Model
    from .core.space import Space


PACKAGE = Path(__file__).parent
MODELS = PACKAGE / "models"
ABILITIES = PACKAGE / "core" / "abilities.py"
MODULES = f"{__package__}.models"


@dataclass(frozen=True)
class Entry:
    """The properties of a model, read from its source file."""

    name: str  # family.name
    family: str
    summary: str
    events: tuple[str, ...]
    givens: tuple[str, ...]
    supports_missing: bool
    supports_variable_length: bool
    supports_flags: bool
    is_predictor: bool
    uses_unlabelled: bool
    family_priority: int
    abilities: tuple[str, ...]  # the `ability` of each that it inherits
    owner: str  # the class
    needs_given: bool
    max_codes: int
    max_label_combinations: int
    has_own_rule: bool  # whether its code says which data it takes, beyond the above

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in RULES}

    def unsupported_reason(self, space: Space) -> str | None:
        """What the class says, which is imported only if it has a rule of its own."""
        if self.has_own_rule:
            return find(self.name).unsupported_reason(space)
        return exceeded(self.name, self, space)


RULES = ("needs_given", "max_codes", "max_label_combinations", "has_own_rule")
"""What an entry knows about the data that a model takes and no listing shows."""


Lineage = list[tuple[str, ast.ClassDef | None]]


@cache
def entries() -> tuple[Entry, ...]:
    """Every model of the library, by family and name."""
    return tuple(entry for path in files() for entry in entries_of(path))


@cache
def files() -> tuple[Path, ...]:
    """The files that hold a model each, by family and name."""
    return tuple(sorted(p for p in MODELS.glob("*/*.py") if not p.name.startswith("_")))


@cache
def entries_of(path: Path) -> tuple[Entry, ...]:
    """What `read_entries` finds in a file of the library."""
    return tuple(read_entries(path))


def read_entries(path: Path) -> Iterator[Entry]:
    """The entry of the public model in a file; a file holds at most one."""
    found = [
        (node, line)
        for node in classes(path).values()
        if not node.name.startswith("_") and is_model(line := lineage(node.name, path))
    ]
    if len(found) > 1:
        raise UsageError(
            f"expected one public model in {path.name}, found {len(found)}; move the others "
            "to files of their own"
        )
    for node, line in found:
        summary = (ast.get_docstring(tree(path)) or "").partition("\n")[0].rstrip(".")
        yield Entry(
            full_name(path),
            path.parent.name,
            summary,
            tuple(sorted(literal(line, "events", ()))),
            tuple(sorted(literal(line, "givens", ()))),
            literal(line, "supports_missing", False),
            literal(line, "supports_variable_length", False),
            literal(line, "supports_flags", False),
            literal(line, "is_predictor", False),
            literal(line, "uses_unlabelled", False),
            literal(line, "family_priority", 0),
            abilities(line),
            node.name,
            literal(line, "needs_given", False),
            literal(line, "max_codes", 0),
            literal(line, "max_label_combinations", 0),
            any(defines(ancestor, "unsupported_reason") for _, ancestor in line),
        )


def defines(node: ast.ClassDef | None, name: str) -> bool:
    """Whether a class other than the base of all models defines a method."""
    methods = node.body if node is not None and node.name != "Model" else ()
    return any(isinstance(each, ast.FunctionDef) and each.name == name for each in methods)


def abilities(line: Lineage) -> tuple[str, ...]:
    """The name of each ability among the ancestors, in the library's order."""
    known: Lineage = [*classes(ABILITIES).items()]
    names = [literal([ancestor], "ability", None) for ancestor in line]
    first = [literal([ability], "ability", None) for ability in known]
    return tuple(name for name in dict.fromkeys([*first, *names]) if name and name in names)


@cache
def tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:  # ValueError: not UTF-8, or null bytes
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(
            f"{path}{line}: expected Python, found a mistake ({reason}); correct the file"
        ) from error


@cache
def classes(path: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree(path).body if isinstance(node, ast.ClassDef)}


def is_model(line: Lineage) -> bool:
    return any(name == "Model" for name, _ in line[1:])


def lineage(name: str, path: Path) -> Lineage:
    """A class and its ancestors, nearest first; those outside Monge by name alone. An ability is
    recognised by its name, wherever a user file imports it from."""
    node = classes(path).get(name)
    if node is None:
        where = imports(path).get(name) or (ABILITIES if name in classes(ABILITIES) else None)
        return lineage(name, where) if where else [(name, None)]
    line: Lineage = [(name, node)]
    for base in node.bases:
        if isinstance(base, ast.Name):
            line += lineage(base.id, path)
    return line


@cache
def imports(path: Path) -> dict[str, Path]:
    """The names a file imports from Monge's own files, with the file of each."""
    found: dict[str, Path] = {}
    for node in tree(path).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level or (node.module or "").startswith("monge"):
            base = path.parents[node.level - 1] if node.level else PACKAGE.parent
            where = base.joinpath(*(node.module or "").split("."))
            file = where.with_suffix(".py")
            if file.is_file():
                found |= {alias.asname or alias.name: file for alias in node.names}
    return found


def literal(line: Lineage, name: str, default: Any) -> Any:
    """The value of a class attribute that is written as a literal."""
    for _, node in line:
        for statement in node.body if node else ():
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
                continue
            many = isinstance(statement, ast.Assign)
            (target,) = statement.targets if many else [statement.target]  # type: ignore[union-attr]
            if isinstance(target, ast.Name) and target.id == name:
                empty = isinstance(statement.value, ast.Call) and not statement.value.args
                return set() if empty else ast.literal_eval(statement.value)
    return default


def full_name(path: Path) -> str:
    """`family.name` of a file of the library."""
    return f"{path.parent.name}.{path.stem}"


@cache
def file_of(name: str) -> Path:
    """The file of `family.name`, or of `name` if it is unique; no file is read."""
    matches = [path for path in files() if name in (path.stem, full_name(path))]
    if len(matches) > 1:
        names = " or ".join(map(full_name, matches))
        raise UsageError(f"{name!r} is ambiguous; write {names}")
    if not matches:
        known = {path.stem for path in files()}
        known |= {full_name(path) for path in files() if "." in name}
        raise UsageError(f"there is no model {name!r}{nearest(name, sorted(known))}")
    return matches[0]


def entry(name: str) -> Entry:
    """The entry of `family.name`, or of `name` if it is unique; other files are not read."""
    (found,) = entries_of(file_of(name))
    return found


def find(name: str) -> type[Model]:
    """The class of a model, imported now; `./mine.py` is a model in a user file."""
    if name.endswith(".py"):
        return load_file(Path(name))
    from .core.model import Model

    module = importlib.import_module(f"{MODULES}.{full_name(file_of(name))}")
    (found,) = (
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Model)
        and each.__module__ == module.__name__
        and not each.__name__.startswith("_")
    )
    return found


def name_of(config: Config) -> str:
    """The name of the model that a config belongs to: `family.name`, or a user file."""
    if not isinstance(config, Config):
        raise UsageError(
            f"expected the name of a model, found {shown(config)}; give one that `monge models` "
            "lists, or the path of a model file"
        )
    where = getattr(config, "owner", type(config)).__module__
    if where.startswith(USER_MODULE):
        return str(sys.modules[where].__file__)
    for path in files():
        if where == f"{MODULES}.{full_name(path)}":
            return full_name(path)
    raise UsageError(
        f"expected the config of a model, found {config.tag or type(config).__name__}; use one "
        "of a library model, or of a model file that was loaded before"
    )


def describe(name: str) -> Entry:
    """The entry of a library model or a user file."""
    if not name.endswith(".py"):
        return entry(name)
    own = list(read_entries(Path(name))) if Path(name).is_file() else []
    if not own:
        raise UsageError(
            f"expected a file with a public subclass of monge.Model, found none in {name}; "
            "write one such class"
        )
    return own[0]


def is_named(name: str) -> bool:
    """Whether the user has named this file, in this process or in MONGE_MODELS. A file that only a
    run folder names is not imported: loading a run must not execute unknown code."""
    listed = [Path(p).resolve() for p in os.environ.get("MONGE_MODELS", "").split(os.pathsep) if p]
    return is_loaded(Path(name)) or Path(name).resolve() in listed


def is_loaded(path: Path) -> bool:
    """Whether this file is already imported."""
    module = sys.modules.get(module_name(path))
    return module is not None and Path(str(module.__file__)).resolve() == path.resolve()


def module_name(path: Path) -> str:
    """The module name of a user file."""
    return f"{USER_MODULE}{path.stem}"


def load_file(path: Path) -> type[Model]:
    """Import the model in a user file; its configs can be read from then on."""
    owner = describe(str(path)).owner
    name = module_name(path)
    if not is_loaded(path):
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)  # type: ignore[union-attr]
        except BaseException:
            del sys.modules[name]  # half a module must not count as loaded
            raise
    found = getattr(sys.modules[name], owner)
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise UsageError(
            f"{path}: expected a model with {', '.join(missing)}, found one without; write what "
            "is missing as CONTRIBUTING.md shows it"
        )
    return found


def error_in_user_file(error: BaseException) -> str | None:
    """What to say of an error raised in or below a user's model file: the file, the line and the
    cause. If it arose elsewhere while such a model was used, the file and the cause, as it most
    likely returned what nobody expects; None for other errors."""
    place, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith(USER_MODULE):
            place = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if place is None:
        own = [str(sys.modules[n].__file__) for n in sys.modules if n.startswith(USER_MODULE)]
        return (
            f"{own[-1]}: {cause}; check what the methods of this model return, and their shapes "
            "(--debug shows the traceback)"
            if own
            else None
        )
    return f"{place}: {cause}; correct the model file (--debug shows the traceback)"


MAX_SUGGESTED, FEW_SUGGESTED = 10, 5
"""Models that a refusal names at most, and how many of more than these."""
GENERATIVE = {"sample", "log-likelihood"}
"""A model of the event's distribution has at least one of these abilities."""


def check_compatible(name: str, owner: type[Model] | Entry, space: Space) -> None:
    """Raise a DataError if the model does not support the data; it names models that do."""
    if space.kind not in owner.events:
        expected = " or ".join(sorted(owner.events))
        given = {part.kind for part in space.given.values()}
        if owner.is_predictor and given & {*owner.events}:
            raise DataError(
                f"{name} predicts {expected}, the target of these data is {space}; choose it with "
                "--target, or pair images by adding +edges or +low2 to the data name"
            )
        raise DataError(
            f"{name}: expected {expected}, found {space}; {suggest_models(space, owner)}"
        )
    for field, part in space.given.items():
        if part.kind not in owner.givens:
            expected = " or ".join(sorted(owner.givens))
            expected = f"{expected} as a condition" if expected else "no condition"
            raise DataError(
                f"{name}: expected {expected}, found {field!r}, which is {part}; "
                f"remove it from --given, or {suggest_models(space, owner)}"
            )
    if space.missing and not owner.supports_missing:
        raise DataError(
            f"{name} cannot train on rows with missing values; model the empty cells of a "
            "table with data.missing=model and without data.space=plain, drop such rows with "
            "data.missing=drop, fill them in with `monge complete`, or "
            f"{suggest_models(space, owner)}"
        )
    varying = next(variable_length_parts(space), None)
    if varying and not owner.supports_variable_length:
        raise DataError(
            f"{name} needs rows of equal length, those of {varying.name} differ ({varying}); "
            f"{suggest_models(space, owner)}"
        )
    if space.flags and not owner.supports_flags:
        channels = ", ".join(str(channel + 1) for channel in space.flags)
        raise DataError(
            f"{name}: expected real numbers at each step, found channel {channels} of "
            f"{space.name or 'the rows'} to be 0 or 1 always; leave it out, or "
            f"{suggest_models(space, owner)}"
        )
    if reason := owner.unsupported_reason(space):
        raise DataError(reason)


def variable_length_parts(space: Space) -> Iterator[Space]:
    """The event and the conditions whose rows differ in length; conditions that are text may
    always do."""
    conditions = (part for part in space.given.values() if part.kind != "tokens")
    return (part for part in (space, *conditions) if part.varies)


def join_with_or(names: Sequence[str]) -> str:
    """Alternatives in a sentence: a, b or c."""
    return " or ".join([", ".join(names[:-1]), names[-1]][len(names) < 2 :])


def suggest_models(space: Space, instead_of: type[Model] | Entry) -> str:
    """The end of an error message: the models that support this data; predictors are suggested
    only in place of a predictor."""
    kinds = {part.kind for part in space.given.values()}
    names = [
        entry.name
        for entry in entries()
        if space.kind in entry.events
        and kinds <= set(entry.givens)
        and (entry.supports_missing or not space.missing)
        and (entry.supports_variable_length or not any(variable_length_parts(space)))
        and (entry.supports_flags or not space.flags)
        and (instead_of.is_predictor or not entry.is_predictor)
        and GENERATIVE & set(entry.abilities)
    ]
    if len(names) <= MAX_SUGGESTED:
        return f"use {join_with_or(names)}" if names else "no model supports such data yet"
    own = instead_of.family if isinstance(instead_of, Entry) else family_of(instead_of)
    names.sort(key=lambda name: name.partition(".")[0] != own)  # its own family first
    some = names[:FEW_SUGGESTED]
    return f"use {join_with_or(some)}, or one of {len(names) - len(some)} others (`monge models`)"


def family_of(owner: type[Model]) -> str:
    """The folder of a model; empty for that of a user file."""
    return "".join(owner.__module__.split(".")[-2:-1])
