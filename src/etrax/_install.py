"""How Etrax and its extras are installed, in one place.

Publishing changes `PUBLISHED`; `python .ci/release.py texts` then rewrites README, pages, docstrings and examples.
"""

from __future__ import annotations

PUBLISHED = False  # whether `pip install etrax` works: the package is on the Python Package Index


def install_command(*extras: str, published: bool | None = None) -> str:
    """The command that installs Etrax with these extras: from a clone of the repository until it is published.

    >>> install_command("nir", "train", published=False), install_command(published=False)
    ('pip install -e ".[nir,train]"', 'pip install -e .')
    >>> install_command("nir", "train", published=True), install_command(published=True)
    ('pip install "etrax[nir,train]"', 'pip install etrax')
    """
    from_index = PUBLISHED if published is None else published
    listed = f"[{','.join(extras)}]" if extras else ""
    if from_index:
        return f'pip install "etrax{listed}"' if extras else "pip install etrax"
    return f'pip install -e ".{listed}"' if extras else "pip install -e ."


def install_advice(*extras: str) -> str:
    """The command as an error gives it, with the place to run it in.

    >>> print(install_advice("nir"))
    `pip install -e ".[nir]"` in your clone of Etrax
    """
    return f"`{install_command(*extras)}`" + ("" if PUBLISHED else " in your clone of Etrax")
