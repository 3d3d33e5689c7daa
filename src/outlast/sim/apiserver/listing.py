"""Lists: pages at one revision, and what a resourceVersion asks for.

A continued list shows the collection as it was when the first page was read; once that revision is
forgotten the answer is 410.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from outlast.sim.apiserver.errors import ApiError, Cause, bad_request, expired, options_invalid
from outlast.sim.apiserver.resources import Resource
from outlast.sim.apiserver.selectors import Selection
from outlast.sim.apiserver.storage import Entry, Key
from outlast.sim.apiserver.store import Store


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of a list."""

    entries: Sequence[Entry]
    version: int
    token: str = ""
    remaining: int | None = None

    def meta(self) -> dict[str, Any]:
        """ListMeta."""
        meta: dict[str, Any] = {"resourceVersion": str(self.version)}
        if self.token:
            meta["continue"] = self.token
        if self.remaining is not None:
            meta["remainingItemCount"] = self.remaining
        return meta


def _forbidden(field: str, why: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {why}", field)


def check_options(query: Mapping[str, str], *, watch: bool) -> None:
    """Refuse options that contradict each other with 422."""
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    causes = []
    if watch:
        initial = query.get("sendInitialEvents")
        if initial is not None and match != "NotOlderThan":
            why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            causes.append(_forbidden("resourceVersionMatch", why))
        if match and initial is None:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            causes.append(_forbidden("resourceVersionMatch", why))
    else:
        if query.get("sendInitialEvents") is not None:
            causes.append(_forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
        if match and not version:
            why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            causes.append(_forbidden("resourceVersionMatch", why))
        if match and query.get("continue"):
            why = "resourceVersionMatch is forbidden when continue is provided"
            causes.append(_forbidden("resourceVersionMatch", why))
        if match == "Exact" and version == "0":
            why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            causes.append(_forbidden("resourceVersionMatch", why))
        if match not in ("", "Exact", "NotOlderThan"):
            listed = 'supported values: "Exact", "NotOlderThan", ""'
            causes.append(
                Cause(
                    "FieldValueNotSupported",
                    f'Unsupported value: "{match}": {listed}',
                    "resourceVersionMatch",
                )
            )
    if causes:
        raise options_invalid("ListOptions", causes)


def parse_version(text: str) -> int:
    """A resourceVersion of a request. Refused with 400."""
    if not text:
        return 0
    if not text.isdecimal():
        raise bad_request(
            f'invalid resource version: resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing '
            f'"{text}": invalid syntax'
        )
    return int(text)


def too_large(version: int, current: int) -> ApiError:
    """504: a revision that the server has not reached."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {version}, current: {current}"
    return ApiError(504, "Timeout", message, details=details, headers={"Retry-After": "1"})


def page(store: Store, resource: Resource, selection: Selection, query: Mapping[str, str]) -> Page:
    """The entries that a list request asks for. Refused with 400, 410, 422, 504."""
    check_options(query, watch=False)
    limit = _limit(query.get("limit", ""))
    collection = store.collection(resource)
    version, after = store.storage.version, None
    asked = parse_version(query.get("resourceVersion", ""))
    match = query.get("resourceVersionMatch", "")
    if token := query.get("continue", ""):
        if asked:
            raise bad_request("specifying resource version is not allowed when using continue")
        version, after = _read_token(token)
        if version < 0:
            version = store.storage.version
        elif version < collection.compacted:
            raise _expired_token(store, after)
    elif asked > store.storage.version:
        raise too_large(asked, store.storage.version)
    elif match == "Exact" or (asked and not match and limit):
        if asked < collection.compacted:
            raise expired(f"The resourceVersion for the provided list is too old: {asked}")
        version = asked
    elif query.get("resourceVersion") == "0":
        limit = 0
    entries, keys = collection.at(version)
    selects = selection.predicate()
    start, end = _span(keys, selection.namespace)
    if after is not None:
        start = bisect_right(keys, after)
    chosen: list[Entry] = []
    for position in range(start, end):
        if limit and len(chosen) == limit:
            # As in etcd, what remains is counted before anything is selected: the next page may be empty.
            left = None if selection.labels or selection.fields else end - position
            return Page(chosen, version, _token(version, keys[position - 1]), left)
        entry = entries[keys[position]]
        if selects(entry):
            chosen.append(entry)
    return Page(chosen, version)


def _span(keys: Sequence[Key], namespace: str) -> tuple[int, int]:
    """Where the keys of a namespace stand; all keys for no namespace."""
    if not namespace:
        return 0, len(keys)
    return bisect_left(keys, (namespace, "")), bisect_left(keys, (namespace + "\0", ""))


def _limit(text: str) -> int:
    if not text:
        return 0
    if not text.lstrip("-").isdecimal():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return max(int(text), 0)


def _token(version: int, key: Key) -> str:
    body = msgspec.json.encode({"v": "meta.k8s.io/v1", "rv": version, "start": list(key)})
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, Key]:
    try:
        body = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, name = body["start"]
        return int(body["rv"]), (str(namespace), str(name))
    except (binascii.Error, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise bad_request(
            "invalid continue token: continue key is not valid: not issued by this server"
        ) from error


def _expired_token(store: Store, after: Key) -> ApiError:
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new "
        "list without the continue parameter, or use the continue token in this response to retrieve the "
        "remainder of the results. Continuing with the provided token results in an inconsistent list - "
        "objects that were created, modified, or deleted between the time the first chunk was returned and "
        "now may show up in the list."
    )
    error = expired(message)
    error.extra_meta = {"continue": _token(-1, after)}
    return error
