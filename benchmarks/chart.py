"""The table as a picture: one bar per ratio, with a mark where it ought to reach, or ought not to pass."""

from __future__ import annotations

from html import escape

from benchmarks.measures import Row

WIDTH, LABEL, LINE, TOP = 940, 510, 34, 64
FULL = 1.6
"""The bound of each row is drawn at 1 / FULL of the bar's room, so that rows with different bounds can be compared."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2933 } .title { font-size: 17px; font-weight: 600 }
.note { fill: #616e7c; font-size: 11px } .good { fill: #2f9e6e } .bad { fill: #d9822b } .room { fill: #e4e7eb }
.mark { stroke: #1f2933; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #e4e7eb } .note { fill: #9aa5b1 } .room { fill: #323f4b }
.mark { stroke: #f5f7fa } }
"""


def chart(rows: list[Row], facts: str) -> str:
    room = WIDTH - LABEL - 110
    title = '<text x="16" y="26" class="title">idemproxy, side by side</text>'
    parts = [title, f'<text x="16" y="46" class="note">{escape(facts)}; the line is what was aimed at</text>']
    for number, row in enumerate(rows):
        y = TOP + number * LINE
        share = min(row.ratio / row.bound / FULL, 1.0)
        aim = LABEL + room / FULL
        sign = "≤" if row.at_most else "≥"
        parts.append(
            f'<text x="16" y="{y + 14}">{escape(row.title)}</text>'
            f'<rect x="{LABEL}" y="{y}" width="{room}" height="18" rx="3" class="room"/>'
            f'<rect x="{LABEL}" y="{y}" width="{room * share:.1f}" height="18" rx="3" '
            f'class="{"good" if row.reached else "bad"}"/>'
            f'<line x1="{aim:.1f}" x2="{aim:.1f}" y1="{y - 3}" y2="{y + 21}" class="mark"/>'
            f'<text x="{LABEL + room + 8}" y="{y + 14}">{row.ratio:.2f} ({sign} {row.bound:g})</text>'
        )
    height = TOP + len(rows) * LINE + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Benchmark ratios"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )
