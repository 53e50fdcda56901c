import os
import subprocess
import sys
import time

from dflash.runs import process


def stat_line(name: str, state: str, began: int) -> str:
    return f"42 ({name}) {state} " + " ".join(str(began if field == 22 else 0) for field in range(4, 53))


def test_a_beginning_is_read_behind_a_name_that_holds_blanks_and_brackets(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "PROC", tmp_path)
    (tmp_path / "self").mkdir()
    (tmp_path / "42").mkdir()
    for state, expected in (("R", "987"), ("S", "987"), ("Z", None), ("X", None)):
        (tmp_path / "42" / "stat").write_text(stat_line("a) R (b 1 2 3", state, 987))
        assert process.beginning_of(42) == expected
    (tmp_path / "42" / "stat").write_text("42 (torn")
    assert process.beginning_of(42) is None
    assert process.beginning_of(43) is None


def test_a_process_keeps_its_beginning_and_one_that_ended_has_none():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = process.beginning_of(child.pid)
    assert began is not None
    assert began == process.beginning_of(child.pid)
    child.communicate(b"\n")
    assert process.beginning_of(child.pid) is None
    assert process.beginning_of(os.getpid()) is not None


def test_pids_count_in_one_boot_and_one_pid_namespace(tmp_path, monkeypatch):
    def space(boot: str, namespace: str) -> str:
        proc = tmp_path / f"{boot}-{namespace}"
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text(boot + "\n")
        (proc / "self/ns").mkdir(parents=True)
        (proc / "self/ns/pid").symlink_to(f"pid:[{namespace}]")
        monkeypatch.setattr(process, "PROC", proc)
        return process.pid_space()

    assert process.pid_space() == process.pid_space()
    assert len({process.pid_space(), space("a", "1"), space("a", "2"), space("b", "1")}) == 4


def test_where_the_system_keeps_no_boot_id_pids_count_on_the_host_and_beginnings_are_times(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "PROC", tmp_path / "nowhere")
    assert process.pid_space() == os.uname().nodename
    assert process.beginning_of(os.getpid()) == process.beginning_of(os.getpid())
    assert 0 < float(process.beginning_of(os.getpid())) <= time.time()
    assert process.beginning_of(2**40) is None
