"""HTTP as callers may expect it of any good server."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.polling import scaled
from tests.support.processes.sample_server import SampleServer, parse, read_until, sample_server

LAST = "host: x\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[SampleServer]:
    with sample_server() as running:
        yield running


def test_head_is_get_without_its_body(server: SampleServer) -> None:
    whole, bare = server.ask("GET", "/small"), server.ask("HEAD", "/small")
    assert bare.status == 200
    assert bare.body == b""
    assert bare.headers["content-length"] == str(len(whole.body)) == whole.headers["content-length"]


def test_head_of_a_stream_ends_at_once(server: SampleServer) -> None:
    assert server.ask("HEAD", "/idle").status == 200


def test_head_of_nothing_is_a_404_without_a_body(server: SampleServer) -> None:
    answer = server.ask("HEAD", "/nothing")
    assert (answer.status, answer.body) == (404, b"")


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "HEAD", "GET", "TRACE", "BREW"])
def test_method_that_a_path_lacks_is_a_405_with_allow(server: SampleServer, method: str) -> None:
    answer = server.ask(method, "/v1/messages")
    assert answer.status == 405
    assert answer.headers["allow"] == "OPTIONS, POST"
    if method != "HEAD":
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_connect_opens_no_tunnel(server: SampleServer) -> None:
    assert server.ask("CONNECT", "example.org:80").status == 501


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/echo", "GET, HEAD, OPTIONS, POST"),
        ("/v1/jobs/job-1", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS"),
    ],
)
def test_options_names_the_methods(server: SampleServer, path: str, allow: str) -> None:
    answer = server.ask("OPTIONS", path)
    assert (answer.status, answer.headers["allow"], answer.body) == (204, allow, b"")


def test_options_of_the_whole_server_names_every_method(server: SampleServer) -> None:
    answer = server.ask("OPTIONS", "*")
    assert (answer.status, answer.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "BREW"])
def test_unknown_path_is_a_404_in_the_native_form(server: SampleServer, method: str) -> None:
    answer = server.ask(method, "/nothing")
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize(
    ("target", "path", "job_id"),
    [
        ("/v1/jobs/a%20b", "/v1/jobs/a b", "a b"),
        ("/v1/jobs/a%2Fb", "/v1/jobs/a/b", "a/b"),
        ("/v1/jobs/%C3%A4%E2%82%AC", "/v1/jobs/ä€", "ä€"),
        ("/v1/%6Aobs/x", "/v1/jobs/x", "x"),
        ("/v1/jobs/a+b", "/v1/jobs/a+b", "a+b"),
        ("/v1/jobs/a:b", "/v1/jobs/a:b", "a:b"),
        ("/v1/jobs/%25", "/v1/jobs/%", "%"),
        ("/v1/jobs/..", "/v1/jobs/..", ".."),
        ("/v1/jobs/x/", "/v1/jobs/x/", "x"),
        ("http://localhost/v1/jobs/x", "/v1/jobs/x", "x"),
    ],
)
def test_path_is_decoded(server: SampleServer, target: str, path: str, job_id: str) -> None:
    seen = server.ask("GET", target).json()
    assert (seen["path"], seen["params"]) == (path, {"job_id": job_id})


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("beta=true", {"beta": ["true"]}),
        ("a=1&a=2&b=", {"a": ["1", "2"], "b": [""]}),
        ("x=a%20b+c%26d", {"x": ["a b c&d"]}),
        ("%C3%A4=%E2%82%AC", {"ä": ["€"]}),
        ("", {}),
    ],
)
def test_query_is_decoded(server: SampleServer, query: str, values: dict[str, list[str]]) -> None:
    assert server.ask("GET", f"/echo?{query}").json()["query"] == values


@pytest.mark.parametrize("path", ["//echo", "/v1//jobs/x", "/v1/jobs/", "/v1/jobs//"])
def test_path_with_an_empty_segment_is_another_path(server: SampleServer, path: str) -> None:
    assert server.ask("GET", path).status == 404


def test_slash_at_the_end_makes_no_difference(server: SampleServer) -> None:
    assert server.ask("GET", "/echo/").status == 200


def test_headers_reach_the_handler_joined_and_in_lower_case(server: SampleServer) -> None:
    headers = "X-Mixed: One\r\nx-mixed: two\r\nX-Latin: \xe4\r\n".encode("latin-1").decode(
        "latin-1"
    )
    data = f"GET /echo HTTP/1.1\r\n{headers}{LAST}".encode("latin-1")
    seen = parse(server.send(data))[0].json()["headers"]
    assert seen["x-mixed"] == "One, two"
    assert seen["x-latin"] == "ä"


def test_caller_can_pose_neither_as_the_gate_nor_as_another_request(server: SampleServer) -> None:
    forged = "x-semantic-router: guess\r\nx-semantic-exchange: req_1\r\nrequest-id: mine\r\n"
    answer = server.ask("GET", "/echo", headers=forged)
    assert answer.status == 200
    assert answer.headers["request-id"].startswith("req_")


def test_body_arrives_byte_for_byte(server: SampleServer) -> None:
    body = bytes(range(256)) * 2000
    assert server.ask("POST", "/echo", body).json()["body"].encode("latin-1") == body


def test_large_body_in_pieces_of_a_network_packet_is_answered() -> None:
    """Such a body is passed on in thousands of writes; eight bodies, as one may be lucky."""
    body_bytes, packet = 16 * 1024 * 1024, b"a" * 1460
    head = f"POST /count HTTP/1.1\r\ncontent-length: {body_bytes}\r\n{LAST}".encode()
    packets, rest = divmod(body_bytes, len(packet))
    with sample_server(request_bytes_max=body_bytes, bodies_bytes_max=8 * body_bytes) as server:
        for _ in range(8):
            with server.connect() as connection:
                connection.sendall(head)
                for _ in range(packets):
                    connection.sendall(packet)
                connection.sendall(packet[:rest])
                assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "Multipart/Mixed", "text/x"])
def test_body_of_every_type_arrives_byte_for_byte(server: SampleServer, kind: str) -> None:
    body = b'--x\r\ncontent-disposition: form-data; name="\x1e\xc3"\r\n\r\nb\r\n--x--\r\n'
    seen = server.ask("POST", "/echo", body, f"content-type: {kind}\r\n").json()
    assert seen["body"].encode("latin-1") == body
    assert seen["headers"]["content-type"] == kind


@pytest.mark.parametrize("value", ["\x01", "a\x7fb", "%41", "\xff"])
def test_header_value_arrives_as_it_is(server: SampleServer, value: str) -> None:
    data = f"GET /echo HTTP/1.1\r\nx-value: {value}\r\n{LAST}".encode("latin-1")
    assert parse(server.send(data))[0].json()["headers"]["x-value"] == value


def test_chunked_body_arrives_joined(server: SampleServer) -> None:
    head = f"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n{LAST}"
    chunks = "3\r\nabc\r\n5;ext=1\r\ndefgh\r\n0\r\ntrailer: x\r\n\r\n"
    assert parse(server.send((head + chunks).encode()))[0].json()["body"] == "abcdefgh"


def test_request_that_comes_byte_by_byte_is_whole(server: SampleServer) -> None:
    data = f"POST /echo HTTP/1.1\r\ncontent-length: 3\r\n{LAST}abc".encode()
    with server.connect() as connection:
        for byte in data:
            connection.sendall(bytes([byte]))
        assert b'"body": "abc"' in read_until(connection, b'"peer"')


def test_pipelined_requests_are_answered_in_order(server: SampleServer) -> None:
    first = "".join(f"GET /echo?n={n} HTTP/1.1\r\nhost: x\r\n\r\n" for n in range(20))
    data = f"{first}GET /echo?n=20 HTTP/1.1\r\n{LAST}".encode()
    answers = parse(server.send(data))
    assert [answer.json()["query"]["n"] for answer in answers] == [[str(n)] for n in range(21)]


def test_more_pipelined_requests_than_fit_the_buffer_are_all_answered(server: SampleServer) -> None:
    request = b"GET /small HTTP/1.1\r\nhost: x\r\nx-fill: " + b"y" * 8000 + b"\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(request * 40 + f"GET /small HTTP/1.1\r\n{LAST}".encode())
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert len(parse(received)) == 41


def test_connection_is_kept_for_the_next_request(server: SampleServer) -> None:
    with server.connect() as connection:
        ids = set()
        for _ in range(5):
            connection.sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = parse(connection.recv(10_000))[0]
            assert "connection" not in answer.headers
            ids.add(answer.headers["request-id"])
    assert len(ids) == 5


def test_http_1_0_is_answered_and_closed(server: SampleServer) -> None:
    answer = parse(server.send(b"GET /small HTTP/1.0\r\n\r\n"))[0]
    assert (answer.status, answer.headers["connection"]) == (200, "close")


def test_100_continue_is_sent_before_the_body(server: SampleServer) -> None:
    with server.connect() as connection:
        head = f"POST /echo HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n{LAST}"
        connection.sendall(head.encode())
        assert read_until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
        connection.sendall(b"abc")
        assert b'"body": "abc"' in read_until(connection, b'"peer"')


def test_100_continue_is_not_sent_for_a_body_that_will_be_refused(server: SampleServer) -> None:
    head = f"POST /echo HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 99999999999\r\n{LAST}"
    assert parse(server.send(head.encode()))[0].status == 413


@pytest.mark.parametrize(("protocol", "status"), [("h2c", 200), ("websocket", 426)])
def test_upgrade_is_declined(server: SampleServer, protocol: str, status: int) -> None:
    headers = f"upgrade: {protocol}\r\n"
    data = f"GET /small HTTP/1.1\r\n{headers}host: x\r\nconnection: upgrade, close\r\n\r\n"
    assert parse(server.send(data.encode()))[0].status == status


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/v1/jobs/job-9/missing", 404, "job_not_found"),
        ("/overloaded", 429, "overloaded"),
        ("/failing", 500, "internal_error"),
        ("/bad-header", 500, "internal_error"),
    ],
)
def test_failure_of_a_handler_becomes_its_status(
    server: SampleServer, target: str, status: int, code: str
) -> None:
    answer = server.ask("GET", target)
    assert answer.status == status
    assert answer.json()["code"] == code
    assert answer.headers["x-should-retry"] in {"true", "false"}
    assert b"secret" not in answer.body
    assert "x-injected" not in answer.headers


def test_overloaded_handler_says_when_to_come_back(server: SampleServer) -> None:
    assert server.ask("GET", "/overloaded").headers["retry-after"] == "7"


def test_shared_path_fails_in_the_dialect_of_the_caller(server: SampleServer) -> None:
    assert "param" in server.ask("GET", "/v1/models").json()["error"]
    answer = server.ask("GET", "/v1/models", headers="anthropic-version: 2023-06-01\r\n")
    assert answer.json()["error"] == {"type": "api_error", "message": "internal error"}


def test_every_answer_has_a_fresh_request_id(server: SampleServer) -> None:
    targets = ["/small", "/nothing", "/failing", "/overloaded", "/idle"]
    answers = [server.ask("HEAD", target) for target in targets]
    ids = {answer.headers["request-id"] for answer in answers}
    assert len(ids) == len(targets)
    assert all(len(one) == len("req_") + 32 for one in ids)


def test_loopback_name_reaches_the_server(server: SampleServer) -> None:
    with socket.create_connection(("localhost", server.port), timeout=scaled(60)) as connection:
        connection.sendall(f"GET /small HTTP/1.1\r\n{LAST}".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
