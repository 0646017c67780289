"""Of all that an installer says, the line that helps."""

from __future__ import annotations

from marlaas.engine.environments.dependencies.complaint import complaint

PIP = """\
Looking in links: /w
Processing /w/a-1-py3-none-any.whl
ERROR: Could not find a version that satisfies the requirement nothing==3 (from versions: none)
ERROR: No matching distribution found for nothing==3
"""
UV = """\
Using Python 3.11.7 environment at: env
  × No solution found when resolving dependencies:
  ╰─▶ Because nothing was not found in the provided package locations and you
      require nothing==3, we can conclude that your requirements are
      unsatisfiable.

      hint: Packages were unavailable because index lookups were disabled
"""
UV_13 = """\
Using Python 3.11.7 environment at: env
error: No solution found when resolving dependencies
  cause: Because nothing was not found in the cache and you require nothing==3, we can conclude that they are lost.

hint: Packages were unavailable because the network was disabled.
"""
UV_FETCH = "Using Python 3.11.7\nerror: Failed to fetch: `https://example.org/simple/a/`\n  Caused by: no route\n"


def test_the_reason_of_a_failure() -> None:
    assert complaint(PIP) == "Could not find a version that satisfies the requirement nothing==3 (from versions: none)"
    assert complaint(UV) == (
        "Because nothing was not found in the provided package locations and you require nothing==3, we can conclude"
        " that your requirements are unsatisfiable."
    )
    assert complaint(UV_13).startswith("Because nothing was") and complaint(UV_13).endswith("they are lost.")
    assert complaint(UV_FETCH) == "Failed to fetch: `https://example.org/simple/a/`"


def test_without_a_word_for_it_the_last_line_counts() -> None:
    assert complaint("one\ntwo\n\n") == "two" and complaint("") == ""
    assert len(complaint("x" * 10_000)) == 400
