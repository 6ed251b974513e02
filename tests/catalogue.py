"""Scripts that a suite runs. The first line of a script's docstring is its style."""

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Script:
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def style(self) -> str:
        return (ast.get_docstring(ast.parse(self.path.read_text())) or "").split("\n")[0].rstrip(".")
