"""Names of models: what each means, what is near, and that nobody reaches what another tenant has."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.gateway.serving.versions import Names, reference
from marlaas.engine.store.rows import VersionRow
from marlaas.engine.wire import Refusal

from .clientele import Clientele


def names(clientele: Clientele, tenant: str = "lab", base: str = "org/tiny") -> Names:
    return Names(clientele.store.served, tenant, base)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("base", "org/tiny"),
        ("org/tiny", "org/tiny"),
        ("1", "1@2"),
        ("1@best", "1@2"),
        ("1@newest", "1@3"),
        ("1@last", "1@3"),
        ("1@0", "1@0"),
        ("sums@1", "1@1"),
        ("lab/sums", "1@2"),
        ("2/player", "2/player@1"),
        ("2/player@0", "2/player@0"),
        ("2/judge@newest", "2/judge@0"),
        ("t1-policy-v3", "1@3"),
        ("base:1@best", "1@2"),
        ("base:2/judge", "2/judge@0"),
    ],
)
def test_what_a_name_means(clientele: Clientele, said: str, meant: str) -> None:
    found = names(clientele).find(said)
    assert found.name == meant and (found.version is None) == (meant == "org/tiny")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("1@9", "There is no model '1@9'. Did you mean '1@"),
        ("1@bset", "Did you mean '1@best'?"),
        ("2", "There is no model '2'. The task '2' has the policies player, judge. Say which: 2/judge."),
        ("2/playr@1", "Did you mean '2/player@1'?"),
        ("bsae", "Did you mean 'base'"),
        ("", "There is no model ''. GET /v1/models lists what there is."),
        ("9" * 5000, f"There is no model '{'9' * 80}…'."),
        ("3", "There is no model '3'."),
        ("3@1", "There is no model '3@1'. Did you mean '1@1'?"),
        ("t3-policy-v1", "There is no model 't3-policy-v1'."),
        ("club/secret-sums", "There is no model 'club/secret-sums'. GET"),
    ],
)
def test_what_is_unknown_is_told_with_what_is_near(clientele: Clientele, said: str, sentence: str) -> None:
    with pytest.raises(Refusal) as refused:
        names(clientele, base="base").find(said)
    assert (refused.value.status, refused.value.code, refused.value.where) == (404, "model_not_found", "model")
    assert sentence in refused.value.message


def test_a_list_of_models(clientele: Clientele) -> None:
    models = names(clientele).models()
    assert [model.id for model in models] == [
        "org/tiny",
        "2/player@newest",
        "2/judge@newest",
        "1@best",
        "1@newest",
    ]
    assert {model.parent for model in models[1:]} == {"org/tiny"} and not models[0].parent
    assert {model.owner for model in models[1:]} == {"lab"}
    assert [model.id for model in names(clientele, "club").models()] == ["org/tiny", "3@newest"]
    assert [model.id for model in names(clientele, "nobody").models()] == ["org/tiny"]


def test_names_that_tenants_give(own: Clientele) -> None:
    served, mine, theirs = own.store.served, names(own), names(own, "club")
    served.give("lab", "prod", own.version("lab", "1@1").id)
    served.give("club", "prod", own.version("club", "3@0").id)
    assert mine.find("prod").name == "1@1" and theirs.find("prod").name == "3@0"
    assert mine.find("base:prod").name == "1@1"
    assert [model.id for model in mine.models()][-1] == "prod"
    served.give("lab", "prod", own.version("lab", "1@2").id)
    assert mine.find("prod").name == "1@2" and theirs.find("prod").name == "3@0"
    own.store.versions.prune(own.version("lab", "1@2").id)
    with pytest.raises(Refusal, match="not on the disk any more"):
        mine.find("prod")
    assert served.take("lab", "prod") and not served.take("lab", "prod")
    assert theirs.find("prod").name == "3@0"
    with pytest.raises(Refusal, match="There is no model 'prod'"):
        mine.find("prod")


def test_versions_of_another_base_are_not_there(own: Clientele) -> None:
    own.store.served._fingerprint = "another"
    own.store.tasks.adopt(own.base.fingerprint)
    assert [model.id for model in names(own).models()] == ["org/tiny"]


PARTS = (
    *("1", "2", "3", "4", "0", "@", "/", ":", "best", "newest", "last", "player", "judge", "policy", "sums"),
    *("secret-sums", "club", "lab", "t3-policy-v1", "t1-policy-v0", "prod", "theirs", "base", "%", "_", "'", " "),
    *("\x00", "-1", "1e3", "٣", "\ud800"),
)
TENANTS = ("lab", "club", "nobody", "", "lab%", "Lab")
WORDS = st.lists(st.sampled_from(PARTS), max_size=6).map("".join) | st.text()


@given(st.sampled_from(TENANTS), WORDS)
def test_nobody_reaches_what_another_tenant_has(clientele: Clientele, tenant: str, said: str) -> None:
    found: VersionRow | None = None
    try:
        found = names(clientele, tenant).find(said).version
    except Refusal as refusal:
        own = {reference(row) for row in clientele.store.served.versions(tenant)}
        told = refusal.message.partition("Did you mean ")[2].split("'")[1::2]
        assert all(name in own or name in [m.id for m in names(clientele, tenant).models()] for name in told[:1])
        assert refusal.status == 404
    assert found is None or found.tenant == tenant
