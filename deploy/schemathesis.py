"""Hooks of schemathesis: what a client of the API does that its document cannot say."""

import uuid

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    # A key names one request; another request with it is refused with 422.
    if case.headers and "Idempotency-Key" in case.headers:
        case.headers["Idempotency-Key"] = uuid.uuid4().hex
