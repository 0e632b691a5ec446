//! `metav1.ListOptions` of a list or watch, read whole from a query and validated
//! (`k8s.io/apimachinery/pkg/apis/meta/internalversion/validation`).

use std::borrow::Cow;
use std::time::Duration;

use super::field_error::{FieldError, invalid_options_status};
use super::{FieldSelector, GoQuoted, LabelSelector, Query, Status};

/// Options of a list, watch or deletion of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// The option `labelSelector`.
    pub label_selector: LabelSelector,
    /// `fieldSelector`. The resource decides which fields there are.
    pub field_selector: FieldSelector,
    /// `watch`: whether this is a watch.
    pub is_watch: bool,
    /// The option `allowWatchBookmarks`.
    pub allows_bookmarks: bool,
    /// `resourceVersion` as given, or empty.
    pub resource_version: String,
    /// The option `resourceVersionMatch`.
    pub version_match: Option<VersionMatch>,
    /// `timeoutSeconds`, if above zero.
    pub timeout: Option<Duration>,
    /// Whether `timeoutSeconds` is below zero: a watch ends before it began.
    pub is_timed_out: bool,
    /// `limit`: maximum number of objects in a page; 0 for no limit.
    pub limit: u64,
    /// `continue` as given, or empty.
    pub continue_token: String,
    /// `sendInitialEvents`. As in Kubernetes, true by default for a watch without a resource version or from `0`.
    pub sends_initial_events: Option<bool>,
}

/// The API type `metav1.ResourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// At exactly the version.
    Exact,
    /// At the version or a later one.
    NotOlderThan,
}

/// Version at which a list is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListVersion {
    /// At the latest version when the request arrived, or later.
    Latest,
    /// At any version.
    Any,
    /// At this version or a later one.
    NotOlderThan(u64),
    /// At exactly this version.
    Exact(u64),
}

impl ListOptions {
    /// Reads and validates the options of a query. Unknown parameters are ignored.
    ///
    /// # Errors
    /// 400 for a number or selector that cannot be read, 422 for a combination that is not allowed.
    pub fn parse(query: &Query<'_>) -> Result<ListOptions, Status> {
        let raw = RawListOptions::collect(query);
        let flag = |value: &Option<Cow<'_, str>>| value.as_deref().map(is_true);
        let timeout = raw.timeout.as_deref().map(parse_int64).transpose()?.unwrap_or(0);
        let limit = raw.limit.as_deref().map(parse_int64).transpose()?.unwrap_or(0);
        let malformed = |error: &dyn std::fmt::Display| Status::bad_request(error.to_string());
        let label_selector =
            LabelSelector::parse(raw.label_selector.as_deref().unwrap_or_default()).map_err(|e| malformed(&e))?;
        let field_selector =
            FieldSelector::parse(raw.field_selector.as_deref().unwrap_or_default()).map_err(|e| malformed(&e))?;
        let mut matching = raw.version_match.unwrap_or_default();
        let resource_version = raw.resource_version.unwrap_or_default().into_owned();
        let continue_token = raw.continue_token.unwrap_or_default().into_owned();
        let is_watch = flag(&raw.watch).unwrap_or(false);
        let mut sends_initial_events = flag(&raw.initial_events);
        if is_watch && sends_initial_events.is_none() && matching.is_empty() && matches!(&*resource_version, "" | "0") {
            sends_initial_events = Some(true);
            matching = Cow::Borrowed("NotOlderThan");
        }
        let is_continued = !continue_token.is_empty();
        let errors = if is_watch {
            check_watch(sends_initial_events, &matching, is_continued)
        } else {
            check_list(sends_initial_events, &resource_version, &matching, is_continued)
        };
        if !errors.is_empty() {
            return Err(invalid_options_status("ListOptions", errors));
        }
        Ok(ListOptions {
            label_selector,
            field_selector,
            is_watch,
            allows_bookmarks: flag(&raw.bookmarks).unwrap_or(false),
            resource_version,
            version_match: match &*matching {
                "Exact" => Some(VersionMatch::Exact),
                "NotOlderThan" => Some(VersionMatch::NotOlderThan),
                _ => None,
            },
            is_timed_out: timeout < 0,
            timeout: u64::try_from(timeout).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs),
            limit: u64::try_from(limit).unwrap_or(0),
            continue_token,
            sends_initial_events,
        })
    }

    /// Version at which a list without `continue` is answered. With a limit, a version alone means exactly that one.
    ///
    /// # Errors
    /// 400 for a version that is not a number.
    pub fn list_version(&self) -> Result<ListVersion, Status> {
        match &*self.resource_version {
            "" => Ok(ListVersion::Latest),
            "0" => Ok(ListVersion::Any),
            text => {
                let version = parse_resource_version(text)
                    .map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))?;
                Ok(match self.version_match {
                    Some(VersionMatch::Exact) => ListVersion::Exact(version),
                    None if self.limit > 0 => ListVersion::Exact(version),
                    _ => ListVersion::NotOlderThan(version),
                })
            }
        }
    }

    /// Version after which a watch sends changes; 0 if none is given.
    ///
    /// # Errors
    /// 500 without a reason for a version that is not a number, as in Kubernetes.
    pub fn watch_version(&self) -> Result<u64, Status> {
        match &*self.resource_version {
            "" => Ok(0),
            text => parse_resource_version(text).map_err(|why| Status::new(500, "", why)),
        }
    }

    /// Refuses a resource version beside `continue` (`ValidateListOptions` in `k8s.io/apiserver/pkg/storage`).
    /// Kubernetes reads the token first.
    ///
    /// # Errors
    /// 400.
    pub fn check_continue(&self) -> Result<(), Status> {
        if self.continue_token.is_empty() || matches!(&*self.resource_version, "" | "0") {
            return Ok(());
        }
        Err(Status::bad_request("specifying resource version is not allowed when using continue"))
    }

    /// Restricts the options to the object of the path, if there is one.
    ///
    /// # Errors
    /// 400 if the field selector is for another object.
    pub fn select_name(&mut self, name: &str) -> Result<(), Status> {
        if self.field_selector.terms.is_empty() {
            self.field_selector = FieldSelector::for_name(name);
        } else if self.field_selector.exact("metadata.name") != Some(name) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        Ok(())
    }
}

/// The first value of each parameter.
#[derive(Default)]
struct RawListOptions<'q> {
    label_selector: Option<Cow<'q, str>>,
    field_selector: Option<Cow<'q, str>>,
    watch: Option<Cow<'q, str>>,
    bookmarks: Option<Cow<'q, str>>,
    resource_version: Option<Cow<'q, str>>,
    version_match: Option<Cow<'q, str>>,
    timeout: Option<Cow<'q, str>>,
    limit: Option<Cow<'q, str>>,
    continue_token: Option<Cow<'q, str>>,
    initial_events: Option<Cow<'q, str>>,
}

impl<'q> RawListOptions<'q> {
    fn collect(query: &'q Query<'_>) -> RawListOptions<'q> {
        let mut raw = RawListOptions::default();
        for (key, value) in query.pairs() {
            let option = match &*key {
                "labelSelector" => &mut raw.label_selector,
                "fieldSelector" => &mut raw.field_selector,
                "watch" => &mut raw.watch,
                "allowWatchBookmarks" => &mut raw.bookmarks,
                "resourceVersion" => &mut raw.resource_version,
                "resourceVersionMatch" => &mut raw.version_match,
                "timeoutSeconds" => &mut raw.timeout,
                "limit" => &mut raw.limit,
                "continue" => &mut raw.continue_token,
                "sendInitialEvents" => &mut raw.initial_events,
                _ => continue,
            };
            option.get_or_insert(value);
        }
        raw
    }
}

/// As `k8s.io/apimachinery/pkg/runtime/conversion.go` reads a flag: true unless it is `0` or `false`.
pub fn is_true(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

/// Reads a number of a query.
///
/// # Errors
/// 400 with Go's text.
pub fn parse_int64(text: &str) -> Result<i64, Status> {
    text.parse().map_err(|error: std::num::ParseIntError| {
        Status::bad_request(format!("strconv.ParseInt: parsing {}: {}", GoQuoted(text), number_error(&error)))
    })
}

/// Reads a resource version.
///
/// # Errors
/// Kubernetes' text, which begins with `resourceVersion: Invalid value:`.
pub fn parse_resource_version(text: &str) -> Result<u64, String> {
    parse_uint64(text).map_err(|why| format!("resourceVersion: Invalid value: {}: {why}", GoQuoted(text)))
}

/// Reads a number as Go's `strconv.ParseUint` does.
///
/// # Errors
/// Go's text.
pub fn parse_uint64(text: &str) -> Result<u64, String> {
    // Go's ParseUint takes no sign.
    let parsed = if text.starts_with('+') { "".parse() } else { text.parse() };
    parsed.map_err(|error: std::num::ParseIntError| {
        format!("strconv.ParseUint: parsing {}: {}", GoQuoted(text), number_error(&error))
    })
}

fn number_error(error: &std::num::ParseIntError) -> &'static str {
    use std::num::IntErrorKind;
    match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    }
}

const FIELD: &str = "resourceVersionMatch";

fn check_list(
    sends_initial_events: Option<bool>,
    version: &str,
    matching: &str,
    is_continued: bool,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !matching.is_empty() {
        if version.is_empty() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            errors.push(FieldError::forbidden(FIELD, why));
        }
        if is_continued {
            errors.push(FieldError::forbidden(FIELD, "resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            errors.push(FieldError::not_supported(FIELD, matching, &["Exact", "NotOlderThan", ""]));
        }
        if matching == "Exact" && version == "0" {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            errors.push(FieldError::forbidden(FIELD, why));
        }
    }
    if sends_initial_events.is_some() {
        errors.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    errors
}

fn check_watch(sends_initial_events: Option<bool>, matching: &str, is_continued: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if sends_initial_events.is_some() && matching != "NotOlderThan" {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(FIELD, why));
    }
    if !matching.is_empty() {
        if sends_initial_events.is_none() {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(FieldError::forbidden(FIELD, why));
        }
        if matching != "NotOlderThan" {
            errors.push(FieldError::not_supported(FIELD, matching, &["NotOlderThan"]));
        }
        if is_continued {
            errors.push(FieldError::forbidden(FIELD, "resourceVersionMatch is forbidden when continue is provided"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<ListOptions, (u16, String)> {
        ListOptions::parse(&Query::parse(query)).map_err(|status| (status.code, status.message))
    }

    #[test]
    fn list_options_all_parameters() {
        let options = parse(
            "labelSelector=a%3Db&fieldSelector=metadata.name%3Dx&watch=1&allowWatchBookmarks=true&resourceVersion=7\
             &resourceVersionMatch=NotOlderThan&timeoutSeconds=30&limit=5&limit=x&sendInitialEvents=False&pretty=true",
        )
        .unwrap();
        assert_eq!(options.label_selector, LabelSelector::parse("a=b").unwrap());
        assert_eq!(options.field_selector.exact("metadata.name"), Some("x"));
        assert!(options.is_watch && options.allows_bookmarks);
        assert_eq!((options.resource_version.as_str(), options.watch_version()), ("7", Ok(7)));
        assert_eq!(options.version_match, Some(VersionMatch::NotOlderThan));
        assert_eq!((options.timeout, options.limit), (Some(Duration::from_secs(30)), 5));
        assert_eq!(options.sends_initial_events, Some(false));
        assert_eq!(parse("").unwrap(), ListOptions::default());
    }

    #[test]
    fn list_options_refusals_match_upstream() {
        let invalid = |errors: &str| (422, format!("ListOptions.meta.k8s.io \"\" is invalid: {errors}"));
        let forbidden = |field: &str, why: &str| format!("{field}: Forbidden: {why}");
        let rvm = "resourceVersionMatch";
        for (query, expected) in [
            ("limit=x", (400, "strconv.ParseInt: parsing \"x\": invalid syntax".into())),
            ("limit=9223372036854775808", {
                (400, "strconv.ParseInt: parsing \"9223372036854775808\": value out of range".into())
            }),
            ("timeoutSeconds=", (400, "strconv.ParseInt: parsing \"\": invalid syntax".into())),
            ("resourceVersionMatch=Exact", {
                invalid(&forbidden(rvm, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
            }),
            ("resourceVersionMatch=Exact&resourceVersion=0", {
                invalid(&forbidden(rvm, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""))
            }),
            ("resourceVersionMatch=Foo&resourceVersion=1", {
                invalid(
                    "resourceVersionMatch: Unsupported value: \"Foo\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
                )
            }),
            ("resourceVersionMatch=Exact&resourceVersion=1&continue=x", {
                invalid(&forbidden(rvm, "resourceVersionMatch is forbidden when continue is provided"))
            }),
            ("sendInitialEvents=true", {
                invalid(&forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
            }),
            ("watch=true&sendInitialEvents=true", {
                invalid(&forbidden(rvm, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
            }),
            ("watch=x&resourceVersion=5&resourceVersionMatch=NotOlderThan", {
                invalid(&forbidden(
                    rvm,
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ))
            }),
        ] {
            assert_eq!(parse(query), Err(expected), "{query}");
        }
    }

    #[test]
    fn list_options_watch_from_now_or_zero_sends_initial_events() {
        for (query, expected) in [
            ("watch=1", Some(true)),
            ("watch=1&resourceVersion=0", Some(true)),
            ("watch=1&resourceVersion=5", None),
            ("watch=1&sendInitialEvents=0&resourceVersionMatch=NotOlderThan", Some(false)),
            ("", None),
        ] {
            assert_eq!(parse(query).unwrap().sends_initial_events, expected, "{query}");
        }
    }

    #[test]
    fn list_options_version_of_list() {
        let version =
            |query: &str| parse(query).unwrap().list_version().map_err(|status| (status.code, status.message));
        assert_eq!(version(""), Ok(ListVersion::Latest));
        assert_eq!(version("resourceVersion=0&limit=2"), Ok(ListVersion::Any));
        assert_eq!(version("resourceVersion=7"), Ok(ListVersion::NotOlderThan(7)));
        assert_eq!(version("resourceVersion=7&limit=2"), Ok(ListVersion::Exact(7)));
        assert_eq!(version("resourceVersion=7&limit=-2"), Ok(ListVersion::NotOlderThan(7)));
        let not_older = "resourceVersion=7&limit=2&resourceVersionMatch=NotOlderThan";
        assert_eq!(version(not_older), Ok(ListVersion::NotOlderThan(7)));
        let why = "invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax";
        assert_eq!(version("resourceVersion=abc"), Err((400, why.into())));
        assert!(version("resourceVersion=%2B1").is_err());
        assert_eq!(parse("watch=1&resourceVersion=abc").unwrap().watch_version().unwrap_err().code, 500);
    }

    #[test]
    fn list_options_continue_excludes_version() {
        assert!(parse("continue=x&resourceVersion=0").unwrap().check_continue().is_ok());
        let status = parse("continue=x&resourceVersion=5").unwrap().check_continue().unwrap_err();
        assert_eq!(status.message, "specifying resource version is not allowed when using continue");
    }

    #[test]
    fn list_options_name_of_path_selects_it() {
        let mut options = parse("").unwrap();
        assert!(options.select_name("x").is_ok());
        assert_eq!(options.field_selector.exact("metadata.name"), Some("x"));
        assert!(options.select_name("y").is_err());
    }
}
