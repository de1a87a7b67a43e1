import coterie
from coterie.data import sources


def test_each_cluster_swaps_its_own_two_labels(small_sources):
    federation, _ = coterie.load("label-swap-mnist", clients=4, alpha=0.0)
    images, labels = sources.load_mnist("train")
    true = {
        image.numpy().tobytes(): label for image, label in zip(images, labels.tolist(), strict=True)
    }
    for p in range(4):
        changed = set()
        for part in (federation.train, federation.test):
            for image, label in zip(*part.client(p), strict=True):
                if true[image.numpy().tobytes()] != label:
                    changed.add((true[image.numpy().tobytes()], int(label)))
        assert changed == {(p, 8 - p), (8 - p, p)}
