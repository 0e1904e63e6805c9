"""Files of run folders are bounded before they are read."""

import numpy as np
import pandas as pd
import pytest

from fedkin.errors import FedkinError
from fedkin.runs import reading


def test_a_part_of_few_bytes_and_very_many_rows_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "clients.parquet"
    pd.DataFrame({"round": np.ones(1000, np.int64)}).to_parquet(path)  # one value, a thousand times
    assert len(reading._parquet(path)) == 1000
    monkeypatch.setattr(reading, "LARGEST_TABLE", 4000)
    with pytest.raises(FedkinError, match="larger than a table can be"):
        reading._parquet(path)
