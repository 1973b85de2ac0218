"""A stand-in for a Kubernetes API server: it keeps what kubectl sends, and does nothing with it. No controllers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Document = dict[str, Any]

RESOURCES = {
    "/api/v1": {"configmaps": "ConfigMap", "pods": "Pod"},
    "/apis/ray.io/v1": {"rayjobs": "RayJob"},
    "/apis/networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
}


class Server(ThreadingHTTPServer):
    """Objects by path of their collection and name."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[tuple[str, str], Document] = {}
        self.created: list[str] = []
        self.forbids = ""

    def put_status(self, name: str, **status: Any) -> None:
        """Says how a RayJob is, in the operator's place."""
        (job,) = (o for (_, n), o in self.objects.items() if n == name and o["kind"] == "RayJob")
        job["status"] = status


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def _answer(self, body: Document, code: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, code: int, reason: str, message: str) -> None:
        said = {"status": "Failure", "reason": reason, "message": message, "code": code}
        self._answer({"kind": "Status", "apiVersion": "v1", **said}, code)

    def _kind(self, path: str) -> str:
        return next(kinds[path.rpartition("/")[2]] for kinds in RESOURCES.values() if path.rpartition("/")[2] in kinds)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/api":
            self._answer({"kind": "APIVersions", "versions": ["v1"]})
        elif url.path == "/apis":
            groups = [path.split("/")[2] for path in RESOURCES if path.startswith("/apis/")]
            versions = [{"groupVersion": f"{group}/v1", "version": "v1"} for group in groups]
            named = [
                {"name": v["groupVersion"].split("/")[0], "versions": [v], "preferredVersion": v} for v in versions
            ]
            self._answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": named})
        elif url.path in RESOURCES:
            known = [
                {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True,
                 "verbs": ["create", "delete", "get", "list"]}
                for plural, kind in RESOURCES[url.path].items()
            ]  # fmt: skip
            version = url.path.removeprefix("/apis/").removeprefix("/api/")
            self._answer({"kind": "APIResourceList", "groupVersion": version, "resources": known})
        elif url.path == "/openapi/v3":
            self._answer({"paths": {p[1:]: {"serverRelativeURL": f"/openapi/v3{p}"} for p in RESOURCES}})
        elif url.path.removeprefix("/openapi/v3") in RESOURCES:
            self._answer(_fields(url.path.removeprefix("/openapi/v3")))
        elif "/namespaces/" in url.path:
            selector = parse_qs(url.query).get("labelSelector", [""])[0]
            found = [o for (path, _), o in self.server.objects.items() if path == url.path and _matches(o, selector)]
            version = found[0]["apiVersion"] if found else "v1"
            kind = f"{self._kind(url.path)}List"
            self._answer({"kind": kind, "apiVersion": version, "metadata": {}, "items": found})
        else:
            self._refuse(404, "NotFound", url.path)

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = made["metadata"]["name"]
        if made["kind"] == self.server.forbids:
            self._refuse(403, "Forbidden", f"{made['kind']} {name} is forbidden")
        elif (path, name) in self.server.objects:
            self._refuse(409, "AlreadyExists", f"{name} already exists")
        else:
            self.server.objects[path, name] = made
            self.server.created.append(f"{made['kind']} {name}")
            self._answer(made, 201)

    def do_DELETE(self) -> None:
        path, _, name = urlsplit(self.path).path.rpartition("/")
        gone = self.server.objects.pop((path, name), None)
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"} if gone else {}, 200 if gone else 404)


def _fields(path: str) -> Document:
    """Says that this server would check fields, as kubectl wants to know before it sends any."""
    group = path.split("/")[2] if path.startswith("/apis/") else ""
    asked = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {
        f"{path}/namespaces/{{namespace}}/{plural}/{{name}}": {
            "patch": {
                "parameters": asked, "responses": {},
                "x-kubernetes-group-version-kind": {"group": group, "version": "v1", "kind": kind},
            }
        }
        for plural, kind in RESOURCES[path].items()
    }  # fmt: skip
    return {"openapi": "3.0.0", "info": {"title": "stand-in", "version": "1"}, "paths": paths}


def _matches(document: Document, selector: str) -> bool:
    labels = document["metadata"].get("labels", {})
    return all(labels.get(part.partition("=")[0]) == part.partition("=")[2] for part in selector.split(",") if part)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Server, Path]]:
    """The server, and a configuration of kubectl that leads to it."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        config = folder / "kubeconfig"
        address = f"http://127.0.0.1:{server.server_address[1]}"
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": address}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "users": [{"name": "me", "user": {}}],
        }  # fmt: skip
        config.write_text(json.dumps(content))
        try:
            yield server, config
        finally:
            server.shutdown()
            thread.join()
