import sys

import pytest

from coterie.core.errors import SettingError
from coterie.core.imports import load_object


def refusal(path):
    with pytest.raises(SettingError) as found:
        load_object(path)
    text = str(found.value)
    assert "\n" not in text
    return text


def test_a_missing_module_is_told_apart_from_one_that_lacks_another(own):
    assert refusal("no_such_package.module:Thing") == (
        "no module is named no_such_package: install it, or run coterie in the folder where it lies"
    )
    inner = own.write("inner", "x = 1\nimport no_such_library\n")
    assert refusal(f"{inner}:x").startswith(f"{inner} cannot be imported: ")
    assert f"{inner}.py, line 2: ModuleNotFoundError: No module named" in refusal(f"{inner}:x")
    assert refusal(f"{inner}.deeper:x").startswith(f"{inner}.deeper cannot be imported: ")


def test_a_file_with_its_ending_is_answered_with_the_right_spelling(own):
    where = own.write("mine", "Method = 1")
    assert refusal(f"{where}.py:Method") == f"no module is named {where}.py: write {where}:Method"


def test_a_missing_attribute_is_answered_with_the_near_ones(own):
    where = own.write("mine", "class Method:\n    class Inner: pass\n")
    assert refusal(f"{where}:Methd") == f"{where} has no Methd; did you mean `Method`?"
    assert load_object(f"{where}:Method.Inner").__name__ == "Inner"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("x = 1\n\ndef f(:\n    pass\n", "line 3: SyntaxError: invalid syntax"),
        ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('usage:\\n  mine')", "line 2: SystemExit: usage: mine"),
        ("import torch\n\nlayer = torch.nn.Linear('a', 2)\n", "line 3: TypeError"),
        ("from math import tau, pie\n", "line 1: ImportError: cannot import name 'pie'"),
        ("import json\njson.loads('{')", "line 2: JSONDecodeError"),
    ],
)
def test_a_fault_in_the_users_file_is_told_with_file_and_line(own, text, cause):
    where = own.write("faulty", text)
    told = refusal(f"{where}:x")
    assert told.startswith(f"{where} cannot be imported: {own.folder / where}.py, line ")
    assert cause in told


def test_an_exception_that_cannot_tell_its_text_is_told_by_its_name(own):
    text = "class Odd(Exception):\n    def __str__(self): return 3\nraise Odd\n"
    where = own.write("odd", text)
    assert refusal(f"{where}:Method").endswith(f"{where}.py, line 3: Odd: it ends the program")


def test_the_fault_is_where_it_is_and_not_where_it_was_imported(own):
    helper = own.write("helper", "a = 1\nb = undefined\n")
    where = own.write("outer", f"from {helper} import a\n")
    assert f"{helper}.py, line 2: NameError" in refusal(f"{where}:a")


@pytest.mark.parametrize("path", ["a b:c", "a:", ":c", "a:b:c", "../x:y", "1a:b", "a.:b", "a:b-c"])
def test_other_spellings_are_refused(path):
    assert refusal(path) == f"a name of your own is written package.module:name, got {path}"


def test_a_file_is_found_that_was_written_after_the_folder_was_looked_at(own):
    refusal(f"{own.mark}_later:x")
    assert load_object(f"{own.write('later', 'x = 5')}:x") == 5
    assert f"{own.mark}_later" in sys.modules
