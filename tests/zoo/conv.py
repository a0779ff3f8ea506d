"""Convolutions, each with a bias."""

import jax
from jax import lax

from .model import EXACT, B, Family, inputs, normal

family = Family("ops")

LAYOUTS = {1: ("NCH", "OIH", "NCH"), 2: ("NCHW", "OIHW", "NCHW")}


def convolution(draw, size, kernel, padding="SAME", channels=2, filters=3, stride=1, groups=1, dilation=1):
    """h' = 0.9 h + conv(x, w) + b on images of the given size, channels first."""
    n = len(size)

    def conv(w, x):
        return lax.conv_general_dilated(
            x,
            w,
            window_strides=(stride,) * n,
            padding=padding,
            rhs_dilation=(dilation,) * n,
            dimension_numbers=LAYOUTS[n],
            feature_group_count=groups,
        )

    def step(params, h, x):
        b = params["b"].reshape(-1, *[1] * n)
        h = 0.9 * h + conv(params["w"], x) + b
        return h, h

    params = {"w": draw(filters, channels // groups, *kernel), "b": draw(filters)}
    shape = jax.eval_shape(conv, params["w"], draw(B, channels, *size)).shape
    return step, params, draw(*shape), inputs(normal(B, channels, *size))


@family({"w": EXACT, "b": EXACT})
def conv1d(draw):
    return convolution(draw, (7,), (3,))


@family({"w": EXACT, "b": EXACT})
def conv1d_stride(draw):
    return convolution(draw, (9,), (3,), "VALID", stride=2)


@family({"w": EXACT, "b": EXACT})
def conv1d_groups(draw):
    return convolution(draw, (5,), (3,), channels=4, filters=6, groups=2)


@family({"w": EXACT, "b": EXACT})
def conv1d_dilation(draw):
    return convolution(draw, (8,), (3,), "VALID", dilation=2)


@family({"w": EXACT, "b": EXACT})
def conv2d(draw):
    return convolution(draw, (4, 5), (3, 2))


@family({"w": EXACT, "b": EXACT})
def conv2d_stride(draw):
    return convolution(draw, (6, 5), (2, 3), "VALID", stride=2)


@family({"w": EXACT, "b": EXACT})
def conv2d_groups(draw):
    return convolution(draw, (3, 4), (2, 3), channels=4, filters=2, groups=2)


@family({"w": EXACT, "b": EXACT})
def conv2d_dilation(draw):
    return convolution(draw, (5, 6), (2, 3), "VALID", dilation=2)


@family({"w": EXACT, "b": EXACT})
def conv2d_channels_last(draw):
    """Channels last."""

    def step(params, h, x):
        y = lax.conv_general_dilated(x, params["w"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        h = 0.9 * h + y + params["b"]
        return h, h

    return step, {"w": draw(2, 3, 2, 4), "b": draw(4)}, draw(B, 3, 3, 4), inputs(normal(B, 4, 5, 2))
