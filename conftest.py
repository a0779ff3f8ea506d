"""For the tests and the doctests."""

import gc
import os
from importlib.metadata import version


def quick_compiling():
    """Flags of XLA for programs that run once on small arrays: compiling them is most of the cost.

    The kernels of the older emitters take a third of the time to compile. They are gone since jaxlib 0.11, and XLA ends
    the process at a flag that it does not know.
    """
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    flags += "--xla_cpu_parallel_codegen_split_count=1"
    old = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
    return flags + (" --xla_cpu_use_fusion_emitters=false" if old else "")


os.environ.setdefault("XLA_FLAGS", quick_compiling())
gc.disable()  # while modules are imported: they stay


def pytest_collection_finish():
    """Tracing makes many small objects, of which most die by themselves."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


def pytest_configure(config):
    """Most graphs here have something to warn of, which is tested where it is the subject.

    Not in pyproject.toml, where the name of the class would import JAX before `tests/conftest.py` is read.
    """
    config.addinivalue_line("filterwarnings", "ignore::etrax.CompilationWarning")
