"""Refuse the glossary's refused words in identifiers, docstrings and the names of modules, a class name that stands in
two packages, assignments to attributes that only a class of another module declares, and long files and functions.

`python tests/check_names.py` is part of `make check`. names_exceptions.txt lists the remaining cases: a file, a word, a
count, and a reason behind `#`. ".name" is an attribute, of objects that are not the project's own; "lines" and
"NAME:lines" are the lines of a file and of a function. A count may only fall: `python tests/check_names.py --write`
writes the list anew and refuses to make it longer.
"""

import ast
import collections
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from fdt import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
EXCEPTIONS = Path(__file__).with_name("names_exceptions.txt")
REFUSED = set(
    "crew hub door knock guest guests party parties invite invited meeting meetings desk desks ledger roster courier "
    "caretaker keeper hand hands lay laid news far air carry carries carried seam tell tells told say says said hear "
    "hears heard look looks looked word words who whom somebody nobody".split()
)
REFUSED_ALONE = {"here", "there"}  # as whole identifiers: `is_here` is a predicate
# "as far as", "users who", "by hand", "the log says", "look up" and "in words" are English
REFUSED_IN_PROSE = REFUSED - set("far news who whom hand say says word words look looks tell tells".split())
PHRASES = {
    "a look": re.compile(r"\b(?:a|the|one|each|first|last) look\b(?!-ahead)"),
    "is late by": re.compile(r"\b(?:is|are|was) late by\b"),
    "send home": re.compile(r"\bsen(?:d|ds|t) home\b"),
    "from there": re.compile(r"\bfrom (?:there|here)\b"),
    "a program knows": re.compile(
        r"\b(?:engine|worker|server|rank|program|process|client|run|job)s? (?:says?|tells?|hears?|knows?)\b"
    ),
}
REFUSED_CLASSES = {"Kept", "Taken", "Found", "Part", "Ruled", "Hands", "Air", "Host", "Hand"}
HOMES = {("Host", "fdt.launch.hosts")}  # a machine of a run is a host
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 300, 40
PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
Finding = tuple[str, str]  # path, word


def main(argv: list[str]) -> int:
    """Return 0 when the tree holds no more refused names than names_exceptions.txt allows."""
    found = collections.Counter(finding for path in sources() for finding in findings(path))
    found.update(duplicates())
    found.update(assignments())
    found.update(dict(lengths()))
    allowed = read_exceptions()
    more = {key: count for key, count in found.items() if count > allowed[key]}
    fewer = {key: count for key, count in allowed.items() if count > found[key]}
    if "--write" in argv and (not more or not EXCEPTIONS.exists()):
        EXCEPTIONS.write_text("".join(line_of(key, n) for key, n in sorted(found.items())))
        return 0
    for (path, word), count in sorted(more.items()):
        if word.endswith("lines"):
            most = MOST_LINES if word == "lines" else MOST_LINES_OF_A_FUNCTION
            print(f"{path}: {word.removesuffix(':lines')!r} has {count} lines, at most {allowed[path, word] or most}")
            continue
        why = "an object's attributes are assigned by its own class" if word.startswith(".") else "docs/glossary.md"
        print(f"{path}: {word!r} is refused ({why}): {count} times, {allowed[path, word]} are excepted")
    for path, word in sorted(fewer):
        print(f"{path}: {word!r} has become rarer: run python tests/check_names.py --write")
    print(f"names: {len(more)} refused, {len(found)} excepted")
    return 1 if more or fewer else 0


def sources() -> list[Path]:
    """Return the packages' Python files, generated ones left out."""
    found = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [path for path in found if "_pb2" not in path.name]


def findings(path: Path) -> Iterator[Finding]:
    """Yield each refused word of a file's definitions, variables and docstrings."""
    name = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text())
    for part in path.relative_to(ROOT).with_suffix("").parts:
        for word in identifier_words(part):
            yield name, word
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ClassDef)
            and node.name in REFUSED_CLASSES
            and (node.name, module_of(path)) not in HOMES
        ):
            yield name, node.name
        for identifier in identifiers(node):
            for word in identifier_words(identifier):
                yield name, word
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((name, word) for word in prose_words((ast.get_docstring(node) or "").lower()))


def identifiers(node: ast.AST) -> list[str]:
    """Return the identifiers that a node defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr]
    return []


def identifier_words(identifier: str) -> list[str]:
    """Return the refused words of `snake_case` or `PascalCase`. Look-ahead is a term of optimizers."""
    alone = [identifier.strip("_")] if identifier.strip("_") in REFUSED_ALONE else []
    parts = PARTS.findall(identifier.replace("look_ahead", ""))
    return alone + [word for part in parts if (word := part.lower()) in REFUSED]


def prose_words(text: str) -> Iterator[str]:
    """Yield the refused words and phrases of a docstring in lower case; names in backquotes are identifiers."""
    text = re.sub(r"`[^`]*`", "", text)
    yield from (word for word in re.findall(r"[a-z]+", text) if word in REFUSED_IN_PROSE)
    for name, phrase in PHRASES.items():
        yield from (name.replace(" ", "_") for _ in phrase.findall(text))


def lengths() -> Iterator[tuple[Finding, int]]:
    """Yield the files and functions that are too long, with their lines."""
    for path in sources():
        name, text = path.relative_to(ROOT).as_posix(), path.read_text()
        if (count := text.count("\n")) > MOST_LINES:
            yield (name, "lines"), count
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or 0) - node.lineno + 1
                if count > MOST_LINES_OF_A_FUNCTION:
                    yield (name, f"{node.name}:lines"), count


def duplicates() -> Iterator[Finding]:
    """Yield class names that two packages define, unless all but one of the classes implement that one, a Protocol."""
    places: dict[str, dict[str, ast.ClassDef]] = collections.defaultdict(dict)
    for path in sources():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name][module_of(path)] = node
    for name, found in sorted(places.items()):
        packages = {module.rpartition(".")[0] for module in found}
        protocol = any("Protocol" in ast.unparse(base) for node in found.values() for base in node.bases)
        if len(packages) > 1 and not protocol:
            yield " ".join(sorted(found)).replace(" ", ","), name


def assignments() -> Iterator[Finding]:
    """Yield attributes that a module assigns on objects other than `self` and that only other modules' classes declare.

    Fields of protobuf messages are left out: a message is filled in by the function that makes it.
    """
    trees = {path: ast.parse(path.read_text()) for path in sources()}
    declared = {path: set(declarations(tree)) for path, tree in trees.items()}
    fields = {name for path in ROOT.glob("proto/**/*.proto") for name in re.findall(r"(\w+) = \d+", path.read_text())}
    for path, tree in trees.items():
        others = set().union(*(names for other, names in declared.items() if other != path)) - declared[path] - fields
        for node in ast.walk(tree):
            if is_assigned(node) and not is_own(node) and node.attr in others:
                yield path.relative_to(ROOT).as_posix(), f".{node.attr}"


def declarations(tree: ast.Module) -> Iterator[str]:
    """Yield the attributes of a module's classes: annotated ones, and those that their methods assign."""
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for node in owner.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield node.target.id
            yield from (node.attr for node in ast.walk(owner) if is_assigned(node) and is_own(node))


def is_assigned(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def module_of(path: Path) -> str:
    """Return the dotted name of a file's module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def read_exceptions() -> collections.Counter[Finding]:
    """Return how often which word is excepted in which file."""
    lines = EXCEPTIONS.read_text().splitlines() if EXCEPTIONS.exists() else []
    return collections.Counter({(path, word): int(n) for path, word, n in (s.partition("#")[0].split() for s in lines)})


def line_of(key: Finding, count: int) -> str:
    """Return a line of names_exceptions.txt, with the reason that it has there."""
    path, word = key
    lines = EXCEPTIONS.read_text().splitlines() if EXCEPTIONS.exists() else []
    reason = next((line.partition("#")[2] for line in lines if line.split()[:2] == [path, word]), "")
    return f"{path} {word} {count}{reason and f'  #{reason}'}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
