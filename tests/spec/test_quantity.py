"""Quantities: a number with a unit is the number in the base unit; anything else is refused in words."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kvbench.spec.quantity import (
    UNITS,
    ByteSize,
    Fraction,
    Whole,
    parse_number,
    parse_quantity,
    show_bytes,
    show_seconds,
)


@pytest.mark.parametrize(
    ("written", "kind", "expected"),
    [
        ("16GiB", "bytes", 16 * 2**30),
        ("16 GiB", "bytes", 16 * 2**30),
        ("1.5kB", "bytes", 1500),
        ("1KB", "bytes", 1000),
        (65536, "bytes", 65536),
        ("250ms", "seconds", 0.25),
        ("2m", "seconds", 120),
        ("1e3", "seconds", 1000),
        ("10µs", "seconds", 1e-5),
        ("2/s", "per second", 2),
        ("90/m", "per second", 1.5),
        ("0.1%", "fraction", 0.001),
        ("2MiB/s", "bytes per second", 2 * 2**20),
        (" .5s ", "seconds", 0.5),
    ],
)
def test_a_written_quantity_becomes_its_value_in_the_base_unit(written: object, kind: str, expected: float) -> None:
    assert parse_quantity(written, kind) == pytest.approx(expected)


@pytest.mark.parametrize("kind", sorted(UNITS))
@pytest.mark.parametrize(
    "written", [True, None, [], {}, "", "s", "ten", "5 parsecs", "nan", "inf", "1e999", 10**400]
)
def test_what_is_no_quantity_is_refused_with_words(written: object, kind: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|unit|finite"):
        parse_quantity(written, kind)


@given(
    st.text(max_size=12) | st.floats() | st.integers() | st.booleans() | st.none(), st.sampled_from(sorted(UNITS))
)
def test_any_value_gives_a_finite_number_or_a_value_error(written: object, kind: str) -> None:
    with contextlib.suppress(ValueError):
        assert math.isfinite(parse_quantity(written, kind))


@given(st.sampled_from(sorted(UNITS)), st.floats(min_value=0, max_value=1e9), st.data())
def test_every_unit_scales_the_number(kind: str, number: float, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(UNITS[kind])))
    assert parse_quantity(f"{number!r}{unit}", kind) == pytest.approx(number * UNITS[kind][unit])


@pytest.mark.parametrize(
    ("written", "expected"), [(12, 12), (12.0, 12), ("12", 12), ("1e3", 1000), (10**30, 10**30)]
)
def test_whole_numbers(written: object, expected: int) -> None:
    assert TypeAdapter(Whole).validate_python(written) == expected


@pytest.mark.parametrize("written", [True, 1.5, "1.5", "12 tokens", "x", None, [], float("nan"), float("inf")])
def test_what_is_not_whole_is_refused(written: object) -> None:
    with pytest.raises(ValidationError, match="expected a whole number"):
        TypeAdapter(Whole).validate_python(written)


@pytest.mark.parametrize("written", [True, None, "1s", "x", []])
def test_what_is_no_plain_number_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"expected a (plain )?number"):
        parse_number(written)


def test_sizes_and_fractions_have_their_bounds() -> None:
    assert TypeAdapter(ByteSize).validate_python("1.5B") == 2
    assert TypeAdapter(Fraction).validate_python("100%") == 1
    for kind, value in ((ByteSize, "0B"), (Fraction, "101%"), (Fraction, -0.1)):
        with pytest.raises(ValidationError):
            TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "0 B"), (999, "999 B"), (48 * 2**20, "48 MiB"), (1.5 * 2**40, "1.5 TiB"), (2**10, "1 KiB")],
)
def test_bytes_are_shown_in_binary_units(amount: float, shown: str) -> None:
    assert show_bytes(amount) == shown


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "0 s"), (1.234, "1.23 s"), (0.182, "182 ms"), (5e-6, "5 µs"), (120, "2 min"), (250, "4 min 10 s")],
)
def test_seconds_are_shown_in_the_unit_that_reads_best(amount: float, shown: str) -> None:
    assert show_seconds(amount) == shown
