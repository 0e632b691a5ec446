//! Static files from a directory: the rules of Go's `http.FileServer`, which `kubectl proxy --www` uses.

use std::fs::{File, Metadata};
use std::future::Future as _;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_MODIFIED_SINCE, IF_RANGE, IF_UNMODIFIED_SINCE,
    LAST_MODIFIED, LOCATION, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::{Frame, SizeHint};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tokio::task::{JoinHandle, spawn_blocking};

use super::answer;
use crate::message::{Body, BodyError};

/// Bytes per read.
const PIECE: usize = 64 << 10;
/// Bytes read to detect the content type of a file with unknown extension.
const SNIFFED: u64 = 512;
/// Characters escaped in a URL path.
const SPECIAL: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// Answers a GET or HEAD for the escaped `path`, which begins with a slash, from `folder`.
pub(super) async fn serve(
    folder: &Path,
    method: &Method,
    path: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Response<Body> {
    let Ok(path) = percent_decode_str(path).decode_utf8() else { return answer::not_found() };
    let (folder, path) = (folder.to_owned(), path.into_owned());
    // Disks may be slow, and all clients share this thread.
    let found = spawn_blocking(move || find(&folder, &path)).await;
    match found.map_err(io::Error::other).flatten() {
        Ok(Found::Elsewhere(place)) => {
            let place = query.map_or_else(|| place.clone(), |query| format!("{place}?{query}"));
            let Ok(place) = HeaderValue::try_from(place) else { return answer::not_found() };
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
            response.headers_mut().insert(LOCATION, place);
            response
        }
        Ok(Found::Listing(text, modified)) => match judge(headers, modified) {
            Judgement::NotModified => not_modified(modified),
            _ => {
                let mut response = Response::new(Body::from(text));
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
                insert_date(headers, LAST_MODIFIED, modified);
                response
            }
        },
        Ok(Found::File { file, size, modified, kind }) => content(method, headers, file, size, modified, kind),
        Err(error) => match error.kind() {
            io::ErrorKind::PermissionDenied => answer::error(StatusCode::FORBIDDEN, "403 Forbidden"),
            io::ErrorKind::Other => answer::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error"),
            _ => answer::not_found(),
        },
    }
}

/// The result of looking up a path.
enum Found {
    File { file: File, size: u64, modified: SystemTime, kind: &'static str },
    Listing(String, SystemTime),
    Elsewhere(String),
}

fn find(folder: &Path, path: &str) -> io::Result<Found> {
    if path.ends_with("/index.html") {
        return Ok(Found::Elsewhere("./".to_owned()));
    }
    let place = below(folder, path);
    let metadata = std::fs::metadata(&place)?;
    let name = || path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let escaped = |name: &str| utf8_percent_encode(name, SPECIAL).to_string();
    match (metadata.is_dir(), path.ends_with('/')) {
        (true, false) => Ok(Found::Elsewhere(format!("{}/", escaped(name())))),
        (false, true) => Ok(Found::Elsewhere(format!("../{}", escaped(name())))),
        (false, false) => open(&place, &metadata),
        (true, true) => {
            let index = place.join("index.html");
            match std::fs::metadata(&index) {
                Ok(metadata) if metadata.is_file() => open(&index, &metadata),
                _ => Ok(Found::Listing(listing(&place)?, modified(&metadata))),
            }
        }
    }
}

/// Resolves a decoded path within the directory. Only symbolic links lead out of it.
fn below(folder: &Path, path: &str) -> PathBuf {
    let mut place = PathBuf::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                place.pop();
            }
            segment => place.push(segment),
        }
    }
    folder.join(place)
}

fn open(place: &Path, metadata: &Metadata) -> io::Result<Found> {
    // Opening a pipe or a device could block.
    if !metadata.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut file = File::open(place)?;
    let kind = match kind_by_name(place) {
        Some(kind) => kind,
        None => {
            let mut beginning = Vec::new();
            (&mut file).take(SNIFFED).read_to_end(&mut beginning)?;
            file.seek(SeekFrom::Start(0))?;
            kind_by_content(&beginning)
        }
    };
    Ok(Found::File { file, size: metadata.len(), modified: modified(metadata), kind })
}

fn modified(metadata: &Metadata) -> SystemTime {
    metadata.modified().unwrap_or(UNIX_EPOCH)
}

/// The directory listing in Go's format.
fn listing(folder: &Path) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push((entry.file_name().to_string_lossy().into_owned(), slash));
    }
    names.sort();
    let mut text = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for (name, slash) in names {
        // Without `./` the text before a colon would be parsed as a URL scheme.
        let here = if name.contains(':') { "./" } else { "" };
        let link = utf8_percent_encode(&name, SPECIAL);
        text.push_str(&format!("<a href=\"{here}{link}{slash}\">{}{slash}</a>\n", answer::escape(&name)));
    }
    text.push_str("</pre>\n");
    Ok(text)
}

/// The content type by file extension: Go's built-in types and further ones common in web pages.
fn kind_by_name(place: &Path) -> Option<&'static str> {
    let extension = place.extension()?.to_str()?.to_ascii_lowercase();
    Some(match extension.as_str() {
        "avif" => "image/avif",
        "css" => "text/css; charset=utf-8",
        "gif" => "image/gif",
        "htm" | "html" => "text/html; charset=utf-8",
        "ico" => "image/vnd.microsoft.icon",
        "jpeg" | "jpg" => "image/jpeg",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        "wasm" => "application/wasm",
        "webp" => "image/webp",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "xml" => "text/xml; charset=utf-8",
        _ => return None,
    })
}

fn kind_by_content(beginning: &[u8]) -> &'static str {
    // Binary data bytes of the MIME Sniffing standard: their presence means that the content is not text.
    let binary = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    if beginning.iter().any(binary) { "application/octet-stream" } else { "text/plain; charset=utf-8" }
}

fn content(
    method: &Method,
    headers: &HeaderMap,
    mut file: File,
    size: u64,
    modified: SystemTime,
    kind: &'static str,
) -> Response<Body> {
    match judge(headers, modified) {
        Judgement::NotModified => return not_modified(modified),
        Judgement::Failed => {
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::PRECONDITION_FAILED;
            insert_date(response.headers_mut(), LAST_MODIFIED, modified);
            return response;
        }
        Judgement::Send => {}
    }
    let wanted = if range_counts(headers, modified) { range(headers, size) } else { Wanted::All };
    let (start, length, status) = match wanted {
        Wanted::All => (0, size, StatusCode::OK),
        Wanted::Part(start, length) => (start, length, StatusCode::PARTIAL_CONTENT),
        Wanted::None(why) => {
            let mut response = answer::error(StatusCode::RANGE_NOT_SATISFIABLE, why);
            if why == BEYOND
                && let Ok(value) = HeaderValue::try_from(format!("bytes */{size}"))
            {
                response.headers_mut().insert(CONTENT_RANGE, value);
            }
            return response;
        }
    };
    let body = if *method == Method::HEAD || length == 0 {
        Body::Empty
    } else {
        if file.seek(SeekFrom::Start(start)).is_err() {
            return answer::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error");
        }
        Body::stream(Pieces { reading: Some(read(file, length)), left: length })
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, length.into());
    insert_date(headers, LAST_MODIFIED, modified);
    if status == StatusCode::PARTIAL_CONTENT
        && let Ok(value) = HeaderValue::try_from(format!("bytes {start}-{}/{size}", start + length - 1))
    {
        headers.insert(CONTENT_RANGE, value);
    }
    response
}

#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Send,
    NotModified,
    Failed,
}

/// Evaluates the date preconditions, with a resolution of one second.
fn judge(headers: &HeaderMap, modified: SystemTime) -> Judgement {
    let at = |name| date(headers, name).map(|at| (seconds(modified), seconds(at)));
    if at(IF_UNMODIFIED_SINCE).is_some_and(|(modified, known)| modified > known) {
        return Judgement::Failed;
    }
    match at(IF_MODIFIED_SINCE) {
        Some((modified, known)) if modified <= known => Judgement::NotModified,
        _ => Judgement::Send,
    }
}

/// Whether `Range` applies: without `If-Range`, or if the file is unchanged since its date.
fn range_counts(headers: &HeaderMap, modified: SystemTime) -> bool {
    !headers.contains_key(IF_RANGE) || date(headers, IF_RANGE).is_some_and(|at| seconds(at) == seconds(modified))
}

fn date(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn insert_date(headers: &mut HeaderMap, name: HeaderName, at: SystemTime) {
    if let Ok(value) = HeaderValue::try_from(httpdate::fmt_http_date(at)) {
        headers.insert(name, value);
    }
}

fn not_modified(modified: SystemTime) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    insert_date(response.headers_mut(), LAST_MODIFIED, modified);
    response
}

/// Go's text for a range that begins after the end.
const BEYOND: &str = "invalid range: failed to overlap";

/// The requested part of a file.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    All,
    /// Offset and length.
    Part(u64, u64),
    /// An invalid range, with Go's error text.
    None(&'static str),
}

/// Parses a single range. For several ranges the whole file is sent, which RFC 9110 allows.
fn range(headers: &HeaderMap, size: u64) -> Wanted {
    const INVALID: Wanted = Wanted::None("invalid range");
    let Some(value) = headers.get(RANGE) else { return Wanted::All };
    let Some(ranges) = value.to_str().ok().and_then(|text| text.strip_prefix("bytes=")) else { return INVALID };
    if ranges.contains(',') || size == 0 {
        return Wanted::All;
    }
    let Some((first, last)) = ranges.trim().split_once('-') else { return INVALID };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (start, end) = match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            Some(length) => (size - length.min(size), size),
            None => return INVALID,
        },
        (first, "") => match number(first) {
            Some(start) => (start, size),
            None => return INVALID,
        },
        (first, last) => match (number(first), number(last)) {
            (Some(start), Some(last)) if start <= last => (start, last.saturating_add(1).min(size)),
            _ => return INVALID,
        },
    };
    if start >= size { Wanted::None(BEYOND) } else { Wanted::Part(start, end - start) }
}

/// A response body that reads a file in chunks on demand.
struct Pieces {
    reading: Option<JoinHandle<io::Result<(File, Bytes)>>>,
    left: u64,
}

fn read(mut file: File, left: u64) -> JoinHandle<io::Result<(File, Bytes)>> {
    spawn_blocking(move || {
        let mut piece = Vec::with_capacity(PIECE.min(usize::try_from(left).unwrap_or(PIECE)));
        (&mut file).take(left.min(PIECE as u64)).read_to_end(&mut piece)?;
        Ok((file, piece.into()))
    })
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let read_so_far = ready!(Pin::new(reading).poll(cx)).map_err(io::Error::other).flatten();
        self.reading = None;
        let (file, piece) = match read_so_far {
            Ok(piece) => piece,
            Err(error) => return Poll::Ready(Some(Err(error.into()))),
        };
        if piece.is_empty() {
            return Poll::Ready(Some(Err("the file was truncated while it was sent".into())));
        }
        self.left -= piece.len() as u64;
        if self.left > 0 {
            self.reading = Some(read(file, self.left));
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_the_folder() {
        for (path, expected) in [
            ("/a/b", "/www/a/b"),
            ("/../../etc/passwd", "/www/etc/passwd"),
            ("/a/../../x", "/www/x"),
            ("//etc//passwd", "/www/etc/passwd"),
            ("/", "/www/"),
        ] {
            assert_eq!(below(Path::new("/www"), path), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn parts_of_files() {
        for (text, size, expected) in [
            ("bytes=0-4", 10, Wanted::Part(0, 5)),
            ("bytes=4-", 10, Wanted::Part(4, 6)),
            ("bytes=-3", 10, Wanted::Part(7, 3)),
            ("bytes=-30", 10, Wanted::Part(0, 10)),
            ("bytes=5-100", 10, Wanted::Part(5, 5)),
            ("bytes=0-1,4-5", 10, Wanted::All),
            ("bytes=0-1", 0, Wanted::All),
            ("bytes=10-", 10, Wanted::None("invalid range: failed to overlap")),
            ("bytes=-0", 10, Wanted::None("invalid range: failed to overlap")),
            ("bytes=4-1", 10, Wanted::None("invalid range")),
            ("lines=1-2", 10, Wanted::None("invalid range")),
            ("bytes=0-18446744073709551615", 10, Wanted::Part(0, 10)),
        ] {
            let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static(text))]);
            assert_eq!(range(&headers, size), expected, "{text}");
        }
    }

    #[test]
    fn what_the_client_knows() {
        let at = UNIX_EPOCH + std::time::Duration::from_millis(1_000_000_900);
        let headers = |name: HeaderName, second: u64| {
            let mut headers = HeaderMap::new();
            insert_date(&mut headers, name, UNIX_EPOCH + std::time::Duration::from_secs(second));
            headers
        };
        for (name, second, expected) in [
            (IF_MODIFIED_SINCE, 1_000_000, Judgement::NotModified),
            (IF_MODIFIED_SINCE, 999_999, Judgement::Send),
            (IF_UNMODIFIED_SINCE, 1_000_000, Judgement::Send),
            (IF_UNMODIFIED_SINCE, 999_999, Judgement::Failed),
        ] {
            assert_eq!(judge(&headers(name.clone(), second), at), expected, "{name} {second}");
        }
        assert!(range_counts(&headers(IF_RANGE, 1_000_000), at) && !range_counts(&headers(IF_RANGE, 1_000_001), at));
    }
}
