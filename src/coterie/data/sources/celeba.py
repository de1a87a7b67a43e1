"""CelebA as LEAF deals it out: faces by person, and whether they smile.

Liu et al.: Deep Learning Face Attributes in the Wild, ICCV 2015, https://arxiv.org/abs/1411.7766
Caldas et al.: LEAF, A Benchmark for Federated Settings, 2018, https://arxiv.org/abs/1812.01097

Differences from LEAF: images are scaled by bicubic interpolation whatever the version of Pillow
(LEAF takes Pillow's default, which was nearest neighbour before version 7), and a label belongs to
the image of its name (LEAF pairs two lists by their order, which is the same in the real files).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from coterie.core.errors import DataError
from coterie.data.sources.source import Source, source_folders

SIDE = 84
TASK = "Smiling"
IMAGES, ATTRIBUTES, IDENTITIES = "img_align_celeba", "list_attr_celeba.txt", "identity_CelebA.txt"
INSIDE = ("", "raw", "data/raw")  # as the files lie beside each other, and in a checkout of LEAF


@dataclass(frozen=True)
class FaceImages:
    """Images that stay on disk until they are asked for: all of CelebA would take 4 GB."""

    folder: Path
    names: tuple[str, ...]  # [n] files

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """The images of these rows [r] as bytes [r, 84, 84, 3], red green blue."""
        faces = torch.empty((len(rows), SIDE, SIDE, 3), dtype=torch.uint8)
        for i, row in enumerate(rows.tolist()):
            faces[i] = torch.from_numpy(read_face(self.folder / self.names[row]))
        return faces


class CelebaData(NamedTuple):
    """Faces by person; the rows of a person lie together."""

    images: FaceImages  # [n] images[rows] decodes
    smiling: Tensor  # [n] 1 or 0
    person: Tensor  # [n] index into `people`, ascending
    people: tuple[str, ...]  # CelebA's numbers of them, ascending


def load_celeba() -> CelebaData:
    """CelebA by person, everybody in it: LEAF leaves out those with fewer than 5 images."""
    folder = next(filter(None, map(find_raw_folder, source_folders("celeba"))), None)
    if folder is None:
        raise DataError(SOURCE.missing())
    owners = read_identities(folder / IDENTITIES)
    smiling = read_attribute(folder / ATTRIBUTES, TASK)
    lacking = next((name for name in owners if name not in smiling), None)
    if lacking is not None:
        raise DataError(f"{folder / ATTRIBUTES} has no line for {lacking}")
    people = sorted(set(owners.values()), key=int)
    number = {person: i for i, person in enumerate(people)}
    names = sorted(owners, key=lambda name: number[owners[name]])
    return CelebaData(
        FaceImages(folder / IMAGES, tuple(names)),
        torch.tensor([smiling[name] for name in names]),
        torch.tensor([number[owners[name]] for name in names]),
        tuple(people),
    )


def find_raw_folder(place: Path) -> Path | None:
    """The folder with the three parts of CelebA beside each other; None if there is none."""
    for folder in (place / inside for inside in INSIDE):
        lists = all((folder / name).is_file() for name in (ATTRIBUTES, IDENTITIES))
        if lists and (folder / IMAGES).is_dir():
            return folder
    return None


def read_identities(path: Path) -> dict[str, str]:
    """Who is on each image, from lines `000001.jpg 2880`."""
    owners = {}
    for number, words in enumerate(read_lines(path), 1):
        if len(words) != 2 or not words[1].isdecimal():
            raise DataError(f"line {number} of {path} must be a file and an identity")
        owners[check_file_name(words[0], path)] = words[1]
    if not owners:
        raise DataError(f"{path} is empty")
    return owners


def read_attribute(path: Path, attribute: str) -> dict[str, int]:
    """Whether each image has an attribute.

    The first line is the number of images, the second names the attributes, and each further one
    is a file with 1 or -1 for each attribute.
    """
    rows = read_lines(path)
    if len(rows) < 2 or len(rows[0]) != 1 or rows[0][0] != str(len(rows) - 2):
        told = " ".join(rows[0])[:20] if rows else "nothing"
        raise DataError(
            f"the first line of {path} must be its number of images, {max(len(rows) - 2, 0)}, "
            f"got {told}"
        )
    names = rows[1]
    if attribute not in names:
        raise DataError(f"{path} must have a column {attribute}")
    column = 1 + names.index(attribute)
    labels = {}
    for number, words in enumerate(rows[2:], 3):
        if len(words) != 1 + len(names) or words[column] not in ("1", "-1"):
            raise DataError(
                f"line {number} of {path} must be a file and {len(names)} times 1 or -1"
            )
        labels[check_file_name(words[0], path)] = int(words[column] == "1")
    return labels


def read_lines(path: Path) -> list[list[str]]:
    """The words of each line that has any."""
    try:
        text = path.read_text("ascii")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return [words for words in map(str.split, text.splitlines()) if words]


def check_file_name(name: str, path: Path) -> str:
    """The name, if it is one of a file in the folder of images and not elsewhere."""
    if Path(name).name != name or "\\" in name or name == "..":
        raise DataError(f"{path} must name files in {IMAGES}, got {name}")
    return name


def read_face(path: Path) -> np.ndarray:
    """An image scaled as LEAF does, to bytes [84, 84, 3]."""
    try:
        with Image.open(path, formats=("JPEG",)) as image:
            small = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            return np.array(small.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"the image {path} cannot be read: {error}") from error


SOURCE = Source(
    "celeba",
    "200,000 faces by person and whether they smile, 84 x 84",
    find_raw_folder,
    lambda folder: None,  # nothing is published to check against; files are checked when read
    by_hand=(
        f"place there {ATTRIBUTES}, {IDENTITIES} and the folder {IMAGES} from "
        "http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
    ),
)
