"""URLs of alerters: what each means, and that a bad one is refused at once without showing its secrets."""

from __future__ import annotations

import datetime as dt

import pytest

from ematix_flow.alerters import from_url
from ematix_flow.errors import ConfigError, FlowError
from ematix_flow.observe.alerts.alerter_urls import open_alerter
from ematix_flow.observe.settings import Observability

TOKEN = "T0000/B0000/sesame99"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("stdout://", "stdout"),
        (f"slack://hooks.slack.com/services/{TOKEN}", "slack at hooks.slack.com"),
        (f"https://hooks.slack.com/services/{TOKEN}", "slack at hooks.slack.com"),
        ("https://chat.example.com:8443/hooks/abcdefgh", "slack at chat.example.com:8443"),
        ("webhook://example.com/in?team=ops", "webhook at example.com"),
        ("webhook+https://example.com/in", "webhook at example.com"),
        ("webhook+http://localhost:8080/in", "webhook at localhost:8080"),
        ("webhook+http://intranet/in?insecure=1", "webhook at intranet"),
        ("email://mail.example.com?to=a@example.com,b@example.com", "email by mail.example.com"),
        (
            "email://me%40example.com:hunter22@mail.example.com:465?to=a@example.com",
            "email by mail.example.com",
        ),
        ("pagerduty://R0UTINGKEY?severity=warning&service=shop", "pagerduty"),
        ("jsons://chat.example.com/in", "JSON by Apprise"),
        ("json://intranet/in?insecure=1", "JSON by Apprise"),
        ("mailtos://me:hunter22@mail.example.com", "E-Mail by Apprise"),
        ("discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js", "Discord by Apprise"),
    ],
)
def test_a_url_names_an_alerter(url: str, name: str) -> None:
    assert from_url(url).name == name


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("slak://hooks.slack.com/sesame99", "Did you mean 'slack'"),
        ("nothing-like-it://sesame99", "no alerter is called nothing-like-it://"),
        ("no url, sesame99", "has no scheme"),
        ("stdout://sesame99", "only writes to this terminal"),
        ("stdout://?remnd=6h", "Did you mean 'remind'"),
        ("stdout://?remind=soon", "remind='soon'"),
        ("stdout://?on=fialed", "Did you mean 'failed'"),
        ("slack://sesame99/x/y", "apprise+slack://"),
        ("slack://hooks.slack.com", "not an incoming webhook"),
        ("slack://hooks.slack.com/sesame99?chanel=x", "no option 'chanel'"),
        ("http://chat.example.com/sesame99", "unencrypted"),
        ("webhook+http://10.0.0.1/sesame99", "unencrypted"),
        ("webhook:///sesame99", "names no host"),
        ("webhook://example.com:99999/sesame99", "an invalid port"),
        ("webhook://example.com/in?secret-env=NOT_SET_SESAME", "NOT_SET_SESAME, which is not set"),
        ("webhook://example.com/in?secret=whsec_sesame99!", "base64 does not follow"),
        ("webhook://u:sesame99@example.com/in", "has a user name or password"),
        ("email://mail.example.com", "?to="),
        ("email://mail.example.com:no?to=a@b.c", "an invalid port"),
        ("email://mail.example.com?to=nobody", "not an e-mail address"),
        ("email://?to=a@b.c", "names no mail server"),
        ("email://u:sesame99@mail.example.com?to=a@b.c&starttls=0", "password unencrypted"),
        ("email://mail.example.com?to=a@b.c&starttls=yes", "starttls=0 or starttls=1"),
        ("pagerduty://", "no routing key"),
        ("pagerduty://key@sesame99", "apprise+pagerduty://"),
        ("pagerduty://sesame99?severity=loud", "no severity 'loud'"),
        ("apprise+discord://sesame99", "Apprise does not understand"),
        ("json://chat.example.com/sesame99", "json://… would be sent unencrypted"),
        ("apprise+json://10.0.0.1/sesame99", "write jsons://…"),
        ("rsyslog://logs.example.com/local5", "unencrypted"),
        ("mailto://me:sesame99@mail.example.com?mode=insecure", "unencrypted"),
        ("jsons://chat.example.com/sesame99?verify=no", "does not check the receiver's certificate"),
        ("slack://hooks.slack.com/${NOT_SET_SESAME}", "NOT_SET_SESAME is not set"),
    ],
)
def test_a_bad_url_is_refused_with_the_next_step_and_without_its_secret(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_alerter(url)
    assert words in str(refused.value)
    assert "sesame99" not in str(refused.value)


def test_references_are_replaced_with_any_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "p@ss/w:rd?#&%")
    monkeypatch.setenv("SLACK", f"slack://hooks.slack.com/services/{TOKEN}")
    monkeypatch.setenv("TOKEN", TOKEN)
    mail = from_url("email://me:${env:MAIL_PASSWORD}@mail.example.com?to=a@example.com")
    assert vars(mail)["_password"] == "p@ss/w:rd?#&%"
    whole, part = from_url("${SLACK}"), from_url("slack://hooks.slack.com/services/${TOKEN}")
    assert vars(whole)["_url"] == vars(part)["_url"] == f"https://hooks.slack.com/services/{TOKEN}"


def test_what_a_receiver_asks_for_in_its_query_is_left_as_it_is() -> None:
    alerter = from_url("webhook://example.com/in?sig=a%2Fb&remind=6h&on=gave_up&sp=%2Frun")
    assert vars(alerter)["_url"] == "https://example.com/in?sig=a%2Fb&sp=%2Frun"


def test_reminders_and_kinds_may_be_chosen() -> None:
    chosen = open_alerter("stdout://?remind=6h&on=gave_up,recovered")
    assert chosen.remind == dt.timedelta(hours=6)
    assert chosen.kinds == {"gave_up", "recovered", "test"}
    assert open_alerter("stdout://?remind=never").remind is None


def test_the_variable_takes_blanks_and_commas_between_urls() -> None:
    given = "stdout://,slack://hooks.slack.com/x  email://h?to=a@b.c,d@e.f"
    found = Observability.resolve({"EMATIX_FLOW_ALERTERS": given}).alerters
    assert found == ("stdout://", "slack://hooks.slack.com/x", "email://h?to=a@b.c,d@e.f")
    assert Observability.resolve(Observability(found).to_env()).alerters == found
    assert Observability.resolve({"EMATIX_FLOW_ALERTERS": ""}).alerters == ()


def test_without_apprise_its_schemes_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for url in ("discord://a/b", "apprise+discord://a/b"):
        with pytest.raises(FlowError, match=r"ematix-flow-spark\[alerts\]"):
            open_alerter(url)
