"""Clients may have any name: a run with long ones in another alphabet ends well."""

import numpy as np
import pytest

import concordfl as cf
from concordfl.deploy.finished import FinishedRun


@pytest.mark.parametrize("letter", ["ж", "患", "👩"])
def test_long_names_of_any_alphabet(tmp_path, letter):
    rng = np.random.default_rng(0)
    names = [letter * 80 + str(number) for number in range(3)]
    rows = [
        f"{name},{a:.3f},{b:.3f},{int(a > 0)}"
        for name in names
        for a, b in rng.normal(size=(20, 2))
    ]
    table = tmp_path / "all.csv"
    table.write_text("client,a,b,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    data = {"table": str(table), "client": "client", "label": "y"}
    result = cf.run(data=data, algorithm={"name": "apfl"}, run={"rounds": 2}, out=tmp_path / "run")
    assert set(result.clients()) == set(names)
    assert len(list((tmp_path / "run/models/clients").iterdir())) == 3
    finished = FinishedRun.open(tmp_path / "run")
    for name in names:
        splits = finished.federation().splits(name)
        predicted = finished.predictor(name, splits.train, new=False).predictions(splits.test)
        accuracy = float((predicted.argmax(1) == splits.test.y).double().mean())
        assert accuracy == pytest.approx(result.clients()[name]["accuracy"])
