"""Processes of an engine: a session of their own, known by their folder, and the shared memory that they leave behind."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SHM = "/dev/shm/"


def start(command: list[str], environment: dict[str, str], folder: Path) -> int:
    """Starts a server in a session of its own, whose processes all stand in `folder`; its log lies there. Returns its id."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return process.pid


def _stat(process: Path) -> list[str]:
    # The name of the program, in brackets, may be anything.
    return (process / "stat").read_text().rpartition(")")[2].split()


def of(session: int, folder: Path) -> list[int]:
    """The processes of a session that stand in `folder`: an id alone may be another's by now."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, its_session = _stat(process)[:4]
            if int(its_session) == session and state not in "ZX" and Path(os.readlink(process / "cwd")) == folder:
                found.append(int(process.name))
        except OSError:
            continue  # It ended meanwhile.
    return found


def named(pids: list[int], word: str) -> list[int]:
    """Those whose name, as they set it themselves, has `word` in it."""
    return [pid for pid in pids if word in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")]


def _segments(pid: str) -> Iterator[str]:
    process = Path("/proc") / pid
    try:
        for line in (process / "maps").read_text().splitlines():
            at = line.find(SHM)
            if at >= 0:
                yield line[at:]
        for opened in (process / "fd").iterdir():
            yield os.readlink(opened)
    except OSError:
        return


def segments(pids: list[int]) -> set[str]:
    """The files of /dev/shm that only these processes have open."""
    own, others = set(), set()
    for process in Path("/proc").glob("[0-9]*"):
        found = {path for path in _segments(process.name) if path.startswith(SHM) and not path.endswith(" (deleted)")}
        (own if int(process.name) in pids else others).update(found)
    return own - others


def end(session: int, folder: Path, left: set[str]) -> None:
    """Kills all processes of a session, and removes what they, and those of it that ended before, have left in /dev/shm.

    They have nothing to save, and those that are stopped hear nothing else. `left`: what they are known to have had there.
    """
    until = time.monotonic() + 30
    left = left | segments(of(session, folder))
    while pids := of(session, folder):
        if time.monotonic() > until:
            raise SystemExit(f"engines: error: processes {pids} do not end, even when killed")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.1)
    used = {path for process in Path("/proc").glob("[0-9]*") for path in _segments(process.name)}
    for path in left - used:
        Path(path).unlink(missing_ok=True)
