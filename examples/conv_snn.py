"""A convolutional spiking network that sees images of clothes, learned online while each picture is shown.

    python examples/conv_snn.py [FOLDER]

Two layers of convolutions into leaky integrate-and-fire neurons, and a leaky readout. A picture is shown for twelve
steps; weights are updated every three. The pictures are those of Fashion-MNIST (from the Debian package
`dataset-fashion-mnist`, or the folder of its files), and scikit-learn's small digits where they are not there.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax

spike = etrax.nn.surrogate.fast_sigmoid(slope=5.0)


def conv(x, kernel):
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=dims)


def fire(v, current):
    """Leak, what comes in, and a reset of those that fired."""
    v = 0.8 * (v - (v > 1)) + current
    return v, spike(v - 1)


def step(params, s, image):
    v1, z1 = fire(s["v1"], conv(image, params["conv1"]) + params["b1"])
    v2, z2 = fire(s["v2"], conv(z1, params["conv2"]) + params["b2"])
    y = 0.8 * s["y"] + z2.reshape(len(z2), -1) @ params["out"]
    return {"v1": v1, "v2": v2, "y": y}, y


def init(key, side, channels, classes):
    keys, (a, b), small = jax.random.split(key, 3), channels, -(-side // 4)
    he = jax.nn.initializers.he_normal()
    return {
        "conv1": 2 * he(keys[0], (5, 5, 1, a)),
        "b1": jnp.zeros(a),
        "conv2": 2 * he(keys[1], (5, 5, a, b)),
        "b2": jnp.zeros(b),
        "out": jax.random.normal(keys[2], (small * small * b, classes)) / (small * small * b) ** 0.5,
    }


def loss(output, target):
    return optax.softmax_cross_entropy_with_integer_labels(output, target).mean()


def pictures(folder, size):
    """(training images, labels), (held-out images, labels), and what they are."""
    try:
        parts = [etrax.tasks.fashion_mnist(p, "whole", size, folder) for p in ("train", "test")]
        name = "Fashion-MNIST"
    except etrax.tasks.MissingDataError as error:
        print(error)
        parts, name = etrax.tasks.split(etrax.tasks.small_digits("whole"), test=0.2, seed=0), "small digits"
    side = round(parts[0].inputs.shape[-1] ** 0.5)
    return *((p.inputs[0, :size].reshape(-1, side, side, 1), p.targets[-1, :size]) for p in parts), name


def main(folder=None, size=5000, epochs=2, batch=20, channels=(8, 16), steps=12, window=3, file="conv_snn.png"):
    import matplotlib.pyplot as plt

    (images, labels), (held, truth), name = pictures(folder, size)
    side = images.shape[1]
    params = init(jax.random.key(0), side, channels, 10)
    shapes = [(batch, -(-side // k), -(-side // k), c) for k, c in zip((2, 4), channels, strict=True)]
    hidden = {"v1": jnp.zeros(shapes[0]), "v2": jnp.zeros(shapes[1]), "y": jnp.zeros((batch, 10))}
    learner = etrax.compile(step, "d_rtrl", images[:batch], params=params, hidden=hidden)
    print(learner.report)
    adam = optax.adam(1e-3)
    train, opt_state, losses, rng = (
        learner.train(adam, loss, window=window),
        adam.init(params),
        [],
        np.random.default_rng(0),
    )

    @jax.jit
    def answers(params, image):
        _, ys = jax.lax.scan(lambda s, _: step(params, s, image), hidden, length=steps)
        return ys[-1].argmax(-1)

    for epoch in range(epochs):
        for part in rng.permutation(len(images) // batch * batch).reshape(-1, batch):
            xs, ys = (np.broadcast_to(a[part], (steps, batch, *a.shape[1:])) for a in (images, labels))
            params, opt_state, _, found = train(params, opt_state, learner.init(params), xs, ys)
            losses.append(float(found.mean()))
        whole = len(held) // batch * batch
        said = np.concatenate([answers(params, held[i : i + batch]) for i in range(0, whole, batch)])
        accuracy = float((said == truth[:whole]).mean())
        print(f"epoch {epoch + 1}: held-out accuracy {accuracy:.3f}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5), layout="constrained")
    smooth = [np.mean(part) for part in np.array_split(losses, min(50, len(losses)))]
    left.plot(np.linspace(0, len(losses) * batch, len(smooth)), smooth)
    left.set(
        xlabel="pictures shown", ylabel="loss", title=f"{name}: {accuracy:.1%} of held-out pictures", ylim=(0, None)
    )
    kernels = np.asarray(params["conv1"])[:, :, 0].transpose(2, 0, 1)
    tiles = np.pad(kernels, ((0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    right.imshow(np.concatenate([np.concatenate(list(half), 1) for half in np.array_split(tiles, 2)]), cmap="RdBu_r")
    right.set(title="kernels of the first layer", xticks=[], yticks=[])
    figure.savefig(file, dpi=150)
    return losses, accuracy


if __name__ == "__main__":
    main(*sys.argv[1:2])
