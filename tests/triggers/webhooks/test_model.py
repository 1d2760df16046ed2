"""Which places may be called, what an answer means, and that what is sent can be verified by anybody's library."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from mainspring.spine.effects import TARGET_LENGTH_MAX, Deferred, Done, Failed, Outcome, Retry, Unknown
from mainspring.triggers.webhooks import model
from mainspring.triggers.webhooks.model import Answered, NotAllowed, NotSent, Place, Reply, Unanswered
from tests.triggers.values import event, rule

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # the example of the standard


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://Hooks.Example.com/a?b=c", "hooks.example.com:443"),
        ("http://hooks.example.com", "hooks.example.com:80"),
        ("https://hooks.example.com.:8443/", "hooks.example.com:8443"),
        ("https://bücher.example/", "xn--bcher-kva.example:443"),
        ("http://[2606:4700::1111]:8080/", "[2606:4700::1111]:8080"),
        ("http://192.0.2.7/", "192.0.2.7:80"),
    ],
)
def test_all_that_go_to_one_host_and_port_share_a_breaker(url: str, target: str):
    place = model.place_of(url)
    assert isinstance(place, Place)
    assert place.target == target
    assert len(place.target) <= TARGET_LENGTH_MAX


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.com/", "https://"),
        ("example.com/hook", "https://"),
        ("file:///etc/passwd", "https://"),
        ("https://", "no host"),
        ("https:///path", "no host"),
        ("https://user:secret@example.com/", "password"),
        ("https://example.com/#top", "fragment"),
        ("https://example.com:0/", "port"),
        ("https://example.com:99999/", "port"),
        ("https://example.com:port/", "no URL"),
        ("https://exa mple.com/", "spaces"),
        ("https://example.com/\r\nx: y", "control"),
        ("https://[fe80::1%25eth0]/", "no host"),
        ("https://" + "a" * 300 + ".com/", "no host"),
        ("https://example.com/" + "a" * 2000, "characters long"),
        ("https://ex%61mple.com/", "no host"),
    ],
)
def test_what_nothing_can_be_sent_to_is_said_so(url: str, says: str):
    wrong = model.place_of(url)
    assert isinstance(wrong, str)
    assert says in wrong


@given(st.text(max_size=60))
def test_any_text_is_a_place_or_a_reason(text: str):
    for url in (text, f"https://{text}", f"http://example.com{text}"):
        place = model.place_of(url)
        assert place if isinstance(place, str) else len(place.target) <= TARGET_LENGTH_MAX


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "192.0.0.8", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::", "2002:a00:1::1", "2001:0:7f00:1::",
    ],
)  # fmt: skip
def test_what_is_not_of_the_public_internet_is_refused(address: str):
    assert model.refusal_of(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_what_is_public_is_not(address: str):
    assert model.refusal_of(ipaddress.ip_address(address)) is None


@given(st.ip_addresses())
def test_nothing_that_is_allowed_is_private(address: model.Address):
    if model.refusal_of(address) is None:
        inner = getattr(address, "ipv4_mapped", None) or address
        assert not (inner.is_private or inner.is_loopback or inner.is_link_local or inner.is_multicast) or (
            address in model._NAT64
        )


# what an answer means -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Answered(status=200), Done("answered 200")),
        (Answered(status=204), Done("answered 204")),
        (Answered(status=410, said="gone"), Failed("answered 410: gone")),
        (Answered(status=400), Failed("answered 400")),
        (Answered(status=404), Failed("answered 404")),
        (Answered(status=408), Retry("answered 408")),
        (Answered(status=425), Retry("answered 425")),
        (Answered(status=429), Retry("answered 429")),
        (
            Answered(status=429, retry_after_seconds=30.0),
            Deferred("answered 429", after_seconds=30.0, tried=True),
        ),
        (Answered(status=503, retry_after_seconds=30.0), Retry("answered 503", after_seconds=30.0)),
        (Answered(status=500, said="oops"), Retry("answered 500: oops")),
        (Answered(status=599), Retry("answered 599")),
        (NotSent("refused"), Retry("refused")),
        (Unanswered("no answer"), Unknown("no answer")),
        (NotAllowed("loopback"), Failed("loopback")),
    ],
)
def test_each_answer_has_an_outcome(reply: Reply, outcome: Outcome):
    assert model.outcome_of(reply) == outcome


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int):
    outcome = model.outcome_of(Answered(status=status))
    assert isinstance(outcome, Failed)
    assert "redirects are not followed" in outcome.error


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 5 ", 5.0),
        ("0", 0.0),
        ("99999999999999999999", model.RETRY_AFTER_SECONDS_MAX),
        ("Tue, 01 Jan 2030 00:01:00 GMT", 60.0),
        ("Mon, 31 Dec 2029 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("٣", None),
        (None, None),
    ],
)
def test_retry_after_is_read_in_both_its_forms(value: str | None, seconds: float | None):
    assert model.retry_after_of(value, NOW) == seconds


@given(st.text(max_size=40))
def test_no_retry_after_breaks_anything(value: str):
    seconds = model.retry_after_of(value, NOW)
    assert seconds is None or 0 <= seconds <= model.RETRY_AFTER_SECONDS_MAX


# what is sent -------------------------------------------------------------------------------------------------


def test_a_message_is_verified_by_the_standards_own_library():
    place = model.place_of("https://example.com/")
    assert isinstance(place, Place)
    now = datetime.now(UTC)
    message = model.message_of(place, '{"ä":1}'.encode(), id_="msg_1", secret=SECRET, now=now)
    assert Webhook(SECRET).verify(message.body, dict(message.headers)) == {"ä": 1}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(b"{}", dict(message.headers))


def test_a_body_is_the_same_bytes_at_every_attempt():
    told, version = event(), rule()
    assert model.body_of(told, version) == model.body_of(told, version)


def test_the_moment_is_signed_and_the_id_is_the_same_at_every_attempt():
    place = model.place_of("https://example.com/")
    assert isinstance(place, Place)
    first, second = (
        model.message_of(place, b"{}", id_="msg_1", secret=SECRET, now=NOW + timedelta(seconds=n))
        for n in (0, 60)
    )
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
