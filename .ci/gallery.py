"""The page of all examples, made from their docstrings and the pictures that they draw.

python .ci/gallery.py page                # write docs/examples.md
python .ci/gallery.py pictures [NAME ...] # run examples as they are, write docs/pictures/examples/NAME.png (minutes)
"""

import ast
import importlib
import inspect
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures" / "examples"
# What one may look for, and what shows it; the order of the page.
PARTS = {
    "First steps": ("first_learner", "online_updates", "verify_your_model"),
    "Streams": ("stream_threads", "stream_asyncio"),
    "Models of other libraries": (
        "brainpy_lif",
        "sparse_connections",
        "brainstate_style",
        "braintrace_compat",
        "flax_nnx",
        "nnx_style",
        "flax_linen",
        "equinox_lstm",
        "nir_graph",
        "artifact",
    ),
    "Spiking and brain-like networks": ("evidence", "conv_snn", "ei_network", "large_sparse"),
    "Sequences": ("lru", "reading"),
    "Reward": ("reward", "streaming_rl", "streaming_memory"),
    "Research": ("meta_step_sizes", "own_rule", "fft_convolution", "two_processes"),
}


def page() -> str:
    lines = [
        "# Examples",
        "",
        "Each is one file of at most 120 lines in the folder `examples` of the repository, runs on a laptop, and draws "
        "the picture shown here. The tests run all of them, on tiny settings.",
    ]
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}
    titles = {name: title_of(texts[name]) for names in PARTS.values() for name in names}
    lines += ["", '<div class="thumbnails" markdown>', ""]
    for name, title in titles.items():
        if (PICTURES / f"{name}.png").exists():
            short = title.split(": ")[0]
            lines.append(f"[![](pictures/examples/{name}.png){{ loading=lazy }} {short}](#{name})")
    lines += ["", "</div>"]
    for part, names in PARTS.items():
        lines += ["", f"## {part}"]
        for name in names:
            _, command, *more = (part.strip() for part in ast.get_docstring(ast.parse(texts[name])).split("\n\n"))
            said = " ".join(" ".join(more).split())
            typed = "\n".join(line.strip() for line in command.split("\n"))
            lines += ["", f"### {titles[name]} {{ #{name} }}", "", f"```sh\n{typed}\n```", ""]
            lines += [said, ""] if said else []
            if (PICTURES / f"{name}.png").exists():
                lines += [f"![the figure that {name}.py draws](pictures/examples/{name}.png){{ width=640 }}"]
            if not lines[-1]:
                lines.pop()
            lines += ["", '<details markdown="1">', f"<summary>The code: examples/{name}.py</summary>", ""]
            lines += [f"```py\n{code_of(texts[name])}\n```", "", "</details>"]
    return "\n".join(lines) + "\n"


def title_of(text: str) -> str:
    """The first paragraph of the docstring of an example."""
    return " ".join(ast.get_docstring(ast.parse(text)).split("\n\n")[0].split()).rstrip(".")


def code_of(text: str) -> str:
    """An example without its docstring."""
    first = ast.parse(text).body[0]
    return "\n".join(text.splitlines()[first.end_lineno :]).strip()


def pictures(names: list[str]) -> None:
    import matplotlib

    matplotlib.use("agg")
    sys.path.insert(0, str(ROOT))
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in names or [name for part in PARTS.values() for name in part]:
        begin, module = time.perf_counter(), importlib.import_module(f"examples.{name}")
        known = inspect.signature(module.main).parameters
        option = next((o for o in ("picture", "file") if o in known), None)
        if option is not None:
            module.main(**{option: PICTURES / f"{name}.png"})
            print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "page":
        (ROOT / "docs" / "examples.md").write_text(page(), encoding="utf-8")
    else:
        pictures(sys.argv[2:])
