"""What a write means: preconditions, status separation, ownership, finalizers, graceful deletion.

HTTP requests and in-process callers (simulated kubelets, the small controllers) go through the same
methods. Everything here is synchronous, so each write is atomic on the event loop.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from outlast.sim.apiserver import errors, strategy
from outlast.sim.apiserver.apply import apply_config
from outlast.sim.apiserver.crd import accepted_status, definition_problems, to_resource
from outlast.sim.apiserver.deletion import (
    begin_deletion,
    check_deletion,
    deletion_grace_s,
    set_propagation_finalizer,
)
from outlast.sim.apiserver.envelope import (
    as_object,
    check_envelope,
    check_name,
    check_preconditions,
    decode_fields,
    encoded,
    keep_identity,
    name_suffix,
)
from outlast.sim.apiserver.errors import ApiError, Cause
from outlast.sim.apiserver.options import (
    APPLY,
    JSON,
    MERGE,
    STRATEGIC,
    Deletion,
    KindRef,
    Writer,
    timestamp,
)
from outlast.sim.apiserver.ownership import track_update
from outlast.sim.apiserver.patch import json_patch, merge_patch
from outlast.sim.apiserver.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    Catalogue,
    Resource,
    built_in,
)
from outlast.sim.apiserver.selectors import Selection, parse_fields, parse_labels
from outlast.sim.apiserver.storage import Collection, Entry, Storage
from outlast.sim.apiserver.strategic import strategic_merge

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
Mutation = Callable[[dict[str, Any]], dict[str, Any]]


class Store:
    """All objects, with the semantics of a kube-apiserver. Refusals are `ApiError`."""

    def __init__(
        self, now: Callable[[], datetime], new_uid: Callable[[], str] = lambda: str(uuid.uuid4())
    ) -> None:
        self.now = now
        self.new_uid = new_uid
        self.catalogue: Catalogue = built_in()
        self.storage = Storage()
        for name in SYSTEM_NAMESPACES:
            self.create(NAMESPACES, {"metadata": {"name": name}})

    # -- reading ----------------------------------------------------------------------------

    def resource(self, kind: KindRef) -> Resource:
        """The served row of a kind. Refused with 404 where it is not served."""
        if isinstance(kind, Resource):
            return kind
        found = self.catalogue.by_api_version(kind.api_version, kind.plural)
        if found is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource", details={})
        return found

    def collection(self, resource: Resource) -> Collection:
        """The stored collection behind a kind."""
        return self.storage.collection(resource.key, resource.triggers)

    def entry(self, kind: KindRef, name: str, namespace: str = "") -> Entry:
        """One stored object. Refused with 404."""
        resource = self.resource(kind)
        found = self.collection(resource).entries.get((namespace, name))
        if found is None:
            raise errors.not_found(resource, name)
        return found

    def get(self, kind: KindRef, name: str, namespace: str = "") -> dict[str, Any]:
        """One object as a copy. Refused with 404."""
        return self.entry(kind, name, namespace).decode()

    def select(self, resource: Resource, namespace: str, labels: str, fields: str) -> Selection:
        """A selection from selector texts. Refused with 400."""
        return Selection(namespace, parse_labels(labels), parse_fields(fields, resource.fields))

    def entries(
        self, kind: KindRef, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Sequence[Entry]:
        """Stored objects in key order."""
        resource = self.resource(kind)
        selects = self.select(resource, namespace, label_selector, field_selector).predicate()
        collection = self.collection(resource)
        return [e for k in collection.keys if selects(e := collection.entries[k])]

    def list(
        self, kind: KindRef, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Sequence[dict[str, Any]]:
        """Objects as copies, in key order."""
        found = self.entries(kind, namespace, label_selector=label_selector, field_selector=field_selector)
        return [entry.decode() for entry in found]

    # -- writing ----------------------------------------------------------------------------

    def create(
        self, kind: KindRef, obj: dict[str, Any], namespace: str = "", writer: Writer | None = None
    ) -> Entry:
        """Store a new object. Refused with 409 AlreadyExists, 422."""
        resource, writer = self.resource(kind), writer or Writer()
        obj = as_object(resource, obj)
        meta = obj["metadata"]
        check_envelope(resource, obj, namespace)
        decode_fields(resource, obj, writer)
        name = meta.get("name") or ""
        if not name and meta.get("generateName"):
            name = meta["name"] = meta["generateName"] + name_suffix(self.new_uid())
        check_name(resource, name)
        key = (namespace, name) if resource.namespaced else ("", name)
        if key in self.collection(resource).entries:
            raise errors.already_exists(resource, name)
        if resource.namespaced:
            meta["namespace"] = namespace
            self._ensure_namespace(namespace)
        meta["uid"] = self.new_uid()
        meta["creationTimestamp"] = timestamp(self.now())
        for server_owned in (
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "resourceVersion",
        ):
            meta.pop(server_owned, None)
        managed = meta.pop("managedFields", None)
        strategy.prepare_create(resource, obj)
        self._validate(resource, obj, None, writer, "")
        if managed and writer.manager == "":
            meta["managedFields"] = managed
        else:
            empty: dict[str, Any] = {"metadata": {}}
            asked = {k: v for k, v in obj.items() if k != "status"}
            meta["managedFields"] = self._track(resource, empty, asked, writer, "")
        strategy.admit_create(resource, obj)
        entry = self._store(resource, obj, writer)
        if resource is CUSTOM_RESOURCE_DEFINITIONS and not writer.dry_run:
            entry = self._serve(entry)
        return entry

    def _serve(self, entry: Entry) -> Entry:
        """Serve the kind of a definition, and say so in its status."""
        definition = entry.decode()
        self.catalogue.add(to_resource(definition))
        status = accepted_status(definition, timestamp(self.now()))
        return self.update(
            CUSTOM_RESOURCE_DEFINITIONS, entry.name, lambda obj: {**obj, "status": status},
            subresource="status", writer=Writer(manager="kube-apiserver"),
        )  # fmt: skip

    def update(
        self,
        kind: KindRef,
        name: str,
        mutate: Mutation,
        namespace: str = "",
        *,
        subresource: str = "",
        writer: Writer | None = None,
        put: bool = False,
    ) -> Entry:
        """Change an object by a function of its copy. Refused with 404, 409 Conflict, 422."""
        resource, writer = self.resource(kind), writer or Writer()
        entry = self.entry(resource, name, namespace)
        old = entry.decode()
        new = as_object(resource, mutate(entry.decode()))
        check_envelope(resource, new, namespace)
        given = new["metadata"].get("name") or ""
        if given != name:
            why = f"the name of the object ({given}) does not match the name on the URL ({name})"
            if not given:
                why = (
                    f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
                )
            raise errors.bad_request(why)
        decode_fields(resource, new, writer)
        check_preconditions(resource, entry, new["metadata"], put=put, subresource=subresource)
        new = strategy.prepare_update(resource, old, new, subresource)
        keep_identity(resource, name, old["metadata"], new["metadata"])
        if not subresource and resource.generation and strategy.asks_differently(resource, old, new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        self._validate(resource, new, old, writer, subresource)
        new["metadata"]["managedFields"] = self._track(resource, old, new, writer, subresource)
        return self._finish(resource, entry, old, new, writer)

    def patch(
        self,
        kind: KindRef,
        name: str,
        content_type: str,
        body: Any,
        namespace: str = "",
        *,
        subresource: str = "",
        writer: Writer | None = None,
    ) -> Entry:
        """Change an object by a patch of one of the four content types. Refused as `update`, and 415."""
        resource, writer = self.resource(kind), writer or Writer()
        if content_type == APPLY:
            return self.apply(resource, name, body, namespace, subresource=subresource, writer=writer)
        if content_type == JSON:
            mutate: Mutation = lambda obj: json_patch(obj, body)  # noqa: E731
        elif content_type == MERGE:
            mutate = lambda obj: merge_patch(obj, body)  # noqa: E731
        elif content_type == STRATEGIC and resource.custom is None:
            mutate = lambda obj: strategic_merge(obj, body, resource.shape)  # noqa: E731
        else:
            accepted = (
                (JSON, MERGE, APPLY) if resource.custom is not None else (JSON, MERGE, STRATEGIC, APPLY)
            )
            raise errors.unsupported_media(accepted)
        if content_type == MERGE and not isinstance(body, dict):
            raise errors.bad_request("error decoding patch: the patch is not an object")
        try:
            return self.update(resource, name, mutate, namespace, subresource=subresource, writer=writer)
        except errors.Undecodable as error:
            raise errors.unpatchable(error, body) from error

    def apply(
        self,
        kind: KindRef,
        name: str,
        config: Any,
        namespace: str = "",
        *,
        subresource: str = "",
        writer: Writer | None = None,
    ) -> Entry:
        """Server-side apply. Refused with 409 Conflict where another manager owns a field."""
        resource, writer = self.resource(kind), writer or Writer()
        config = as_object(resource, config)
        if config["metadata"].get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        check_envelope(resource, config, namespace)
        config["metadata"].setdefault("name", name)
        decode_fields(resource, config, writer)
        existing = self.collection(resource).entries.get((namespace if resource.namespaced else "", name))
        if existing is None:
            if subresource:
                raise errors.not_found(resource, name)
            return self._create_by_apply(resource, config, namespace, writer)
        old = existing.decode()
        merged, managed = apply_config(
            resource,
            existing.decode(),
            config,
            writer=writer,
            subresource=subresource,
            now=timestamp(self.now()),
        )
        check_preconditions(resource, existing, config["metadata"], put=False, subresource=subresource)
        new = strategy.prepare_update(resource, existing.decode(), merged, subresource)
        keep_identity(resource, name, old["metadata"], new["metadata"])
        if not subresource and resource.generation and strategy.asks_differently(resource, old, new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        self._validate(resource, new, old, writer, subresource)
        new["metadata"]["managedFields"] = managed
        return self._finish(resource, existing, old, new, writer)

    def _create_by_apply(
        self, resource: Resource, config: dict[str, Any], namespace: str, writer: Writer
    ) -> Entry:
        empty: dict[str, Any] = {"metadata": {}}
        _, managed = apply_config(
            resource, empty, config, writer=writer, subresource="", now=timestamp(self.now())
        )
        config["metadata"]["managedFields"] = managed
        return self.create(resource, config, namespace, replace(writer, manager=""))

    # -- deleting ---------------------------------------------------------------------------

    def delete(
        self,
        kind: KindRef,
        name: str,
        namespace: str = "",
        options: Deletion | None = None,
        writer: Writer | None = None,
    ) -> tuple[Entry, bool]:
        """Delete or begin to delete; the last state, and whether the object is gone."""
        resource, writer, options = self.resource(kind), writer or Writer(), options or Deletion()
        entry = self.entry(resource, name, namespace)
        check_deletion(resource, entry, options)
        obj = entry.decode()
        meta = obj["metadata"]
        if resource is NAMESPACES and obj["spec"].get("finalizers"):
            return self._terminate(entry, obj, writer), False
        grace_s = deletion_grace_s(resource, obj, options)
        set_propagation_finalizer(
            resource, meta, options, writer, has_dependents=bool(self.storage.dependents.get(meta["uid"]))
        )
        if not meta.get("finalizers") and grace_s == 0:
            if resource.graceful:
                begin_deletion(meta, 0, self.now())
            return self._remove(resource, entry, obj, writer), True
        if meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds", 0) <= grace_s:
            if obj["metadata"].get("finalizers") == entry.decode()["metadata"].get("finalizers"):
                return entry, False
        else:
            begin_deletion(meta, grace_s, self.now())
        return self._store(resource, obj, writer), False

    def _terminate(self, entry: Entry, obj: dict[str, Any], writer: Writer) -> Entry:
        """Begin to empty a namespace."""
        if obj["metadata"].get("deletionTimestamp"):
            return entry
        begin_deletion(obj["metadata"], 0, self.now())
        obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        return self._store(NAMESPACES, obj, writer)

    def delete_collection(
        self, kind: KindRef, selection: Selection, options: Deletion, writer: Writer | None = None
    ) -> Sequence[Entry]:
        """Delete all that are selected; their last states."""
        resource = self.resource(kind)
        collection, selects = self.collection(resource), selection.predicate()
        chosen = [e for k in collection.keys if selects(e := collection.entries[k])]
        return [self.delete(resource, e.name, e.namespace, options, writer)[0] for e in chosen]

    # -- common steps -----------------------------------------------------------------------

    def _finish(
        self, resource: Resource, entry: Entry, old: dict[str, Any], new: dict[str, Any], writer: Writer
    ) -> Entry:
        if old == new:
            return entry
        meta = new["metadata"]
        done = meta.get("deletionTimestamp") and not meta.get("finalizers")
        if done and not meta.get("deletionGracePeriodSeconds"):
            return self._remove(resource, entry, new, writer)
        stored = self._store(resource, new, writer)
        if resource is CUSTOM_RESOURCE_DEFINITIONS and not writer.dry_run and old["spec"] != new["spec"]:
            return self._serve(stored)
        return stored

    def _store(self, resource: Resource, obj: dict[str, Any], writer: Writer) -> Entry:
        version = self.storage.version if writer.dry_run else self.storage.version + 1
        entry = encoded(resource, obj, version)
        if not writer.dry_run:
            self.storage.version = version
            self.collection(resource)
            self.storage.put(resource.key, entry)
        return entry

    def _remove(self, resource: Resource, entry: Entry, obj: dict[str, Any], writer: Writer) -> Entry:
        if writer.dry_run:
            return entry
        version = self.storage.next_version()
        last = encoded(resource, obj, version)
        self.storage.remove(resource.key, last)
        if resource is CUSTOM_RESOURCE_DEFINITIONS:
            self._stop_serving(obj)
        return last

    def _stop_serving(self, definition: dict[str, Any]) -> None:
        """Delete the objects of a kind whose definition is gone, and the kind."""
        spec = definition["spec"]
        served = self.catalogue.stored((spec["group"], spec["names"]["plural"]))
        if served is None:
            return
        for entry in list(self.collection(served).entries.values()):
            self._remove(served, entry, entry.decode(), Writer())
        self.catalogue.remove(served)

    def _track(
        self, resource: Resource, old: dict[str, Any], new: dict[str, Any], writer: Writer, subresource: str
    ) -> Any:
        return track_update(
            old,
            new,
            resource.shape,
            manager=writer.manager,
            api_version=resource.api_version,
            subresource=subresource,
            now=timestamp(self.now()),
        )

    def _validate(
        self,
        resource: Resource,
        obj: dict[str, Any],
        old: dict[str, Any] | None,
        writer: Writer,
        subresource: str,
    ) -> None:
        meta = obj["metadata"]
        causes: list[Cause] = strategy.validate_meta(meta, old["metadata"] if old is not None else {})
        if old is not None and meta.get("deletionTimestamp"):
            added = set(meta.get("finalizers") or ()) - set(old["metadata"].get("finalizers") or ())
            if added:
                listed = ", ".join(f'"{f}"' for f in sorted(added))
                why = (
                    "no new finalizers can be added if the object is being deleted, found new finalizers "
                    f"[]string{{{listed}}}"
                )
                causes.append(errors.forbidden_field("metadata.finalizers", why))
        if resource.custom is not None:
            causes.extend(resource.custom.validate(obj, old))
        elif resource is CUSTOM_RESOURCE_DEFINITIONS and not subresource:
            causes.extend(definition_problems(obj))
        elif not subresource:
            causes.extend(strategy.validate(resource, obj, old))
        if causes:
            raise errors.invalid(resource, meta.get("name", ""), causes)

    def _ensure_namespace(self, namespace: str) -> None:
        if ("", namespace) not in self.collection(NAMESPACES).entries:
            self.create(NAMESPACES, {"metadata": {"name": namespace}})


__all__ = [
    "APPLY", "JSON", "MERGE", "STRATEGIC", "SYSTEM_NAMESPACES", "Deletion", "KindRef", "Store", "Writer",
    "timestamp",
]  # fmt: skip
