"""What ``import llamaserve`` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import llamaserve


def test_every_public_name_is_there() -> None:
    for name in llamaserve.__all__:
        assert getattr(llamaserve, name) is not None
    assert dir(llamaserve) == sorted(llamaserve.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sever'"):
        _ = llamaserve.Sever


def test_importing_the_package_loads_no_engine_and_no_web_server() -> None:
    program = """
import sys, llamaserve, llamaserve.errors
print([name for name in sys.modules if name.startswith(("llamaserve.", "starlette"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['llamaserve.errors']\n"
