//! Label values. Values chosen by clients never become label values.

use http::Method;

/// Defines a label with a fixed set of values.
macro_rules! label {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant),* }

        impl $name {
            /// Every value, in order.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// The label's value.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }
    };
}

label!(
    /// The values of `verb` (k8s.io/apiserver/pkg/endpoints/metrics/metrics.go, `validRequestMethods`).
    #[allow(missing_docs)]
    Verb {
        Get = "GET",
        List = "LIST",
        Watch = "WATCH",
        Post = "POST",
        Put = "PUT",
        Patch = "PATCH",
        Apply = "APPLY",
        Delete = "DELETE",
        DeleteCollection = "DELETECOLLECTION",
        Connect = "CONNECT",
        Other = "other",
    }
);

label!(
    /// Why a client's TLS handshake failed.
    HandshakeFailure {
        /// The client rejected the serving certificate with a TLS alert.
        CertificateRefused = "certificate_refused",
        /// The client closed the connection during the handshake.
        Closed = "closed",
        /// No common TLS version, cipher suite or application protocol.
        NoCommonProtocol = "no_common_protocol",
        /// The data is not TLS.
        NotTls = "not_tls",
        /// Anything else.
        Other = "other",
        /// A plain HTTP request.
        PlainHttp = "plain_http",
        /// The handshake timed out.
        Timeout = "timeout",
    }
);

impl Verb {
    /// Verb of a non-resource request.
    pub fn from_method(method: &Method) -> Verb {
        match method.as_str() {
            "GET" | "HEAD" => Verb::Get,
            "POST" => Verb::Post,
            "PUT" => Verb::Put,
            "PATCH" => Verb::Patch,
            "DELETE" => Verb::Delete,
            "CONNECT" => Verb::Connect,
            _ => Verb::Other,
        }
    }

    /// Verb of a resource request. `verb` is that of `RequestInfo` (`get`, `list`, `watch`, `create`, …); `apply` is
    /// set for a patch with content type `application/apply-patch+yaml` or `+cbor`. As in Kubernetes, the five
    /// subresources that hold a connection count as `CONNECT`.
    pub fn from_resource_request(method: &Method, verb: &str, subresource: &str, apply: bool) -> Verb {
        if matches!(subresource, "log" | "exec" | "portforward" | "attach" | "proxy") {
            return Verb::Connect;
        }
        match verb {
            "get" => Verb::Get,
            "list" => Verb::List,
            "watch" | "watchlist" => Verb::Watch,
            "create" => Verb::Post,
            "update" => Verb::Put,
            "patch" if apply => Verb::Apply,
            "patch" => Verb::Patch,
            "delete" => Verb::Delete,
            "deletecollection" => Verb::DeleteCollection,
            "proxy" => Verb::Connect,
            _ => Verb::from_method(method),
        }
    }

    /// Whether the request counts as mutating for the inflight limits.
    pub fn is_mutating(self) -> bool {
        !matches!(self, Verb::Get | Verb::List | Verb::Watch)
    }
}

label!(
    /// The values of `scope` (`CleanScope` in the same file).
    Scope {
        /// A non-resource request.
        None = "",
        /// A single object; also every create.
        Resource = "resource",
        /// Objects in a namespace.
        Namespace = "namespace",
        /// Cluster-scoped objects, or objects of all namespaces.
        Cluster = "cluster",
    }
);

impl Scope {
    /// Scope of a request, from its `RequestInfo`.
    pub fn from_request(is_resource_request: bool, verb: &str, namespace: &str, name: &str) -> Scope {
        if !name.is_empty() || verb == "create" {
            Scope::Resource
        } else if !namespace.is_empty() {
            Scope::Namespace
        } else if is_resource_request {
            Scope::Cluster
        } else {
            Scope::None
        }
    }
}

label!(
    /// The values of `dry_run`.
    DryRun {
        /// Not a dry run.
        No = "",
        /// `dryRun=All`.
        All = "All",
        /// An invalid value of `dryRun`.
        Invalid = "invalid",
    }
);

impl DryRun {
    /// Value for the query parameters `dryRun`.
    pub fn from_values<'v>(values: impl IntoIterator<Item = &'v str>) -> DryRun {
        values.into_iter().fold(DryRun::No, |before, value| match (before, value) {
            (DryRun::Invalid, _) => DryRun::Invalid,
            (_, "All") => DryRun::All,
            _ => DryRun::Invalid,
        })
    }
}

/// Metric labels of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLabels<'r> {
    /// From [`Verb::from_resource_request`] or [`Verb::from_method`].
    pub verb: Verb,
    /// API group in the path; may be replaced according to [`KnownLabels`].
    pub group: &'r str,
    /// API version in the path.
    pub version: &'r str,
    /// Resource in the path.
    pub resource: &'r str,
    /// Subresource in the path; for a non-resource request, the path.
    pub subresource: &'r str,
    /// Scope, from [`Scope::from_request`].
    pub scope: Scope,
    /// Dry run, from [`DryRun::from_values`].
    pub dry_run: DryRun,
}

/// Extent to which the labels of a [`RequestLabels`] are known, and not invented by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownLabels {
    /// No APIService serves the group and version: only the verb and well-known paths are kept.
    Nothing,
    /// An APIService serves the group and version; its discovery does not name the resource.
    GroupVersion,
    /// Discovery names the resource and the subresource.
    Resource,
}

/// Well-known paths that may be the value of `subresource`, as in Kubernetes.
const WELL_KNOWN_PATHS: &[&str] =
    &["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];

impl<'r> RequestLabels<'r> {
    /// Labels of a non-resource request: its method and, if well-known, its path.
    pub fn for_path(method: &Method, path: &'r str) -> RequestLabels<'r> {
        RequestLabels {
            verb: Verb::from_method(method),
            group: "",
            version: "",
            resource: "",
            subresource: path,
            scope: Scope::None,
            dry_run: DryRun::No,
        }
    }

    /// The labels with unknown names replaced.
    pub(super) fn bounded(self, known_labels: KnownLabels) -> RequestLabels<'r> {
        match known_labels {
            KnownLabels::Resource => self,
            KnownLabels::GroupVersion if self.resource.is_empty() => RequestLabels { subresource: "", ..self },
            KnownLabels::GroupVersion => RequestLabels { resource: "other", subresource: "", ..self },
            KnownLabels::Nothing => {
                let subresource =
                    WELL_KNOWN_PATHS.iter().find(|path| **path == self.subresource).copied().unwrap_or("");
                let resource = if self.resource.is_empty() { "" } else { "other" };
                RequestLabels { group: "", version: "", resource, subresource, ..self }
            }
        }
    }

    /// Equality that never passes two empty names to `memcmp`. glibc's version reads them with an empty mask, which
    /// takes a hundred nanoseconds if the pointer is dangling, as that of an empty string is.
    pub(super) fn is_equal(&self, other: &RequestLabels<'_>) -> bool {
        (self.verb, self.scope, self.dry_run) == (other.verb, other.scope, other.dry_run)
            && [self.group, self.version, self.resource, self.subresource]
                .into_iter()
                .zip([other.group, other.version, other.resource, other.subresource])
                .all(|(one, other)| one.len() == other.len() && (one.is_empty() || one == other))
    }

    /// Hash of all labels; collisions are resolved by comparison.
    pub(super) fn hash(&self) -> u64 {
        let small = (self.verb as u64) | (self.scope as u64) << 8 | (self.dry_run as u64) << 16;
        [self.group, self.version, self.resource, self.subresource]
            .iter()
            .fold(mix(0x9E37_79B9_7F4A_7C15, small), |hash, text| mix_text(hash, text))
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95)
}

/// Reads the last words overlapping, so that no remainder is copied.
fn mix_text(hash: u64, text: &str) -> u64 {
    let bytes = text.as_bytes();
    let hash = mix(hash, bytes.len() as u64);
    match (bytes, bytes.last_chunk::<8>(), bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (_, Some(last), ..) => {
            let words = bytes.as_chunks::<8>().0.iter();
            mix(words.fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word))), u64::from_le_bytes(*last))
        }
        (_, None, Some(first), Some(last)) => {
            mix(hash, u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last)))
        }
        ([first, .., last], ..) => {
            mix(hash, u64::from(*first) << 16 | u64::from(bytes[bytes.len() / 2]) << 8 | u64::from(*last))
        }
        ([only], ..) => mix(hash, u64::from(*only)),
        ([], ..) => hash,
    }
}

label!(
    /// Result of an authentication attempt.
    Authentication {
        /// The user was authenticated.
        Success = "success",
        /// No credentials, or invalid ones.
        Failure = "failure",
        /// An authenticator failed or refused.
        Error = "error",
    }
);

label!(
    /// Phase of a forwarded request.
    BackendPhase {
        /// TCP part of opening a connection for the request.
        Dial = "dial",
        /// Time until the egress proxy had connected, if there is one.
        Proxy = "proxy",
        /// TLS part of opening a connection for the request.
        Tls = "tls",
        /// From the request headers to the response headers.
        Headers = "headers",
        /// From the response headers to the end of the response.
        Body = "body",
    }
);

label!(
    /// Protocol of a connection to a backend.
    Protocol {
        /// HTTP/1.1.
        Http1 = "http/1.1",
        /// HTTP/2.
        Http2 = "h2",
    }
);

label!(
    /// State of a connection to a backend.
    ConnectionState {
        /// Dialing or in the TLS handshake.
        Connecting = "connecting",
        /// No request in flight.
        Idle = "idle",
        /// At least one request in flight.
        Active = "active",
        /// No new requests; running ones finish.
        Draining = "draining",
    }
);

label!(
    /// Why a request was retried.
    Retry {
        /// The connection could not be opened.
        Connect = "connect",
        /// The backend refused the stream unprocessed (GOAWAY, REFUSED_STREAM).
        RefusedStream = "refused-stream",
        /// A reused connection was already closed.
        StaleConnection = "stale-connection",
        /// The connection broke and the request is safe to repeat.
        BrokenConnection = "broken-connection",
    }
);

/// Index of the value of `username_index`, which is never a person's name (`compressUsername` in
/// k8s.io/apiserver/pkg/endpoints/filters/metrics.go).
pub(super) fn username_index(name: &str) -> usize {
    USERNAMES.iter().position(|username| *username == name).unwrap_or(if name.contains('@') { EMAIL } else { OTHER })
}

/// The values that [`username_index`] indexes.
pub(super) const USERNAMES: [&str; 7] =
    ["admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default", "email_id", "other"];
const EMAIL: usize = 5;
const OTHER: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_label_verb_matches_upstream() {
        for (verb, subresource, apply, expected) in [
            ("get", "", false, "GET"),
            ("list", "", false, "LIST"),
            ("watch", "", false, "WATCH"),
            ("create", "", false, "POST"),
            ("update", "status", false, "PUT"),
            ("patch", "", false, "PATCH"),
            ("patch", "", true, "APPLY"),
            ("delete", "", false, "DELETE"),
            ("deletecollection", "", false, "DELETECOLLECTION"),
            ("get", "exec", false, "CONNECT"),
            ("frobnicate", "", false, "GET"),
        ] {
            assert_eq!(
                Verb::from_resource_request(&Method::GET, verb, subresource, apply).as_str(),
                expected,
                "{verb}"
            );
        }
        assert_eq!(Verb::from_method(&Method::from_bytes(b"FROB").unwrap()), Verb::Other);
    }

    #[test]
    fn metric_label_scope_matches_upstream() {
        assert_eq!(Scope::from_request(true, "create", "default", ""), Scope::Resource);
        assert_eq!(Scope::from_request(true, "get", "default", "hello"), Scope::Resource);
        assert_eq!(Scope::from_request(true, "list", "default", ""), Scope::Namespace);
        assert_eq!(Scope::from_request(true, "list", "", ""), Scope::Cluster);
        assert_eq!(Scope::from_request(false, "get", "", ""), Scope::None);
    }

    #[test]
    fn metric_label_dry_run_has_three_values() {
        assert_eq!(DryRun::from_values([]), DryRun::No);
        assert_eq!(DryRun::from_values(["All", "All"]), DryRun::All);
        assert_eq!(DryRun::from_values(["All", "None"]), DryRun::Invalid);
        assert_eq!(DryRun::from_values([""]), DryRun::Invalid);
    }

    #[test]
    fn metric_labels_drop_names_chosen_by_clients() {
        let invented = RequestLabels {
            verb: Verb::Get,
            group: "evil.example",
            version: "v666",
            resource: "nonsense",
            subresource: "more",
            scope: Scope::Cluster,
            dry_run: DryRun::No,
        };
        let nothing = invented.bounded(KnownLabels::Nothing);
        assert_eq!((nothing.group, nothing.version, nothing.resource, nothing.subresource), ("", "", "other", ""));
        let claimed = invented.bounded(KnownLabels::GroupVersion);
        assert_eq!(
            (claimed.group, claimed.version, claimed.resource, claimed.subresource),
            ("evil.example", "v666", "other", "")
        );
        assert_eq!(RequestLabels::for_path(&Method::GET, "/livez").bounded(KnownLabels::Nothing).subresource, "/livez");
        assert_eq!(RequestLabels::for_path(&Method::GET, "/wp-login").bounded(KnownLabels::Nothing).subresource, "");
    }

    #[test]
    fn metric_label_username_hides_people() {
        assert_eq!(USERNAMES[username_index("jane@example.com")], "email_id");
        assert_eq!(USERNAMES[username_index("jane")], "other");
        assert_eq!(USERNAMES[username_index("email_id")], "email_id");
        assert_eq!(USERNAMES[username_index("kubelet")], "kubelet");
    }

    #[test]
    fn metric_labels_hash_separates_names() {
        fn hash(group: &str, version: &str) -> u64 {
            RequestLabels { group, version, ..RequestLabels::for_path(&Method::GET, "") }.hash()
        }
        assert_ne!(hash("ab", "c"), hash("a", "bc"));
        assert_ne!(hash("a", ""), hash("", "a"));
        // Every byte counts, at every length.
        let longest = "abcdefghijklmnopqrstuvwxyz";
        for length in 1..longest.len() {
            let text = &longest[..length];
            for position in 0..length {
                let mut other = text.to_owned();
                other.replace_range(position..=position, "0");
                assert_ne!(hash(text, "v1"), hash(&other, "v1"), "{text} {other}");
            }
        }
    }
}
