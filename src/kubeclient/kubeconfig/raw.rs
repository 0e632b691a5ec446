//! Raw content of kubeconfig files, and how several files are merged.
//!
//! Files are merged as by `clientcmd.ClientConfigLoadingRules` of client-go: each cluster, user and context is the
//! whole entry of the first file that has it, and `current-context` is that of the first file that sets it. Relative
//! paths are relative to their file.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::kubeclient::plugin::ExecConfig;
use crate::process::{Problem, Problems};

/// The raw kubeconfig files. There is at least one.
pub(in crate::kubeclient) struct RawKubeconfig(Vec<KubeconfigFile>);

/// One kubeconfig file.
struct KubeconfigFile {
    origin: FileLocation,
    content: KubeconfigContent,
}

/// Location of a kubeconfig file.
pub(in crate::kubeclient) struct FileLocation {
    /// Name of the entry in problems.
    pub(super) display_name: String,
    /// Base directory of relative paths.
    pub(super) folder: PathBuf,
    /// Its path, if it is a file.
    pub(super) file: Option<PathBuf>,
}

/// Location of a field in a kubeconfig file.
#[derive(Clone)]
pub(in crate::kubeclient) struct FieldLocation<'w> {
    pub(super) location: &'w FileLocation,
    /// Path of the field inside the file.
    pub(super) field: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default, expecting = "a mapping")]
pub(super) struct KubeconfigContent {
    pub(super) clusters: Vec<NamedCluster>,
    pub(super) users: Vec<NamedUser>,
    pub(super) contexts: Vec<NamedContext>,
    pub(super) current_context: String,
}

#[derive(Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
pub(super) struct NamedCluster {
    pub(super) name: String,
    pub(super) cluster: Option<KubeconfigCluster>,
}

#[derive(Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
pub(super) struct NamedUser {
    pub(super) name: String,
    pub(super) user: AuthInfo,
}

#[derive(Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
pub(super) struct NamedContext {
    pub(super) name: String,
    pub(super) context: Option<Context>,
}

#[derive(Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
pub(in crate::kubeclient) struct Context {
    pub(super) cluster: String,
    pub(super) user: String,
}

#[derive(Clone, Deserialize, Default)]
#[serde(rename_all = "kebab-case", default, expecting = "a mapping")]
pub(in crate::kubeclient) struct KubeconfigCluster {
    pub(super) server: String,
    pub(super) tls_server_name: String,
    pub(in crate::kubeclient) insecure_skip_tls_verify: bool,
    pub(super) certificate_authority: String,
    pub(super) certificate_authority_data: String,
    pub(super) proxy_url: String,
    pub(super) disable_compression: bool,
    pub(super) extensions: Vec<NamedExtension>,
}

#[derive(Clone, Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
pub(super) struct NamedExtension {
    pub(super) name: String,
    pub(super) extension: Value,
}

#[derive(Clone, Deserialize, Default)]
#[serde(rename_all = "kebab-case", default, expecting = "a mapping")]
pub(super) struct AuthInfo {
    pub(super) client_certificate: String,
    pub(super) client_certificate_data: String,
    pub(super) client_key: String,
    pub(super) client_key_data: String,
    pub(super) token: String,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: String,
    pub(super) username: String,
    pub(super) password: String,
    pub(super) r#as: String,
    pub(super) as_uid: String,
    pub(super) as_groups: Vec<String>,
    pub(super) as_user_extra: BTreeMap<String, Vec<String>>,
    pub(super) auth_provider: Option<AuthProviderConfig>,
    pub(super) exec: Option<ExecConfig>,
}

#[derive(Clone, Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
pub(super) struct AuthProviderConfig {
    pub(super) name: String,
    pub(super) config: BTreeMap<String, String>,
}

impl RawKubeconfig {
    /// Reads the files of `paths`. At least one must exist.
    pub(in crate::kubeclient) fn load(paths: &[PathBuf]) -> Result<RawKubeconfig, Problems> {
        let (found, missing) = RawKubeconfig::load_existing(paths)?;
        if found.0.is_empty() { Err(missing) } else { Ok(found) }
    }

    /// Reads the files of `paths`, all of which may be missing.
    pub(super) fn load_if_any(paths: &[PathBuf]) -> Result<RawKubeconfig, Problems> {
        let (found, _) = RawKubeconfig::load_existing(paths)?;
        let nothing = || RawKubeconfig::from_content("the command line", Path::new(""), KubeconfigContent::default());
        Ok(if found.0.is_empty() { nothing() } else { found })
    }

    /// Reads the existing files of `paths`. Also returns problems for the missing ones.
    fn load_existing(paths: &[PathBuf]) -> Result<(RawKubeconfig, Problems), Problems> {
        let (mut documents, mut problems, mut missing) = (Vec::new(), Problems::default(), Problems::default());
        for path in paths {
            let location = path.display().to_string();
            match std::fs::read_to_string(path) {
                Ok(text) => {
                    let content = KubeconfigContent::parse(&location, &text);
                    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                    let origin = FileLocation { display_name: location, folder, file: Some(path.clone()) };
                    documents.extend(problems.collect(content).map(|content| KubeconfigFile { origin, content }));
                }
                Err(error) => {
                    let absent = error.kind() == ErrorKind::NotFound;
                    let problem = Problem::new(location, format_args!("cannot be read: {error}"));
                    if absent { &mut missing } else { &mut problems }.0.push(problem);
                }
            }
        }
        problems.into_result((RawKubeconfig(documents), missing))
    }

    /// A kubeconfig without a file.
    pub(super) fn from_content(location: &str, folder: &Path, content: KubeconfigContent) -> RawKubeconfig {
        let origin = FileLocation { display_name: location.to_owned(), folder: folder.to_owned(), file: None };
        RawKubeconfig(vec![KubeconfigFile { origin, content }])
    }

    /// The name of the current context; empty if there is none.
    pub(super) fn current_context(&self) -> (FieldLocation<'_>, &str) {
        let set = self.0.iter().find(|document| !document.content.current_context.is_empty()).unwrap_or(&self.0[0]);
        (FieldLocation { location: &set.origin, field: "current-context".to_owned() }, &set.content.current_context)
    }

    pub(super) fn context(&self, name: &str) -> Option<(FieldLocation<'_>, Option<&Context>)> {
        self.find("contexts", "context", name, |it| &it.contexts, |it| (&it.name, it.context.as_ref()))
    }

    /// The names of the contexts, as the end of an error message.
    pub(super) fn describe_contexts(&self) -> String {
        const MOST: usize = 20;
        let contexts = self.0.iter().flat_map(|document| &document.content.contexts);
        let names: BTreeSet<&str> = contexts.map(|named| named.name.as_str()).collect();
        let shown: Vec<String> = names.iter().take(MOST).map(|name| format!("{name:?}")).collect();
        match names.len() {
            0 => "; the file has none".to_owned(),
            all if all > MOST => format!("; the contexts are {} and {} more", shown.join(", "), all - MOST),
            _ => format!("; the contexts are {}", shown.join(", ")),
        }
    }

    pub(super) fn cluster(&self, name: &str) -> Option<(FieldLocation<'_>, Option<&KubeconfigCluster>)> {
        self.find("clusters", "cluster", name, |it| &it.clusters, |it| (&it.name, it.cluster.as_ref()))
    }

    pub(super) fn user(&self, name: &str) -> Option<(FieldLocation<'_>, &AuthInfo)> {
        self.find("users", "user", name, |it| &it.users, |it| (&it.name, &it.user))
    }

    /// The entry of that name in the first file that has one. `None` if that file has several.
    fn find<'w, E: 'w, T>(
        &'w self,
        list: &str,
        part: &str,
        name: &str,
        entries: impl Fn(&'w KubeconfigContent) -> &'w Vec<E>,
        of: impl Fn(&'w E) -> (&'w String, T),
    ) -> Option<(FieldLocation<'w>, T)> {
        self.0.iter().find_map(|KubeconfigFile { origin, content }| {
            let named = entries(content).iter().map(&of).enumerate().filter(|(_, (its, _))| *its == name);
            let mut named = named.map(|(number, (_, it))| {
                (FieldLocation { location: origin, field: format!("{list}[{number}].{part}") }, it)
            });
            named.next().map(|first| named.next().is_none().then_some(first))
        })?
    }
}

impl KubeconfigContent {
    fn parse(location: &str, text: &str) -> Result<KubeconfigContent, Problem> {
        // JSON is YAML, too.
        let mut value: Value = serde_saphyr::from_str(text).map_err(|error| {
            let at = error.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
            // Not the parser's message: it may quote the line, which may hold a key.
            Problem::new(location, format_args!("not YAML{}", at.unwrap_or_default()))
        })?;
        drop_nulls(&mut value);
        // A file with comments only is empty, not invalid.
        let value = if value.is_null() { serde_json::json!({}) } else { value };
        serde_path_to_error::deserialize(&value).map_err(|error| {
            let field = error.path().to_string();
            Problem::at_field(location, if field == "." { "" } else { &field }, "is of an invalid type")
        })
    }
}

/// Removes null fields. As in Go, they count as absent.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

impl FieldLocation<'_> {
    /// A field of this field.
    pub(in crate::kubeclient) fn child(&self, field: &str) -> Self {
        let dot = if self.field.is_empty() { "" } else { "." };
        FieldLocation { location: self.location, field: format!("{}{dot}{field}", self.field) }
    }

    pub(super) fn problem(&self, why: impl fmt::Display) -> Problem {
        Problem::at_field(&self.location.display_name, &self.field, why)
    }
}
