"""A sensor, predictions and learning in three threads: predictions leave at once, learning follows as time permits.

    python examples/stream_threads.py

The thread that predicts runs the model's step with the newest parameters and never waits for an update. What it has
seen goes to the thread that learns. If that one falls behind, samples are left out and the stream starts again at the
current hidden state (`reset=True, initial=`), so that it does not learn across the gap. If predictions fall behind, the
sensor waits. One message, None, runs through all of them and ends them.
"""

import queue
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax


def step(params, h, x):
    z = jax.nn.sigmoid(x @ params["wz"] + params["bz"])
    h = (1 - z) * h + z * jnp.tanh(x @ params["w"])
    return h, h @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def compiled(units=24):
    w, wz = jax.random.normal(jax.random.key(0), (2, 2, units))
    params = {"w": w, "wz": 0.1 * wz, "bz": jnp.full(units, -1.5), "out": jnp.zeros((units, 1))}
    return etrax.compile(step, "d_rtrl", jnp.zeros(2), params=params, hidden=jnp.zeros(units))


def sense(arrivals, samples, rate):
    """Put a sample (its time, input, target) into the queue so many times a second; wait where it is full."""
    x, mean = np.random.default_rng(0).standard_normal((samples, 2)).astype(np.float32), np.zeros(2, np.float32)
    began = time.perf_counter()
    for t in range(samples):
        mean = 0.8 * mean + 0.2 * x[t]
        time.sleep(max(0.0, began + t / rate - time.perf_counter()))
        arrivals.put((time.perf_counter(), x[t], mean[:1].copy()))
    arrivals.put(None)


def predict(arrivals, lessons, plain, online, report):
    """Answer every sample with the newest parameters, and pass it on to be learned from, if there is room."""
    hidden, missed = online.learner.hidden, False
    for arrived, x, y in iter(arrivals.get, None):
        before = hidden
        hidden, output = plain(online.params, hidden, x)
        report["errors"].append(float(((np.asarray(output) - y) ** 2).mean()))
        report["delays"].append(time.perf_counter() - arrived)
        try:
            lessons.put_nowait((x, y, before if missed else None))
            missed = False
        except queue.Full:
            missed, report["left out"] = True, report["left out"] + 1


def learn(lessons, online, report):
    """An update after every sample."""
    for x, y, hidden in iter(lessons.get, None):
        restart = {} if hidden is None else {"reset": True, "initial": hidden}
        began = time.perf_counter()
        online.feed(x, y, **restart)
        report["updates"].append(time.perf_counter() - began)
    online.flush()


def stage(work, source, *rest, then=None):
    """Work until None comes, and pass it on. After a failure the queue is emptied, so that nobody waits for room."""
    try:
        work(source, *rest)
    except BaseException:
        for _ in iter(source.get, None):
            pass
        raise
    finally:
        if then is not None:
            then.put(None)


def main(samples=4000, rate=1000, room=64, file="stream_threads.png"):
    import matplotlib.pyplot as plt

    online = compiled().online(optax.adam(5e-3), loss)
    plain, start = jax.jit(online.learner.plain_step), online.learner.hidden
    for restart in ({}, {"reset": True, "initial": start}):  # all is compiled before the sensor starts
        x, y = np.zeros(2, np.float32), np.zeros(1, np.float32)
        jax.block_until_ready((plain(online.params, start, x), online.feed(x, y, **restart)))
    arrivals, lessons = queue.Queue(room), queue.Queue(room)
    report = {"errors": [], "delays": [], "updates": [], "left out": 0}
    began = time.perf_counter()
    with ThreadPoolExecutor(3) as threads:
        running = [
            threads.submit(sense, arrivals, samples, rate),
            threads.submit(stage, predict, arrivals, lessons, plain, online, report, then=lessons),
            threads.submit(stage, learn, lessons, online, report),
        ]
    seconds = time.perf_counter() - began
    _ = [thread.result() for thread in running]  # raises what went wrong in one of them
    for name, times in (("delay of a prediction", report["delays"]), ("an update", report["updates"])):
        p50, p99 = np.percentile(np.asarray(times) * 1e3, (50, 99))
        print(f"{name:22} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms")
    print(f"{samples / seconds:.0f} samples a second, {report['left out']} of them not learned from")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    parts = np.array_split(np.asarray(report["errors"]), 40)
    axes.plot(np.linspace(0, samples, 40), [p.mean() for p in parts])
    axes.set(xlabel="samples", ylabel="error of the predictions", ylim=(0, None))
    figure.savefig(file, dpi=150)
    return report


if __name__ == "__main__":
    main()
