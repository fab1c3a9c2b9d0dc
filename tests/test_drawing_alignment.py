"""Padding, lines and loads by arithmetic, against rows that are really laid out."""

from hypothesis import given
from hypothesis import strategies as st

from kvlib.show.drawings import find
from kvlib.show.drawings.alignment import (
    HEAD_DIMS,
    LINE_BYTES,
    aligned_bytes,
    lines_touched,
    vector_loads,
)

ALIGNMENTS = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256, 1024])


@given(st.integers(1, 3000), ALIGNMENTS)
def test_a_stride_is_the_next_multiple(row_bytes, alignment):
    stride = aligned_bytes(row_bytes, alignment)
    assert stride % alignment == 0
    assert row_bytes <= stride < row_bytes + alignment


@given(st.integers(1, 600), st.integers(0, 200))
def test_lines_are_those_that_rows_really_touch(row_bytes, padding):
    stride = row_bytes + padding
    touched = [
        (row * stride + row_bytes - 1) // LINE_BYTES - row * stride // LINE_BYTES + 1
        for row in range(LINE_BYTES)
    ]
    assert lines_touched(row_bytes, stride) == sum(touched) / LINE_BYTES


def test_a_load_starts_at_a_multiple_of_its_size():
    assert vector_loads(400, 400) == 25
    assert vector_loads(200, 200) == 25  # 8 bytes at a time, since 200 is no multiple of 16
    assert vector_loads(200, 208) == 13
    assert vector_loads(6, 6) == 3


def test_a_whole_line_costs_more_and_touches_no_line_less_at_the_usual_widths():
    """Rows that miss a line by their own step never save one by starting at its beginning."""
    for head_dim in set(HEAD_DIMS) - {120}:
        row_bytes = 2 * head_dim
        aligned = lines_touched(row_bytes, aligned_bytes(row_bytes, 64))
        assert aligned == lines_touched(row_bytes, row_bytes), head_dim
    assert lines_touched(240, 240) == 4.5 > lines_touched(240, 256) == 4


def test_the_outlines_256_numbers_waste_more_than_half():
    svg = find("alignment_bytes")(head_dim=100, dtype="float32", alignment=1024)
    assert ">60.9 %<" in svg
    assert "156.0 % more memory, and not one load or line less." in svg


def test_packed_rows_that_are_aligned_have_nothing_to_gain():
    svg = find("alignment_bytes")(head_dim=128, dtype="bfloat16", alignment=256)
    assert "Packed rows are aligned already" in svg
