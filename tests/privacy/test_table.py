"""docs/causes.md is what the generator makes of the stored results, and those cover every case."""

from __future__ import annotations

from tests.privacy import causes, innocent, operations, table
from tests.privacy.case import ALLOWED, CASES, KINDS
from tests.privacy.defects import DEFECTS

causes.load()


def test_the_page_is_made_from_the_stored_results():
    assert table.PAGE.read_text(encoding="utf-8") == table.page()


def test_the_stored_results_have_every_case_and_no_other():
    stored = {row["id"]: row["title"] for row in table.read("causes")["cases"]}
    assert stored == {case.id: case.title for case in CASES}


def test_the_stored_results_have_every_operation_and_innocent_row():
    stored = [row["name"] for row in table.read("operations")["operations"]]
    assert stored == [operation.name for operation in operations.TABLE]
    stored = [row["name"] for row in table.read("innocents")["innocents"]]
    assert stored == [row.name for row in innocent.TABLE]


def test_the_stored_results_say_how_they_were_made():
    for name in table.NAMES:
        content = table.read(name)
        assert content["command"] == table.COMMAND
        assert set(content["made_with"]) == {"psac", "torch", "seed"}


def test_a_case_that_is_open_is_a_known_defect():
    """What is stored as open is in tests/privacy/defects.py, so that the page cannot hide it."""
    stored = table.read("causes")["cases"]
    may_be_warned = {case.id for case in CASES if case.warned}
    allowed = {row["id"] for row in stored if row["kind"] in ALLOWED}
    allowed |= {row["id"] for row in stored if row["kind"] == "warned"} & may_be_warned
    bad = {row["id"] for row in stored} - allowed
    assert bad == {name for name in DEFECTS if name in {case.id for case in CASES}}
    assert set(table.OUTCOMES) == set(KINDS)


def test_no_message_shows_a_value_of_a_record():
    """Messages go into logs that others read."""
    rows = [*table.read("causes")["cases"], *table.read("innocents")["innocents"]]
    assert [row["message"] for row in rows if "tensor(" in row["message"]] == []
