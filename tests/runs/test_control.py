"""What may lie in a run's inbox: anything. Each thing is answered once, by its reason, taken away, and does no harm."""

import json
import os
import shutil
import socket
import tempfile

import pytest

from dflash.config import build_config
from dflash.runs.control import LARGEST_COMMAND_BYTES, Mailbox, send_command
from dflash.runs.folder import create_run, read_json
from dflash.telemetry.recorder import encode


@pytest.fixture
def run(tmp_path):
    run = create_run(tmp_path, "run", build_config({"data": {"path": "data"}, "target": {"path": "qwen3-tiny"}}))
    with run.driven():
        (run.path / "control" / "inbox").mkdir(parents=True)
        yield run


@pytest.fixture
def valid(run):
    """The bytes of a command that would be obeyed."""
    return json.dumps({"id": "x", "session": read_json(run.path / "process.json")["session"], "action": "stop"}).encode()


def inbox(run):
    return run.path / "control" / "inbox"


def sparse(place, valid):
    with place.open("wb") as file:
        file.write(valid)
        file.truncate(10**11)


def belongs_to_another(place, valid):
    place.write_bytes(valid)
    os.chown(place, 54_321, -1)


def linked(place, valid):
    other = place.parents[2] / "elsewhere.json"
    other.write_bytes(valid)
    place.symlink_to(other)


def hanging_socket(place, valid):
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{short}/s")  # the path of a socket may be no longer than about 100 bytes
        shutil.move(f"{short}/s", place)


def full_folder(place, valid):
    place.mkdir()
    (place / "command.json").write_bytes(valid)


THINGS = {
    "larger than allowed": (lambda place, valid: place.write_bytes(valid + b" " * LARGEST_COMMAND_BYTES), "65536 at most are read"),
    "a hundred gigabytes": (sparse, "100000000000 bytes"),
    "empty": (lambda place, valid: place.write_bytes(b""), "not JSON"),
    "cut short": (lambda place, valid: place.write_bytes(valid[:-5]), "not JSON"),
    "bytes": (lambda place, valid: place.write_bytes(bytes(range(256))), "not JSON"),
    "nested deep": (lambda place, valid: place.write_bytes(b"[" * 60_000), "not JSON"),
    "a number": (lambda place, valid: place.write_bytes(b"17"), "no JSON object"),
    "half a character": (lambda place, valid: place.write_bytes(valid.replace(b"stop", b"\\ud800")), "not JSON"),
    "not a number": (lambda place, valid: place.write_bytes(valid.replace(b'"stop"', b"NaN")), "not JSON"),
    "a list": (lambda place, valid: place.write_bytes(b"[" + valid + b"]"), "no JSON object"),
    "a link to a command": (linked, "can't be opened"),
    "a link to nowhere": (lambda place, valid: place.symlink_to("nowhere"), "can't be opened"),
    "a link to itself": (lambda place, valid: place.symlink_to(place.name), "can't be opened"),
    "a link to a device": (lambda place, valid: place.symlink_to("/dev/zero"), "can't be opened"),
    "a pipe nobody writes": (lambda place, valid: os.mkfifo(place), "no regular file"),
    "a socket": (hanging_socket, "can't be opened"),
    "a folder": (lambda place, valid: place.mkdir(), "no regular file"),
    "a folder with a command in it": (full_folder, "no regular file"),
    "of an earlier session": (lambda place, valid: place.write_text('{"session": "old", "action": "stop"}'), "an earlier session"),
    "without a session": (lambda place, valid: place.write_text('{"action": "stop"}'), "an earlier session"),
    "an action of another kind": (lambda place, valid: place.write_bytes(valid.replace(b'"stop"', b'["stop"]')), "no such action"),
}


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("name", ["command.json", "x" * 250, "ünï\ncode", "-rf", ".hidden", os.fsdecode(b"not \xff text")])
def test_what_is_no_command_is_refused_once_and_taken_away(run, valid, thing, name):
    put, reason = THINGS[thing]
    put(inbox(run) / name, valid)
    mailbox = Mailbox(run)
    (command,) = mailbox.poll()
    assert reason in command.fault
    assert len(command.id) <= 100
    assert encode(vars(command))  # its answer can be written
    assert os.listdir(inbox(run)) == []
    assert mailbox.poll() == []
    assert len(os.listdir(run.path / "control" / "refused")) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_command_of_another_user_is_refused(run, valid):
    belongs_to_another(inbox(run) / "command.json", valid)
    (command,) = Mailbox(run).poll()
    assert command.fault == "it belongs to user 54321"
    assert os.listdir(inbox(run)) == []


def test_the_run_obeys_its_own_user_and_root_and_nobody_else(run, valid, monkeypatch):
    place = inbox(run) / "command.json"
    place.write_bytes(valid)
    owner = place.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda handle: Owned(real(handle), owner + 2))
    (command,) = Mailbox(run).poll()
    assert command.fault == f"it belongs to user {owner + 2}"
    for obeyed in (owner + 1, 0):
        monkeypatch.setattr(os, "fstat", lambda handle, obeyed=obeyed: Owned(real(handle), obeyed))
        place.write_bytes(valid)
        (command,) = Mailbox(run).poll()
        assert (command.fault, command.action) == (None, "stop")


class Owned:
    """The state of a file as if it belonged to a user."""

    def __init__(self, state, user):
        self.st_mode, self.st_size, self.st_uid = state.st_mode, state.st_size, user


def test_what_can_not_be_taken_away_is_answered_once(run, valid, monkeypatch):
    (inbox(run) / "stuck.json").write_bytes(valid)
    monkeypatch.setattr("pathlib.Path.unlink", lambda path: (_ for _ in ()).throw(PermissionError()))
    mailbox = Mailbox(run)
    assert [command.action for command in mailbox.poll()] == ["stop"]
    assert mailbox.poll() == []


def test_junk_does_not_keep_a_command_from_being_read(run):
    for number in range(150):
        (inbox(run) / f"{number:03d}.json").write_text("junk")
    send_command(run, "stop")
    mailbox = Mailbox(run)
    found = mailbox.poll() + mailbox.poll()
    assert [command.action for command in found if command.fault is None] == ["stop"]
    assert len(found) == 151


def test_commands_keep_their_order_when_the_clock_is_set_back(run, monkeypatch):
    import time

    ids = []
    for hours in (0, -1, -2, 5, -9):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: (1_000_000 + hours) * 3_600 * 10**9)
        ids.append(send_command(run, "checkpoint"))
    assert [command.id for command in Mailbox(run).poll()] == ids
