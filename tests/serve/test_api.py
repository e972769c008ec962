"""The server, as clients see it: every test talks HTTP to a real socket."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import numpy as np
import pytest
import scipy.sparse as sp
from command_line import planted_rows
from served import served, train_named, train_planted

import longtail
from longtail.errors import ParameterError
from longtail.runtime.store import read_digest
from longtail.serve.batching import Limits
from longtail.serve.hosting import VERSION_DIGITS, Version, name_labels
from longtail.serve.server import make_server

TEXT = "hops and malt, then yeast"
PREDICT = "/v1/models/planted/predict"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return train_planted(tmp_path_factory.mktemp("models") / "planted")


@pytest.fixture(scope="module")
def running(folder):
    with served(folder) as found:
        yield found


@pytest.fixture
def slow(monkeypatch):
    """Let predictions wait until they may go on; returns what lets them."""
    go_on = threading.Event()
    usual = Version.predict

    def predict(self, documents, asked):
        assert go_on.wait(20)
        return usual(self, documents, asked)

    monkeypatch.setattr(Version, "predict", predict)
    monkeypatch.setattr(Version, "warm_up", lambda self: None)
    yield go_on
    go_on.set()


# -- answers --------------------------------------------------------------------------------------


def test_answers_are_those_of_predict_whatever_comes_at_once(running, folder):
    model = longtail.load_model(folder)
    texts = [text for text, _ in planted_rows(60, 7)] + ["", "unknown words"]
    asked = [{"k": 1}, {"k": 3}, {"threshold": 0.5}, {"threshold": "auto", "k": 2}, {}]
    requests = [(text, asked[i % len(asked)]) for i, text in enumerate(texts * 4)]

    def ask(request):
        text, options = request
        return running.client.post(PREDICT, json={"text": text, **options})

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, requests))
    for (text, options), answer in zip(requests, answers, strict=True):
        top = model.predict([text], options.get("k"), threshold=options.get("threshold"))
        assert answer.status_code == 200
        assert answer.json()["documents"] == [{"labels": name_labels(top)[0]}]


def test_several_texts_are_answered_in_order(running, folder):
    texts = [text for text, _ in planted_rows(200, 8)]
    answer = running.client.post(PREDICT, json={"texts": texts, "k": 2}).json()
    top = longtail.load_model(folder).predict(texts, 2)
    assert [each["labels"] for each in answer["documents"]] == name_labels(top)
    assert running.client.post(PREDICT, json={"texts": []}).json()["documents"] == []


def test_rows(tmp_path):
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(rng.random((80, 6)) * (rng.random((80, 6)) < 0.4), dtype=np.float32)
    Y = sp.csr_matrix((X.toarray() > 0.5).astype(np.float32))
    longtail.Linear().fit(X, Y).save(tmp_path / "rows")
    row = X[3]
    with served(tmp_path / "rows") as running:
        url = "/v1/models/rows/predict"
        sent = {"indices": row.indices.tolist(), "values": row.data.tolist()}
        answer = running.client.post(url, json={"rows": [sent, sent], "k": 2})
        top = longtail.load_model(tmp_path / "rows").predict(row, 2)
        assert [each["labels"] for each in answer.json()["documents"]] == name_labels(top) * 2
        far = {"rows": [{"indices": [6], "values": [1.0]}]}
        assert "knows 6, counted from 0" in running.client.post(url, json=far).json()["detail"]
        assert "send 'rows'" in running.client.post(url, json={"text": "x"}).json()["detail"]


def test_models_labels_and_explanations(running):
    (summary,) = running.client.get("/v1/models").json()["models"]
    details = running.client.get("/v1/models/planted").json()
    assert summary["version"] == details["version"]
    assert details["labels"] == 4
    assert 0 <= details["thresholds"]["auto"] <= 1
    found = running.client.get("/v1/models/planted/labels", params={"q": "saling"}).json()
    (label,) = found["labels"]
    assert label["label"] == "sailing"
    alone = running.client.get(f"/v1/models/planted/labels/{label['id']}").json()
    assert {key: alone[key] for key in label} == label
    assert (alone["names"], alone["broader"], alone["narrower"]) == ([], [], [])
    body = {"text": TEXT, "label": "beer"}
    terms = running.client.post("/v1/models/planted/explain", json=body).json()["terms"]
    start, end = next(each["spans"][0] for each in terms if each["term"] == "hops")
    assert TEXT[start:end] == "hops"


def test_labels_say_why(running, folder):
    body = {"texts": [TEXT, "rook and pawn"], "k": 2, "explain": True}
    documents = running.client.post(PREDICT, json=body).json()["documents"]
    plain = running.client.post(PREDICT, json={**body, "explain": False}).json()["documents"]
    model = longtail.load_model(folder)
    for text, why, without in zip(body["texts"], documents, plain, strict=True):
        for each, same in zip(why["labels"], without["labels"], strict=True):
            said = each.pop("why")
            assert each == same
            terms = model.explain(text, each["label"]).to_dict()["terms"]
            assert said == {"terms": json.loads(json.dumps(terms[:20])), "members": {}}
    many = running.client.post(PREDICT, json={"texts": [TEXT] * 21, "explain": True})
    assert many.json()["detail"].startswith("21 documents in one request with explain")


def test_what_to_expect_at_thresholds(running, folder, tmp_path):
    url = "/v1/models/planted/thresholds"
    found = running.client.get(url, params={"k": 2}).json()
    named = found["named"]
    assert named == running.client.get("/v1/models/planted").json()["thresholds"]
    tradeoff = longtail.load_model(folder).calibration_.tradeoff
    assert found["expected"] == [each._asdict() for each in tradeoff.expect(2)]
    assert (found["k"], found["documents"]) == (2, 100)
    best = max(running.client.get(url).json()["expected"], key=lambda each: each["f1"])
    auto = next(each for each in found["expected"] if each["threshold"] == named["auto"])
    assert best["recall"] >= auto["recall"] > 0
    assert running.client.get(url, params={"k": 0}).status_code == 422
    longtail.Linear().fit(["a b", "c d"], [["x"], ["y"]]).save(tmp_path / "raw")
    with served(tmp_path / "raw") as raw:
        found = raw.client.get("/v1/models/raw/thresholds").json()
        assert (found["named"], found["expected"]) == ({}, [])


def test_labels_of_a_vocabulary(tmp_path):
    with served(train_named(tmp_path / "words")) as running:
        url = "/v1/models/words"
        (found,) = running.client.get(f"{url}/labels", params={"q": "OLU"}).json()["labels"]
        assert (found["label"], found["uri"]) == ("beer", "x:1")
        beer = running.client.get(f"{url}/labels/{found['id']}").json()
        assert beer["names"] == ["beer", "olut"]
        assert [each["label"] for each in beer["broader"]] == ["drink"]
        assert [each["label"] for each in beer["related"]] == ["chess"]
        (chess,) = beer["related"]
        said = running.client.get(f"{url}/labels/{chess['id']}", params={"language": "fi"}).json()
        assert (said["label"], said["related"][0]["label"]) == ("šakki", "olut")
        (named,) = running.client.get(
            f"{url}/labels", params={"q": "beer", "language": "fi"}
        ).json()["labels"]
        assert (named["label"], named["own"]) == ("olut", "beer")
        assert running.client.get(url).json()["languages"] == ["en", "fi"]
        odd = running.client.get(f"{url}/labels", params={"q": "beer", "language": "xx"})
        assert odd.status_code == 422
        body = {"text": "malt hops", "k": 1, "language": "fi"}
        (first,) = running.client.post(f"{url}/predict", json=body).json()["documents"][0]["labels"]
        assert (first["label"], first["uri"]) == ("olut", "x:1")
        unknown = running.client.post(f"{url}/predict", json={**body, "language": "xx"})
        assert unknown.status_code == 422
        form = {"text": "malt hops", "limit": 1, "language": "fi"}
        answer = running.client.post("/v1/projects/words/suggest", data=form).json()
        assert answer["results"][0]["uri"] == "x:1"
        assert answer["results"][0]["label"] == "olut"


def test_many_labels_are_named_and_counted_by_one_request(tmp_path):
    with served(train_named(tmp_path / "words")) as running:
        get = partial(running.client.get, "/v1/models/words/labels")
        found = get(params={"id": [2, 0], "language": "fi"}).json()
        assert [each["id"] for each in found["labels"]] == [2, 0]
        assert [each["own"] for each in found["labels"]] == ["drink", "beer"]
        assert [each["label"] for each in found["labels"]] == ["juoma", "olut"]
        assert [each["documents"] for each in found["labels"]] == [5, 5]
        none = get(params={"id": [0, 3]})
        assert none.status_code == 404
        assert none.json()["detail"] == "there is no label 3; the model has 0 to 2"
        for params, got in (({}, "neither"), ({"q": "beer", "id": 0}, "both")):
            odd = get(params=params)
            assert odd.status_code == 422
            assert odd.json()["detail"] == f"give q or id. Got {got} instead."


def test_the_examples_of_the_description_work(running):
    described = running.client.get("/v1/openapi.json").json()
    schema = described["components"]["schemas"]["PredictRequest"]
    for example in schema["examples"]:
        assert running.client.post(PREDICT, json=example).status_code == 200


def test_every_route_is_described_with_examples(running):
    described = running.client.get("/v1/openapi.json").json()
    schemas = described["components"]["schemas"]

    def has_example(content):
        schema = content.get("schema", {})
        held = schema.get("items", schema)
        named = schemas.get(held.get("$ref", "").rpartition("/")[2], {})
        return "example" in content or bool(named.get("examples"))

    for path, held in described["paths"].items():
        for method, operation in held.items():
            where = f"{method} {path}"
            assert operation["tags"], where
            assert operation["summary"], where
            bodies = operation.get("requestBody", {}).get("content", {})
            answers = {
                kind: content
                for code, answer in operation["responses"].items()
                for kind, content in answer.get("content", {}).items()
                if code != "204"
            }
            for kind, content in [*bodies.items(), *answers.items()]:
                if kind == "application/octet-stream":  # a file
                    continue
                assert has_example(content), f"{where}: {kind}"
            for parameter in operation.get("parameters", ()):
                assert parameter["in"] == "query" or "example" in parameter, where
            for code, answer in operation["responses"].items():
                if int(code) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], where


def test_metrics(running):
    running.client.post(PREDICT, json={"text": TEXT})
    text = running.client.get("/metrics").text
    assert 'longtail_requests_total{method="POST",path="/v1/models/{model}/predict"' in text
    assert 'longtail_queue_documents{model="planted"} 0.0' in text
    assert f'version="{running.client.get("/health/ready").json()["models"]["planted"]}"' in text


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"text": 7}, "text: Input should be a valid string. Got 7 instead."),
        ({"txt": "x"}, "there is no field 'txt'"),
        ({}, "give one of text, texts and rows. Got none instead."),
        ({"text": "x", "texts": []}, "give one of text, texts and rows. Got text and texts"),
        ({"text": "x", "k": 0}, "k: Input should be greater than or equal to 1. Got 0 instead."),
        ({"rows": []}, "the model was trained on texts; send 'texts'"),
        ({"texts": ["x"] * 1001}, "1,001 documents in one request; this server takes 1,000"),
    ],
)
def test_wrong_requests_get_a_sentence(running, body, detail):
    answer = running.client.post(PREDICT, json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].startswith(detail)


@pytest.mark.parametrize("path", ["v1/models/planted/predict", "v1/models/planted/feedback"])
@pytest.mark.parametrize("kind", [{}, {"Content-Type": "text/plain"}])
def test_what_any_page_could_send_unasked_is_no_json(running, path, kind):
    answer = running.client.post(path, content=b'{"text": "hops"}', headers=kind)
    assert answer.status_code == 422
    assert answer.json()["detail"].endswith("with Content-Type: application/json")


def test_what_is_not_there(running):
    get, post = running.client.get, running.client.post
    assert "did you mean 'planted'" in get("/v1/models/plantd").json()["detail"]
    assert get("/v1/models/planted/labels/4").status_code == 404
    assert get("/nowhere").json()["status"] == 404
    kind = {"Content-Type": "application/json"}
    bad = post(PREDICT, content=b"{bad", headers=kind)
    assert bad.json()["detail"] == "the body is not JSON"
    bad = post(PREDICT, content=b"\xff", headers=kind)
    assert (bad.status_code, bad.json()["detail"]) == (422, "the body is not JSON in UTF-8")
    assert "Content-Type: application/json" in post(PREDICT, content=b"{}").json()["detail"]
    unknown = post("/v1/models/planted/explain", json={"text": TEXT, "label": "bear"})
    assert "did you mean 'beer'" in unknown.json()["detail"]


def test_a_label_is_answered_as_it_is_whatever_it_holds(tmp_path):
    names = ["<script>alert(1)</script>", "nul\0 and\nline", "\u202eright to left", "x" * 10_000]
    texts = ["malt hops", "rook pawn", "wind mast", "oven flour"] * 5
    model = longtail.Linear().fit(texts, [[name] for name in names] * 5)
    model.save(tmp_path / "odd")
    with served(tmp_path / "odd") as running:
        answer = running.client.post("/v1/models/odd/predict", json={"texts": texts[:4], "k": 1})
        assert [each["labels"][0]["label"] for each in answer.json()["documents"]] == names


def test_a_body_that_is_too_large(folder):
    with served(folder, limits=Limits(max_bytes=1000)) as running:
        large = json.dumps({"text": "x" * 2000}).encode()
        told = running.client.post(PREDICT, content=large)
        untold = running.client.post(PREDICT, content=iter([large[:900], large[900:]]))
        assert told.status_code == untold.status_code == 413
        assert "larger than 1,000 bytes" in told.json()["detail"]


def test_tokens(folder, tmp_path):
    file = tmp_path / "tokens"
    file.write_text("first-token-of-many\nother-token-of-many\n")
    with served(folder, token_file=file) as running:
        for path in ("/v1/models", "/metrics", "/v1/projects", "/v1/openapi.json", "/v1/"):
            assert running.client.get(path).status_code == 401
            for token, status in (("other-token-of-many", 200), ("other-token-of-man", 401)):
                headers = {"Authorization": f"Bearer {token}"}
                assert running.client.get(path, headers=headers).status_code == status
        for password, status in (("first-token-of-many", 200), ("first", 401), ("", 401)):
            assert running.client.get("/metrics", auth=("any", password)).status_code == status
        odd = {"Authorization": "Basic ===="}
        assert running.client.get("/metrics", headers=odd).status_code == 401
        assert running.client.get("/health/live").status_code == 200
        assert running.client.get("/").status_code == 200


def test_only_named_origins_may_read_answers(folder, tmp_path):
    file = tmp_path / "tokens"
    file.write_text("first-token-of-many\n")
    ours, theirs = "https://example.org", "https://example.com"
    with served(folder, token_file=file, origins=[ours]) as running:
        asking = {
            "Origin": ours,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        asked = running.client.options(PREDICT, headers=asking)
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == ours
        assert "Authorization" in asked.headers["access-control-allow-headers"]
        sent = {"Origin": ours, "Authorization": "Bearer first-token-of-many"}
        answer = running.client.post(PREDICT, json={"text": TEXT}, headers=sent)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == ours
        assert "Origin" in answer.headers["vary"]
        refused = running.client.post(PREDICT, json={"text": TEXT}, headers={"Origin": ours})
        assert refused.status_code == 401
        for headers in ({**asking, "Origin": theirs}, {**asking, "Origin": "null"}):
            other = running.client.options(PREDICT, headers=headers)
            assert "access-control-allow-origin" not in other.headers
            assert other.status_code in (401, 405)
    for odd in ("*", "example.org", "https://example.org/", "https://Example.org", "null"):
        with pytest.raises(ParameterError, match="--allow-origin must be such as"):
            make_server([folder], host="127.0.0.1", limits=Limits(), origins=[odd])


def test_other_names_of_the_machine_are_refused_and_policies_sent(running, folder):
    assert running.client.get("/", headers={"Host": "elsewhere.org"}).status_code == 421
    answer = running.client.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "access-control-allow-origin" not in answer.headers
    with served(folder, host="0.0.0.0") as public:
        assert public.client.get("/", headers={"Host": "elsewhere.org"}).status_code == 200


# -- load -----------------------------------------------------------------------------------------


def test_a_full_queue_is_said_before_others_are_answered(folder, slow):
    with (
        served(folder, limits=Limits(max_queue=2, max_batch=1)) as running,
        ThreadPoolExecutor(3) as pool,
    ):
        held = [pool.submit(running.client.post, PREDICT, json={"text": TEXT})]
        wait_until(lambda: 'batch_documents_count{model="planted"} 1.0' in metrics(running))
        held += [pool.submit(running.client.post, PREDICT, json={"text": TEXT}) for _ in "ab"]
        wait_until(lambda: running.state.batchers["planted"].n_waiting == 2)
        refused = running.client.post(PREDICT, json={"text": TEXT})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        slow.set()
        assert [each.result().status_code for each in held] == [200, 200, 200]


def test_a_client_that_leaves_frees_its_place(folder, slow):
    with served(folder, limits=Limits(max_batch=1)) as running:
        body = {"text": TEXT}
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(running.client.post, PREDICT, json=body)
            batcher = running.state.batchers["planted"]
            wait_until(lambda: 'batch_documents_count{model="planted"} 1.0' in metrics(running))
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(running.url + PREDICT, json=body, timeout=0.3)
            wait_until(lambda: batcher.n_waiting == 0)
            slow.set()
            assert held.result().status_code == 200


def test_shutdown_finishes_what_has_begun(folder, slow):
    with ThreadPoolExecutor(1) as pool, served(folder) as running:
        held = pool.submit(httpx.post, running.url + PREDICT, json={"text": TEXT}, timeout=30)
        wait_until(lambda: 'batch_documents_count{model="planted"} 1.0' in metrics(running))
        running.server.should_exit = True
        time.sleep(0.3)
        slow.set()
        assert held.result().status_code == 200


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nHost: lo", b"GET /\x00 HTTP"])
def test_clients_that_do_not_go_on_are_cut_off(folder, monkeypatch, sent):
    monkeypatch.setattr("longtail.serve.guard.ImpatientProtocol.patience", 0.3)
    with served(folder) as running, socket.create_connection(("127.0.0.1", running.port)) as link:
        link.settimeout(10)
        link.sendall(sent)
        try:
            while link.recv(1000):
                pass
        except ConnectionResetError:
            pass
        assert running.client.get("/health/live").status_code == 200


@pytest.mark.parametrize("begun", [b"", b"{"])
def test_a_slow_body_is_given_up(folder, begun):
    head = b"POST /v1/models/planted/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n"
    kind = b"Content-Type: application/json\r\n\r\n"
    with (
        served(folder, limits=Limits(patience=0.3)) as running,
        socket.create_connection(("127.0.0.1", running.port)) as link,
    ):
        link.settimeout(10)
        link.sendall(head + kind + begun)
        assert link.recv(1000).startswith(b"HTTP/1.1 408 ")


# -- replaced models ------------------------------------------------------------------------------


def test_a_replaced_folder_answers_without_a_failed_request(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.serve.app.LOOK_SECONDS", 0.02)
    folder = train_planted(tmp_path / "planted")
    expected, stop = {}, threading.Event()

    def note():
        with served(folder) as once:  # what each version answers when nothing else goes on
            answer = once.client.post(PREDICT, json={"text": TEXT}).json()
        expected[answer["version"]] = answer["documents"]

    note()
    with served(folder) as running:

        def ask():
            answers = []
            while not stop.is_set():
                answers.append(running.client.post(PREDICT, json={"text": TEXT}))
            return answers

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            for seed in (1, 2, 3):
                train_planted(folder, seed, overwrite=True)
                note()
                wait_until(partial(_answers, running, list(expected)[-1]))
            stop.set()
        answers = [answer for each in asking for answer in each.result()]
    assert len(expected) == 4
    assert {answer.status_code for answer in answers} == {200}
    for answer in answers:
        assert answer.json()["documents"] == expected[answer.json()["version"]]


def test_a_damaged_folder_is_refused_and_the_old_one_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.serve.app.LOOK_SECONDS", 0.02)
    folder = train_planted(tmp_path / "planted")
    with served(folder) as running:
        before = running.client.get("/v1/models").json()["models"][0]
        damaged = train_planted(tmp_path / "damaged", 1)
        with (damaged / "config.json").open("a") as file:
            file.write(" ")
        folder.rename(tmp_path / "away")
        damaged.rename(folder)
        summary = wait_until(lambda: _with_problem(running))
        assert "config.json" in summary["problem"]
        assert summary["version"] == before["version"]
        assert running.client.post(PREDICT, json={"text": TEXT}).status_code == 200
        train_planted(tmp_path / "third", 2).rename(tmp_path / "new")
        folder.rename(tmp_path / "old")
        (tmp_path / "new").rename(folder)
        wait_until(lambda: _with_problem(running) is None)
        assert running.client.get("/v1/models").json()["models"][0]["version"] != before["version"]


def test_a_version_that_fails_as_nobody_expects_does_not_end_the_watch(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("longtail.serve.app.LOOK_SECONDS", 0.02)
    folder = train_planted(tmp_path / "planted")

    def fail(self):
        raise MemoryError

    with served(folder) as running:
        before = running.client.get("/v1/models").json()["models"][0]["version"]
        with monkeypatch.context() as short_of_memory:
            short_of_memory.setattr(Version, "warm_up", fail)
            train_planted(folder, 1, overwrite=True)
            summary = wait_until(lambda: _with_problem(running))
        assert summary["problem"].endswith("cannot be loaded (MemoryError); the log says more")
        assert summary["version"] == before
        assert "in fail" in caplog.text  # where it was
        with monkeypatch.context() as without_search:
            without_search.setattr(Version, "labels", property(fail))
            train_planted(folder, 2, overwrite=True)
            wait_until(lambda: "the search for labels cannot be prepared" in caplog.text)
        train_planted(folder, 3, overwrite=True)
        last = longtail.load_model(folder)
        wait_until(lambda: _answers(running, read_digest(folder)[:VERSION_DIGITS]))
        answer = running.client.post(PREDICT, json={"text": TEXT, "k": 2}).json()
        assert answer["documents"][0]["labels"] == name_labels(last.predict([TEXT], 2))[0]


def _answers(running, version):
    return running.client.get("/v1/models").json()["models"][0]["version"] == version


def _with_problem(running):
    (summary,) = running.client.get("/v1/models").json()["models"]
    return summary if summary["problem"] and "gone" not in summary["problem"] else None


def metrics(running):
    return running.client.get("/metrics").text


def wait_until(condition, seconds=20):
    """Wait for a condition; return what it returns."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found
