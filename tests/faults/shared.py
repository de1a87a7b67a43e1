"""Folders that several processes use at once: one writes, others read, or are refused.

While a run goes on, its folder is reported on, predicted from, exported, resumed and begun again,
at random moments; or two comparisons share a folder. Whoever is refused is told in a sentence, no
reader calls damaged what is being written, and the run ends as if it had been alone.
"""

import random
import shutil
import time
from pathlib import Path

from tests.faults.command import Ended, Fork, judge
from tests.faults.folders import TABLE
from tests.faults.kills import PATIENCE, differences

WORDS = ["TABLE", "client=client", "label=label", "k=2", "checkpoint=1", "rounds=40"]


def try_shared(seed: int, place: Path) -> str:
    """Use the folder of a run while it goes on; what is wrong with how that ended, if anything."""
    draw = random.Random(seed)
    home = place / "shared"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    (home / "rows.csv").write_text(TABLE)
    words = [str(home / "rows.csv") if word == "TABLE" else word for word in WORDS]
    if seed % 10 == 0:
        return two_comparisons(seed, home, words)
    folder = home / "run"
    run = Fork(["run", "ifca", *words, "--out", str(folder)])
    while not (folder / "config.json").exists() and not run.wait(0.01):
        pass
    readers = (
        ["report", str(folder), "--out", str(home / "page.html")],
        ["predict", str(folder), str(home / "rows.csv"), "--out", str(home / "scored.csv")],
        ["export", str(folder), str(home / "exported")],
    )
    writers = (["run", "--resume", str(folder)], ["run", "ifca", *words, "--out", str(folder)])
    faults = []
    while not run.wait(draw.uniform(0, 0.1)):
        reads = draw.random() < 0.7
        other = draw.choice(readers if reads else writers)
        shutil.rmtree(home / "exported", ignore_errors=True)
        ended = Ended(list(other))
        alone = run.wait(0)
        faults += [ended.fault] if ended.fault else []
        if not reads and ended.code == 0 and not alone:
            faults.append("TWO WRITERS")
        if other[0] == "report" and ended.code:
            faults.append(f"CALLED DAMAGED {ended.err}")
    code, _, err = run.end()
    faults += [f"{judge(code, err)} {err}"] if code else []
    whole = Ended(["run", "ifca", *words, "--out", str(home / "whole")])
    faults += [whole.fault] if whole.fault else []
    differing = [] if faults else differences(home / "whole", folder)
    faults += [f"DIFFERS in {', '.join(differing)}"] if differing else []
    return f"seed {seed}: {'; '.join(faults)}" if faults else ""


def two_comparisons(seed: int, home: Path, words: list[str]) -> str:
    """Two comparisons in one folder, a moment apart; then a third, which has nothing left to do."""
    command = ["compare", "ifca,local", words[0], *words[1:4], "local.k=", "rounds=4", "seeds=2"]
    command = [word for word in command if word not in ("local.k=", "k=2")]
    command += ["--workers", "1", "--out", str(home / "compared")]
    one = Fork(command)
    time.sleep(random.Random(seed).uniform(0, 6))
    two = Fork(command)
    one.wait(PATIENCE), two.wait(PATIENCE)
    faults = [judge(code, err) for code, _, err in (one.end(), two.end())]
    third = Ended(command, PATIENCE)
    faults += [third.fault or ("" if third.code == 0 else f"LOST {third.err}")]
    told = "; ".join(fault for fault in faults if fault)
    return f"seed {seed}: two comparisons: {told}" if told else ""
