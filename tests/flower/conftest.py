"""What the tests here share is not looked through for examples: it needs Flower to be imported."""

import pytest

collect_ignore = ["fake.py", "small.py"]


@pytest.fixture(scope="session")
def without_third(tmp_path_factory):
    """The run in which the third node never replies to a step."""
    from tests.flower.fake import IFCA, deployed, silence

    return deployed(tmp_path_factory.mktemp("silent"), IFCA, {3: silence})


@pytest.fixture(scope="session")
def enrolment(tmp_path_factory):
    """An app, and what a node of it says."""
    from coterie.flower.node import Node
    from coterie.flower.wire import Packet
    from tests.flower.fake import IFCA, make_app, thirds

    app = make_app(*IFCA)
    node = Node(app, thirds(tmp_path_factory.mktemp("node"))[0])
    return app, node.answer(Packet({"do": "enrol"}))
