"""A Prometheus behind TLS of an authority of its own: who is trusted, and what the gate shows of itself."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from kvbench.canary.reading import ReadFailed
from kvbench.errors import InputError
from tests.canary.prometheus_stand_in import Server, reader, serving
from tests.missing import missing, need

need("prometheus_api_client")

CA = ", ca_file: tls/ca.pem"


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority (ca), what it signed for a server at 127.0.0.1 and for a client, and an authority unlike it."""
    if shutil.which("openssl") is None:
        missing("no openssl command to make certificates with")
    folder = tmp_path_factory.mktemp("tls")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("ca", "other"):
        openssl(folder, *new, "-x509", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\n")
    signed_by = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
    for name in ("server", "client"):
        openssl(folder, *new[:-2], "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-days", "2", *signed_by, "-out", f"{name}.pem")
    (folder / "both.pem").write_text((folder / "client.pem").read_text() + (folder / "client.key").read_text())
    openssl(folder, "ec", "-in", "client.key", "-aes256", "-passout", "pass:x", "-out", "locked.key")
    (folder / "nothing.pem").write_text("no certificate\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path, certificates: Path) -> Path:
    """Where a canary file may name them, relative to itself."""
    (tmp_path / "tls").symlink_to(certificates)
    return tmp_path


def behind_tls(certificates: Path, *, asks_for_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    if asks_for_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "ca.pem")
    return context


def test_is_read_where_its_authority_is_named(folder: Path, certificates: Path) -> None:
    with serving(behind_tls(certificates)) as server:
        asked = reader(folder, server, CA)
        assert asked.now() == 1234.5
        assert "a:1" in asked.read(100.0, 160.0, lambda: None).samples["candidate"]
        asked.close()


@pytest.mark.parametrize("options", ["", ", ca_file: tls/other.pem"])
def test_that_nobody_vouches_for_is_not_believed(folder: Path, certificates: Path, options: str) -> None:
    with (
        serving(behind_tls(certificates)) as server,
        pytest.raises(ReadFailed, match=r"cannot be reached: .*CERTIFICATE_VERIFY_FAILED"),
    ):
        reader(folder, server, f"{options}, retries: 0").now()
    assert server.queries == []


@pytest.mark.parametrize("own", ["cert_file: tls/client.pem, key_file: tls/client.key", "cert_file: tls/both.pem"])
def test_that_asks_for_a_certificate_gets_ours(folder: Path, certificates: Path, own: str) -> None:
    with serving(behind_tls(certificates, asks_for_client=True)) as server:
        assert reader(folder, server, f"{CA}, {own}").now() == 1234.5


def test_that_asks_for_a_certificate_does_not_let_us_in_without(folder: Path, certificates: Path) -> None:
    with (
        serving(behind_tls(certificates, asks_for_client=True)) as server,
        pytest.raises(ReadFailed, match="cannot be reached"),
    ):
        reader(folder, server, f"{CA}, retries: 0").now()
    assert server.queries == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (", ca_file: tls/none.pem", r"canary\.yaml:2.*prometheus\.ca_file: there is no file"),
        (", ca_file: tls/nothing.pem", r"canary\.yaml:2.*ca_file: .*nothing\.pem holds no certificate"),
        (", cert_file: tls/nothing.pem", r"canary\.yaml:2.*cert_file: .*nothing\.pem and its key cannot be used"),
        (", cert_file: tls/client.pem", r"canary\.yaml:2.*cert_file: .*client\.pem and its key cannot be used"),
        (
            ", cert_file: tls/client.pem, key_file: tls/ca.key",
            r"cert_file: .*client\.pem and its key cannot be used",
        ),
        (", cert_file: tls/client.pem, key_file: tls/locked.key", r"client\.pem and its key cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_refused_before_anything_is_asked(
    folder: Path, options: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        reader(folder, Server(lambda _: (500, b""), url="https://127.0.0.1:9"), options)
