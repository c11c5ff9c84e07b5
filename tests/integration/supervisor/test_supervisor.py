"""The supervisor with stand-ins for its parts: real processes, real signals."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import termios
from collections.abc import Iterator

import httpx
import pytest

from tests.support.polling import scaled
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.supervised import DEADLINE_S, WITH_STANDBY, Stage, runs, until

#: The parts outlive a killed supervisor until the test ends them.
OUTLIVES = {"STAND_IN_ORPHAN_S": "600"}


def test_start_up_is_in_order_and_tells_what_runs_where(stage: Stage) -> None:
    stage.serve()
    record = stage.ready()
    assert stage.journal("start")[0][0] == "broker"
    assert {role for role, _ in stage.journal("start")} == {"broker", "worker", "api"}
    assert record["model"] == "stand-in"
    assert (
        httpx.get(
            record["base_url"] + "/health/ready", trust_env=False, timeout=scaled(60)
        ).status_code
        == 200
    )
    shown = until(lambda: "Ctrl-C" in stage.text("stdout") and stage.text("stdout"))
    assert f"page    {record['base_url']}" in shown
    assert "512 tokens of context" in shown
    assert "-server, private" in shown
    assert "events.sqlite3" in shown
    # The parts learn the broker's address, and their lines come through.
    assert until(lambda: f"url {record['broker_url']}\n" in stage.text("stderr"))


def test_only_the_worker_keeps_the_memory_of_large_arrays(stage: Stage) -> None:
    stage.serve()
    stage.ready()
    kept = "67108864" if sys.platform == "linux" else "None"
    assert until(lambda: f"worker top pad {kept}\n" in stage.text("stderr"))
    assert until(lambda: "api top pad None\n" in stage.text("stderr"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_in_order_and_leaves_nothing(stage: Stage, number: int) -> None:
    supervisor = stage.serve()
    stage.ready()
    supervisor.send_signal(number)
    assert supervisor.wait(scaled(DEADLINE_S)) == 0
    assert [role for role, _ in stage.journal("term")] == ["api", "worker", "broker"]
    assert not any(runs(pid) for pid in stage.seen)
    assert not (stage.data_dir / "serve.json").exists()
    assert stage.text("stdout").endswith("stopped\n")


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN])
def _inherited_hangup(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the tests run as from a terminal, and as ``nohup`` starts them."""
    before = signal.signal(signal.SIGHUP, request.param)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_inherited_hangup")
def test_closed_terminal_stops_the_service(stage: Stage) -> None:
    master, slave = os.openpty()

    def take_terminal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        os.dup2(slave, 1)
        os.dup2(slave, 2)

    supervisor = stage.serve(take_terminal)
    os.close(slave)
    stage.ready()
    os.close(master)
    assert supervisor.wait(scaled(DEADLINE_S)) == 0
    assert [role for role, _ in stage.journal("term")] == ["api", "worker", "broker"]
    assert not any(runs(pid) for pid in stage.seen)


def test_service_that_nohup_started_outlives_a_closed_terminal(stage: Stage) -> None:
    supervisor = stage.serve(lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    record = stage.ready()
    supervisor.send_signal(signal.SIGHUP)
    os.kill(record["parts"]["worker"]["pid"], signal.SIGKILL)
    until(lambda: supervisor.poll() is not None or len(stage.starts_of("worker")) == 2)
    url = record["base_url"] + "/health/ready"
    assert supervisor.poll() is None
    assert httpx.get(url, trust_env=False, timeout=scaled(60)).status_code == 200


def test_closed_pipe_does_not_change_how_the_service_stops(stage: Stage) -> None:
    read_end, write_end = os.pipe()
    supervisor = stage.serve(lambda: os.dup2(write_end, 1))
    os.close(write_end)
    stage.ready()
    os.close(read_end)
    supervisor.terminate()
    assert supervisor.wait(scaled(DEADLINE_S)) == 0
    assert [role for role, _ in stage.journal("term")] == ["api", "worker", "broker"]


@pytest.mark.parametrize("role", ["worker", "api"])
def test_kill_9_of_a_part_starts_it_again(stage: Stage, role: str) -> None:
    stage.serve()
    first = stage.ready()["parts"][role]["pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: len(stage.starts_of(role)) == 2)
    again = until(lambda: (part := stage.ready()["parts"][role])["restarts"] == 1 and part)
    assert again["pid"] != first
    others = {"broker", "worker", "api"} - {role}
    assert all(len(stage.starts_of(other)) == 1 for other in others)


def test_part_starts_again_where_the_record_cannot_be_written(stage: Stage) -> None:
    stage.serve()
    worker = stage.ready()["parts"]["worker"]["pid"]
    (stage.data_dir / "serve.json.new").mkdir()
    os.kill(worker, signal.SIGKILL)
    until(lambda: len(stage.starts_of("worker")) == 2)
    assert '"serve.json is out of date"' in stage.text("stderr")


def test_standby_replaces_a_killed_worker_and_gets_a_successor(stage: Stage) -> None:
    stage.serve(**WITH_STANDBY)
    standby = stage.standby()
    worker = stage.ready()["parts"]["worker"]["pid"]
    assert stage.starts_of("worker") == [worker]
    os.kill(worker, signal.SIGKILL)
    until(lambda: stage.starts_of("worker") == [worker, standby])
    again = until(lambda: (part := stage.ready()["parts"]["worker"])["restarts"] == 1 and part)
    assert again["pid"] == standby
    assert stage.standby() not in {worker, standby}
    assert '"activated the standby"' in stage.text("stderr")


def test_worker_starts_cold_where_its_standby_was_killed(stage: Stage) -> None:
    stage.serve(**WITH_STANDBY)
    standby, worker = stage.standby(), stage.ready()["parts"]["worker"]["pid"]
    os.kill(standby, signal.SIGKILL)
    until(lambda: "standby" not in stage.ready()["parts"])
    os.kill(worker, signal.SIGKILL)
    until(lambda: len(stage.starts_of("worker")) == 2)
    assert standby not in stage.starts_of("worker")
    assert '"the standby ended"' in stage.text("stderr")


def test_standby_does_not_start_beside_the_first_load(stage: Stage) -> None:
    (stage.directory / "api.unready").touch()
    stage.serve(**WITH_STANDBY)
    # Pauses between so many probes are longer than ``standby_after_s``.
    until(lambda: len(stage.journal("probe")) >= 10)
    assert "standby" not in json.loads((stage.data_dir / "serve.json").read_text())["parts"]
    (stage.directory / "api.unready").unlink()
    assert stage.standby() not in stage.starts_of("worker")


def test_standby_ends_with_the_service(stage: Stage) -> None:
    supervisor = stage.serve(**WITH_STANDBY)
    standby = stage.standby()
    supervisor.terminate()
    assert supervisor.wait(scaled(DEADLINE_S)) == 0
    assert not runs(standby)
    assert ("worker", standby) not in stage.journal("start")


def test_standby_ends_with_a_killed_supervisor(stage: Stage) -> None:
    supervisor = stage.serve(**WITH_STANDBY)
    standby = stage.standby()
    supervisor.kill()
    supervisor.wait()
    until(lambda: not runs(standby))
    assert ("worker", standby) not in stage.journal("start")


def test_kill_9_of_a_part_takes_its_own_children_along(stage: Stage) -> None:
    (stage.directory / "worker.child").touch()
    stage.serve()
    pid = stage.ready()["parts"]["worker"]["pid"]
    # The worker has it only after it has said that it starts.
    grandchild = int(until((stage.directory / "worker.child").read_text))
    assert runs(grandchild)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not runs(grandchild))


def test_worker_that_hangs_is_replaced_and_one_that_lives_is_left_alone(stage: Stage) -> None:
    stage.serve(**with_constants({}, {"ops.supervisor.parts.WORKER_SILENCE_S": 3.0}))
    first = stage.ready()["parts"]["worker"]["pid"]
    os.kill(first, signal.SIGSTOP)
    again = until(lambda: (part := stage.ready()["parts"]["worker"])["restarts"] == 1 and part)
    assert again["pid"] != first
    assert not runs(first)
    assert len(stage.starts_of("api")) == 1


def test_broker_that_comes_back_elsewhere_gets_its_users_restarted(stage: Stage) -> None:
    stage.serve()
    first = stage.ready()
    os.kill(first["parts"]["broker"]["pid"], signal.SIGKILL)
    until(lambda: len(stage.starts_of("worker")) == 2 and len(stage.starts_of("api")) == 2)
    url = stage.ready()["broker_url"]
    assert url != first["broker_url"]
    assert until(lambda: f"url {url}\n" in stage.text("stderr"))


def test_part_whose_settings_cannot_work_stops_the_service_with_78(stage: Stage) -> None:
    (stage.directory / "worker.exit").write_text("78")
    supervisor = stage.serve()
    assert supervisor.wait(scaled(DEADLINE_S)) == 78
    assert len(stage.starts_of("worker")) == 1
    assert stage.text("stderr").count("the worker cannot work\n") == 1


def test_log_that_does_not_answer_yet_is_no_reason_to_stay_down(stage: Stage) -> None:
    supervisor = stage.serve(SEMANTIC_LOG__URL="postgresql://me@127.0.0.1:1/log")
    assert supervisor.wait(scaled(DEADLINE_S)) == 1
    assert "semantic: the event log cannot be upgraded" in stage.text("stderr")


def test_kill_9_of_the_supervisor_leaves_no_part(stage: Stage) -> None:
    supervisor = stage.serve()
    stage.ready()
    supervisor.kill()
    supervisor.wait()
    until(lambda: not any(runs(pid) for pid in stage.seen))
    assert len(stage.seen) == 3


def test_after_kill_9_the_next_service_starts_on_the_same_port(stage: Stage) -> None:
    first = stage.serve()
    port = stage.ready()["base_url"].rpartition(":")[2]
    first.kill()
    first.wait()
    stage.serve(SEMANTIC_SERVER__PORT=port)
    until(lambda: len(stage.starts_of("api")) == 2)
    assert stage.ready()["base_url"].endswith(port)


def test_parts_of_a_killed_supervisor_go_on_until_the_next_one_has_imported(stage: Stage) -> None:
    first = stage.serve(**OUTLIVES)
    before = stage.ready()
    old, port = set(stage.seen), before["base_url"].rpartition(":")[2]
    first.kill()
    first.wait()
    assert all(runs(pid) for pid in old)
    (stage.directory / "standby.held").touch()
    stage.serve(**OUTLIVES, SEMANTIC_SERVER__PORT=port)
    until(lambda: {role for role, _ in stage.journal("standby")[2:]} == {"broker", "worker", "api"})
    # The record has the parts that serve, and the supervisor that will.
    record = json.loads((stage.data_dir / "serve.json").read_text())
    assert {part["pid"] for part in record["parts"].values()} == old
    assert record["pid"] == stage.started[1].pid
    assert all(runs(pid) for pid in old)
    assert httpx.get(before["base_url"], timeout=scaled(60)).status_code == 200
    assert not stage.journal("term")
    (stage.directory / "standby.held").unlink()
    after = stage.ready()
    assert after["base_url"] == before["base_url"]
    assert not any(runs(pid) for pid in old)
    assert [role for role, _ in stage.journal("term")][-1] == "broker"
    assert {part["pid"] for part in after["parts"].values()} == stage.seen - old
    stop(stage)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_end_of_the_next_supervisor_before_it_took_over(stage: Stage, number: int) -> None:
    first = stage.serve(**OUTLIVES)
    port = stage.ready()["base_url"].rpartition(":")[2]
    old = set(stage.seen)
    first.kill()
    first.wait()
    (stage.directory / "standby.held").touch()
    second = stage.serve(**OUTLIVES, SEMANTIC_SERVER__PORT=port)
    until(lambda: len(stage.journal("standby")) == 5)
    second.send_signal(number)
    assert second.wait(scaled(DEADLINE_S)) == (0 if number == signal.SIGTERM else -9)
    # An order to stop reaches the parts too; a third service finds those of a killed one.
    assert any(runs(pid) for pid in old) == (number == signal.SIGKILL)
    (stage.directory / "standby.held").unlink()
    stage.serve(**OUTLIVES, SEMANTIC_SERVER__PORT=port)
    until(lambda: len(stage.starts_of("api")) == 2)
    stage.ready()
    assert not any(runs(pid) for pid in old)
    stop(stage)


def stop(stage: Stage) -> None:
    stage.started[-1].terminate()
    assert stage.started[-1].wait(scaled(DEADLINE_S)) == 0


def test_second_service_in_the_same_directory_is_refused(stage: Stage) -> None:
    first = stage.serve()
    stage.ready()
    second = stage.serve()
    assert second.wait(scaled(DEADLINE_S)) == 78
    line = stage.text("stderr")
    assert f"by the process with pid {first.pid}" in line
    assert line.count("\n") == 1
    assert stage.ready()["pid"] == first.pid


def test_taken_port_is_one_line_and_nothing_starts(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        process = stage.serve(SEMANTIC_SERVER__PORT=str(port))
        assert process.wait(scaled(DEADLINE_S)) == 78
    assert stage.text("stderr") == (
        f"semantic: port {port} on 127.0.0.1 is taken; choose another with --port\n"
    )
    assert stage.journal("start") == []


def test_part_that_does_not_listen_is_killed_after_its_grace(stage: Stage) -> None:
    (stage.directory / "worker.deaf").touch()
    supervisor = stage.serve(SEMANTIC_SERVER__DRAIN_S="0.3")
    stage.ready()
    supervisor.terminate()
    assert supervisor.wait(scaled(DEADLINE_S)) == 0
    assert [role for role, _ in stage.journal("term")] == ["api", "worker", "broker"]
    assert not any(runs(pid) for pid in stage.seen)


def test_second_ctrl_c_hurries(stage: Stage) -> None:
    (stage.directory / "api.deaf").touch()
    supervisor = stage.serve(SEMANTIC_SERVER__DRAIN_S="300")
    stage.ready()
    supervisor.send_signal(signal.SIGINT)
    until(lambda: stage.journal("term"))
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(scaled(DEADLINE_S)) == 0
    assert not any(runs(pid) for pid in stage.seen)
