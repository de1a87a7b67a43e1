"""Ways to damage a file of a folder, drawn by a seeded generator."""

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, random.Random], None]
WRONG = (None, True, -1, 10**400, 1e308, "", "x" * 5000, [], {}, [[]], {"": None}, "\x00", "\ud800")
DEEP = 100_000


def flip_a_bit(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(content))


def flip_many_bits(path: Path, draw: random.Random) -> None:
    for _ in range(20):
        flip_a_bit(path, draw)


def truncate(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content) + 1)])


def empty(path: Path, draw: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, draw: random.Random) -> None:
    path.unlink()


def insert_nuls(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    place = draw.randrange(len(content) + 1)
    path.write_bytes(content[:place] + bytes(draw.randrange(1, 200)) + content[place:])


def fill_with_noise(path: Path, draw: random.Random) -> None:
    path.write_bytes(draw.randbytes(draw.randrange(1, 3000)))


def swap_with_another(path: Path, draw: random.Random) -> None:
    """As files of a folder that were renamed."""
    files = sorted(each for each in path.parent.iterdir() if each.is_file() and each != path)
    if not files:
        return
    other = draw.choice(files)
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


def nest_deeply(path: Path, draw: random.Random) -> None:
    opening, closing = draw.choice([("[", "]"), ('{"a":', "}")])
    path.write_text(opening * DEEP + "1" + closing * DEEP)


def repeat_lines(path: Path, draw: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True) or [b""]
    place = draw.randrange(len(lines))
    path.write_bytes(b"".join([*lines[:place], lines[place], *lines[place:]]))


def exchange_lines(path: Path, draw: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    draw.shuffle(lines)
    path.write_bytes(b"".join(lines))


def replace_a_value(path: Path, draw: random.Random) -> None:
    """Another type or size in place of something that JSON says, at any depth."""
    lines = path.read_text(errors="replace").splitlines()
    place = draw.randrange(len(lines)) if lines else 0
    text = draw.choice([lines[place] if lines else "", "\n".join(lines)])
    try:
        content = json.loads(text)
    except ValueError:
        flip_a_bit(path, draw)
        return
    changed = json.dumps(replaced(content, draw))
    whole = len(text) > len(lines[place])
    path.write_text(changed if whole else "\n".join([*lines[:place], changed, *lines[place + 1 :]]))


def replaced(content: object, draw: random.Random) -> object:
    if isinstance(content, dict) and content and draw.random() < 0.85:
        key = draw.choice(list(content))
        if draw.random() < 0.15:
            return {name: value for name, value in content.items() if name != key}
        return {**content, key: replaced(content[key], draw)}
    if isinstance(content, list) and content and draw.random() < 0.85:
        place = draw.randrange(len(content))
        if draw.random() < 0.15:
            return content[:place]
        return [*content[:place], replaced(content[place], draw), *content[place + 1 :]]
    return draw.choice(WRONG)


def huge_number(path: Path, draw: random.Random) -> None:
    """A number of thousands of digits in place of a digit."""
    content = path.read_bytes()
    places = [i for i, byte in enumerate(content) if chr(byte).isdigit()] or [0]
    place = draw.choice(places)
    number = draw.choice([b"9" * 5000, b"9" * 400, b"1e999", b"-1e999", b"NaN", b"1" * 20])
    path.write_bytes(content[:place] + number + content[place + 1 :])


def make_a_folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def make_a_pipe(path: Path, draw: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def make_a_socket(path: Path, draw: random.Random) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is at most some 100 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def link_to_a_device(path: Path, draw: random.Random) -> None:
    """One without an end, one that is empty, and one that takes nothing."""
    path.unlink()
    path.symlink_to(draw.choice(("/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem")))


def link_to_nothing(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.symlink_to("nothing")


def make_unreadable(path: Path, draw: random.Random) -> None:
    """Nobody but root is refused then."""
    path.chmod(0)


def encode_otherwise(path: Path, draw: random.Random) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    path.write_bytes(text.encode(draw.choice(("utf-16", "utf-16-be", "utf-8-sig", "utf-32"))))


def insert_other_bytes(path: Path, draw: random.Random) -> None:
    """Bytes that no text in UTF-8 has, or that no screen should be sent."""
    content = path.read_bytes()
    place = draw.randrange(len(content) + 1)
    other = draw.choice((b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x1b[31m", "\u202e\u2028".encode()))
    path.write_bytes(content[:place] + other + content[place:])


def link_to_itself(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


DAMAGES: tuple[Damage, ...] = (
    flip_a_bit,
    flip_many_bits,
    truncate,
    empty,
    delete,
    insert_nuls,
    fill_with_noise,
    swap_with_another,
    nest_deeply,
    repeat_lines,
    exchange_lines,
    replace_a_value,
    replace_a_value,
    huge_number,
    make_a_folder,
    make_a_pipe,
    link_to_itself,
    make_a_socket,
    link_to_a_device,
    link_to_nothing,
    make_unreadable,
    encode_otherwise,
    insert_other_bytes,
)


def damage(path: Path, other: Path, draw: random.Random) -> str:
    """Damage a file in some way, or put that of `other` in its place; what was done."""
    if draw.random() < 0.08 and other.exists() and other != path:
        shutil.copyfile(other, path)
        return f"{path.name} of {other.parent.name}"
    kind = draw.choice(DAMAGES)
    kind(path, draw)
    return f"{kind.__name__} {path.name}"
