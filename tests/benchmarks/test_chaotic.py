"""The series, figures and table of `benchmarks.published.chaotic`."""

import numpy as np
import pytest
from benchmarks.published import chaotic, results


@pytest.mark.parametrize("series", chaotic.SERIES)
def test_series_are_predictable_from_their_past_and_normalised(series):
    xs, ys = chaotic.data(series, False, 900, 0)
    assert xs.shape == ys.shape == (900, 8, 1) and np.isfinite(xs).all()
    np.testing.assert_array_equal(xs[1:], ys[:-1])
    np.testing.assert_allclose(np.abs(xs.mean(0)).max(), 0, atol=0.05)
    shown, _ = chaotic.data(series, True, 900, 0)
    assert shown.shape == (900, 8, 2) and (shown[::10, :, 1] == 1).all() and shown[..., 1].sum() == 90 * 8
    assert not shown[1:10].any()


def test_henon_is_its_map():
    values = chaotic.henon(np.random.default_rng(0), 50)
    np.testing.assert_allclose(values[2:], 1 - 1.4 * values[1:-1] ** 2 + 0.3 * values[:-2], rtol=1e-12)


def test_mackey_glass_is_its_equation():
    values = chaotic.mackey_glass(np.random.default_rng(0), 60)
    x, late = values[17:-1], values[:-18]
    np.testing.assert_allclose(values[18:], 0.9 * x + 0.2 * late / (1 + late**10), rtol=1e-12)


def test_a_figure_is_the_mean_of_five_records():
    losses = np.arange(3000.0)
    ends = [3000, 2750, 2500, 2250, 2000]
    assert chaotic.figure(losses, 1) == np.mean([losses[end - 200 : end].mean() for end in ends])


def test_a_short_run_and_its_table(tmp_path):
    run = chaotic.run("d_rtrl", "henon", [0, 1], 260)
    assert len(run["figures"]) == 2 and min(run["figures"]) > 0 and -1 <= run["cosine"][0] <= 1
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- from benchmarks/published/chaotic.py -->\nold\n{results.END}\nafter\n")
    results.write_page("chaotic", chaotic.text({"d_rtrl": {"henon": run | {"seconds": 60}}}), page)
    text = page.read_text()
    assert "old" not in text and text.startswith("before") and text.endswith("after\n") and "(2)" in text
    with pytest.raises(ValueError, match="has no line"):
        results.write_page("another", "", page)
