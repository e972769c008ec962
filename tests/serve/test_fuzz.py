"""Requests made up from our own OpenAPI description: none breaks the server, all get what it says.

`LONGTAIL_FUZZ_CASES=20000 python -m pytest tests/serve/test_fuzz.py -m ""` makes up as many in all.
"""

import os
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import one_of
from served import served, train_planted

with warnings.catch_warnings():  # what others deprecate is not of our making
    warnings.simplefilter("ignore")
    schemathesis = pytest.importorskip("schemathesis")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

# What a description cannot say, such as which labels a model has, may be refused.
CHECKS = (
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
N_CASES = int(os.environ.get("LONGTAIL_FUZZ_CASES", "300"))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    train_planted(folder / "planted")
    with served(folder / "planted", feedback=folder / "said.db") as found:
        yield found


def test_no_request_breaks_the_server(running):
    schema = schemathesis.openapi.from_url(f"{running.url}/v1/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) > 15
    each = max(4, N_CASES // len(operations))
    for operation in operations:
        _try(operation, each)
    assert running.client.get("/health/live").json() == {"status": "ok"}


def _made_up(operation):
    """Return requests that are as described, and, where that can be, such as are not."""
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    if not operation.body and not any(operation.query):
        modes.pop()
    return one_of([operation.as_strategy(generation_mode=each) for each in modes])


def _try(operation, n_cases):
    @settings(
        max_examples=n_cases,
        deadline=None,
        database=None,
        derandomize=n_cases < 100,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=_made_up(operation))
    def attempt(case):
        for name in ("model", "project_id"):  # an unknown name is refused before all else
            if name in (case.path_parameters or {}):
                case.path_parameters[name] = "planted"
        case.call_and_validate(timeout=120, checks=CHECKS)  # compiling may take long

    attempt()
