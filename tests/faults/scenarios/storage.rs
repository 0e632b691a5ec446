//! Disks that are full or read-only: the audit log, the data directory and the store of the embedded API server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use http::Method;
use serde_json::json;

use crate::echo_backend::{ExecutionLedger, start_echo_backend};
use crate::report::FaultRow;
use crate::stage::Stage;
use crate::support::backend::BackendSettings;
use crate::support::client::Client;
use crate::support::embedded_api::{CONFIG_MAPS, send_json};
use crate::support::fixtures::TestEnvironment;

/// Size of the disk.
const DISK_BYTES: usize = 16 << 20;

/// A small file system, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: PathBuf) -> SmallDisk {
        fs::create_dir_all(&folder).unwrap();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={DISK_BYTES}"), "none", folder.to_str().unwrap()]);
        SmallDisk(folder)
    }

    /// Writes until nothing more can be written.
    fn fill(&self) -> PathBuf {
        let file = self.0.join("filling");
        let written = fs::write(&file, vec![0; DISK_BYTES]);
        assert!(written.is_err(), "the disk is full");
        file
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy", self.0.to_str().unwrap()]).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program} {arguments:?}");
}

/// A gateway with the embedded API server, whose data and audit log are on the disk.
async fn start_on_disk() -> (SmallDisk, Stage) {
    let environment = TestEnvironment::new();
    let disk = SmallDisk::mount(environment.path("disk"));
    let policy = environment.path("audit.yaml");
    fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Request}]\n").unwrap();
    let flags = [
        "--embedded-api".to_owned(),
        format!("--data-dir={}", environment.path("disk/data").display()),
        format!("--audit-log-path={}", environment.path("disk/audit.log").display()),
        format!("--audit-policy-file={}", policy.display()),
        "--audit-log-maxsize=1".to_owned(),
        "--audit-log-maxbackup=1".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let ledger = ExecutionLedger::default();
    let backend = start_echo_backend(&environment, BackendSettings::default(), &ledger).await;
    (disk, Stage::start_with(environment, ledger, vec![backend], &flags).await)
}

/// Creates ConfigMaps until one is refused, at most `most`; their names.
async fn create_config_maps(client: &Client, prefix: &str, most: usize) -> (Vec<String>, Option<u16>) {
    let mut created = Vec::new();
    for number in 0..most {
        let name = format!("{prefix}{number}");
        let object = json!({"metadata": {"name": name}, "data": {"k": "x".repeat(100_000)}});
        let response = send_json(client, Method::POST, CONFIG_MAPS, &object).await;
        if response.status != 201 {
            assert!(response.json()["reason"].is_string(), "{}", response.text());
            return (created, Some(response.status.as_u16()));
        }
        created.push(name);
    }
    (created, None)
}

async fn assert_config_maps(client: &Client, names: &[String]) {
    for name in names {
        assert_eq!(client.get(&format!("{CONFIG_MAPS}/{name}")).await.status, 200, "{name}");
    }
}

/// Relayed requests go on; writes to the store get 503, and nothing acknowledged is lost.
pub(crate) async fn full_disk() -> FaultRow {
    let (disk, stage) = start_on_disk().await;
    run_without_writes(
        stage,
        disk.0.clone(),
        400,
        || drop(disk.fill()),
        |folder| fs::remove_file(folder.join("filling")).unwrap(),
    )
    .await
}

pub(crate) async fn read_only_data_directory() -> FaultRow {
    let (disk, stage) = start_on_disk().await;
    let folder = disk.0.clone();
    let data = folder.join("data");
    // The store's own files are open already: its writes go on, and few enough for the disk.
    run_without_writes(stage, data.clone(), 5, || make_read_only(&data), make_writable).await
}

/// A bind mount of the folder on itself may be read-only while the files that are open stay as they are.
fn make_read_only(folder: &Path) {
    let path = folder.to_str().unwrap();
    run("mount", &["--bind", path, path]);
    run("mount", &["-o", "remount,bind,ro", path]);
}

fn make_writable(folder: &Path) {
    run("umount", &["--lazy", folder.to_str().unwrap()]);
}

/// The load while nothing, or nothing new, can be written to `folder`, and `writes` objects at most are created.
async fn run_without_writes(
    mut stage: Stage,
    folder: PathBuf,
    writes: usize,
    begin: impl FnOnce(),
    end: impl FnOnce(&Path),
) -> FaultRow {
    let admin = stage.environment.issue_user("admin", &["system:masters"]);
    let client = Client::http2(&stage.environment, &stage.gateway, Some(&admin)).await;
    let (mut stored, refused) = create_config_maps(&client, "before", 5).await;
    assert_eq!(refused, None);
    drop(client);
    let load = stage.start_load().await;
    begin();
    let client = Client::http2(&stage.environment, &stage.gateway, Some(&admin)).await;
    let (more, refused) = create_config_maps(&client, "during", writes).await;
    stored.extend(more);
    load.go_on(10).await;
    assert_config_maps(&client, &stored).await;
    end(&folder);
    let (more, still_refused) = create_config_maps(&client, "after", 3).await;
    assert_eq!(still_refused, None, "there is room again");
    stored.extend(more);
    assert_config_maps(&client, &stored).await;
    drop(client);
    let mut row = stage.finish(load, &[]).await;
    let refusal = refused.map_or("none refused".to_owned(), |status| format!("others refused with {status}"));
    row.note = format!("{} objects acknowledged and kept; {refusal}", stored.len());
    row
}
