"""Requests that schemathesis makes from the description of the server find nothing."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

import monge
from monge.serve.app import PUBLIC, make_app
from monge.serve.security import Access, Guard, make_token
from monge.serve.served import load

schemathesis = pytest.importorskip("schemathesis", reason="needs pip install 'monge[browser]'")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
TOKEN = make_token()


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    where = tmp_path_factory.mktemp("served")
    g = np.random.default_rng(0)
    table = pd.DataFrame({"size": g.normal(size=60), "kind": g.choice(["a", "b"], 60)})
    images = g.integers(0, 4, (60, 2, 2)).astype(np.uint8)
    words = ["anna", "bob", "otto", "hannah", "eve"] * 8
    table.to_csv(where / "table.csv", index=False)
    (where / "words.txt").write_text("\n".join(words))
    monge.fit("mixture", table, "components=2", budget="2steps", out=where / "table")
    monge.fit("vae", images, budget="2steps", out=where / "images")
    monge.fit("gpt", str(where / "words.txt"), budget="2steps", out=where / "words")
    monge.fit(
        "predict.mlp", str(where / "table.csv"), budget="2steps", target="kind", out=where / "kind"
    )
    app = make_app(load([where / name for name in ("table", "images", "words", "kind")]))
    found = schemathesis.openapi.from_asgi(
        "/openapi.json",
        Guard(app, Access.at(None, 8000, TOKEN, public=PUBLIC)),
        headers={"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1"},
    )
    known = found.config.checks.negative_data_rejection  # too much at once is refused with 413
    known.expected_statuses = [*known.expected_statuses, "413"]
    return found


def test_nothing_is_found(api):
    count = 0
    for operation in api.get_all_operations():
        for mode in schemathesis.GenerationMode:

            @settings(max_examples=5, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.ok().as_strategy(generation_mode=mode))
            def check(case):
                case.call_and_validate(
                    headers={"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1"},
                    excluded_checks=[
                        checks.ignored_auth,  # the headers above are always sent
                        # conditions on columns and the like have rules that no schema can state
                        checks.positive_data_acceptance,
                    ],
                    timeout=60,  # a busy machine is no failure
                )

            try:
                check()
            except Unsatisfiable:  # a request without parts cannot be wrong
                continue
            count += 1
    assert count > 10
