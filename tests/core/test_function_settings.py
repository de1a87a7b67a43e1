import copy
import pickle

import pytest

from coterie.core.errors import SettingError
from coterie.core.function_settings import settings_of_function


def mixture(seed, clients: int = 4, gap: float = 1.5, *, noisy=False, kind: str):
    """Some clients."""
    return seed, clients, gap, noisy, kind


class Built:
    def __init__(self, outputs, width: int = 3, **rest):
        self.facts = outputs, width, rest


def test_parameters_become_settings_with_their_types_and_defaults():
    made = settings_of_function(mixture, "build", ("seed",))
    assert made.__name__ == "mixture"
    assert made.__doc__ == "Some clients."
    types = {name: field.type for name, field in made.__dataclass_fields__.items()}
    assert types == {"clients": int, "gap": float, "noisy": bool, "kind": str}
    assert made(kind="a", clients=7).build(3) == (3, 7, 1.5, False, "a")


def test_what_a_run_gives_goes_to_those_who_ask_for_it():
    made = settings_of_function(Built, "module", ("shape", "outputs"))
    assert made(width=2).module([4], 9).facts == (9, 2, {})
    assert list(made.__dataclass_fields__) == ["width"]


def test_settings_of_a_function_can_be_copied_and_sent():
    made = settings_of_function(mixture, "build", ("seed",))(kind="b")
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made
    assert type(made) is settings_of_function(mixture, "build", ("seed",))


def test_a_parameter_of_no_known_type_is_refused():
    def untyped(seed, what): ...

    with pytest.raises(SettingError, match="`what` of untyped needs a type or a default"):
        settings_of_function(untyped, "build", ("seed",))
