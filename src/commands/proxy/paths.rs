//! Routes a path to the API or the static files, or redirects to its clean form: the rules of Go's `http.ServeMux`,
//! which `kubectl proxy` uses.

use std::borrow::Cow;

/// The path prefixes of the API and of the static files; each begins and ends with a slash.
pub(super) struct Prefixes {
    pub(super) api: String,
    pub(super) files: Option<String>,
}

/// The route of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PathRoute<'p> {
    /// The API, with the path to request, in the client's escaping.
    Api(Cow<'p, str>),
    /// The static files, with the path below their prefix, including a leading slash.
    Files(&'p str),
    /// A redirect to another path.
    Redirect(String),
    /// Not found.
    NotFound,
}

impl Prefixes {
    /// Routes the escaped `path`.
    pub(super) fn route<'p>(&self, path: &'p str) -> PathRoute<'p> {
        let clean = clean_path(path);
        let is_prefix = |path_prefix: &str| self.api == path_prefix || self.files.as_deref() == Some(path_prefix);
        if !clean.ends_with('/') {
            let below = format!("{clean}/");
            if is_prefix(&below) {
                return PathRoute::Redirect(below);
            }
        }
        if clean != path {
            return PathRoute::Redirect(clean.into_owned());
        }
        // The longer prefix wins.
        let files = self.files.as_deref().filter(|prefix| path.starts_with(prefix));
        let api = path.starts_with(&self.api);
        match files {
            Some(prefix) if !api || prefix.len() > self.api.len() => PathRoute::Files(&path[prefix.len() - 1..]),
            _ if !api => PathRoute::NotFound,
            // A prefix that is part of the API's own paths is not removed.
            _ if self.api.starts_with("/api") => PathRoute::Api(Cow::Borrowed(path)),
            _ => PathRoute::Api(Cow::Borrowed(&path[self.api.len() - 1..])),
        }
    }
}

/// Removes `.`, `..` and empty segments, as Go's `path.Clean`; keeps a trailing slash.
pub(super) fn clean_path(path: &str) -> Cow<'_, str> {
    let odd = |segment: &str| matches!(segment, "" | "." | "..");
    let mut inner = path.strip_prefix('/').unwrap_or(path);
    if path.starts_with('/') {
        inner = inner.strip_suffix('/').unwrap_or(inner);
        if path == "/" || !inner.split('/').any(odd) {
            return Cow::Borrowed(path);
        }
    }
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let end = if path.ends_with('/') && !segments.is_empty() { "/" } else { "" };
    Cow::Owned(format!("/{}{end}", segments.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_path_matches_go() {
        for (path, expected) in [
            ("/", "/"),
            ("", "/"),
            ("a", "/a"),
            ("//", "/"),
            ("/a", "/a"),
            ("/a/", "/a/"),
            ("//double//slash", "/double/slash"),
            ("/a/../b", "/b"),
            ("/a/..", "/"),
            ("/../..", "/"),
            ("/a/./b/", "/a/b/"),
            ("/a//", "/a/"),
            ("/a/.", "/a"),
            ("/..%2fx", "/..%2fx"),
            ("/%2e%2e/x", "/%2e%2e/x"),
            ("//evil.example/", "/evil.example/"),
        ] {
            assert_eq!(clean_path(path), expected, "{path}");
        }
    }

    #[test]
    fn path_prefixes_route_api_and_static_files() {
        let prefixes =
            |api: &str, files: Option<&str>| Prefixes { api: api.to_owned(), files: files.map(str::to_owned) };
        let api = |path| PathRoute::Api(Cow::Borrowed(path));
        let elsewhere = |path: &str| PathRoute::Redirect(path.to_owned());
        let (usual, custom) = (prefixes("/", Some("/static/")), prefixes("/custom/", Some("/")));
        for (path, expected) in [
            ("/", api("/")),
            ("/api/v1", api("/api/v1")),
            ("/a%2Fb", api("/a%2Fb")),
            ("/static", elsewhere("/static/")),
            ("/static/", PathRoute::Files("/")),
            ("/static/a/b", PathRoute::Files("/a/b")),
            ("/statics/", api("/statics/")),
            ("/x/../static", elsewhere("/static/")),
            ("/x//y", elsewhere("/x/y")),
        ] {
            assert_eq!(usual.route(path), expected, "{path}");
        }
        for (path, expected) in [
            ("/custom/api/a%2Fb", api("/api/a%2Fb")),
            ("/custom/", api("/")),
            ("/custom", elsewhere("/custom/")),
            ("/api", PathRoute::Files("/api")),
        ] {
            assert_eq!(custom.route(path), expected, "{path}");
        }
        assert_eq!(prefixes("/custom/", None).route("/api"), PathRoute::NotFound);
        assert_eq!(prefixes("/api/", None).route("/api/v1"), api("/api/v1"));
        assert_eq!(prefixes("/api/", None).route("/apis"), PathRoute::NotFound);
    }
}
