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

use super::responses;
use crate::message::{Body, BodyError};

/// Bytes per read.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes read to detect the content type of a file with unknown extension.
const SNIFF_BYTES: u64 = 512;
/// Characters escaped in a URL path.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// Answers a GET or HEAD for the escaped `path`, which begins with a slash, from `folder`.
pub(super) async fn serve(
    folder: &Path,
    method: &Method,
    path: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Response<Body> {
    let Ok(path) = percent_decode_str(path).decode_utf8() else { return responses::not_found() };
    let (folder, path) = (folder.to_owned(), path.into_owned());
    // Disks may be slow, and all clients share this thread.
    let found = spawn_blocking(move || look_up(&folder, &path)).await;
    match found.map_err(io::Error::other).flatten() {
        Ok(StaticFile::Redirect(target)) => {
            let target = query.map_or_else(|| target.clone(), |query| format!("{target}?{query}"));
            let Ok(location) = HeaderValue::try_from(target) else { return responses::not_found() };
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
            response.headers_mut().insert(LOCATION, location);
            response
        }
        Ok(StaticFile::Listing(text, modified)) => match evaluate_preconditions(headers, modified) {
            PreconditionResult::NotModified => not_modified(modified),
            _ => {
                let mut response = Response::new(Body::from(text));
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
                insert_date(headers, LAST_MODIFIED, modified);
                response
            }
        },
        Ok(StaticFile::File { file, size, modified, kind }) => {
            file_response(method, headers, file, size, modified, kind)
        }
        Err(error) => match error.kind() {
            io::ErrorKind::PermissionDenied => responses::error_response(StatusCode::FORBIDDEN, "403 Forbidden"),
            io::ErrorKind::Other => {
                responses::error_response(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error")
            }
            _ => responses::not_found(),
        },
    }
}

/// The result of looking up a path.
enum StaticFile {
    File { file: File, size: u64, modified: SystemTime, kind: &'static str },
    Listing(String, SystemTime),
    Redirect(String),
}

fn look_up(folder: &Path, path: &str) -> io::Result<StaticFile> {
    if path.ends_with("/index.html") {
        return Ok(StaticFile::Redirect("./".to_owned()));
    }
    let file = resolve_path(folder, path);
    let metadata = std::fs::metadata(&file)?;
    let name = || path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let escaped = |name: &str| utf8_percent_encode(name, ESCAPED).to_string();
    match (metadata.is_dir(), path.ends_with('/')) {
        (true, false) => Ok(StaticFile::Redirect(format!("{}/", escaped(name())))),
        (false, true) => Ok(StaticFile::Redirect(format!("../{}", escaped(name())))),
        (false, false) => open_file(&file, &metadata),
        (true, true) => {
            let index = file.join("index.html");
            match std::fs::metadata(&index) {
                Ok(metadata) if metadata.is_file() => open_file(&index, &metadata),
                _ => Ok(StaticFile::Listing(listing(&file)?, modified(&metadata))),
            }
        }
    }
}

/// Resolves a decoded path within the directory. Only symbolic links lead out of it.
fn resolve_path(folder: &Path, path: &str) -> PathBuf {
    let mut relative = PathBuf::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                relative.pop();
            }
            segment => relative.push(segment),
        }
    }
    folder.join(relative)
}

fn open_file(path: &Path, metadata: &Metadata) -> io::Result<StaticFile> {
    // Opening a pipe or a device could block.
    if !metadata.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut file = File::open(path)?;
    let kind = match content_type_by_extension(path) {
        Some(kind) => kind,
        None => {
            let mut beginning = Vec::new();
            (&mut file).take(SNIFF_BYTES).read_to_end(&mut beginning)?;
            file.seek(SeekFrom::Start(0))?;
            sniff_content_type(&beginning)
        }
    };
    Ok(StaticFile::File { file, size: metadata.len(), modified: modified(metadata), kind })
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
        let link = utf8_percent_encode(&name, ESCAPED);
        text.push_str(&format!("<a href=\"{here}{link}{slash}\">{}{slash}</a>\n", responses::escape_html(&name)));
    }
    text.push_str("</pre>\n");
    Ok(text)
}

/// The content type by file extension: Go's built-in types and further ones common in web pages.
fn content_type_by_extension(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
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

fn sniff_content_type(beginning: &[u8]) -> &'static str {
    // Binary data bytes of the MIME Sniffing standard: their presence means that the content is not text.
    let binary = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    if beginning.iter().any(binary) { "application/octet-stream" } else { "text/plain; charset=utf-8" }
}

fn file_response(
    method: &Method,
    headers: &HeaderMap,
    mut file: File,
    size: u64,
    modified: SystemTime,
    kind: &'static str,
) -> Response<Body> {
    match evaluate_preconditions(headers, modified) {
        PreconditionResult::NotModified => return not_modified(modified),
        PreconditionResult::Failed => {
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::PRECONDITION_FAILED;
            insert_date(response.headers_mut(), LAST_MODIFIED, modified);
            return response;
        }
        PreconditionResult::Send => {}
    }
    let range =
        if is_range_applicable(headers, modified) { requested_range(headers, size) } else { RequestedRange::All };
    let (start, length, status) = match range {
        RequestedRange::All => (0, size, StatusCode::OK),
        RequestedRange::Part(start, length) => (start, length, StatusCode::PARTIAL_CONTENT),
        RequestedRange::Invalid(why) => {
            let mut response = responses::error_response(StatusCode::RANGE_NOT_SATISFIABLE, why);
            if why == NO_OVERLAP
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
            return responses::error_response(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error");
        }
        Body::stream(FileBody { reading: Some(spawn_read(file, length)), remaining: length })
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
enum PreconditionResult {
    Send,
    NotModified,
    Failed,
}

/// Evaluates the date preconditions, with a resolution of one second.
fn evaluate_preconditions(headers: &HeaderMap, modified: SystemTime) -> PreconditionResult {
    let at = |name| date(headers, name).map(|at| (seconds(modified), seconds(at)));
    if at(IF_UNMODIFIED_SINCE).is_some_and(|(modified, known)| modified > known) {
        return PreconditionResult::Failed;
    }
    match at(IF_MODIFIED_SINCE) {
        Some((modified, known)) if modified <= known => PreconditionResult::NotModified,
        _ => PreconditionResult::Send,
    }
}

/// Whether `Range` applies: without `If-Range`, or if the file is unchanged since its date.
fn is_range_applicable(headers: &HeaderMap, modified: SystemTime) -> bool {
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
const NO_OVERLAP: &str = "invalid range: failed to overlap";

/// The requested part of a file.
#[derive(Debug, PartialEq, Eq)]
enum RequestedRange {
    All,
    /// Offset and length.
    Part(u64, u64),
    /// An invalid range, with Go's error text.
    Invalid(&'static str),
}

/// Parses a single range. For several ranges the whole file is sent, which RFC 9110 allows.
fn requested_range(headers: &HeaderMap, size: u64) -> RequestedRange {
    const INVALID: RequestedRange = RequestedRange::Invalid("invalid range");
    let Some(value) = headers.get(RANGE) else { return RequestedRange::All };
    let Some(ranges) = value.to_str().ok().and_then(|text| text.strip_prefix("bytes=")) else { return INVALID };
    if ranges.contains(',') || size == 0 {
        return RequestedRange::All;
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
    if start >= size { RequestedRange::Invalid(NO_OVERLAP) } else { RequestedRange::Part(start, end - start) }
}

/// A response body that reads a file in chunks on demand.
struct FileBody {
    reading: Option<JoinHandle<io::Result<(File, Bytes)>>>,
    remaining: u64,
}

fn spawn_read(mut file: File, left: u64) -> JoinHandle<io::Result<(File, Bytes)>> {
    spawn_blocking(move || {
        let mut piece = Vec::with_capacity(CHUNK_BYTES.min(usize::try_from(left).unwrap_or(CHUNK_BYTES)));
        (&mut file).take(left.min(CHUNK_BYTES as u64)).read_to_end(&mut piece)?;
        Ok((file, piece.into()))
    })
}

impl http_body::Body for FileBody {
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
        self.remaining -= piece.len() as u64;
        if self.remaining > 0 {
            self.reading = Some(spawn_read(file, self.remaining));
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_files_path_stays_in_folder() {
        for (path, expected) in [
            ("/a/b", "/www/a/b"),
            ("/../../etc/passwd", "/www/etc/passwd"),
            ("/a/../../x", "/www/x"),
            ("//etc//passwd", "/www/etc/passwd"),
            ("/", "/www/"),
        ] {
            assert_eq!(resolve_path(Path::new("/www"), path), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn range_header_selects_bytes() {
        for (text, size, expected) in [
            ("bytes=0-4", 10, RequestedRange::Part(0, 5)),
            ("bytes=4-", 10, RequestedRange::Part(4, 6)),
            ("bytes=-3", 10, RequestedRange::Part(7, 3)),
            ("bytes=-30", 10, RequestedRange::Part(0, 10)),
            ("bytes=5-100", 10, RequestedRange::Part(5, 5)),
            ("bytes=0-1,4-5", 10, RequestedRange::All),
            ("bytes=0-1", 0, RequestedRange::All),
            ("bytes=10-", 10, RequestedRange::Invalid("invalid range: failed to overlap")),
            ("bytes=-0", 10, RequestedRange::Invalid("invalid range: failed to overlap")),
            ("bytes=4-1", 10, RequestedRange::Invalid("invalid range")),
            ("lines=1-2", 10, RequestedRange::Invalid("invalid range")),
            ("bytes=0-18446744073709551615", 10, RequestedRange::Part(0, 10)),
        ] {
            let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static(text))]);
            assert_eq!(requested_range(&headers, size), expected, "{text}");
        }
    }

    #[test]
    fn preconditions_from_modification_time() {
        let at = UNIX_EPOCH + std::time::Duration::from_millis(1_000_000_900);
        let headers = |name: HeaderName, second: u64| {
            let mut headers = HeaderMap::new();
            insert_date(&mut headers, name, UNIX_EPOCH + std::time::Duration::from_secs(second));
            headers
        };
        for (name, second, expected) in [
            (IF_MODIFIED_SINCE, 1_000_000, PreconditionResult::NotModified),
            (IF_MODIFIED_SINCE, 999_999, PreconditionResult::Send),
            (IF_UNMODIFIED_SINCE, 1_000_000, PreconditionResult::Send),
            (IF_UNMODIFIED_SINCE, 999_999, PreconditionResult::Failed),
        ] {
            assert_eq!(evaluate_preconditions(&headers(name.clone(), second), at), expected, "{name} {second}");
        }
        assert!(
            is_range_applicable(&headers(IF_RANGE, 1_000_000), at)
                && !is_range_applicable(&headers(IF_RANGE, 1_000_001), at)
        );
    }
}
