"""What the tests here share is not looked through for examples: it needs Flower to be imported."""

import pytest

collect_ignore = ["fake.py"]


@pytest.fixture(scope="session")
def without_third(tmp_path_factory):
    """The run in which the third node never replies to a step."""
    from tests.flower.fake import IFCA, deployed, silence

    return deployed(tmp_path_factory.mktemp("silent"), IFCA, {3: silence})
