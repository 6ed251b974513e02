"""Every text of the five packages that a user can read, against the snapshot messages.txt: a change of one is seen.

A text is a literal that holds two words, any literal in a `raise`, or the docstring of a command; `{}` stands for a
value. Other docstrings and annotations are no texts. `python tests/single/test_messages.py` writes the snapshot anew.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdt import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = Path(__file__).with_name("messages.txt")
TWO_WORDS = re.compile(r"[A-Za-z{][\w}'-]*[,.:;!?)`\"']*\s+[`(\"']*[A-Za-z{]")
A_WORD = re.compile(r"(?<![\w.])[a-z]{2}|\{\}")  # a list of TensorFlow's operations has none
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def test_every_message_is_in_the_snapshot():
    written = SNAPSHOT.read_text().splitlines()
    assert snapshot().splitlines() == written, f"read the difference, then: python {Path(__file__).relative_to(ROOT)}"


def test_no_raise_is_missed():
    """Every `raise` that holds two words in quotes yields a text."""
    raises = [
        node for path in sources() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)
    ]
    quoted = [node for node in raises if re.search(r"[\"'][^\"'\[\]]*[a-z]{2} [^\[\]]*[\"']", ast.unparse(node))]
    assert len(quoted) > 200
    assert [ast.unparse(node) for node in quoted if not list(messages(node))] == []


def test_no_message_has_a_word_that_the_glossary_refuses():
    from tests.check_names import REFUSED_IN_PROSE

    refused = {line for line in snapshot().splitlines() if REFUSED_IN_PROSE & set(re.findall("[a-z]+", line.lower()))}
    assert refused == set()


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("raise Error(f'a {kind!r} of {count:,} parts' + ' is lost')", ["a {} of {} parts", " is lost"]),
        ("raise Error('damaged')", ["damaged"]),
        ("raise Error(given['name'])", []),
        ("raise Error(text=TEXTS['first'][0] + ': lost')", [": lost"]),
        ("if late:\n    note('it is late' if late else 'in time')", ["it is late", "in time"]),
        ('text = f\'{name} {"is late" if late else ""}\'', ["{} {}", "is late"]),
        ("LINE = 'one'\n'docstring of two words'\nTEXT = {'first': 'the first', 'second': '2nd'}", ["the first"]),
        ("def function(a: 'tuple[A | B, C]') -> 'tuple[int, str]':\n    'Docstring of it.'", []),
        (
            "@click.command('run', cls=Command)\ndef run():\n    '''Run it.\n\n    Twice.\n    '''",
            ["Run it.\n\nTwice."],
        ),
        ("@click.option('-n', help='How many.')\ndef run(): ...", ["How many."]),
        ("RULES = 'Abs Acos MatMul'", []),
    ],
)
def test_what_is_a_message(source, texts):
    assert list(messages(ast.parse(source))) == texts


def sources() -> list[Path]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in files if "_pb2" not in path.name)


def snapshot() -> str:
    blocks = []
    for path in sources():
        if texts := list(messages(ast.parse(path.read_text()))):
            lines = ("  - " + text.replace("\n", "\n    ") for text in texts)
            blocks.append("\n".join([path.relative_to(ROOT).as_posix(), *lines, ""]))
    return re.sub(r"[ \t]+$", "", "\n".join(blocks), flags=re.M)


def messages(node: ast.AST, raised: bool = False) -> Iterator[str]:
    """Yield the messages of `node` in the order of the source. `raised`: it is part of a `raise` statement."""
    text = literal(node)
    if text is not None and A_WORD.search(text) and (raised or TWO_WORDS.search(text)):
        yield text
    raised = raised or isinstance(node, ast.Raise)
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Expr) and literal(child.value) is not None and isinstance(node, Definition):
                if is_command(node):
                    yield ast.get_docstring(node) or ""
            elif is_part(field, child) and not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
                yield from messages(child, raised and field != "slice")


def is_part(field: str, child: object) -> bool:
    return isinstance(child, ast.AST) and field not in ("annotation", "returns", "format_spec")


def literal(node: ast.AST) -> str | None:
    """Return the text of a literal or of an f-string, `{}` for its values; None for any other node."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or "{}" for part in node.values)
    return None


def is_command(node: Definition) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(found, ast.Call) and "command" in ast.unparse(found.func) for found in decorators)


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot())
