from typing import NamedTuple

from torch import Tensor

from coterie.core.fields import Cluster, Loss, Role, Size, Update, field_of_role, roles


class Upload(NamedTuple):
    where: Cluster
    much: Size
    direction: Update
    how_bad: Loss
    note: Tensor


def test_roles_are_read_off_the_types_and_a_plain_tensor_is_a_statistic():
    assert roles(Upload) == {
        "where": Role.CLUSTER,
        "much": Role.SIZE,
        "direction": Role.UPDATE,
        "how_bad": Role.LOSS,
        "note": Role.STATISTIC,
    }


def test_a_field_is_found_by_its_role():
    assert field_of_role(Upload, Role.SIZE) == "much"
    assert field_of_role(Upload, Role.MODEL) is None
