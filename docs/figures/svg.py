"""A few SVG shapes: boxes, arrows, text and line charts that follow the reader's light or dark scheme."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

STYLE = """
text { font: 14px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2430 }
.small { font-size: 12px; fill: #5a6274 }
.bold { font-weight: 600 }
.code { font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, monospace; font-size: 13px }
.plain { fill: #f4f5f9; stroke: #aab1c3 }
.client { fill: #e4eaff; stroke: #5468c4 }
.engine { fill: #fff1d6; stroke: #b98016 }
.worker { fill: #dcf5ea; stroke: #23845b }
.server { fill: #fbe4ec; stroke: #b4446c }
.frame { fill: none; stroke: #aab1c3; stroke-dasharray: 5 4 }
.line { stroke: #5a6274; fill: none; stroke-width: 1.5 }
.grid { stroke: #d9dce5; stroke-width: 1 }
.head { fill: #5a6274 }
.c0 { stroke: #3b5bdb; fill: #3b5bdb } .c1 { stroke: #c2255c; fill: #c2255c } .c2 { stroke: #2b8a3e; fill: #2b8a3e }
.c3 { stroke: #b35c00; fill: #b35c00 } .c4 { stroke: #7048c8; fill: #7048c8 } .c5 { stroke: #0b7285; fill: #0b7285 }
.c6 { stroke: #868e96; fill: #868e96 } .c7 { stroke: #5c4033; fill: #5c4033 }
.curve { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7f0 } .small { fill: #a8afc0 }
.plain { fill: #2a2e3a; stroke: #666f85 } .client { fill: #27315f; stroke: #8fa0f0 }
.engine { fill: #46381a; stroke: #dba94a } .worker { fill: #17402f; stroke: #57c596 }
.server { fill: #4b2233; stroke: #e588ab } .frame { stroke: #666f85 }
.line { stroke: #a8afc0 } .head { fill: #a8afc0 } .grid { stroke: #3a3f4d }
.c0 { stroke: #91a7ff; fill: #91a7ff } .c1 { stroke: #faa2c1; fill: #faa2c1 } .c2 { stroke: #8ce99a; fill: #8ce99a }
.c3 { stroke: #ffc078; fill: #ffc078 } .c4 { stroke: #c5a9ff; fill: #c5a9ff } .c5 { stroke: #66d9e8; fill: #66d9e8 }
.c6 { stroke: #adb5bd; fill: #adb5bd } .c7 { stroke: #d2b48c; fill: #d2b48c }
.curve { fill: none }
}
"""
LINE = 19  # pixels between two lines of text


@dataclass
class Picture:
    """Shapes on a canvas of `width` by `height` pixels. `title`: for readers who cannot see it."""

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        """Write `words` with its base line at y."""
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str = "plain") -> None:
        """Draw a rounded box; the first of `lines` is bold, a line that begins with a backquote is code."""
        size = f'width="{width:g}" height="{height:g}" rx="7" stroke-width="1.3"'
        self.shapes.append(f'<rect x="{x:g}" y="{y:g}" {size} class="{kind}"/>')
        first = y + height / 2 - LINE * (len(lines) - 1) / 2 + 5
        for number, line in enumerate(lines):
            style = "code" if line.startswith("`") else "small" if number else "bold"
            self.text(x + width / 2, first + LINE * number, line.strip("`"), style)

    def frame(self, x: float, y: float, width: float, height: float, words: str) -> None:
        """Draw a dashed frame with `words` in its upper left corner."""
        self.shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="9" class="frame"/>')
        self.text(x + 12, y + 20, words, "small", "start")

    def arrow(
        self, points: Sequence[tuple[float, float]], words: str = "", *, both: bool = False, up: float = 7
    ) -> None:
        """Draw an arrow through `points`; `words` stand `up` pixels above its last level piece, else beside it."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        start = ' marker-start="url(#tail)"' if both else ""
        self.shapes.append(f'<polyline points="{path}" class="line" marker-end="url(#head)"{start}/>')
        if words:
            level = [piece for piece in zip(points, points[1:], strict=False) if piece[0][1] == piece[1][1]]
            (x1, y1), (x2, y2) = level[-1] if level else (points[0], points[-1])
            x, y = (x1 + x2) / 2, (y1 + y2) / 2
            if level:
                self.text(x, y - up, words, "small")
            else:
                aside = 10 + 4 * abs((x2 - x1) / (y2 - y1))
                self.text(x + (aside if x2 >= x1 else -aside), y + 4, words, "small", "start" if x2 >= x1 else "end")

    def chart(
        self,
        area: tuple[float, float, float, float],
        curves: Sequence[tuple[str, Sequence[float]]],
        labels: Sequence[str],
        limits: tuple[float, float, float],
    ) -> None:
        """Draw a line chart. `area`: left, top, right, bottom. `limits`: lowest, highest and step of the y axis."""
        left, top, right, bottom = area
        low, high, step = limits
        level = lambda value: bottom - (value - low) / (high - low) * (bottom - top)  # noqa: E731
        place = lambda i: left + (right - left) * i / (len(labels) - 1)  # noqa: E731
        value = low
        while value <= high + 1e-9:
            y = level(value)
            self.shapes.append(f'<line x1="{left}" y1="{y:g}" x2="{right}" y2="{y:g}" class="grid"/>')
            self.text(left - 8, y + 4, f"{value:g}", "small", "end")
            value += step
        for i, label in enumerate(labels):
            self.text(place(i), bottom + 20, label, "small")
        ends = _apart([level(values[-1]) for _, values in curves], 17)
        for number, (name, values) in enumerate(curves):
            path = " ".join(f"{place(i):g},{level(v):g}" for i, v in enumerate(values))
            self.shapes.append(f'<polyline points="{path}" class="curve c{number % 8}" style="fill:none"/>')
            for i, v in enumerate(values):
                self.shapes.append(f'<circle cx="{place(i):g}" cy="{level(v):g}" r="3.5" class="c{number % 8}"/>')
            self.shapes.append(
                f'<rect x="{right + 12}" y="{ends[number] - 5:g}" width="14" height="4" class="c{number % 8}"/>'
            )
            self.text(right + 32, ends[number] + 2, name, "small", "start")

    def save(self, path: Path) -> None:
        """Write the picture."""
        size = 'viewBox="0 0 10 10" refY="5" markerWidth="7" markerHeight="7" orient="auto"'
        head = '<marker id="{}" refX="{}" ' + size + ">{}</marker>"
        markers = head.format("head", 9, '<path d="M0,0 L10,5 L0,10 z" class="head"/>')
        markers += head.format("tail", 1, '<path d="M10,0 L0,5 L10,10 z" class="head"/>')
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(self.title)}</title><style>{STYLE}</style><defs>{markers}</defs>",
            *self.shapes,
            "</svg>\n",
        ]
        path.write_text("\n".join(lines))


def _apart(levels: Sequence[float], least: float) -> list[float]:
    """`levels`, moved so that neighbours are `least` pixels apart and keep their order."""
    moved = list(levels)
    order = sorted(range(len(levels)), key=lambda i: levels[i])
    for before, after in zip(order, order[1:], strict=False):
        moved[after] = max(moved[after], moved[before] + least)
    over = max(0.0, moved[order[-1]] - max(levels) - 2 * least)
    return [level - over for level in moved]
