"""For the tests and the doctests."""


def pytest_configure(config):
    """Most graphs here have something to warn of, which is tested where it is the subject.

    Not in pyproject.toml, where the name of the class would import JAX before `tests/conftest.py` is read.
    """
    config.addinivalue_line("filterwarnings", "ignore::etrax.CompilationWarning")
