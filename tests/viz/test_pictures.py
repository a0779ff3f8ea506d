"""Pictures show the numbers that they were given, say what their axes are, and stay legible at 320 pixels."""

import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.viz.models import INPUTS, leaky, recurrent

import etrax
from etrax import ArgumentError, viz
from etrax._install import install_command
from etrax.viz._panels import VizError


@pytest.fixture(scope="module")
def recording():
    return viz.record(leaky("d_rtrl"), INPUTS)


@pytest.fixture(scope="module")
def comparisons():
    learner = recurrent("d_rtrl")
    loss = lambda y, t: (y**2).mean()
    return {
        k: etrax.testing.compare(learner, loss, learner.params, learner.hidden, INPUTS, window=k) for k in (1, 3, 7)
    }


def pictures(recording, comparisons):
    spikes = recording.states[("v",)] > 0
    return {
        "traces": viz.traces(recording),
        "states": viz.states(recording),
        "raster": viz.raster(spikes, sample=0),
        "cosines": viz.cosines(comparisons),
    }


def texts(figure):
    return [t for ax in figure.axes for t in (ax.xaxis.label, ax.yaxis.label, ax.title, *ax.get_xticklabels())]


def test_all_text_is_inside_and_large_enough_at_320_pixels(recording, comparisons):
    for name, figure in pictures(recording, comparisons).items():
        figure.set_dpi(320 / figure.get_figwidth())
        figure.canvas.draw_idle()
        figure.draw_without_rendering()
        box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
        assert box.x0 >= -1 and box.y0 >= -1, name
        assert box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height + 1, name
        assert min(t.get_fontsize() for t in texts(figure) if t.get_text()) * figure.dpi / 72 >= 8, name


def test_time_is_in_steps(recording, comparisons):
    found = pictures(recording, comparisons)
    for name in ("traces", "states", "raster"):
        assert "time (steps)" in [ax.get_xlabel() for ax in found[name].axes], name
    assert found["cosines"].axes[0].get_xlabel() == "window (steps)"


def test_a_heat_map_holds_the_trace(recording):
    figure = viz.traces(recording, parameters=["w"], states=["v"])
    (image,) = figure.axes[0].images
    want = recording.traces[("w",), ("v",)].reshape(7, -1).T
    np.testing.assert_array_equal(image.get_array(), want)
    assert image.get_extent()[:2] == [0.5, 7.5]
    assert image.get_clim() == (-np.abs(want).max(), np.abs(want).max())
    assert viz.traces(recording, parameters=["w"], states=["v"], rows=5).axes[0].images[0].get_array().shape == (5, 7)


def test_lines_hold_the_states(recording):
    ax = viz.states(recording, states=["a"], sample=1).axes[0]
    assert [line.get_label() for line in ax.lines] == [f"unit {k}" for k in range(4)]
    for k, line in enumerate(ax.lines):
        np.testing.assert_array_equal(line.get_ydata(), recording.states[("a",)][:, 1, k])


def test_a_raster_has_one_mark_per_spike():
    spikes = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]])
    (marks,) = viz.raster(spikes).axes[0].collections
    found = sorted((float(s[0, 0]), float(s[:, 1].mean())) for s in marks.get_segments())
    assert found == [(1, 1), (2, 0), (4, 0), (4, 1)]


def test_a_raster_takes_a_state_of_a_recording(recording):
    (marks,) = viz.raster(recording, state="a", sample=0).axes[0].collections
    assert len(marks.get_segments()) == np.count_nonzero(recording.states[("a",)][:, 0])


def test_curves_hold_the_cosines(comparisons):
    ax = viz.cosines(comparisons).axes[0]
    lines = dict(zip(ax.get_legend_handles_labels()[1], ax.get_legend_handles_labels()[0], strict=True))
    assert set(lines) == {"u (approximate)", "w (approximate)"}
    np.testing.assert_array_equal(lines["u (approximate)"].get_xdata(), [1, 3, 7])
    np.testing.assert_array_equal(
        lines["u (approximate)"].get_ydata(), [comparisons[k][("u",)].cosine for k in (1, 3, 7)]
    )
    assert lines["u (approximate)"].get_marker() != lines["w (approximate)"].get_marker()


def test_axes_may_be_given(recording, comparisons):
    figure = Figure(layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    assert viz.traces(recording, parameters=["w"], states=["v"], ax=axes[0]) is figure
    assert viz.states(recording, states=["v"], ax=axes[1]) is figure
    assert viz.raster(np.eye(3), ax=axes[2]) is figure
    assert viz.cosines(comparisons, ax=axes[3]) is figure
    assert axes[0].images and axes[1].lines and axes[2].collections and axes[3].lines
    with pytest.raises(ArgumentError, match="`ax` holds one picture, but 4"):
        viz.traces(recording, ax=axes[0])


def test_what_is_not_there_is_named(recording):
    with pytest.raises(ArgumentError, match="w on v"):
        viz.traces(recording, parameters=["x"])
    with pytest.raises(ArgumentError, match=r"tbptt\(\) the recording holds no trace\."):
        viz.traces(viz.record(leaky("tbptt"), INPUTS))
    with pytest.raises(ArgumentError, match="no state x; it has a, v"):
        viz.states(recording, states=["x"])
    with pytest.raises(ArgumentError, match="none was named"):
        viz.raster(recording)
    with pytest.raises(ArgumentError, match="no batch"):
        viz.raster(np.eye(3), sample=0)
    with pytest.raises(ArgumentError, match="at least one comparison"):
        viz.cosines({})


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(VizError, match=re.escape(install_command("viz"))):
        viz.raster(np.eye(3))


def test_pyplot_and_the_back_end_are_left_alone(tmp_path):
    code = (
        "import sys, numpy as np, etrax.viz\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"etrax.viz.raster(np.eye(3)).savefig({str(tmp_path / 'r.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"


def test_a_notebook_shows_a_figure():
    """Without pyplot, whose back end would otherwise do it."""
    assert viz.raster(np.eye(3))._repr_png_().startswith(b"\x89PNG")
