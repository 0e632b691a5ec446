//! Options in the query string (`ListOptions`, `CreateOptions` and others).

use std::time::Duration;

use super::api_errors;
use super::selector::ObjectSelector;
use crate::kubeapi::{self, Status, StatusCause};
use crate::rest::FieldValidation;

/// The parameters of a query string, in order.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(super) fn parse(query: &str) -> Parameters {
        let query = kubeapi::Query::parse(query);
        Parameters(query.pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// The first value of `name`, or an empty string.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// All values of `name`.
    pub(super) fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// As `k8s.io/apimachinery/pkg/runtime` reads flags: present and neither `0` nor `false`.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.all(name).next().map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    fn number(&self, name: &str) -> Result<u64, Status> {
        match self.get(name) {
            "" => Ok(0),
            text => text
                .parse::<i64>()
                .map(|number| u64::try_from(number).unwrap_or(0))
                .map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))),
        }
    }
}

/// The options of a list or watch (`metav1.ListOptions`).
pub(super) struct ExampleListOptions {
    pub(super) selector: ObjectSelector,
    pub(super) limit: usize,
    pub(super) continue_token: String,
    pub(super) version: ExampleListVersion,
    pub(super) watch: bool,
    pub(super) bookmarks: bool,
    /// Zero when not given.
    pub(super) timeout: Duration,
    /// `sendInitialEvents`: whether the watch begins with the existing objects, followed by a bookmark.
    pub(super) initial_events: Option<bool>,
}

/// `resourceVersion` and `resourceVersionMatch` together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExampleListVersion {
    /// No version is given: the current objects.
    Latest,
    /// Version `0`: objects of any version.
    Any,
    NotOlderThan(u64),
    Exact(u64),
}

impl ExampleListOptions {
    pub(super) fn read(query: &Parameters) -> Result<ExampleListOptions, Status> {
        let watch = query.flag("watch").unwrap_or(false);
        let initial_events = query.flag("sendInitialEvents");
        let (version, matching) = (query.get("resourceVersion"), query.get("resourceVersionMatch"));
        let limit = usize::try_from(query.number("limit")?).unwrap_or(usize::MAX);
        let continue_token = query.get("continue").to_owned();
        let errors = validate_versions(watch, initial_events, version, matching, !continue_token.is_empty());
        if !errors.is_empty() {
            return Err(api_errors::invalid_options("ListOptions", errors));
        }
        if !continue_token.is_empty() && !matches!(version, "" | "0") {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let version = match version {
            "" => ExampleListVersion::Latest,
            "0" => ExampleListVersion::Any,
            text => {
                let revision = parse_version(text)?;
                // Kubernetes reads a list with a limit at exactly the given version by default.
                let exact = matching == "Exact" || (matching.is_empty() && limit > 0 && !watch);
                if exact { ExampleListVersion::Exact(revision) } else { ExampleListVersion::NotOlderThan(revision) }
            }
        };
        Ok(ExampleListOptions {
            selector: ObjectSelector::parse(query.get("labelSelector"), query.get("fieldSelector"))?,
            limit,
            continue_token,
            version,
            watch,
            bookmarks: query.flag("allowWatchBookmarks").unwrap_or(false),
            timeout: Duration::from_secs(query.number("timeoutSeconds")?),
            initial_events,
        })
    }
}

/// Validates the combination of version options (`pkg/apis/meta/internalversion/validation`, `ValidateListOptions`).
fn validate_versions(
    watch: bool,
    initial_events: Option<bool>,
    version: &str,
    matching: &str,
    continued: bool,
) -> Vec<StatusCause> {
    let mut errors = Vec::new();
    let mut forbid = |field, why| errors.push(api_errors::forbidden_field(field, why));
    if watch {
        if initial_events.is_some() && matching != "NotOlderThan" {
            forbid("resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
        }
        if initial_events.is_none() && !matching.is_empty() {
            forbid(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        if continued && !matching.is_empty() {
            forbid("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(matching, "" | "NotOlderThan") {
            errors.push(api_errors::unsupported_field("resourceVersionMatch", matching, &["NotOlderThan"]));
        }
    } else {
        if initial_events.is_some() {
            forbid("sendInitialEvents", "sendInitialEvents is forbidden for list");
        }
        if !matching.is_empty() && version.is_empty() {
            forbid("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !matching.is_empty() && continued {
            forbid("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided");
        }
        if matching == "Exact" && version == "0" {
            forbid("resourceVersionMatch", "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
        if !matches!(matching, "" | "Exact" | "NotOlderThan") {
            errors.push(api_errors::unsupported_field("resourceVersionMatch", matching, &["Exact", "NotOlderThan"]));
        }
    }
    errors
}

/// Parses a `resourceVersion`, which is a number here.
pub(super) fn parse_version(text: &str) -> Result<u64, Status> {
    text.parse().map_err(|_| {
        let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
        Status::bad_request(format!("resourceVersion: Invalid value: {text:?}: {why}"))
    })
}

/// `metav1.CreateOptions`, `UpdateOptions` and `PatchOptions`.
pub(super) struct ExampleWriteOptions {
    pub(super) dry_run: bool,
    pub(super) manager: String,
    pub(super) validation: FieldValidation,
    pub(super) force: bool,
}

impl ExampleWriteOptions {
    /// Parses the options. `kind` is the name in errors, for example `CreateOptions`. Server-side apply (`apply`)
    /// requires a field manager and is the only one that may use force.
    pub(super) fn read(
        query: &Parameters,
        kind: &str,
        user_agent: &str,
        apply: bool,
    ) -> Result<ExampleWriteOptions, Status> {
        let mut errors = Vec::new();
        let mut manager = query.get("fieldManager").to_owned();
        if manager.is_empty() && apply {
            errors.push(api_errors::required_field("fieldManager", "is required for apply patch"));
        }
        if manager.len() > 128 {
            errors.push(api_errors::too_long_field("fieldManager", 128));
        }
        let force = query.flag("force");
        if force.is_some() && !apply {
            errors.push(api_errors::forbidden_field("force", "may not be specified for non-apply patch"));
        }
        let validation = FieldValidation::parse(query.get("fieldValidation")).unwrap_or_else(|| {
            let supported = FieldValidation::SUPPORTED;
            errors.push(api_errors::unsupported_field("fieldValidation", query.get("fieldValidation"), &supported));
            FieldValidation::Warn
        });
        let dry_run = dry_run(query.all("dryRun"), &mut errors);
        if !errors.is_empty() {
            return Err(api_errors::invalid_options(kind, errors));
        }
        if manager.is_empty() {
            // As in Kubernetes: the program's name, from the beginning of its User-Agent.
            manager = user_agent.split('/').next().unwrap_or_default().chars().take(32).collect();
        }
        Ok(ExampleWriteOptions { dry_run, manager, validation, force: force.unwrap_or(false) })
    }
}

/// Whether `dryRun` is set; values other than `All` are added to `errors`.
pub(super) fn dry_run<'q>(values: impl Iterator<Item = &'q str>, errors: &mut Vec<StatusCause>) -> bool {
    let mut asked = false;
    for value in values {
        asked = true;
        if value != "All" {
            errors.push(api_errors::unsupported_field("dryRun", value, &["All"]));
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(query: &str) -> Result<ExampleListOptions, Status> {
        ExampleListOptions::read(&Parameters::parse(query))
    }

    #[test]
    fn query_parameters_are_decoded() {
        let query = Parameters::parse("labelSelector=a%3Db%2Cc+in+%28d%29&watch=&x&dryRun=All&dryRun=All&follow=False");
        assert_eq!(query.get("labelSelector"), "a=b,c in (d)");
        assert_eq!((query.flag("watch"), query.flag("follow"), query.flag("none")), (Some(true), Some(false), None));
        assert_eq!(query.all("dryRun").count(), 2);
    }

    #[test]
    fn list_options_resource_version_match() {
        let version = |query: &str| list(query).map(|options| options.version).map_err(|status| status.code);
        assert_eq!(version(""), Ok(ExampleListVersion::Latest));
        assert_eq!(version("resourceVersion=0"), Ok(ExampleListVersion::Any));
        assert_eq!(version("resourceVersion=7"), Ok(ExampleListVersion::NotOlderThan(7)));
        assert_eq!(version("resourceVersion=7&limit=2"), Ok(ExampleListVersion::Exact(7)));
        assert_eq!(version("resourceVersion=7&resourceVersionMatch=Exact"), Ok(ExampleListVersion::Exact(7)));
        assert_eq!(version("resourceVersion=x"), Err(400));
        assert_eq!(version("resourceVersionMatch=Exact"), Err(422));
        assert_eq!(version("watch=1&sendInitialEvents=true"), Err(422));
        assert_eq!(version("sendInitialEvents=true"), Err(422));
        assert_eq!(version("limit=x"), Err(400));
    }

    #[test]
    fn write_options_manager_defaults_to_user_agent() {
        let read = |query: &str, apply| {
            ExampleWriteOptions::read(&Parameters::parse(query), "PatchOptions", "kubectl/v1.36", apply)
        };
        assert_eq!(read("", false).unwrap().manager, "kubectl");
        assert_eq!(read("fieldManager=ann", true).unwrap().manager, "ann");
        let status = read("", true).err().unwrap();
        assert_eq!(
            status.message,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
        );
        assert_eq!(read("force=true", false).err().map(|status| status.code), Some(422));
        assert!(read("dryRun=All", false).unwrap().dry_run);
        assert!(read("dryRun=Some", false).is_err());
    }
}
