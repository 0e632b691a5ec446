//! Warnings and log lines about kinds that are stored and not enforced.

use super::api_server::ApiServer;
use crate::resources::ServedKind;
use crate::resources::catalog::{CatalogEntry, Enforcement};

impl ApiServer {
    /// The kinds that are stored and not enforced, of which there are objects of clients.
    pub fn unenforced_kinds(&self) -> Vec<String> {
        self.unenforced_kinds.names()
    }

    /// Notes that a client creates an object of a kind. Returns the warning if the kind is not enforced.
    pub(super) fn note_creation(&self, kind: &ServedKind, is_dry_run: bool) -> Option<String> {
        let catalog = self.catalog.get();
        let (group, plural) = kind.resource.group_resource();
        let entry = catalog.find(group, &kind.version.version, plural)?;
        match entry.enforcement() {
            Enforcement::Any => None,
            Enforcement::Controllers if is_dry_run => None,
            Enforcement::Controllers => {
                if self.unenforced_kinds.note_workload() {
                    tracing::info!(
                        kind = &*kind.resource.kind,
                        "workloads are stored; a kube-controller-manager beside this server makes them run"
                    );
                }
                None
            }
            Enforcement::Missing => {
                if !is_dry_run {
                    self.note_unenforced(entry);
                }
                let warns = self.settings.warns_unenforced;
                warns.then(|| format!("narthex stores this {} and does not enforce it", kind.resource.kind))
            }
        }
    }

    /// Notes the kinds that are not enforced and have objects. Those of flow control always have: the server makes them.
    pub(crate) async fn note_stored_unenforced(&self) {
        let catalog = self.settings.catalog.clone();
        let is_noted = |entry: &&CatalogEntry| {
            entry.enforcement() == Enforcement::Missing && entry.kind.resource.group != "flowcontrol.apiserver.k8s.io"
        };
        for entry in catalog.entries().iter().filter(is_noted) {
            let Ok(collection) = self.collection(&entry.kind.resource) else { continue };
            if collection.ensure_loaded().await.is_ok() && !collection.current().1.is_empty() {
                self.note_unenforced(entry);
            }
        }
    }

    fn note_unenforced(&self, entry: &CatalogEntry) {
        let (group, plural) = entry.kind.resource.group_resource();
        let name = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        if self.unenforced_kinds.note(&name) {
            tracing::warn!("{name} are stored and not enforced: this server does not act on them");
        }
    }
}
