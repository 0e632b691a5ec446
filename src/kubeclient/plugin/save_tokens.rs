//! Saves new tokens in a kubeconfig that other programs use too: under client-go's lock, atomically, and without other
//! changes to the file.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Sets `values` in the `auth-provider` of `user`.
///
/// # Errors
/// The file could not be written. It is unchanged.
pub(super) fn save_tokens(file: &Path, user: &str, values: &[(&str, &str)]) -> Result<(), String> {
    let file = fs::canonicalize(file).map_err(|error| error.to_string())?;
    let _lock = KubeconfigLock::acquire(&file)?;
    let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
    let parse = |text: &str| serde_saphyr::from_str::<Value>(text).map_err(|_| "it is no longer valid YAML".to_owned());
    let before = parse(&text)?;
    let mut after = before.clone();
    let (from, to) = (config(&before, user)?.clone(), config_mut(&mut after, user)?);
    let mut changed = text;
    for (name, value) in values {
        // Replaced in the text, to keep comments and format. The result is verified below.
        if let Some(old) = from.get(*name).and_then(Value::as_str).filter(|old| !old.is_empty()) {
            changed = changed.replace(old, value);
        }
        to.insert((*name).to_owned(), (*value).into());
    }
    if parse(&changed).ok().as_ref() != Some(&after) {
        // Written anew, as client-go always does: comments are lost.
        changed = serde_saphyr::to_string(&after).map_err(|error| error.to_string())?;
        if parse(&changed)? != after {
            return Err("it cannot be serialized again".to_owned());
        }
    }
    replace_file(&file, &changed).map_err(|error| error.to_string())
}

type Config = serde_json::Map<String, Value>;

fn config<'v>(kubeconfig: &'v Value, user: &str) -> Result<&'v Config, String> {
    let mut users = kubeconfig["users"].as_array().into_iter().flatten();
    let found = users
        .find(|entry| entry["name"] == user)
        .and_then(|entry| entry["user"]["auth-provider"]["config"].as_object());
    found.ok_or_else(|| missing_auth_provider(user))
}

fn config_mut<'v>(kubeconfig: &'v mut Value, user: &str) -> Result<&'v mut Config, String> {
    let mut users = kubeconfig["users"].as_array_mut().into_iter().flatten();
    let found = users
        .find(|entry| entry["name"] == user)
        .and_then(|entry| entry["user"]["auth-provider"]["config"].as_object_mut());
    found.ok_or_else(|| missing_auth_provider(user))
}

fn missing_auth_provider(user: &str) -> String {
    format!("it no longer has an auth-provider of user {user:?}")
}

/// Replaces the file atomically, also in case of a crash. Keeps its mode, and is not readable by others meanwhile.
fn replace_file(file: &Path, text: &str) -> std::io::Result<()> {
    let mode = fs::metadata(file)?.permissions().mode() & 0o777;
    let hidden = with_suffix(file, ".narthex");
    let _ = fs::remove_file(&hidden);
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&hidden)?;
    let written = new.write_all(text.as_bytes()).and_then(|()| new.set_permissions(fs::Permissions::from_mode(mode)));
    let replaced = written.and_then(|()| new.sync_all()).and_then(|()| fs::rename(&hidden, file));
    replaced.inspect_err(|_| {
        let _ = fs::remove_file(&hidden);
    })
}

/// The lock that client-go takes before it writes (`clientcmd.lockFile`).
struct KubeconfigLock(PathBuf);

impl KubeconfigLock {
    fn acquire(file: &Path) -> Result<KubeconfigLock, String> {
        let lock = with_suffix(file, ".lock");
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&lock) {
            Ok(_) => Ok(KubeconfigLock(lock)),
            Err(error) => Err(format!("{}: {error}", lock.display())),
        }
    }
}

impl Drop for KubeconfigLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn with_suffix(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(text: &str, values: &[(&str, &str)]) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let remembered = save_tokens(&file, "jane", values);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        remembered.map(|()| fs::read_to_string(&file).unwrap())
    }

    #[test]
    fn save_tokens_changes_only_tokens() {
        let text = "# mine\nusers:\n- name: joe\n  user: {}\n- name: jane # me\n  user:\n    auth-provider:\n      name: oidc\n      \
                    config:\n        id-token: old.id.token\n        refresh-token: old-refresh\n        client-id: k\n";
        let new = [("id-token", "new.id.token"), ("refresh-token", "new-refresh")];
        let expected = text.replace("old.id.token", "new.id.token").replace("old-refresh", "new-refresh");
        assert_eq!(after(text, &new).unwrap(), expected);
        // Without an old value, or with one that occurs elsewhere too, the file is written anew.
        for text in [
            text.replace("        id-token: old.id.token\n", ""),
            text.replace("client-id: k", "client-id: old-refresh"),
        ] {
            let written = after(&text, &new).unwrap();
            let (mut before, written): (Value, Value) =
                (serde_saphyr::from_str(&text).unwrap(), serde_saphyr::from_str(&written).unwrap());
            let config = config_mut(&mut before, "jane").unwrap();
            config.extend(new.map(|(name, value)| (name.to_owned(), value.into())));
            assert_eq!(written, before);
        }
        assert!(after("users: []", &new).unwrap_err().contains("no longer has an auth-provider of user \"jane\""));
    }

    #[test]
    fn save_tokens_respects_existing_lock() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        fs::write(&file, "users: []").unwrap();
        fs::write(with_suffix(&file, ".lock"), "").unwrap();
        assert!(save_tokens(&file, "jane", &[]).unwrap_err().contains("config.lock: File exists"));
        assert!(with_suffix(&file, ".lock").exists());
    }
}
