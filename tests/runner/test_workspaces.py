"""Workspaces: each attempt has a fresh copy, its changes are recorded, and nothing outside is touched, and none remains."""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evaljournal import Case, Dataset, UsageError, current_workspace, run
from evaljournal.journal.events import AttemptFailed, Noted, TrialScored
from evaljournal.replay.state.workspaces import CHANGES
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.workspaces import HOMES, runs_directory, trees
from evaljournal.runner.calls.workspaces.changes import MAX_LISTED, hunks
from evaljournal.runner.calls.workspaces.original import Original, WorkspaceSource
from evaljournal.runner.sessions import workspaces
from tests.processes import is_alive
from tests.runner_cli.commands import evaljournal
from tests.runs import define_real, events, outputs, run_real


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the workspaces be in a directory of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Return a directory with two files, a directory and a link."""
    repo = tmp_path / "repo"
    (repo / "src").mkdir(parents=True)
    (repo / "src/a.py").write_text("".join(f"line {number}\n" for number in range(30)))
    (repo / "b.txt").write_text("b\n")
    (repo / "link").symlink_to("src/a.py")
    return repo


def git(repo: Path, *arguments: str) -> str:
    """Run git in a repository of the test, without the user's configuration."""
    names = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
    environment = {**os.environ, **dict.fromkeys(names, "a@b"), "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(
        ["git", "-C", repo, *arguments],  # noqa: S607  # the git on the path
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    ).stdout


def left_behind() -> list[str]:
    """Return the directories of all workspaces that exist."""
    return sorted(str(path) for path in runs_directory().glob("*/*/*")) if runs_directory().is_dir() else []


def changes(path: Path) -> list[Any]:
    """Return the recorded changes of a run."""
    return [note.value for note in events(path, Noted) if note.name == CHANGES]


def shell(script: str) -> Command:
    """Return a task that executes a shell script."""
    return Command(script, shell=True)  # noqa: S604  # of the test


def run_script(path: Path, repo: Path, script: str, cases: Any = "lima", **options: Any) -> Any:
    """Run a shell script in a workspace of a directory."""
    return run_real(define_real(shell(script), cases, workspace=repo, **options), path)


def test_changes_are_recorded_and_the_original_is_unchanged(path: Path, repo: Path) -> None:
    """An attempt works in a copy; added, modified and deleted files are listed, with hashes and a unified diff."""
    run_script(path, repo, "sed -i 's/line 3$/three/' src/a.py; rm b.txt; echo n > new.txt; touch link src; chmod +x src/a.py")
    (value,) = changes(path)

    assert [("new.txt", "added"), ("src/a.py", "modified"), ("b.txt", "deleted")] == [
        (file["path"], file["change"]) for file in value["files"]
    ]
    assert "-line 3\n+three\n" in value["diff"]
    assert "+++ /dev/null\n@@ -1,1 +0,0 @@\n-b\n" in value["diff"]
    assert (repo / "b.txt").read_text() == "b\n"
    assert [] == left_behind()


def test_an_unchanged_file_is_no_change(path: Path, repo: Path) -> None:
    """A file that was written again with the same content is no change, and neither is a new directory."""
    run_script(path, repo, "cp b.txt c; cat c > b.txt; rm c; mkdir empty")

    assert [{"files": [], "diff": ""}] == changes(path)


def test_a_set_back_time_does_not_hide_a_change(path: Path, repo: Path) -> None:
    """A change of the same length whose modification time was set back is found."""
    run_script(path, repo, "touch -r b.txt t; echo c > b.txt; touch -r t b.txt; rm t")

    assert ["b.txt"] == [file["path"] for file in changes(path)[0]["files"]]


def test_an_agent_has_fresh_homes(path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the variables of agents name empty directories, and with `own` they are the user's."""
    for name in HOMES:
        monkeypatch.setenv(name, "own")
    script = f"""for name in {" ".join(HOMES)}; do eval "d=\\$$name"; [ "$d" = own ] && echo own || ls -A "$d"; done"""
    run_script(path, repo, script)
    own = path.with_name("own")
    run_script(own, repo, script, agent_home="own")

    assert [""] == outputs(path)
    assert ["\n".join(["own"] * len(HOMES))] == outputs(own)


def test_a_missing_login_names_the_option(path: Path, repo: Path) -> None:
    """An agent that asks for a login in its fresh home fails with the option that uses the user's own; stdout is shown."""
    run_script(path, repo, "echo 'Invalid API key · Please run /login'; exit 1")
    (failed,) = events(path, AttemptFailed)

    assert "Please run /login" in failed.message
    assert "--agent-home own" in failed.message


def test_the_path_is_an_argument(path: Path, repo: Path) -> None:
    """`{workspace}` is the path of the workspace, which is also the working directory; the input stays on stdin."""
    command = Command(["sh", "-c", 'cat; [ "$(pwd)" = "$1" ] && [ "$PWD" = "$1" ] && echo same', "sh", "{workspace}"])
    run_real(define_real(command, workspace=repo), path)

    assert ['"lima"\nsame'] == outputs(path)


def test_a_function_asks_for_its_workspace(path: Path, repo: Path) -> None:
    """A plain function gets the path from `current_workspace`, and outside an attempt an error."""

    def task(_: str) -> str:
        (current_workspace() / "b.txt").write_text("changed\n")
        return (current_workspace() / "b.txt").read_text()

    run_real(define_real(task, workspace=str(repo)), path)

    assert ["changed\n"] == outputs(path)
    assert "-b\n+changed\n" in changes(path)[0]["diff"]
    with pytest.raises(UsageError, match="there is no workspace"):
        current_workspace()


def test_a_script_beside_the_user_is_found(path: Path, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script in the working directory of the user is executed in the workspace."""
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text("import os; print(sorted(os.listdir()))")
    run_real(define_real(Command([sys.executable, "agent.py"]), workspace="repo"), path)

    assert ["['b.txt', 'link', 'src']"] == outputs(path)


def test_files_of_a_case(path: Path, repo: Path, tmp_path: Path) -> None:
    """The column `files` adds texts, or files beside the dataset, to the workspace of its case; they are no changes."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.csv").write_text("1,2")
    data = tmp_path / "cases.jsonl"
    data.write_text(
        '{"id": "a", "input": 1, "files": {"src/a.py": "text"}}\n{"id": "b", "input": 2, "files": ["data/x.csv"]}\n'
        '{"id": "c", "input": 3}\n'
    )
    run_script(path, repo, "cat data/x.csv 2> /dev/null || tail -n 1 src/a.py", cases=Dataset(data))

    assert {"1,2", "text", "line 29"} == set(outputs(path))
    assert [{"files": [], "diff": ""}] * 3 == changes(path)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"../x": "1"}, "not a path inside the workspace"),
        ({"/etc/x": "1"}, "not a path inside the workspace"),
        ({"a/.GIT/hooks/x": "1"}, "whose files git could execute"),
        ({"a": 1}, "must have a text for each path"),
        (["../secret"], "not a path inside the workspace"),
        (["missing.txt"], "cannot be read"),
        (7, "a path"),
    ],
)
def test_a_file_outside_is_rejected(path: Path, repo: Path, files: Any, problem: str) -> None:
    """A case that names a file outside, or one that cannot be read, is an error before anything starts."""
    with pytest.raises(UsageError, match=problem):
        run_script(path, repo, "true", cases=[Case(name="a", input=1, metadata={"files": files})])

    assert not path.exists()


def outside_link(repo: Path) -> None:
    (repo / "src/out").symlink_to("../../secret")


def absolute_link(repo: Path) -> None:
    (repo / "out").symlink_to(repo / "b.txt")


def a_file(repo: Path) -> None:
    shutil.rmtree(repo)
    repo.write_text("")


def special_file(repo: Path) -> None:
    os.mkfifo(repo / "pipe")


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (outside_link, "src/out points to ../../secret, outside"),
        (absolute_link, "out points to .*an absolute path"),
        (special_file, "pipe is not a file"),
        (shutil.rmtree, "does not exist"),
        (a_file, "is not a directory"),
    ],
)
def test_a_bad_directory_is_rejected(path: Path, repo: Path, prepare: Callable[[Path], Any], problem: str) -> None:
    """A directory that is missing, or has a link outside or a special file, is an error that names it; nothing starts."""
    prepare(repo)
    with pytest.raises(UsageError, match=problem):
        run_script(path, repo, "true")

    assert not path.exists()


@pytest.mark.parametrize(("name", "value", "problem"), [("MAX_FILES", 2, "more than 2 files"), ("MAX_BYTES", 9, "larger than")])
def test_a_large_directory_is_rejected(  # noqa: PLR0917  # fixtures and parameters
    path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int, problem: str
) -> None:
    """A directory with more files or bytes than the limits is an error."""
    monkeypatch.setattr(trees, name, value)
    with pytest.raises(UsageError, match=problem):
        run_script(path, repo, "true")


@pytest.mark.parametrize("part", [".", "..", "../.."])
def test_the_run_cannot_be_its_own_workspace(path: Path, part: str) -> None:
    """The directory of the run, and one that contains it, are errors."""
    path.mkdir(parents=True, exist_ok=True)
    with pytest.raises(UsageError, match="where the run writes"):
        run_script(path, path / part, "true")


@pytest.mark.parametrize(
    ("options", "task", "problem"),
    [
        ({"keep": "all"}, Command("true"), "no effect without --workspace"),
        ({}, Command("cat {workspace}"), "pass --workspace DIR"),
        ({"workspace": ".", "workers": "processes:1"}, Command("true"), "remove --workers"),
    ],
)
def test_settings_that_need_one_another(path: Path, options: dict[str, Any], task: Command, problem: str) -> None:
    """An option without a workspace, a field without one, and workers are errors."""
    with pytest.raises(UsageError, match=problem):
        run_real(define_real(task, **options), path)


HOSTILE = """
import os, socket
os.symlink('/etc/passwd', 'passwd'); os.remove('b.txt'); os.symlink('/etc', 'b.txt')
os.mkfifo('pipe'); socket.socket(socket.AF_UNIX).bind('socket')
open('large', 'wb').truncate(1 << 40)
open(b'\\xff\\xfe', 'w').write('x'); open('binary', 'wb').write(b'\\0' * 9); open('unreadable', 'w').close()
os.chmod('unreadable', 0)
for number in range(1200): open(f'zz-{number}', 'w').close()
os.mkdir('.git'); open('.git/config', 'w').write('[core]\\nfsmonitor = touch /tmp/pwned')
os.makedirs('read-only/inner'); os.chmod('read-only', 0o500)
for _ in range(1500):
    os.mkdir('deep'); os.chdir('deep')
"""


def test_hostile_contents(path: Path, repo: Path) -> None:
    """Links are not followed; special, large, unreadable and countless files are listed or counted; everything is removed."""
    script = repo.with_name("agent.py")
    script.write_text(HOSTILE)
    run_real(define_real(Command([sys.executable, str(script)]), workspace=repo), path)
    (value,) = changes(path)
    files = {file["path"]: file for file in value["files"]}

    assert MAX_LISTED == len(files)
    assert value["unlisted_files"] > 0
    assert "link" == files["passwd"]["kind"] == files["b.txt"]["kind"]
    assert "root:" not in value["diff"]
    assert files["large"] == {"path": "large", "change": "added", "bytes": 1 << 40, "sha256": ""}
    assert "\ufffd\ufffd" in value["diff"] or "\ufffd\ufffd" in files or value["unlisted_files"]
    assert any("nested too deeply" in problem for problem in value["problems"])
    assert [] == left_behind()


@pytest.mark.parametrize("place", ["../../..", "../.."])
def test_links_in_place_of_our_directories(path: Path, repo: Path, tmp_path: Path, place: str) -> None:
    """If an agent replaces the directory of the run, or of its attempts, by a link, nothing that it points to is removed."""
    for name in ("outside/a", "outside/attempts/b"):
        (tmp_path / name).mkdir(parents=True)
    run_script(path, repo, f'cd {place}; d="$PWD"; mv "$d" "$d-moved"; ln -s {tmp_path}/outside "$d"; echo done')

    assert ["done"] == outputs(path)
    assert [["attempts", "a"], ["b"]] == [os.listdir(tmp_path / "outside"), os.listdir(tmp_path / "outside/attempts")]


def test_a_workspace_that_cannot_be_removed(
    path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The output is kept, the run goes on, and the workspace is named: a container can make files of another user."""
    monkeypatch.setattr(workspaces, "remove_tree", lambda _: False)
    run_script(path, repo, "cat", cases=[Case(name=name, input=name) for name in "ab"], slots=1)

    assert ['"a"', '"b"'] == outputs(path)
    assert "2 workspaces could not be removed, such as " in capfd.readouterr().err
    assert 2 == len([name for name in left_behind() if "/attempts/" in name])


def test_a_name_cannot_forge_a_diff(path: Path, repo: Path) -> None:
    """A name with a line break, or with another control character, is quoted in the diff; the list has it as it is."""
    run_script(path, repo, "echo x > \"$(printf 'n\\n+++ b')\"; echo x > \"$(printf 'r\\033[31m')\"")
    (value,) = changes(path)

    assert ["n\n+++ b", "r\x1b[31m"] == [file["path"] for file in value["files"]]
    assert ['+++ b/"n\\n+++ b"', '+++ b/"r\\u001b[31m"'] == [
        line for line in value["diff"].splitlines() if line.startswith("+++")
    ]


def test_keys_are_masked(path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that an agent writes into a file, or into its name, is neither in the diff nor in the list."""
    key = f"sk-{'a1B2' * 10}"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    run_script(path, repo, 'echo "key: $OPENAI_API_KEY" > a; echo x > "$OPENAI_API_KEY"')

    assert key not in str(changes(path))
    assert "+key: ***\n" in changes(path)[0]["diff"]


def test_a_workspace_costs_little_more_than_a_copy(tmp_path: Path) -> None:
    """CPU time to copy 1,000 files is bounded by that of `cp -r`; the exhaustive test has the figure."""
    assert cost_ratio(tmp_path, rounds=3) <= 3.0


@pytest.mark.exhaustive
def test_a_workspace_costs_at_most_half_more_than_a_copy(tmp_path: Path) -> None:
    """A workspace of 1,000 files costs at most 1.5 times the CPU time of `cp -r`."""
    assert cost_ratio(tmp_path, rounds=15) <= 1.5


def cost_ratio(directory: Path, rounds: int) -> float:
    """Return the smallest CPU time of a copy of 1,000 files as a workspace, divided by that of `cp -r`."""
    source = directory / "source"
    for number in range(1_000):
        (source / f"d{number % 40}").mkdir(parents=True, exist_ok=True)
        (source / f"d{number % 40}" / f"{number}.py").write_text(f"line {number}\n" * 200)
    original = Original.make(WorkspaceSource.read(source, dirty=False), directory / "original")

    def used() -> float:
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def cpu(call: Callable[[], Any]) -> float:
        before = used()
        call()
        return used() - before

    own, cp = [], []
    for number in range(rounds):
        own.append(cpu(partial(trees.copy_tree, original.path, directory / f"own-{number}", original.index)))
        cp.append(cpu(partial(subprocess.run, ["cp", "-r", source, directory / f"cp-{number}"], check=True, timeout=60)))
    return min(own) / min(cp)


def test_show_has_the_changes(path: Path, repo: Path) -> None:
    """`show` prints the changed files and the diff, without control characters; nothing if there are none."""
    run_script(path, repo, "cat > in; echo c > b.txt; echo x > \"$(printf 'n\\n\\033[31m')\"")
    run_script(path.with_name("same"), repo, "cat")
    lines = evaljournal("show", path, "lima").output.splitlines()

    index = lines.index("changes   modified b.txt")
    assert ["added in", "added n\\n\\x1b[31m"] == [line.strip() for line in lines[index + 1 : index + 3]]
    assert "diff      --- a/b.txt" == lines[index + 3]
    assert "          -b" in lines
    assert "changes" not in evaljournal("show", path.with_name("same"), "lima").output


def test_programs_that_leave_the_group_are_ended(path: Path, repo: Path) -> None:
    """A daemon that an attempt has started is ended before its changes are recorded."""
    daemon = "import os, time; print(os.getpid(), flush=True); os.close(1); os.close(2); os.setsid(); time.sleep(100)"
    run_script(path, repo, f"{sys.executable} -c '{daemon}' & sleep 1; true")
    (pid,) = outputs(path)

    assert not is_alive(int(pid))


@pytest.mark.parametrize(("keep", "count"), [("failing", 2), ("all", 3), ("none", 0)])
def test_which_workspaces_are_kept(path: Path, repo: Path, keep: str, count: int) -> None:
    """Those of trials with an error or a failed score, all, or none; `resume` of another run removes nothing."""
    evaluation_ = define_real(
        shell("cat; [ $(cat b.txt) = b ]; ! grep -q error in"),
        [Case(name=name, input=name, metadata={"files": {"in": name}}) for name in ("pass", "fail", "error")],
        workspace=repo,
        keep=keep,
    )

    @evaluation_.score
    def passes(output: str) -> bool:
        return "pass" in output

    run_real(evaluation_, path)

    assert count == len([name for name in left_behind() if "/attempts/" in name])


def test_a_repository_is_cloned_at_its_commit(path: Path, repo: Path, tmp_path: Path) -> None:
    """The commit is cloned without hooks, remotes and hard links; a resumed run uses it although the branch has moved."""
    git(repo, "init", "-q", "-b", "work")
    (repo / ".git/hooks/post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/pwned\n")
    (repo / ".git/hooks/post-checkout").chmod(0o700)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "one")
    script = (
        "git branch --show-current; git remote; ls .git/hooks 2> /dev/null | wc -l; cat b.txt; "
        f"find .git -type f -links +1; [ -e {tmp_path}/go ] && git rev-parse HEAD"
    )
    commit = git(repo, "rev-parse", "HEAD").strip()
    run_script(path, repo, script)
    (repo / "b.txt").write_text("two\n")
    git(repo, "commit", "-qam", "two")
    (tmp_path / "go").mkdir()
    run(define_real(shell(script), workspace=repo), path, resume=True, retry_failed=True, durability="os")

    assert [f"work\n0\nb\n{commit}"] == outputs(path)
    assert not (tmp_path / "pwned").exists()


def test_uncommitted_changes(path: Path, repo: Path) -> None:
    """They are an error that names them, unless they are copied as well."""
    git(repo, "init", "-q")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "one")
    (repo / "b.txt").unlink()
    (repo / "new dir").mkdir()
    (repo / "new dir/é").write_text("new")
    with pytest.raises(UsageError, match=r"uncommitted changes: b\.txt, new dir/é; commit them, or pass --workspace-dirty"):
        run_script(path, repo, "true")
    run_script(path, repo, "ls; cat 'new dir/é'", workspace_dirty=True)

    assert ["link\nnew dir\nsrc\nnew"] == outputs(path)
    assert [{"files": [], "diff": ""}] == changes(path)


def test_a_changed_directory_is_found(path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`resume` rejects a run whose directory has changed, and names it."""
    monkeypatch.chdir(repo.parent)
    evaluation_ = define_real(Command("false"), workspace="repo")
    run_real(evaluation_, path)
    (repo / "b.txt").write_text("other\n")
    with pytest.raises(Exception, match="different definition") as raised:
        run(evaluation_, path, resume=True, retry_failed=True)

    assert "repo/ has changed" in str(raised.value)


def test_other_workspaces_are_not_seen(path: Path, repo: Path) -> None:
    """Concurrent trials never see each other's files; the whole has 200."""
    isolate(path, repo, 12)


@pytest.mark.exhaustive
def test_two_hundred_workspaces_are_isolated(path: Path, repo: Path) -> None:
    """Two hundred concurrent trials never see each other's files."""
    isolate(path, repo, 200)


def isolate(path: Path, repo: Path, count: int) -> None:
    """Run trials that write their number, wait for the others, and read what is there."""
    barrier = path.parent.parent / "barrier"
    barrier.mkdir(parents=True)
    wait = f"touch {barrier}/$$; while [ $(ls {barrier} | wc -l) -lt {count} ]; do sleep 0.1; done"
    script = f"cat > mine; cat mine >> src/a.py; {wait}"
    cases = [Case(name=f"case-{number}", input=number) for number in range(count)]
    run_script(path, repo, f"{script}; cat mine; tail -n 1 src/a.py; ls -A | tr '\\n' ' '", cases, slots=count, timeout=300.0)

    assert {f"{number}\n{number}\nb.txt link mine src " for number in range(count)} == set(outputs(path))
    assert [] == left_behind()


@pytest.mark.parametrize("sides", ["ab", "aa"])
def test_a_diff_is_bounded(sides: str) -> None:
    """Two long texts without a common line, or with the same few lines in another order, are diffed in bounded time."""
    texts = zip(sides, (7, 11), strict=True)
    old, new = ([f"{side}{number * step % 150}" for number in range(20_000)] for side, step in texts)
    started_at = time.process_time()
    lines = list(hunks(old, new))

    assert old == [line[1:] for line in lines if line[0] in " -"]
    assert new == [line[1:] for line in lines if line[0] in " +"]
    assert time.process_time() - started_at < 20


def test_scorers_get_files_and_diff(path: Path, repo: Path) -> None:
    """A scorer has the parameters `files` and `diff`; without changes, they are empty."""
    cases = [Case(name=str(number), input=number) for number in (1, 2)]
    evaluation_ = define_real(shell("[ $(cat) = 1 ] && rm b.txt; true"), cases, workspace=repo)

    @evaluation_.score
    def changes_of(files: list[dict[str, Any]], diff: str) -> str:
        return f"{[(file['path'], file['change']) for file in files]} {'-b' in diff}"

    run_real(evaluation_, path)

    assert {"1": "[('b.txt', 'deleted')] True", "2": "[] False"} == {
        event.trial: event.value for event in events(path, TrialScored)
    }
