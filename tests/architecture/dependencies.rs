//! The crates of the repository in order of dependency, and what each may depend on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate, and what it may depend on.
pub(crate) struct CrateRules {
    /// Its name in code.
    pub(crate) name: &'static str,
    package: &'static str,
    /// Its folder in the repository.
    folder: &'static str,
    /// Packages that it may name in its manifest, besides those for tests; none if it may name any.
    direct: Option<&'static [&'static str]>,
    /// Packages that it may not have, not even behind others.
    forbidden: &'static [&'static [&'static str]],
    /// Packages that may build C for it; none if any may.
    with_c: Option<&'static [&'static str]>,
}

const RUNTIMES: &[&str] = &["async-std", "smol", "tokio"];
const SOCKETS: &[&str] = &["hyper", "mio", "socket2"];
const TLS: &[&str] =
    &["aws-lc-rs", "boring", "native-tls", "openssl", "ring", "rustls", "rustls-webpki", "tokio-rustls"];
/// Whatever builds C has one of these for its build script.
const C_BUILDERS: &[&str] = &["bindgen", "cc", "cmake", "pkg-config", "vcpkg"];

/// Each crate may use only crates above it.
pub(crate) const CRATES: [CrateRules; 5] = [
    CrateRules {
        name: "kubeapi",
        package: "narthex-kubeapi",
        folder: "crates/kubeapi",
        direct: Some(&[
            "base64",
            "bytes",
            "granit-parser",
            "http",
            "jiff",
            "parking_lot",
            "percent-encoding",
            "regex",
            "serde",
            "serde-saphyr",
            "serde_json",
        ]),
        forbidden: &[RUNTIMES, SOCKETS, TLS],
        with_c: Some(&[]),
    },
    CrateRules {
        name: "store",
        package: "narthex-store",
        folder: "crates/store",
        direct: Some(&[
            "arc-swap",
            "bytes",
            "crc32fast",
            "fastrand",
            "narthex-kubeapi",
            "parking_lot",
            "percent-encoding",
            "rpds",
            "rusqlite",
            "rustix",
            "serde",
            "serde_json",
            "tempfile",
            "tokio",
            "tracing",
        ]),
        forbidden: &[SOCKETS, TLS],
        with_c: Some(&["libsqlite3-sys"]),
    },
    CrateRules {
        name: "konnectivity_client",
        package: "narthex-konnectivity-client",
        folder: "crates/konnectivity-client",
        direct: Some(&[
            "bytes",
            "fastrand",
            "futures-util",
            "h2",
            "http",
            "parking_lot",
            "percent-encoding",
            "tokio",
            "tracing",
            "uuid",
        ]),
        forbidden: &[SOCKETS, TLS],
        with_c: Some(&[]),
    },
    CrateRules {
        name: "etcd_store",
        package: "narthex-etcd-store",
        folder: "crates/etcd-store",
        direct: Some(&[
            "bytes",
            "futures-util",
            "http",
            "hyper",
            "hyper-util",
            "narthex-store",
            "parking_lot",
            "prost",
            "tokio",
            "tonic",
            "tonic-prost",
            "tower-service",
            "tracing",
        ]),
        // hyper speaks HTTP/2 on the streams of the caller.
        forbidden: &[&["mio", "socket2"], TLS],
        with_c: Some(&["libsqlite3-sys"]),
    },
    CrateRules { name: "narthex", package: "narthex", folder: ".", direct: None, forbidden: &[], with_c: None },
];

impl CrateRules {
    /// The folder of its sources.
    pub(crate) fn source(&self) -> PathBuf {
        self.path("src")
    }

    fn path(&self, file: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(self.folder).join(file).components().collect()
    }

    /// Its packages by kinds of dependency (`normal`, `build`, `dev`).
    fn dependencies(&self, kinds: &str) -> Vec<Dependency> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let tree = ["tree", "--offline", "--locked", "--prefix=depth", "--format= {p}", "--package", self.package];
        let mut command = Command::new(cargo);
        command.args(tree).args(["--edges", kinds]).current_dir(self.path(""));
        let output = command.output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        read_tree(&String::from_utf8_lossy(&output.stdout))
    }

    /// What it may not have among `dependencies`.
    fn violations(&self, dependencies: &[Dependency]) -> Vec<String> {
        let mut wrong = Vec::new();
        for Dependency { name, parent, depth } in dependencies {
            if *depth == 1 && self.direct.is_some_and(|direct| !direct.contains(&&**name)) {
                wrong.push(format!("{} may not depend on {name}", self.package));
            }
            if self.forbidden.iter().any(|group| group.contains(&&**name)) {
                wrong.push(format!("{} has {name}, by {parent}", self.package));
            }
            let builds_c = C_BUILDERS.contains(&&**name) && !C_BUILDERS.contains(&&**parent);
            if builds_c && self.with_c.is_some_and(|allowed| !allowed.contains(&&**parent)) {
                wrong.push(format!("{} has C, built by {parent} with {name}", self.package));
            }
        }
        wrong
    }
}

/// A package that a crate depends on.
#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    name: String,
    /// The package that names it.
    parent: String,
    /// 1 if the crate itself names it.
    depth: usize,
}

/// Reads lines like `2 serde_core v1.0.0`.
fn read_tree(text: &str) -> Vec<Dependency> {
    let mut above: Vec<String> = Vec::new();
    let mut dependencies = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(name)) = (words.next().and_then(|depth| depth.parse().ok()), words.next()) else {
            continue;
        };
        above.truncate(depth);
        if let Some(parent) = above.last().cloned() {
            dependencies.push(Dependency { name: name.to_owned(), parent, depth });
        }
        above.push(name.to_owned());
    }
    dependencies
}

#[test]
fn crates_have_only_the_dependencies_they_may_have() {
    let mut wrong = Vec::new();
    for krate in CRATES.iter().filter(|krate| krate.direct.is_some()) {
        let dependencies = krate.dependencies("normal,build");
        assert!(!dependencies.is_empty(), "{} has no dependencies", krate.package);
        wrong.extend(krate.violations(&dependencies));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn crates_use_only_crates_above() {
    for (position, krate) in CRATES.iter().enumerate() {
        for dependency in krate.dependencies("normal,build,dev").iter().filter(|dependency| dependency.depth == 1) {
            let below = CRATES[position..].iter().any(|other| other.package == dependency.name);
            assert!(!below, "{} stands above {} and may not use it", krate.package, dependency.name);
        }
    }
}

#[test]
fn crates_are_listed_and_have_a_page() {
    let folders = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")).unwrap();
    let present: BTreeSet<_> =
        folders.map(|entry| format!("crates/{}", entry.unwrap().file_name().display())).collect();
    let listed: BTreeSet<_> =
        CRATES.iter().map(|krate| krate.folder.to_owned()).filter(|folder| folder.starts_with("crates/")).collect();
    assert_eq!(present, listed);
    for krate in CRATES.iter().filter(|krate| krate.folder != ".") {
        let readme = std::fs::read_to_string(krate.path("README.md")).unwrap();
        let parts = ["## Who uses it\n", "## Example\n\n```rust\n", "## What it does not do\n"];
        assert!(parts.iter().all(|part| readme.contains(part)), "{}/README.md lacks one of {parts:?}", krate.folder);
        let lines = readme.lines().count();
        assert!(lines <= 80, "{}/README.md has {lines} lines: one page", krate.folder);
        let root = std::fs::read_to_string(krate.path("src/lib.rs")).unwrap();
        let included = root.contains("#![doc = include_str!(\"../README.md\")]");
        assert!(included, "{}/src/lib.rs does not include the README, whose example is a test", krate.folder);
    }
}

#[test]
fn dependency_trees_are_read_and_violations_found() {
    let text = "0 narthex-kubeapi v0.1.0 (/a)\n1 regex v1\n2 memchr v2 (*)\n1 serde v1\n2 ring v0.17\n3 cc v1\n4 pkg-config v1\n";
    let dependencies = read_tree(text);
    let ring = Dependency { name: "ring".to_owned(), parent: "serde".to_owned(), depth: 2 };
    assert_eq!((dependencies.len(), &dependencies[3]), (6, &ring));
    let expected = ["narthex-kubeapi has ring, by serde", "narthex-kubeapi has C, built by ring with cc"];
    assert_eq!(CRATES[0].violations(&dependencies), expected);
    let dependencies = read_tree("0 narthex-kubeapi v0.1.0\n1 tokio v1\n");
    let expected = ["narthex-kubeapi may not depend on tokio", "narthex-kubeapi has tokio, by narthex-kubeapi"];
    assert_eq!(CRATES[0].violations(&dependencies), expected);
}
