"""A plugin for pytest: the fixture that numba-cuda's tests ask for.

The package ships the tests without the file that defines the fixture. The attribute is an option of that file, which
is off if nobody gives it."""

import pytest


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False
