"""An S3 server on this machine, with one bucket, and a cache of the test's own."""

import urllib.request
from types import SimpleNamespace

import pytest

pytest.importorskip("s3fs", reason="storage by URL needs longtail[cloud]")
server = pytest.importorskip("moto.server", reason="the S3 server of the tests is moto")

KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "very-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
}


@pytest.fixture(scope="session")
def s3_server():
    started = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield f"http://{host}:{port}"
    started.stop()


@pytest.fixture
def s3(s3_server, tmp_path, monkeypatch):
    """Return a client of the server, whose bucket `store` is empty."""
    import boto3
    import s3fs

    for name, value in {**KEYS, "AWS_ENDPOINT_URL": s3_server}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr("longtail.storage.remote.WAITS", (0.01,))
    s3fs.S3FileSystem.clear_instance_cache()
    reset(s3_server)
    client = boto3.client("s3")
    client.create_bucket(Bucket="store")

    def names(prefix=""):
        found = client.list_objects_v2(Bucket="store", Prefix=prefix).get("Contents", [])
        return [each["Key"] for each in found]

    def put(name, content):
        client.put_object(Bucket="store", Key=name, Body=content)

    def get(name):
        return client.get_object(Bucket="store", Key=name)["Body"].read()

    yield SimpleNamespace(client=client, names=names, put=put, get=get, url=s3_server)
    s3fs.S3FileSystem.clear_instance_cache()


def reset(url):
    assert url.startswith("http://127.0.0.1")
    asked = urllib.request.Request(f"{url}/moto-api/reset", b"", method="POST")
    urllib.request.urlopen(asked).close()


@pytest.fixture
def strict(s3, monkeypatch):
    """Let the server look at credentials, of which it knows none."""
    monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    return s3
