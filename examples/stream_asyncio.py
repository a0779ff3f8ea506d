"""A prediction server that learns: samples arrive in an event loop, updates run beside it.

    python examples/stream_asyncio.py

Three tasks and two bounded queues. A prediction is one call of the model's step with the newest parameters, short
enough for the event loop; an update runs in a thread (`asyncio.to_thread`), so that the loop serves others meanwhile.
Where a queue is full, the task that fills it waits: the sender is slowed down rather than memory filled. A sample whose
answer is not known yet has no target: it moves the stream on, and nothing is learned from it.
"""

import asyncio
import time

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


async def send(arrivals, samples, rate):
    """So many samples a second, every fourth without a target; None is the last."""
    x, mean = np.random.default_rng(0).standard_normal((samples, 2)).astype(np.float32), np.zeros(2, np.float32)
    began = time.perf_counter()
    for t in range(samples):
        mean = 0.8 * mean + 0.2 * x[t]
        await asyncio.sleep(max(0.0, began + t / rate - time.perf_counter()))
        await arrivals.put((time.perf_counter(), x[t], mean[:1].copy(), t % 4 != 3))
    await arrivals.put(None)


async def serve(arrivals, lessons, plain, online, report):
    hidden = online.learner.hidden
    while (sample := await arrivals.get()) is not None:
        arrived, x, y, is_known = sample
        hidden, output = plain(online.params, hidden, x)
        report["errors"].append(float(((np.asarray(output) - y) ** 2).mean()))
        report["delays"].append(time.perf_counter() - arrived)
        await lessons.put((x, y if is_known else None))
    await lessons.put(None)


async def learn(lessons, online, report):
    while (lesson := await lessons.get()) is not None:
        began = time.perf_counter()
        await asyncio.to_thread(online.feed, *lesson)
        report["updates"].append(time.perf_counter() - began)


async def run(online, plain, samples, rate, room, report):
    arrivals, lessons = asyncio.Queue(room), asyncio.Queue(room)
    async with asyncio.TaskGroup() as tasks:  # if one fails, the others are cancelled, and its error is raised
        tasks.create_task(send(arrivals, samples, rate))
        tasks.create_task(serve(arrivals, lessons, plain, online, report))
        tasks.create_task(learn(lessons, online, report))


def main(samples=2000, rate=500, room=64, file="stream_asyncio.png"):
    import matplotlib.pyplot as plt

    online = compiled().online(optax.adam(5e-3), loss)
    plain, x = jax.jit(online.learner.plain_step), np.zeros(2, np.float32)
    jax.block_until_ready(plain(online.params, online.learner.hidden, x))  # all is compiled before the first sample
    for target in (np.zeros(1, np.float32), None):
        online.feed(x, target)
    report = {"errors": [], "delays": [], "updates": []}
    began = time.perf_counter()
    asyncio.run(run(online, plain, samples, rate, room, report))
    seconds = time.perf_counter() - began

    for name, times in (("delay of a prediction", report["delays"]), ("an update", report["updates"])):
        p50, p99 = np.percentile(np.asarray(times) * 1e3, (50, 99))
        print(f"{name:22} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms")
    print(f"{samples / seconds:.0f} samples a second")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    parts = np.array_split(np.asarray(report["errors"]), 40)
    axes.plot(np.linspace(0, samples, 40), [p.mean() for p in parts])
    axes.set(xlabel="samples", ylabel="error of the predictions", ylim=(0, None))
    figure.savefig(file, dpi=150)
    return report


if __name__ == "__main__":
    main()
