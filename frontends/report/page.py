"""One self-contained HTML file: the page's template with its style, its script, the chart library and the data.

The chart library is uPlot 1.6.32 (MIT), its two files as published on npm: 53 kB instead of Plotly's 4.5 MB, which
every run with --log-dir would write. The page loads nothing: its Content-Security-Policy allows these scripts alone.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fdt.security import replacing

FILES = Path(__file__).with_name("page")
SCRIPTS = ("uPlot.iife.min.js", "charts.js", "sections.js", "page.js")
STYLES = ("uPlot.min.css", "page.css")


def render(title: str, runs: Sequence[Mapping[str, Any]], live: bool = False) -> str:
    """Return the page.

    Args:
        title: The page's title.
        runs: What RunReader.as_json returns, by run.
        live: The page is served by `ui` and asks it for the data.
    """
    scripts = [_read(name) for name in (*SCRIPTS, *(["live.js"] if live else []))]
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'"
    policy += "; form-action 'none'" + ("; connect-src 'self'" if live else "")
    parts = {
        "{{policy}}": policy,
        "{{title}}": html.escape(title),
        "{{style}}": "\n".join(map(_read, STYLES)),
        "{{data}}": embedded({"title": title, "live": live, "runs": runs}),
        "{{scripts}}": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    page = _read("page.html")
    head, *rest = page.split("{{")
    found = [head]
    for piece in rest:  # one pass: no text that is inserted is searched
        name, _, tail = piece.partition("}}")
        found += [parts["{{" + name + "}}"], tail]
    return "".join(found)


def write(page: str, file: Path) -> None:
    """Replace `file` by the page, atomically. Raises OSError."""
    with replacing(file) as written:
        written.write_text(page, encoding="utf-8", errors="replace")


def embedded(data: object) -> str:
    """Return `data` as JSON that may stand inside a <script>: no text in it ends the element."""
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"), default=str)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """Return `value` with each NaN and infinity as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


@cache
def _read(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8").strip()


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
