#!/usr/bin/env python3
"""A Kubernetes extension API server: namespaced `books` of library.example.com/v1, kept in memory.

    library.py /run/library.sock

Plain HTTP with the standard library alone. `narthex sidecar` in front of it authenticates and authorizes clients and sends
their identity in X-Remote-User and X-Remote-Group. So only the sidecar may be able to reach this server.
"""
import json, os, sys, threading, time, uuid
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer
from urllib.parse import parse_qsl, urlsplit

GROUP, VERSION = "library.example.com", "library.example.com/v1"
BOOKS = {"kind": "Book", "name": "books", "singularName": "book", "namespaced": True,
         "verbs": ["create", "delete", "get", "list", "patch", "watch"]}
DISCOVERY = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION, "resources": [BOOKS]}

changed = threading.Condition()   # guards both of these, and wakes those who watch
books = {}                        # (namespace, name) -> object
events = []                       # (type, object), from resourceVersion 1 on; a real server would forget the oldest


def publish(kind, book):
    """The object with the next resourceVersion, told to all who watch; with `changed` held."""
    book = book | {"metadata": book["metadata"] | {"resourceVersion": str(len(events) + 1)}}
    events.append((kind, book))
    changed.notify_all()
    return book


def merge(old, patch):
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    old = old if isinstance(old, dict) else {}
    merged = old | {key: merge(old.get(key), value) for key, value in patch.items()}
    return {key: value for key, value in merged.items() if value is not None}


class Library(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do(self):
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match self.command, *url.path.split("/")[1:]:
            case "GET", "apis", "library.example.com", "v1":
                self.answer(200, DISCOVERY)
            case "GET", "apis", "library.example.com", "v1", "books":
                self.several(None, query)
            case "GET", "apis", "library.example.com", "v1", "namespaces", namespace, "books":
                self.several(namespace, query)
            case "POST", "apis", "library.example.com", "v1", "namespaces", namespace, "books":
                self.create(namespace, json.loads(body))
            case "GET" | "PATCH" | "DELETE", "apis", "library.example.com", "v1", "namespaces", namespace, "books", name:
                self.one(namespace, name, body)
            case _:
                self.fail(404, "NotFound", "the server could not find the requested resource")

    do_GET = do_POST = do_PATCH = do_DELETE = do
    address_string = lambda self: "sidecar"   # for the log: a socket has no address

    def create(self, namespace, book):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        name = book["metadata"].get("name") or book["metadata"].get("generateName", "book-") + uuid.uuid4().hex[:5]
        ours = {"name": name, "namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now}
        # Nobody but the sidecar says this, and it says only what is so.
        lender = {"lender": self.headers["X-Remote-User"], "groups": self.headers.get_all("X-Remote-Group", [])}
        with changed:
            if (namespace, name) in books:
                return self.fail(409, "AlreadyExists", f'books.{GROUP} "{name}" already exists')
            book = publish("ADDED", book | {"metadata": book["metadata"] | ours, "status": lender})
            books[namespace, name] = book
        self.answer(201, book)

    def one(self, namespace, name, body):
        with changed:
            book = books.get((namespace, name))
            if book is None:
                return self.fail(404, "NotFound", f'books.{GROUP} "{name}" not found')
            if self.command == "DELETE":
                book = publish("DELETED", books.pop((namespace, name)))
            if self.command == "PATCH":
                if self.headers["Content-Type"] != "application/merge-patch+json":
                    return self.fail(415, "UnsupportedMediaType", "only application/merge-patch+json is understood")
                patch = json.loads(body)
                # All else of metadata, and the status, are ours to say.
                told = {key: patch.get("metadata", {}).get(key, {}) for key in ("labels", "annotations")}
                book = publish("MODIFIED", merge(book, {"metadata": told, "spec": patch.get("spec", {})}))
                books[namespace, name] = book
        self.answer(200, book)

    def several(self, namespace, query):
        name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        fits = lambda it: namespace in (None, it["metadata"]["namespace"]) and name in ("", it["metadata"]["name"])
        if query.get("watch") in ("1", "true"):
            return self.watch(fits, int(query.get("resourceVersion") or 0), float(query.get("timeoutSeconds", 1800)))
        with changed:
            items, metadata = list(filter(fits, books.values())), {"resourceVersion": str(len(events))}
        self.answer(200, {"kind": "BookList", "apiVersion": VERSION, "metadata": metadata, "items": items})

    def watch(self, fits, seen, seconds):
        self.begin(200, "Transfer-Encoding", "chunked")
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with changed:
                changed.wait_for(lambda: len(events) > seen, timeout=left)
                fresh, seen = events[seen:], len(events)
            for kind, book in fresh:
                if fits(book):
                    line = json.dumps({"type": kind, "object": book}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def fail(self, code, reason, message):
        self.answer(code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
                           "reason": reason, "code": code})

    def answer(self, code, document):
        body = json.dumps(document).encode()
        self.begin(code, "Content-Length", len(body))
        self.wfile.write(body)

    def begin(self, code, *framing):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header(*framing)
        self.end_headers()


if __name__ == "__main__":
    socket = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    if os.path.exists(socket):
        os.unlink(socket)
    os.umask(0o077)               # only who runs this may connect
    server = ThreadingUnixStreamServer(socket, Library)
    server.daemon_threads = True
    server.serve_forever()
