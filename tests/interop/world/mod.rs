//! The world the suite runs in: real peers on loopback, and the people who use them.

mod addresses;
mod behind;
mod browser;
mod certificates;
mod cluster;
mod converter;
mod curl;
mod echo;
mod extension;
mod gateway;
mod http;
mod konnectivity;
pub(crate) mod kubeconfig;
mod kubectl;
mod network;
mod process;
mod said;
mod session;

pub(crate) use addresses::free_port;
pub(crate) use behind::{Behind, configuration};
pub(crate) use browser::Browser;
pub(crate) use certificates::{Authority, Identity};
pub(crate) use cluster::{Cluster, audit_policy};
pub(crate) use converter::converter;
pub(crate) use curl::{curl, curl_with_input};
pub(crate) use echo::{Speaks, echo};
pub(crate) use extension::Extension;
pub(crate) use gateway::{Gateway, register};
pub(crate) use http::{Answer, Door, NOT_LET_IN, runtime};
pub(crate) use konnectivity::{Front, Konnectivity, Tokens};
pub(crate) use kubectl::{Kubectl, Stream, run as kubectl_run};
pub(crate) use network::Network;
pub(crate) use process::{Process, eventually};
pub(crate) use said::Said;
pub(crate) use session::{Session, Step};

use std::path::{Path, PathBuf};

/// Where a story is told: straight to a server, or through narthex to the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The extension API server itself.
    Direct,
    /// Narthex before the extension API server.
    Through,
    /// kube-apiserver itself.
    Cluster,
    /// Narthex before both.
    Front,
}

/// Everything that is started once and shared by all stories.
pub(crate) struct World {
    // Dropped in this order: what stands in front ends first.
    pub(crate) gateway: Option<Gateway>,
    pub(crate) front: Option<Gateway>,
    pub(crate) extension: Extension,
    pub(crate) cluster: Cluster,
    directory: tempfile::TempDir,
}

impl World {
    /// Starts etcd, kube-apiserver, sample-apiserver and, when `with_gateway`, narthex before it.
    pub(crate) fn start(with_gateway: bool) -> World {
        let directory = tempfile::Builder::new().prefix("interop-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        println!("world: files and logs are in {}", directory.path().display());
        let cluster = Cluster::start(directory.path());
        let extension = Extension::start(&cluster, directory.path(), "wardle");
        let gateway = with_gateway.then(|| Gateway::start(&cluster, &extension, directory.path(), "narthex", &[]));
        let front = with_gateway.then(|| {
            let cluster_itself = cluster.admin_kubeconfig.display().to_string();
            let flags = [("--kubeconfig", cluster_itself.as_str()), ("--delegate-kubeconfig", cluster_itself.as_str())];
            Gateway::start(&cluster, &extension, directory.path(), "front", &flags)
        });
        World { gateway, front, extension, cluster, directory }
    }

    /// Where `target` answers, and what its certificate is signed by.
    pub(crate) fn door(&self, target: Target) -> &Door {
        let gateway = match target {
            Target::Direct => return &self.extension.door,
            Target::Cluster => return &self.cluster.door,
            Target::Through => &self.gateway,
            Target::Front => &self.front,
        };
        &gateway.as_ref().expect("narthex was started").door
    }

    /// The targets a story is told to, the reference first. Without narthex it is told twice to the
    /// server, which shows that nothing but the target can make a difference.
    pub(crate) fn targets(&self) -> [Target; 2] {
        [Target::Direct, if self.gateway.is_some() { Target::Through } else { Target::Direct }]
    }

    /// The same for stories of a whole cluster.
    pub(crate) fn whole_targets(&self) -> [Target; 2] {
        [Target::Cluster, if self.front.is_some() { Target::Front } else { Target::Cluster }]
    }

    /// A directory of its own for one story.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join("stories").join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Says how to use the world by hand, and keeps it until a line (or the end) comes on standard input.
    pub(crate) fn hold(self) {
        for (name, target) in [
            ("direct", Target::Direct),
            ("through", Target::Through),
            ("cluster", Target::Cluster),
            ("front", Target::Front),
        ] {
            let door = self.door(target);
            for (person, identity) in [("jane", self.cluster.jane()), ("admin", self.cluster.admin())] {
                let file = format!("{person}-{name}");
                let path =
                    kubeconfig::write(self.directory.path(), &file, &door.url(), &door.authority, Some(identity));
                println!("{} --kubeconfig={}", peer("kubectl").display(), path.display());
            }
        }
        println!("Enter ends it.");
        let _ = std::io::stdin().read_line(&mut String::new());
        self.end(false);
    }

    /// Ends the peers; keeps files and logs when something failed.
    pub(crate) fn end(self, failed: bool) {
        let World { gateway, front, extension, cluster, directory } = self;
        if failed {
            for gateway in [&gateway, &front].into_iter().flatten() {
                gateway.process.print_tail(40);
            }
            extension.process.print_tail(40);
        }
        drop((gateway, front, extension, cluster));
        if failed {
            println!("world: logs kept in {}", directory.keep().display());
        }
    }
}

/// A program that `tests/interop/run` built.
pub(crate) fn peer(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/bin").join(name)
}
