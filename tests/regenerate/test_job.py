"""Whole jobs with an engine of words: multi-turn context, resume, what is counted and what is left out."""

import json

import pytest

from dflash.errors import RefusedInput, RunFailed
from dflash.regenerate.answers import Answer
from dflash.regenerate.job import Source, regenerate
from dflash.regenerate.options import RegenerateOptions
from tests.regenerate.conftest import chat_rows, read_rows, write_rows


class WordEngine:
    """Answers each request with `answer(request)`, a few at a time, last come first served; may die after some answers."""

    def __init__(self, answer, lives=None):
        self.answer, self.lives, self.waiting, self.asked = answer, lives, [], []

    @property
    def wanted(self):
        return 7 - len(self.waiting)

    def add(self, requests):
        self.waiting.extend(requests)

    def collect(self):
        given = []
        while self.waiting and len(given) < 3:
            if self.lives == 0:
                raise KeyboardInterrupt
            self.lives = None if self.lives is None else self.lives - 1
            request = self.waiting.pop()
            self.asked.append(request)
            given.append(self.answer(request))
        return given

    def close(self):
        self.waiting = None


@pytest.fixture
def saying(form):
    """An answer of given words by the tokenizer's own tokens."""

    def say(text, finish="stop"):
        ids = form._backend.encode(text).ids

        def answer(request):
            kept = ids[: request.limit] if finish == "limit" else ids
            end = min(form.end_tokens) if finish == "stop" else None
            return Answer(request.chat, request.turn, len(kept) + (end is not None), finish, ids=list(kept), end=end)

        return answer

    return say


@pytest.fixture
def work(tmp_path, form):
    """Run a job; gives figures, rows and the engine."""

    def run(rows, answer, *, lives=None, positions=4096, facts="words", **options):
        source = tmp_path / "in.jsonl"
        if not source.exists():
            write_rows(source, rows)
        engine = WordEngine(answer, lives)
        who = Source({"target": facts}, form, positions, lambda: engine)
        out = tmp_path / "out.jsonl"
        figures = regenerate(source, out, who, RegenerateOptions(**options))
        return figures, read_rows(out), engine

    return run


def test_each_turn_sees_the_answers_before_it_and_all_else_is_kept(work, form):
    rows = chat_rows(12, turns=3)

    def number(request):
        ids = form._backend.encode(f"answer {request.turn} of {request.chat}").ids
        return Answer(request.chat, request.turn, len(ids) + 1, "stop", ids=ids, end=min(form.end_tokens))

    figures, made, engine = work(rows, number)
    for row, new, at in zip(rows, made, range(12), strict=True):
        answers = iter(range(9))
        expected = [
            {"role": "assistant", "content": f"answer {next(answers)} of {at}"} if message["role"] == "assistant" else message
            for message in row["messages"]
        ]
        assert (new["messages"], new["source"]) == (expected, row["source"])
    for request in engine.asked:
        before = made[request.chat]["messages"]
        turns = [place for place, message in enumerate(before) if message["role"] == "assistant"]
        assert request.prompt == form.prompt(before[: turns[request.turn]])
    turns = sum(message["role"] == "assistant" for row in rows for message in row["messages"])
    assert (figures["chats"], figures["written"], figures["answers"]) == (12, 12, turns)
    assert figures["not_round_trip"] == figures["cut"] == figures["looping"] == 0


@pytest.mark.parametrize("lives", [0, 1, 5, 14])
def test_a_stopped_job_goes_on_with_nothing_doubled_or_missing(work, saying, tmp_path, lives):
    rows = chat_rows(10, turns=2)
    with pytest.raises(RunFailed, match="stopped"):
        work(rows, saying("first words"), lives=lives)
    assert not (tmp_path / "out.jsonl").exists()
    with (tmp_path / "out.jsonl.unfinished" / "done.jsonl").open("ab") as torn:
        torn.write(b'{"number":0,"row":{"mess')
    figures, made, engine = work(rows, saying("first words"))
    assert [row["source"] for row in made] == [row["source"] for row in rows]
    assert (figures["chats"], figures["written"]) == (10, 10)
    assert len(engine.asked) < figures["answers"] or lives < 14
    assert not (tmp_path / "out.jsonl.unfinished").exists()
    whole = (tmp_path / "out.jsonl").read_bytes()
    again, _, engine = work(rows, saying("other words"))
    assert not engine.asked
    assert again["written"] == 10
    assert (tmp_path / "out.jsonl").read_bytes() == whole


def test_a_job_goes_on_only_with_the_same_settings(work, saying, tmp_path):
    rows = chat_rows(6)
    with pytest.raises(RunFailed):
        work(rows, saying("words"), lives=3)
    with pytest.raises(RefusedInput, match="max_new_tokens: 512 then, 9 now"):
        work(rows, saying("words"), max_new_tokens=9)
    with pytest.raises(RefusedInput, match="answered_by"):
        work(rows, saying("words"), facts="another")
    _, made, _ = work(rows, saying("new"), max_new_tokens=9, overwrite=True)
    assert {row["messages"][-1]["content"] for row in made} == {"new"}
    with pytest.raises(RefusedInput, match=r"max_new_tokens: 9 then.*--overwrite"):
        work(rows, saying("words"))
    assert work(rows, saying("words"), overwrite=True)[0]["written"] == 6


def test_files_that_are_nobodys_are_left_alone(work, saying, tmp_path):
    (tmp_path / "out.jsonl").write_text("precious")
    with pytest.raises(RefusedInput, match="is there already"):
        work(chat_rows(2), saying("words"))
    assert (tmp_path / "out.jsonl").read_text() == "precious"
    assert not (tmp_path / "out.jsonl.unfinished").exists()


def test_what_is_wrong_with_answers_is_counted_and_can_be_left_out(work, form, saying, tmp_path):
    kinds = {
        0: saying("a good answer"),
        1: saying("cut answer", "limit"),
        2: saying("loop" + " and again" * 20),
        3: saying(""),
        4: saying("<|im_start|>"),
        5: lambda request: Answer(request.chat, request.turn, 3, "refused", text="I can't."),
        6: lambda request: Answer(request.chat, request.turn, 6, "stop", ids=form._backend.encode("w").ids * 5, end=2),
    }

    def answer(request):
        return kinds[request.chat](request)

    rows = [{"messages": [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": "x"}]} for n in range(7)]
    figures, made, _ = work(rows, answer)
    assert {flag: figures[flag] for flag in ("cut", "looping", "refused", "not_round_trip")} == {
        "cut": 1,
        "looping": 1,
        "refused": 1,
        "not_round_trip": figures["not_round_trip"],
    }
    assert figures["left_out"] == {"control token in the text": 1, "empty": 1}
    assert [row["regenerated"]["flags"] for row in made[:3]] == [[], ["cut"], ["looping"]]
    left, made, _ = work(rows, answer, leave_out=("cut", "looping", "refused"), overwrite=True)
    assert left["left_out"] == {"control token in the text": 1, "cut": 1, "empty": 1, "looping": 1, "refused": 1}
    assert left["written"] == len(made) == 2


def test_rows_that_can_not_be_asked_are_listed_with_their_line(work, saying, tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": "long " * 200}, {"role": "assistant", "content": "x"}]},
        {"text": "a document"},
        {"messages": [{"role": "system", "content": "only"}, {"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "user", "content": "a question alone"}]},
        {"prompt": "another question"},
        {"messages": 5},
    ]
    figures, made, _ = work(rows, saying("fine"), positions=100)
    assert [row["messages"][0]["content"] for row in made] == ["a question alone", "another question"]
    listed = read_rows(tmp_path / "out.jsonl.rejected.jsonl")
    assert [row["line"] for row in listed] == [1, 2, 3, 6]
    assert figures["rejected"]["prompt too long"] == figures["rejected"]["not a chat"] == 1
    assert "100 positions" in listed[0]["reason"]


def test_a_chat_that_grows_too_long_keeps_the_turns_it_has(work, saying):
    turn = [{"role": "user", "content": "short"}, {"role": "assistant", "content": "x"}]
    later = [{"role": "user", "content": "long " * 90}, {"role": "assistant", "content": "x"}]
    figures, made, _ = work([{"messages": turn + later}], saying("fine"), positions=80)
    assert [message["content"] for message in made[0]["messages"]] == ["short", "fine"]
    assert figures["shortened"] == 1


def test_limit_bounds_chats_and_the_manifest_says_how_they_came_about(work, saying, tmp_path):
    _, made, _ = work(chat_rows(9), saying("fine"), limit=4, seed=3)
    assert [row["source"] for row in made] == [f"row {n}" for n in range(4)]
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest["settings"]["answered_by"] == {"target": "words"}
    assert (manifest["settings"]["seed"], manifest["figures"]["chats"]) == (3, 4)


def test_a_full_disk_ends_it_with_what_was_done_kept(work, saying, tmp_path, monkeypatch):
    import errno

    from dflash.regenerate.workplace import Workplace

    rows = chat_rows(8)
    original = Workplace.flush

    class Full:
        def __init__(self, file):
            self.file, self.left = file, 300

        def write(self, data):
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = min(self.left, len(data))
            self.left -= taken
            return self.file.write(bytes(data[:taken]))

        def close(self):
            self.file.close()

    def flush(self):
        if self._pending and not isinstance(self._file, Full):
            self._file = Full(self._file)
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Workplace, "flush", flush)
        with pytest.raises(RunFailed, match="no space left"):
            work(rows, saying("some words"))
    assert not (tmp_path / "out.jsonl").exists()
    _, made, engine = work(rows, saying("some words"))
    assert [row["source"] for row in made] == [row["source"] for row in rows]
    assert len(engine.asked) < 8
