"""The published schema is true: schemathesis makes requests from it, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import positive_data_acceptance
from serving import Running, make_executor, make_served, running
from waiting import PATIENCE

from hotloop.serve.app import Access, make_app

published = schemathesis.openapi.from_dict(
    make_app(make_served(make_executor()), Access()).openapi()
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as server:
        yield server


@published.parametrize()
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_requests_made_from_the_schema(case: schemathesis.Case, server: Running) -> None:
    """Fields that exclude each other are beyond a schema: it may call right what is refused."""
    case.call_and_validate(
        base_url=server.url, excluded_checks=[positive_data_acceptance], timeout=PATIENCE
    )


def test_the_page_asks_nobody_else(server: Running) -> None:
    for path in ("/", "/static/app.js", "/static/style.css"):
        response = requests.get(server.url + path, timeout=PATIENCE)
        assert response.ok
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self'")
