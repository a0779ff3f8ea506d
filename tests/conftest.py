"""All tests run on the CPU in float64."""

import importlib.util
import os
import resource
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# For tests that spread work over devices.
if "xla_force_host_platform_device_count" not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"

import jax
import pytest
from tests.rows import Durations, mark_exhaustive_rows, mark_slow_rows

jax.config.update("jax_enable_x64", True)


def pytest_addoption(parser):
    parser.addoption("--store-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config):
    if config.getoption("--store-durations"):
        config.pluginmanager.register(Durations())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_slow_rows(items)
    mark_exhaustive_rows(items)


def keep_float64(brainstate):
    """Importing brainstate 0.5 switches float64 off for the whole process."""
    brainstate.environ.set(precision=64)


def do_without_numba(brainevent):
    """The default CPU back end of brainevent needs numba, on which it does not depend."""
    brainevent.config.set_backend("cpu", "jax_raw")


def check_all_facts(analysis):
    """Every pass that makes facts keeps their invariants."""
    make = analysis.Facts.__init__

    def make_and_check(facts, *args, **kwargs):
        make(facts, *args, **kwargs)
        analysis.check_facts(facts)

    analysis.Facts.__init__ = make_and_check


class AfterImport:
    """Import hook that calls `prepare(module)` once, when a test or a model first imports the module `name`."""

    def __init__(self, name, prepare):
        self.name, self.prepare = name, prepare

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), self.prepare(module))
        return spec


sys.meta_path[:0] = [
    AfterImport("brainstate", keep_float64),
    AfterImport("brainevent", do_without_numba),
    AfterImport("etrax.compiler.analysis", check_all_facts),
]


MOST_MEMORY = 2_500_000  # kB of a process, with its compiled programs


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_code():
    """Models of one module are of no use to the next, the operations of an array are: dropped when there are many."""
    yield
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MOST_MEMORY:
        jax.clear_caches()
