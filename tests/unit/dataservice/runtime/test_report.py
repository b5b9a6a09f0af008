"""Reports as text and as pages."""

from __future__ import annotations

from html.parser import HTMLParser

from dataservice.runtime.monitoring.report import Table, as_page, as_text, counted


class _Elements(HTMLParser):
    """Collects the elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_text_aligns_names_left_and_numbers_right() -> None:
    table = Table(("name", "rows"), [("a", "1,234"), ("long name", "-")])
    assert as_text(["first\nsecond", table]).splitlines() == [
        "first",
        "second",
        "",
        "name        rows",
        "a          1,234",
        "long name      -",
    ]


def test_text_escapes_what_a_terminal_would_interpret() -> None:
    shown = as_text(["\x1b[31mred", Table(("name",), [("two\nlines\x07",)])])
    assert shown == "\\x1b[31mred\n\nname\ntwo\\nlines\\x07"


def test_page_shows_any_value_as_text() -> None:
    name = "<script>alert('&')</script>"
    page = _Elements(as_page(name, [name, Table((name,), [(name,)])], refresh_s=2))
    assert "script" not in page.tags
    assert page.text.count(name) == 5  # title, heading, paragraph, column and cell


def test_page_aligns_columns_of_numbers_right() -> None:
    table = Table(("name", "rows"), [("1a", "1"), ("b", "-")])
    page = as_page("title", [table], refresh_s=2)
    assert '<tr><th>name</th><th class="number">rows</th></tr>' in page
    assert '<tr><td>1a</td><td class="number">1</td></tr>' in page
    assert '<tr><td>b</td><td class="number">-</td></tr>' in page


def test_page_fits_narrow_windows() -> None:
    page = as_page("title", [], refresh_s=2)
    assert '<meta name="viewport" content="width=device-width">' in page
    assert "table{display:block;overflow-x:auto;" in page


def test_page_loads_itself_again() -> None:
    assert '<meta http-equiv="refresh" content="3">' in as_page("title", [], refresh_s=3)


def test_count_of_one_has_no_plural() -> None:
    assert [counted(n, "job") for n in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
