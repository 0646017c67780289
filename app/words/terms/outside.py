"""The words for programs from outside: where they ask, and what they show."""

from __future__ import annotations

from .term import Term

TERMS = (
    Term(
        "API",
        "the door for programs from outside: OpenAI's and Anthropic's interfaces over HTTP, on this machine",
        names=("gateway", "server", "openai", "anthropic"),
        healthy="open only while programs need it, and never to other machines without TLS before it",
        otherwise="`marlaas api status` says whether it is open, and why not; `marlaas api stop` closes it",
        source="engine/gateway/wire.py",
    ),
    Term(
        "key",
        "what a program shows to the API: whose it is and what it may; only its hash is kept",
        names=("api key",),
        healthy="one for each program, so that one can be revoked",
        otherwise="`marlaas api key revoke PREFIX` ends one at once",
        source="engine/api/identity.py",
    ),
    Term(
        "endpoint",
        "an address and a key at which a program finds a model: a client's, or one of an episode",
        names=("base url", "episode endpoint"),
        source="engine/gateway/answerer.py",
    ),
    Term(
        "scope",
        "what a key is for: chat (ask for answers), train, admin (all that is its tenant's)",
        names=("scopes", "permission"),
        healthy="chat alone for programs that only ask",
        source="engine/api/identity.py",
    ),
)
