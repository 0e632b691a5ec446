//! Saves new tokens in a kubeconfig that other programs use too: under client-go's lock, atomically, and without other
//! changes to the file.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use serde_json::Value;
use tempfile::TempPath;

use crate::process::replace_file;

/// Sets `values` in the `auth-provider` of `user`.
///
/// # Errors
/// The file could not be written. It is unchanged.
pub(super) fn save_tokens(file: &Path, user: &str, values: &[(&str, &str)]) -> Result<(), String> {
    let file = fs::canonicalize(file).map_err(|error| error.to_string())?;
    let _lock = lock(&file)?;
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
    let permissions = fs::metadata(&file).map_err(|error| error.to_string())?.permissions();
    replace_file(&file, &changed, permissions.mode() & 0o777).map_err(|problem| problem.message)?;
    // The umask may have removed some.
    fs::set_permissions(&file, permissions).map_err(|error| error.to_string())
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

/// Takes the lock that client-go takes before it writes (`clientcmd.lockFile`). It is released when dropped.
fn lock(file: &Path) -> Result<TempPath, String> {
    let mut path = file.as_os_str().to_owned();
    path.push(".lock");
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    created
        .and_then(|_| TempPath::try_from_path(&path))
        .map_err(|error| format!("{}: {error}", Path::new(&path).display()))
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
        let lock = folder.path().join("config.lock");
        fs::write(&lock, "").unwrap();
        assert!(save_tokens(&file, "jane", &[]).unwrap_err().contains("config.lock: File exists"));
        assert!(lock.exists());
    }
}
