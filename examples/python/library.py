#!/usr/bin/env python3
"""A Kubernetes extension API server: group library.example.com, version v1, namespaced `books`, kept in memory.

    library.py /run/library.sock        or        library.py 127.0.0.1:8080

Plain HTTP and nothing but the standard library: `narthex sidecar` in front of it knows clients, asks RBAC, and says
in X-Remote-User and X-Remote-Group who they are. So it must listen where nobody but the sidecar can reach it.
"""
import json, os, socket, socketserver, sys, threading, time, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

GROUP, VERSION, KIND, PLURAL = "library.example.com", "v1", "Book", "books"
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
RESOURCES = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": [
    {"name": PLURAL, "singularName": "book", "namespaced": True, "kind": KIND, "verbs": VERBS}]}
GROUP_VERSION = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
API_GROUP = {"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [GROUP_VERSION],
             "preferredVersion": GROUP_VERSION}

changed = threading.Condition()   # guards the three below, and wakes those who watch
books = {}                        # (namespace, name) -> object
events = []                       # (resourceVersion, type, object); a real server would forget the oldest
version = 0


def record(kind, book):
    """Gives the object its next resourceVersion and tells everybody; with `changed` held."""
    global version
    version += 1
    book["metadata"]["resourceVersion"] = str(version)
    events.append((version, kind, json.loads(json.dumps(book))))
    changed.notify_all()


def merge(target, patch):
    """A JSON merge patch (RFC 7386)."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


class Library(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do(self):
        url = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match url.path.strip("/").split("/"):
            case ["apis"]:
                self.answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": [API_GROUP]})
            case ["apis", "library.example.com"]:
                self.answer(200, API_GROUP)
            case ["apis", "library.example.com", "v1"]:
                self.answer(200, RESOURCES)
            case ["apis", "library.example.com", "v1", "books"]:
                self.all(None, body)
            case ["apis", "library.example.com", "v1", "namespaces", namespace, "books"]:
                self.all(namespace, body)
            case ["apis", "library.example.com", "v1", "namespaces", namespace, "books", name]:
                self.one(namespace, name, body)
            case _:
                self.fail(404, "NotFound", "the server could not find the requested resource")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do

    def all(self, namespace, body):
        if self.command == "POST" and namespace:
            return self.create(namespace, json.loads(body))
        if self.command != "GET":
            return self.fail(405, "MethodNotAllowed", "the server does not allow this method on this resource")
        inside = lambda book: namespace in (None, book["metadata"]["namespace"])
        if self.query.get("watch") in ("1", "true"):
            return self.watch(inside)
        with changed:
            self.answer(200, {"kind": "BookList", "apiVersion": f"{GROUP}/{VERSION}",
                              "metadata": {"resourceVersion": str(version)}, "items": list(filter(inside, books.values()))})

    def create(self, namespace, book):
        metadata = book.setdefault("metadata", {})
        name = metadata.get("name") or metadata.get("generateName", "book-") + uuid.uuid4().hex[:5]
        with changed:
            if (namespace, name) in books:
                return self.fail(409, "AlreadyExists", f'{PLURAL}.{GROUP} "{name}" already exists')
            metadata |= {"name": name, "namespace": namespace, "uid": str(uuid.uuid4()),
                         "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
            # Nobody but the sidecar says this, and it says only what is so.
            book["status"] = {"lender": self.headers["X-Remote-User"], "groups": self.headers.get_all("X-Remote-Group", [])}
            books[namespace, name] = book
            record("ADDED", book)
            self.answer(201, book)

    def one(self, namespace, name, body):
        with changed:
            book = books.get((namespace, name))
            if book is None:
                return self.fail(404, "NotFound", f'{PLURAL}.{GROUP} "{name}" not found')
            if self.command == "DELETE":
                record("DELETED", books.pop((namespace, name)))
            elif self.command == "PATCH" and self.headers["Content-Type"] != "application/merge-patch+json":
                return self.fail(415, "UnsupportedMediaType", "only application/merge-patch+json is understood")
            elif self.command in ("PUT", "PATCH"):
                patch = json.loads(body)
                expected = patch.get("metadata", {}).pop("resourceVersion", None)
                if expected not in (None, "", book["metadata"]["resourceVersion"]):
                    return self.fail(409, "Conflict", "the object has been modified; please apply your changes to the latest version")
                if self.command == "PUT":
                    book.pop("spec", None)
                merge(book, patch)
                record("MODIFIED", book)
            self.answer(200, book)

    def watch(self, inside):
        seen = self.query.get("resourceVersion") or "0"
        position = next((i for i, event in enumerate(events) if event[0] > int(seen)), len(events))
        end = time.monotonic() + float(self.query.get("timeoutSeconds", 1800))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while time.monotonic() < end:
            with changed:
                changed.wait_for(lambda: len(events) > position, timeout=min(1, max(0, end - time.monotonic())))
                fresh, position = events[position:], len(events)
            for _, kind, book in fresh:
                if inside(book):
                    line = json.dumps({"type": kind, "object": book}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def fail(self, code, reason, message):
        self.answer(code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                           "message": message, "reason": reason, "code": code})

    def answer(self, code, document):
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return self.headers.get("X-Forwarded-For", "-")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    server_bind = socketserver.TCPServer.server_bind   # a unix socket has no host name to look up


if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    if place.startswith("/"):
        if os.path.exists(place):
            os.unlink(place)
        os.umask(0o077)               # only who runs this may connect
        Server.address_family = socket.AF_UNIX
    else:
        host, port = place.rsplit(":", 1)
        place = (host, int(port))
    Server(place, Library).serve_forever()
