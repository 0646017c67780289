"""Names of models: what each means, what is near, and that nobody sees what another tenant has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.gateway.serving.clients import Names
from marlaas.engine.wire import Refusal

from ...examples import examples
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


def test_every_name_that_works_has_a_model(clientele: Clientele) -> None:
    mine = names(clientele)
    assert (mine.model("base").id, mine.model("base").parent) == ("base", "")
    assert (mine.model("sums@1").id, mine.model("sums@1").parent) == ("sums@1", "org/tiny")
    with pytest.raises(Refusal, match=r"There is no model '1@9'\."):
        mine.model("1@9")


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
    mine = names(own)
    for number in range(2):
        own.store.served.give("lab", "prod", own.version("lab", f"1@{number}").id)
        assert mine.find("prod").name == mine.find("base:prod").name == f"1@{number}"
    assert [model.id for model in mine.models()][-1] == "prod"
    own.store.versions.prune(own.version("lab", "1@1").id)
    with pytest.raises(Refusal, match="not on the disk any more"):
        mine.find("prod")
    with pytest.raises(Refusal, match="There is no model 'prod'"):
        names(own, "club").find("prod")


def test_versions_of_another_base_are_not_there(own: Clientele) -> None:
    own.store.served._fingerprint = "another"
    own.store.tasks.adopt(own.base.fingerprint)
    assert [model.id for model in names(own).models()] == ["org/tiny"]


TENANTS = ("lab", "club")

TASKS = {"lab": ("sums", "duel"), "club": ("secret-sums",)}

BASES = ("", "base:", "org/tiny:", "org/tiny:base:")

OWNERS = ("1", "2", "3", "4", "03", "3.0", "+3", "\u0663", "prod", "only-lab", "only-club", "", "*", "%")

NAMES = ("sums", "duel", "secret-sums", "Secret-Sums", "secret_sums", "%", "prod")

POLICIES = ("", "/policy", "/player", "/judge", "/", "/../3", "/POLICY")

VERSIONS = ("", "@0", "@1", "@2", "@3", "@best", "@newest", "@last", "@BEST", "@-1", "@ 1", "@1 ", "@")

ODD = ("", "", "", " ", "\x00", "#", "?", "//", "%40", "'--", "\ud800")
"""Put before or behind."""


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """Of whatever either tenant has, and of what looks like it."""
    owner = draw(
        st.sampled_from(OWNERS)
        | st.tuples(st.sampled_from((*TENANTS, "Lab", "lab%", "")), st.sampled_from(NAMES)).map("/".join)
    )
    plain = draw(st.sampled_from(BASES)) + owner + draw(st.sampled_from(POLICIES)) + draw(st.sampled_from(VERSIONS))
    file = (
        f"t{draw(st.integers(0, 4))}-{draw(st.sampled_from(('policy', 'player', 'judge')))}-v{draw(st.integers(0, 4))}"
    )
    said = draw(st.sampled_from((plain, plain, plain, draw(st.sampled_from(BASES)) + file)))
    return draw(st.sampled_from(ODD)) + said + draw(st.sampled_from(ODD))


@dataclass(frozen=True)
class Worlds:
    """What a tenant sees in a home that it shares, and in one in which all others have nothing, or something else."""

    shared: Names
    alone: Names


def seen(clientele: Clientele, tenant: str) -> Names:
    return Names(clientele.store.served, tenant, "org/tiny")


def furnished(clientele: Clientele) -> Clientele:
    """Both tenants give names to versions; one of them is the same for both."""
    for tenant, name in zip(TENANTS, ("1@1", "3@0"), strict=True):
        version = clientele.version(tenant, name)
        clientele.store.served.give(tenant, "prod", version.id)
        clientele.store.served.give(tenant, f"only-{tenant}", version.id)
    return clientele


def emptied(clientele: Clientele, others: str) -> Clientele:
    """A tenant's tasks have other names, none of their versions is there, and it has given no name."""
    for row in clientele.store.served.versions(others):
        clientele.store.versions.prune(row.id)
    for name in list(clientele.store.served.names(others)):
        clientele.store.served.take(others, name)
    clientele.store.served._db.execute("UPDATE tasks SET name = 'x' || id WHERE tenant = ?", [others])
    assert not clientele.store.served.versions(others)
    return clientele


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worlds]]:
    homes = [furnished(Clientele(tmp_path_factory.mktemp(name))) for name in ("shared", *TENANTS)]
    shared = homes[0]
    made = {
        tenant: Worlds(seen(shared, tenant), seen(emptied(home, others), tenant))
        for tenant, others, home in zip(TENANTS, TENANTS[::-1], homes[1:], strict=True)
    }
    yield made
    for home in homes:
        home.store.close()


def answer(names: Names, said: str) -> str | tuple[int, str, str]:
    """The version's full name, or all that is said of its absence."""
    try:
        return names.find(said).name
    except Refusal as refusal:
        return refusal.status, refusal.code, refusal.message


@pytest.mark.parametrize("tenant", TENANTS)
@settings(max_examples=examples(60))
@given(spellings() | st.text())
def test_what_others_have_changes_no_answer(worlds: dict[str, Worlds], tenant: str, said: str) -> None:
    world = worlds[tenant]
    assert answer(world.shared, said) == answer(world.alone, said)
