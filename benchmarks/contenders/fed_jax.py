"""fedjax: `federated_averaging` on the backend it chooses for a CPU, compiled by jax."""

import time

import fedjax
import jax
import jax.numpy as jnp
import work
from fedjax.core.client_datasets import BatchPreprocessor

given = work.load()
steps = 0


def counted(batch):
    global steps
    steps += 1
    return batch


def loss(params, batch, rng):
    hidden = jax.nn.relu(batch["x"] @ params["w1"].T + params["b1"])
    logits = hidden @ params["w2"].T + params["b2"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)
    return -chosen.mean()


clients, samples, _ = given.x.shape
every_batch = BatchPreprocessor([counted])
datasets = [
    fedjax.ClientDataset({"x": x, "y": y.astype("int32")}, every_batch)
    for x, y in zip(given.x, given.y, strict=True)
]
fedavg = fedjax.algorithms.fed_avg.federated_averaging(
    jax.grad(loss),
    fedjax.optimizers.sgd(given.lr),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=samples, num_epochs=given.steps),
)
names = ["w1", "b1", "w2", "b2"]
start = dict(zip(names, map(jnp.asarray, given.start), strict=True))
state = fedavg.init(start)
seconds = []
for t in range(given.rounds):
    began = time.perf_counter()
    keys = jax.random.split(jax.random.PRNGKey(t), clients)
    state, _ = fedavg.apply(state, [(i, datasets[i], keys[i]) for i in range(clients)])
    jax.block_until_ready(state.params)
    seconds.append(time.perf_counter() - began)

work.hand_in([state.params[name] for name in names], seconds, steps)
