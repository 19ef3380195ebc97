"""Long tables as one series a key."""

from __future__ import annotations

import pandas as pd

from kvbench.judge.series import series_by

TABLE = pd.DataFrame(
    [
        (3.0, "b", "y", 30.0),
        (1.0, "a", "x", 10.0),
        (2.0, "b", "x", 20.0),
        (0.5, "b", "y", 5.0),
        (4.0, "a", "x", float("nan")),
        (0.0, "a", "x", 1.0),
    ],
    columns=["t_s", "name", "labels", "value"],
)


def read(*columns: str) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    return {key: list(zip(*series, strict=True)) for key, series in series_by(TABLE, *columns)}


def test_each_key_has_its_samples_in_order_of_time() -> None:
    assert read("name") == {("a",): [(0.0, 1.0), (1.0, 10.0)], ("b",): [(0.5, 5.0), (2.0, 20.0), (3.0, 30.0)]}


def test_several_columns_make_a_key_together() -> None:
    assert read("name", "labels") == {
        ("a", "x"): [(0.0, 1.0), (1.0, 10.0)],
        ("b", "x"): [(2.0, 20.0)],
        ("b", "y"): [(0.5, 5.0), (3.0, 30.0)],
    }
    assert read("labels", "name") == {(y, x): rows for (x, y), rows in read("name", "labels").items()}


def test_a_table_without_values_has_no_series() -> None:
    assert list(series_by(TABLE.iloc[:0], "name")) == []
    assert list(series_by(TABLE.iloc[4:5], "name")) == []
