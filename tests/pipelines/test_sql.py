"""Which streams a query in SQL names."""

from __future__ import annotations

import pytest

from headrace.pipelines.sql import named_in

NAMES = dict.fromkeys(["purchases", "alerts", "desk.customer", "last"])


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT * FROM purchases", ["purchases"]),
        ("SELECT * FROM Purchases p JOIN alerts USING (customer)", ["purchases", "alerts"]),
        ("SELECT key, state.purchases FROM `desk.customer`", ["desk.customer"]),
        ("SELECT p.`alerts`, p.last FROM `desk.customer` p", ["desk.customer"]),
        ("SELECT 'alerts' FROM last -- and purchases", ["last"]),
        ("SELECT 1", []),
    ],
)
def test_query_names_streams_but_not_columns_texts_and_comments(query: str, named: list[str]) -> None:
    assert named_in(query, NAMES) == named
