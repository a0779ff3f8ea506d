"""The scripts of `make soak` and `make faults`, on small settings."""

import json
import os
import subprocess
import sys

import jax.numpy as jnp
import pytest

from trust import soak


def test_soak_of_a_short_stream():
    found = soak.soak("d_rtrl", jnp.dtype(jnp.float32), 2_000, 500)
    assert found.finite and found.trace_error <= found.allowed_error and found.steps >= 2_000


def test_soak_sees_a_wrong_trace():
    stream = soak.Stream("d_rtrl", jnp.dtype(jnp.float32))
    stream.go(50)
    assert soak.trace_error(stream) <= soak.allowed(jnp.float32)
    stream.move = lambda params, state, x: (state, None)  # recomputes nothing: the carried trace is then wrong
    assert soak.trace_error(stream) > soak.allowed(jnp.float32)


@pytest.mark.slow
def test_a_few_kills(tmp_path):
    """In a process of its own, which may fork because it has started nothing."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "trust.faults", "--kills", "5", "--quick", "--out", str(tmp_path / "found.json")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["kills"]["kills"] == 5 and found["kills"]["resumes"] > 0
    assert (
        found["full disk"]["full"] > 0
        and found["two processes"]["refused"] > 0
        and found["damaged files"]["refused"] > 0
    )
