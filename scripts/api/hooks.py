"""What schemathesis does on top of its own checks: see scripts/schemathesis."""

import os

import schemathesis

# Scopes that the caller has: "all", or a list that may be empty.
SCOPES = os.environ["TENURE_TEST_SCOPES"]
WAIT_MS = 20

# A bundle is a file; its bytes are sent as they are.
schemathesis.serializer.alias("application/zip", "application/octet-stream")


@schemathesis.hook
def before_call(context, case, kwargs):
    """Claims wait for work for 5 s and more unless they say otherwise. A path keeps its segments."""
    # Clients drop such a segment before they send the path, which then is that of another operation.
    for name, value in (case.path_parameters or {}).items():
        if value in ("", ".", ".."):
            case.path_parameters[name] = "none"
    body = case.body
    if not isinstance(body, dict):
        return
    if case.path == "/internal/worker/claim":
        _wait_briefly(body)
    elif case.path == "/internal/worker/exchange" and isinstance(body.get("claim"), dict):
        _wait_briefly(body["claim"])


def _wait_briefly(claim):
    wait = claim.get("max_wait_ms")
    if wait is None or (isinstance(wait, (int, float)) and WAIT_MS < wait <= 60_000):
        claim["max_wait_ms"] = WAIT_MS


@schemathesis.check
def only_with_the_scope(ctx, response, case):
    """Nobody gets anything from an operation whose scope they lack."""
    needed = case.operation.definition.raw.get("security")
    # OPTIONS is what browsers ask before they send a credential; it says nothing.
    if not needed or SCOPES == "all" or case.method == "OPTIONS" or not 200 <= response.status_code < 300:
        return
    have = set(SCOPES.split())
    if not any(scopes and set(scopes) <= have for scheme in needed for scopes in scheme.values()):
        raise AssertionError(f"{response.status_code} without {needed}")
