"""The API server, as its administrator asks it; waiting for what comes."""

import json
import ssl
import time
import urllib.error
import urllib.request

PATIENCE_S = 60
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"


class ApiError(Exception):
    """An answer that is no success: `code`, and the server's `reason` and message."""

    def __init__(self, method, path, code, body):
        try:
            status = json.loads(body)
        except ValueError:
            status = {}
        self.code, self.reason = code, status.get("reason")
        super().__init__(f"{method} {path}: {code} {status.get('message', body[:300])}")


def until(what, condition, seconds=PATIENCE_S, every=0.1):
    """Returns the condition's first answer that is one; what raises OSError or ApiError is asked again."""
    end, last = time.monotonic() + seconds, None
    while True:
        try:
            last = condition()
            if last:
                return last
        except (ApiError, OSError) as error:
            last = error
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s in vain for {what}; last: {last}")
        time.sleep(every)


class Api:
    """Plain requests; objects are what JSON has."""

    def __init__(self, server, authority, name):
        self.server = server
        self.context = ssl.create_default_context(cafile=authority.path("ca.crt"))
        self.context.load_cert_chain(authority.path(f"{name}.crt"), authority.path(f"{name}.key"))

    def request(self, method, path, body=None, kind="application/json"):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ApiError(method, path, error.code, error.read().decode(errors="replace")) from None
        try:
            return json.loads(text)
        except ValueError:
            return text.decode(errors="replace")

    def lines(self, path):
        """The lines of an answer that does not end, as they come."""
        request = urllib.request.Request(self.server + path)
        with urllib.request.urlopen(request, context=self.context, timeout=60) as answer:
            yield from answer

    def get(self, path):
        return self.request("GET", path)

    def items(self, path):
        return self.get(path)["items"]

    def create(self, path, body):
        return self.request("POST", path, body)

    def patch(self, path, body, kind=MERGE):
        return self.request("PATCH", path, body, kind)

    def delete(self, path, grace_s=None):
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        return self.request("DELETE", path, options)
