"""What the hub answers to a request: a table of routes, and one function for each.

Pure: an answer follows from the request and the repositories. Knows nothing of sockets and faults.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, unquote

from tests.support.hub_repos import Repo, StoredFile

Query = Mapping[str, Sequence[str]]
Parts = dict[str, str]


class Hub(Protocol):
    repos: Mapping[tuple[str, str], Repo]
    tokens: set[str]
    prefix: str
    page: int
    url: str
    storage: str


@dataclass(frozen=True)
class Asked:
    path: str
    query: Query
    form: Query
    token: str | None
    range: str | None


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """An answer that is raised."""

    def __init__(self, status: int, code: str, message: str):
        headers = {"X-Error-Message": message, "Content-Type": "application/json"} | (
            {"X-Error-Code": code} if code else {}
        )
        self.answer = Answer(status, json.dumps({"error": message}).encode(), headers)


def answer_to(asked: Asked, hub: Hub) -> Answer:
    for pattern, answer in ROUTES:
        if found := re.fullmatch(pattern, asked.path):
            try:
                return answer(asked, hub, {name: unquote(part or "") for name, part in found.groupdict().items()})
            except RefusedError as refusal:
                return refusal.answer
    return RefusedError(404, "", "Sorry, we can't find the page you are looking for.").answer


def as_json(value: object, **headers: str) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


# --- who may read what ------------------------------------------------------------------------------------------------


def repo_of(asked: Asked, hub: Hub, parts: Parts) -> Repo:
    """The repository, as far as the token may know of it: the hub does not tell a private one from none."""
    if asked.token is not None and asked.token not in hub.tokens:
        raise RefusedError(401, "", "Invalid credentials in Authorization header")
    repo = hub.repos.get((parts["kind"] or "models", parts["id"]))
    if repo is None or (repo.private and asked.token not in repo.readers):
        raise (
            RefusedError(401, "", "Invalid username or password.")
            if asked.token is None
            else RefusedError(404, "RepoNotFound", "Repository not found")
        )
    return repo


def commit_of(repo: Repo, revision: str) -> str:
    commit = repo.commit_of(revision or "main")
    if commit is None:
        raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return commit


def file_of(asked: Asked, repo: Repo, path: str) -> StoredFile:
    """A file, for one who may read it: of a gated repository only its listing is public."""
    if repo.gated and asked.token not in repo.readers:
        status = 401 if asked.token is None else 403
        raise RefusedError(status, "GatedRepo", f"Access to model {repo.id} is restricted.")
    if path not in repo.files:
        raise RefusedError(404, "EntryNotFound", "Entry not found")
    return repo.files[path]


# --- the API ----------------------------------------------------------------------------------------------------------


def info(asked: Asked, hub: Hub, parts: Parts) -> Answer:
    repo = repo_of(asked, hub, parts)
    blobs = asked.query.get("blobs") == ["true"]
    siblings = [{"rfilename": file.path, **(blob(file) if blobs else {})} for file in repo.files.values()]
    gated = "manual" if repo.gated else False
    known = {"id": repo.id, "sha": commit_of(repo, parts["rev"]), "private": repo.private, "gated": gated}
    return as_json({**known, "disabled": False, "tags": [], "downloads": 0, "siblings": siblings})


def blob(file: StoredFile) -> dict[str, Any]:
    lfs = {"sha256": file.sha256, "size": len(file.data), "pointerSize": 134}
    return {"size": len(file.data), "blobId": file.blob_id} | ({"lfs": lfs} if file.large else {})


def tree(asked: Asked, hub: Hub, parts: Parts) -> Answer:
    """The entries of a folder, or all below it, page by page: the next one is named by a Link header."""
    repo = repo_of(asked, hub, parts)
    commit_of(repo, parts["rev"])
    below = f"{parts['path']}/" if parts["path"] else ""
    deep = asked.query.get("recursive") == ["true"]
    entries = [entry for entry in listed(repo) if entry["path"].startswith(below)]
    entries = [entry for entry in entries if deep or "/" not in entry["path"][len(below) :]]
    if below and not entries:
        raise RefusedError(404, "EntryNotFound", f"{parts['path']} does not exist")
    first = int(asked.query.get("cursor", ["0"])[0])
    last = first + hub.page
    following = f"{hub.url}{asked.path}?recursive={str(deep).lower()}&cursor={last}"
    return as_json(entries[first:last], **({"Link": f'<{following}>; rel="next"'} if last < len(entries) else {}))


def listed(repo: Repo) -> list[dict[str, Any]]:
    folders = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in repo.folders]
    return sorted([*folders, *map(entry_of, repo.files.values())], key=lambda entry: str(entry["path"]))


def entry_of(file: StoredFile) -> dict[str, Any]:
    lfs = {"oid": file.sha256, "size": len(file.data), "pointerSize": 134}
    known = {"type": "file", "oid": file.blob_id, "size": len(file.data), "path": file.path}
    return known | ({"lfs": lfs} if file.large else {})


def paths_info(asked: Asked, hub: Hub, parts: Parts) -> Answer:
    """Those of the paths in the form that there are."""
    repo = repo_of(asked, hub, parts)
    commit_of(repo, parts["rev"])
    return as_json([entry for entry in listed(repo) if entry["path"] in asked.form.get("paths", [])])


def refs(asked: Asked, hub: Hub, parts: Parts) -> Answer:
    repo = repo_of(asked, hub, parts)
    heads = {"main": repo.commit, **repo.branches}
    named = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit} for name, commit in heads.items()]
    return as_json({"branches": named, "tags": [], "converts": []})


# --- files ------------------------------------------------------------------------------------------------------------


def resolve(asked: Asked, hub: Hub, parts: Parts) -> Answer:
    """A redirect: of a small file to a path that may be cached for ever, of a large one to signed storage elsewhere."""
    repo = repo_of(asked, hub, parts)
    commit = commit_of(repo, parts["rev"])
    file = file_of(asked, repo, parts["path"])
    if file.large:
        headers = {"Location": f"{hub.storage}/storage/{file.sha256}?Signature=x", "X-Linked-Size": str(len(file.data))}
        headers["X-Linked-ETag"] = f'"{file.sha256}"'
        return Answer(302, headers=headers | {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"})
    place = f"{hub.prefix}/api/resolve-cache/{repo.kind}/{repo.id}/{commit}/{quote(file.path)}"
    return Answer(307, headers={"Location": place, "X-Repo-Commit": commit})


def small(asked: Asked, hub: Hub, parts: Parts) -> Answer:
    repo = repo_of(asked, hub, parts)
    file = file_of(asked, repo, parts["path"])
    return part_of(asked, file, {"X-Repo-Commit": repo.commit})


def stored(asked: Asked, hub: Hub, parts: Parts) -> Answer:
    """Storage refuses what is not signed, and who shows a token besides."""
    if asked.token is not None or asked.query.get("Signature") != ["x"]:
        raise RefusedError(400, "", "Only one auth mechanism allowed")
    files = [file for repo in hub.repos.values() for file in repo.files.values() if file.large]
    return part_of(asked, next(file for file in files if file.sha256 == parts["sha"]), {})


def part_of(asked: Asked, file: StoredFile, more: Mapping[str, str]) -> Answer:
    """The file, or what the Range header asks for."""
    headers = {"ETag": f'"{file.etag}"', "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **more}
    if asked.range is None:
        return Answer(200, file.data, headers)
    first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", asked.range).groups()  # type: ignore[union-attr]
    end = min(int(last or len(file.data) - 1) + 1, len(file.data))
    if int(first) >= end:
        return Answer(416, headers={"Content-Range": f"bytes */{len(file.data)}"})
    span = f"bytes {first}-{end - 1}/{len(file.data)}"
    return Answer(206, file.data[int(first) : end], headers | {"Content-Range": span})


API, ID = r"/api/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)", r"/(?:(?P<kind>datasets)/)?(?P<id>[^/]+/[^/]+)"
ROUTES: tuple[tuple[str, Callable[[Asked, Hub, Parts], Answer]], ...] = (
    (API + r"(?:/revision/(?P<rev>[^/]+))?", info),
    (API + r"/tree/(?P<rev>[^/]+)(?:/(?P<path>.+))?", tree),
    (API + r"/paths-info/(?P<rev>[^/]+)", paths_info),
    (API + r"/refs", refs),
    (r"/api/resolve-cache/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)/[^/]+/(?P<path>.+)", small),
    (ID + r"/resolve/(?P<rev>[^/]+)/(?P<path>.+)", resolve),
    (r"/storage/(?P<sha>[0-9a-f]{64})", stored),
)
