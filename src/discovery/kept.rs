//! What backends said last, kept on disk: after a restart it is served at once, marked `Stale`, also of a backend that
//! does not answer.
//!
//! A file for each APIService and kind of document, so that a change costs its own size. What is read is judged as if
//! the backend had just said it, and only taken for the very same backend.

use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use tokio::sync::oneshot;

use super::known::Known;
use super::waiting::{Giver, Waiting, waiting};
use crate::process::replace;

/// The form of the files. What has another is passed over.
const FORM: u32 = 1;
/// The largest content that is written or read: a document of OpenAPI v2 of a large cluster.
const LARGEST: u64 = 64 << 20;

/// The directory of all that is kept; cheap to clone.
#[derive(Clone)]
pub struct Kept(Option<Place>);

#[derive(Clone)]
struct Place {
    directory: PathBuf,
    orders: Giver<About, Order>,
}

/// What is kept of one kind of document.
#[derive(Clone)]
pub(crate) struct Shelf {
    kept: Kept,
    kind: &'static str,
}

/// The first line of a file.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Heading {
    form: u32,
    api_service: String,
    /// [`Known::backend`].
    backend: String,
}

/// What an order is about: a file, or the directory. To read it is one matter, to write it another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct About {
    path: PathBuf,
    reads: bool,
}

impl About {
    fn written(path: PathBuf) -> About {
        About { path, reads: false }
    }
}

enum Order {
    Write {
        heading: Heading,
        content: Box<dyn FnOnce() -> Option<Vec<u8>> + Send>,
    },
    Remove,
    Read(Box<dyn FnOnce(&Path) + Send>),
    /// Removes what belongs to none of these.
    Sweep(Vec<String>),
}

impl Kept {
    /// Keeps nothing.
    pub fn nowhere() -> Kept {
        Kept(None)
    }

    /// Keeps in `directory`, which is made when something is written. A directory that cannot be written costs nothing
    /// but what would have been kept.
    pub fn within(directory: &Path) -> Kept {
        let (orders, received) = waiting();
        // Who waits for a disk is nobody but this thread. It ends with the last of those who keep.
        let writing = std::thread::Builder::new().name("kept".into()).spawn(move || carry_out(&received));
        if let Err(error) = writing {
            tracing::warn!(%error, "what backends say is not kept: no thread to write it");
            return Kept::nowhere();
        }
        Kept(Some(Place { directory: directory.to_owned(), orders }))
    }

    /// Forgets all that belongs to none of the APIServices `names`.
    pub fn sweep(&self, names: Vec<String>) {
        let Some(place) = &self.0 else { return };
        // What waits to be written of others is nothing to be written any more.
        let stays = |file: &Path| names.iter().any(|name| file.file_name().is_some_and(|it| *it == *file_name(name)));
        place.orders.retain(|about| about.path == place.directory || stays(&about.path));
        place.orders.give(About::written(place.directory.clone()), Order::Sweep(names));
    }

    /// What is kept of `kind`, which is the name of a directory.
    pub(crate) fn shelf(&self, kind: &'static str) -> Shelf {
        Shelf { kept: self.clone(), kind }
    }

    fn order(&self, file: PathBuf, order: Order) {
        if let Some(place) = &self.0 {
            place.orders.give(About::written(file), order);
        }
    }
}

impl Shelf {
    /// What was kept of `known`; `None` also when it is another backend's, of another form, or broken.
    /// Waits for the disk, which may hang.
    pub(crate) fn take(&self, known: &Known) -> Option<Vec<u8>> {
        take(&self.file(&known.name)?, known)
    }

    /// What was kept of `known`, as `understood` on the thread that waits for disks; it comes when the disk gives it, and
    /// if there is nothing its sender goes without a word. `None` where nothing is kept.
    pub(crate) fn recall<T: Send + 'static>(
        &self,
        known: &Known,
        understood: impl FnOnce(&[u8], &Known) -> Option<T> + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let place = self.kept.0.as_ref()?;
        let about = About { path: self.file(&known.name)?, reads: true };
        let (answer, comes) = oneshot::channel();
        let known = known.clone();
        let read = move |file: &Path| {
            if let Some(content) = take(file, &known).and_then(|kept| understood(&kept, &known)) {
                // Whoever asked may have ended.
                let _ = answer.send(content);
            }
        };
        place.orders.give(about, Order::Read(Box::new(read)));
        Some(comes)
    }

    /// Keeps `content` as what was said last of `known`, unless it is none. It is made on the thread that writes.
    pub(crate) fn keep(&self, known: &Known, content: impl FnOnce() -> Option<Vec<u8>> + Send + 'static) {
        let heading = Heading::of(known);
        if let Some(file) = self.file(&known.name) {
            self.kept.order(file, Order::Write { heading, content: Box::new(content) });
        }
    }

    /// Forgets what was kept of an APIService.
    pub(crate) fn forget(&self, name: &str) {
        if let Some(file) = self.file(name) {
            self.kept.order(file, Order::Remove);
        }
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        file(&self.kept.0.as_ref()?.directory, self.kind, name)
    }
}

impl Heading {
    fn of(known: &Known) -> Heading {
        Heading { form: FORM, api_service: known.name.clone(), backend: known.backend.clone() }
    }
}

const SUFFIX: &str = ".gz";

/// Where it is; `None` for a name that is none for a file. Those of APIServices are DNS subdomains.
fn file(directory: &Path, kind: &str, name: &str) -> Option<PathBuf> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let fits = name.len() <= 240 && name.bytes().all(plain) && !name.starts_with('.');
    fits.then(|| directory.join(kind).join(file_name(name)))
}

fn file_name(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

/// What `file` holds, if that is of `known`.
fn take(file: &Path, known: &Known) -> Option<Vec<u8>> {
    match read(file) {
        Ok(Some((heading, content))) if heading == Heading::of(known) => Some(content),
        Ok(Some(_)) => {
            let apiservice = &known.name;
            tracing::info!(apiservice, file = %file.display(), "what was kept is of another backend, and not taken");
            None
        }
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "what was kept cannot be read, and is not taken");
            None
        }
    }
}

fn read(file: &Path) -> std::io::Result<Option<(Heading, Vec<u8>)>> {
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = BufReader::new(GzDecoder::new(BufReader::new(opened)).take(LARGEST + 1));
    let mut line = Vec::new();
    content.by_ref().take(1 << 20).read_until(b'\n', &mut line)?;
    let heading = serde_json::from_slice(&line)?;
    let mut rest = Vec::new();
    content.read_to_end(&mut rest)?;
    match rest.len() as u64 > LARGEST - (1 << 20) {
        true => Err(std::io::Error::other("it is too large")),
        false => Ok(Some((heading, rest))),
    }
}

fn write(file: &Path, heading: &Heading, content: &[u8]) -> Result<(), String> {
    if content.len() as u64 > LARGEST - (2 << 20) {
        return Err(format!("{}: too large to be kept", file.display()));
    }
    let mut packer = GzEncoder::new(Vec::new(), Compression::new(1));
    let packed = serde_json::to_writer(&mut packer, heading).map_err(std::io::Error::from).and_then(|()| {
        packer.write_all(b"\n")?;
        packer.write_all(content)?;
        packer.finish()
    });
    let packed = packed.map_err(|error| error.to_string())?;
    if let Some(directory) = file.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| format!("{}: cannot be made: {error}", directory.display()))?;
    }
    replace(file, packed, 0o600).map_err(|problem| problem.to_string())
}

fn carry_out(orders: &Waiting<About, Order>) {
    let mut failed = false;
    while let Some((About { path, .. }, order)) = orders.next() {
        let done = match order {
            Order::Write { heading, content } => content().map_or(Ok(()), |content| write(&path, &heading, &content)),
            Order::Remove => {
                let _ = fs::remove_file(path);
                Ok(())
            }
            Order::Read(read) => {
                read(&path);
                continue;
            }
            Order::Sweep(names) => {
                sweep(&path, &names);
                Ok(())
            }
        };
        if let Err(problem) = &done
            && !failed
        {
            tracing::warn!(problem, "what backends say cannot be kept for the next start");
        }
        failed = done.is_err();
    }
}

fn sweep(directory: &Path, names: &[String]) {
    let kinds = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in kinds.filter_map(|kind| fs::read_dir(kind.path()).ok()).flatten().flatten() {
        let file = entry.file_name();
        // What is not called as ours are is not ours, but for what a crash left half written.
        let ours = file.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        let torn = file.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(".tmp"));
        if torn || ours.is_some_and(|name| !names.iter().any(|there| there == name)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::known::By;
    use super::*;

    fn known(name: &str, backend: &str) -> Known {
        Known {
            name: name.into(),
            group: "g".into(),
            version: "v1".into(),
            group_priority_minimum: 1,
            version_priority: 1,
            service_key: String::new(),
            backend: backend.into(),
            by: By::Backend,
        }
    }

    #[test]
    fn what_was_kept_is_taken_for_the_same_backend_alone() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("last-good");
        let kept = Kept::within(&directory);
        let shelf = kept.shelf("discovery");
        assert_eq!(shelf.take(&known("v1.g", "b")), None);
        shelf.keep(&known("v1.g", "b"), || Some(b"{\"a\":\n1}".to_vec()));
        while shelf.take(&known("v1.g", "b")).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(shelf.take(&known("v1.g", "b")).unwrap(), b"{\"a\":\n1}");
        assert_eq!(shelf.take(&known("v1.g", "c")), None, "another backend");
        assert_eq!(kept.shelf("openapi").take(&known("v1.g", "b")), None, "another kind");
        let file = directory.join("discovery/v1.g.gz");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&directory), mode(file.parent().unwrap())), (0o600, 0o700, 0o700));

        fs::rename(&file, directory.join("discovery/v1.h.gz")).unwrap();
        assert_eq!(shelf.take(&known("v1.h", "b")), None, "another APIService's");
        assert_eq!(Kept::nowhere().shelf("discovery").take(&known("v1.g", "b")), None);
        for name in ["../v1.g", "a/b", ".g", "V1.g", &"a".repeat(241)] {
            assert_eq!(super::file(&directory, "discovery", name), None, "{name}");
        }
    }

    #[test]
    fn what_is_broken_or_foreign_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("discovery")).unwrap();
        let shelf = Kept::within(dir.path()).shelf("discovery");
        let put = |bytes: &[u8]| fs::write(dir.path().join("discovery/v1.g.gz"), bytes).unwrap();
        let packed = |text: &[u8]| {
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            packer.write_all(text).unwrap();
            packer.finish().unwrap()
        };
        let good = packed(b"{\"form\":1,\"apiService\":\"v1.g\",\"backend\":\"b\"}\nrest");
        put(&good);
        assert_eq!(shelf.take(&known("v1.g", "b")).unwrap(), b"rest");
        let cut = &good[..good.len() - 6];
        let bomb =
            packed(&[b"{\"form\":1,\"apiService\":\"v1.g\",\"backend\":\"b\"}\n", &vec![b' '; 65 << 20][..]].concat());
        let future = packed(b"{\"form\":2,\"apiService\":\"v1.g\",\"backend\":\"b\"}\nrest");
        for bytes in [&b""[..], b"no gzip", cut, &packed(b"no json\n"), &packed(b""), &bomb, &future] {
            put(bytes);
            assert_eq!(shelf.take(&known("v1.g", "b")), None);
        }
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::within(dir.path());
        let shelf = kept.shelf("discovery");
        for name in ["v1.a", "v1.b", "v1.c"] {
            shelf.keep(&known(name, "b"), || Some(Vec::new()));
        }
        shelf.forget("v1.a");
        shelf.keep(&known("mark", "b"), || Some(Vec::new()));
        while shelf.take(&known("mark", "b")).is_none() {
            std::thread::yield_now();
        }
        fs::write(dir.path().join("discovery/.v1.d.gz.00.tmp"), "torn").unwrap();
        fs::write(dir.path().join("discovery/README"), "a person's").unwrap();
        kept.sweep(vec!["v1.b".into()]);
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(dir.path().join("discovery")).unwrap().map(|it| it.unwrap().file_name()).collect();
            names.sort();
            names
        };
        while names().len() > 2 {
            std::thread::yield_now();
        }
        assert_eq!(names(), ["README", "v1.b.gz"]);
    }

    #[test]
    fn while_the_disk_hangs_only_the_newest_of_each_waits() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::within(dir.path());
        let shelf = kept.shelf("discovery");
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        let (began, begun) = std::sync::mpsc::channel();
        shelf.keep(&known("v1.slow", "b"), move || {
            began.send(()).unwrap();
            hangs.recv().unwrap();
            None
        });
        begun.recv().unwrap();
        let content = std::sync::Arc::new(());
        for round in 0..100 {
            for name in ["v1.a", "v1.b", "v1.gone"] {
                let held = content.clone();
                shelf.keep(&known(name, "b"), move || {
                    drop(held);
                    Some(format!("{name} {round}").into_bytes())
                });
            }
        }
        assert_eq!(std::sync::Arc::strong_count(&content), 1 + 3);
        shelf.forget("v1.b");
        kept.sweep(vec!["v1.a".into(), "v1.b".into(), "v1.mark".into()]);
        assert_eq!(std::sync::Arc::strong_count(&content), 1 + 1);
        shelf.keep(&known("v1.mark", "b"), || Some(Vec::new()));
        release.send(()).unwrap();
        while shelf.take(&known("v1.mark", "b")).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(shelf.take(&known("v1.a", "b")).unwrap(), b"v1.a 99");
        assert_eq!(["v1.b", "v1.gone", "v1.slow"].map(|name| shelf.take(&known(name, "b"))), [None, None, None]);
    }

    #[test]
    fn what_is_recalled_comes_from_the_thread_that_writes() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Kept::within(dir.path()).shelf("discovery");
        let recall =
            |backend: &str| shelf.recall(&known("v1.g", backend), |kept, of| Some((kept.to_vec(), of.name.clone())));
        shelf.keep(&known("v1.g", "b"), || Some(b"rest".to_vec()));
        // Of one file, to be read does not take the place of to be written.
        let (first, second) = (recall("b").unwrap(), recall("b").unwrap());
        assert_eq!(second.blocking_recv().unwrap(), (b"rest".to_vec(), "v1.g".to_owned()));
        drop(first);
        assert!(recall("c").unwrap().blocking_recv().is_err(), "another backend's");
        let nothing = Kept::nowhere().shelf("discovery").recall(&known("v1.g", "b"), |_, _| Some(()));
        assert!(nothing.is_none());
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("taken"), "").unwrap();
        let shelf = Kept::within(&dir.path().join("taken")).shelf("discovery");
        shelf.keep(&known("v1.g", "b"), || Some(Vec::new()));
        assert_eq!(shelf.take(&known("v1.g", "b")), None);
    }
}
