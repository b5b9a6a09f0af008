"""A report for people: lines and tables, as text for a terminal or as a page for a browser.

Pure. Knows nothing of what is reported. Invariants: every column of a table is as wide as its
widest value, and numbers are aligned right; no value moves the cursor of a terminal or changes its
colours, and none is read as HTML.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

_STYLE: Final = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em;color:#222;background:#fff}"
    "table{display:block;overflow-x:auto;border-collapse:collapse;margin:1em 0}"
    "th,td{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:left;white-space:nowrap}"
    ".number{text-align:right;font-variant-numeric:tabular-nums}"
    "p{white-space:pre-wrap;overflow-wrap:anywhere}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}"
    "th,td{border-color:#444}}"
)


class Table(NamedTuple):
    """A table; each of ``rows`` has a value for each of ``titles``."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]


Block: TypeAlias = "str | Table"
"""A paragraph, or a table."""


def as_text(blocks: Iterable[Block]) -> str:
    """Formats blocks for a terminal, with an empty line between them."""
    return "\n\n".join(
        _text_table(block) if isinstance(block, Table) else _text_lines(block) for block in blocks
    )


def as_page(title: str, blocks: Iterable[Block], *, refresh_s: int) -> str:
    """Formats blocks as an HTML page that loads itself again every ``refresh_s`` seconds."""
    name = html.escape(title)
    body = "\n".join(
        _html_table(block) if isinstance(block, Table) else f"<p>{html.escape(block)}</p>"
        for block in blocks
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="refresh" content="{refresh_s}">'
        f"<title>{name}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{name}</h1>\n{body}\n</body></html>\n"
    )


def counted(count: int, noun: str) -> str:
    """Formats a number with its noun, which gets an s unless the number is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def visible(text: str) -> str:
    """Escapes characters that a terminal would interpret, such as \\x1b, and line ends."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _text_lines(paragraph: str) -> str:
    return "\n".join(map(visible, paragraph.split("\n")))


def _text_table(table: Table) -> str:
    shown = (map(visible, row) for row in table.rows)
    columns = zip(table.titles, *shown, strict=True)
    cells = zip(*map(_aligned, columns), strict=True)
    return "\n".join("  ".join(row).rstrip() for row in cells)


def _aligned(column: Sequence[str]) -> list[str]:
    """Pads a title and its values to equal width."""
    width = max(map(len, column))
    if all(map(_is_number, column[1:])):
        return [cell.rjust(width) for cell in column]
    return [cell.ljust(width) for cell in column]


def _html_table(table: Table) -> str:
    columns = [[row[at] for row in table.rows] for at in range(len(table.titles))]
    kinds = [' class="number"' if all(map(_is_number, column)) else "" for column in columns]
    head = _html_row("th", kinds, table.titles)
    rows = "".join(_html_row("td", kinds, row) + "\n" for row in table.rows)
    return f"<table><thead>{head}</thead><tbody>\n{rows}</tbody></table>"


def _html_row(tag: str, kinds: Sequence[str], values: Sequence[str]) -> str:
    cells = zip(kinds, values, strict=True)
    row = "".join(f"<{tag}{kind}>{html.escape(value)}</{tag}>" for kind, value in cells)
    return f"<tr>{row}</tr>"


def _is_number(value: str) -> bool:
    return value[:1].isdigit() or value == "-"
