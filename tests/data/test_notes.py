"""Notes on columns in few lines: nothing is lost, and nothing is said twice."""

from fedkin.data.notes import INDICATED, in_few_lines

MEDIAN = "missing values became the training median"


def test_missing_values_of_several_columns_are_one_line() -> None:
    notes = [
        "3 clients have no test samples (first: 'b')",
        f"column 'ca': 611 {MEDIAN} and {INDICATED}",
        f"column 'age': 2 {MEDIAN}; 4 rare values share one column",
        "column 'ward': 30 missing values became the commonest one in training",
    ]
    first, missing, rare = in_few_lines(notes)
    assert first == notes[0]
    assert "643 values are missing in 3 columns ('ca' 611, 'ward' 30, 'age' 2)" in missing
    assert missing.endswith(f"those of 1 {INDICATED}")
    assert rare == "column 'age': 4 rare values share one column"


def test_many_columns_are_counted_and_one_column_keeps_its_sentence() -> None:
    many = [f"column 'c{i}': left out, no values in the training data" for i in range(9)]
    assert in_few_lines(many) == [
        "columns 'c0', 'c1', 'c2', 'c3' and 5 more: left out, no values in the training data"
    ]
    one = [f"column 'it''s: 3 {MEDIAN}': 2 {MEDIAN}"]
    assert in_few_lines(one) == one
    assert in_few_lines([]) == []
