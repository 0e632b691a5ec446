//! What a request is counted under. Nothing a client chooses becomes a label's value.

use http::Method;

/// A label whose values are all known here.
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
        /// The client does not trust our certificate: it ended the handshake with an alert that says so.
        CertificateRefused = "certificate_refused",
        /// The client went away before the end.
        Closed = "closed",
        /// No TLS version, cipher suite or application protocol in common.
        NoCommonProtocol = "no_common_protocol",
        /// What came is not TLS.
        NotTls = "not_tls",
        /// Anything else.
        Other = "other",
        /// An HTTP request without TLS.
        PlainHttp = "plain_http",
        /// It took too long.
        Timeout = "timeout",
    }
);

impl Verb {
    /// The verb of a request whose path says nothing more.
    pub fn of_method(method: &Method) -> Verb {
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

    /// The verb of a resource request: `verb` as `RequestInfo` has it (`get`, `list`, `watch`,
    /// `create`, …), `apply` when the content type of a patch is `application/apply-patch+yaml` or
    /// `+cbor`. The five subresources that hold a connection count as `CONNECT`, as upstream.
    pub fn of_resource(method: &Method, verb: &str, subresource: &str, apply: bool) -> Verb {
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
            _ => Verb::of_method(method),
        }
    }

    /// Whether a request of this kind takes its place among the mutating ones.
    pub fn is_mutating(self) -> bool {
        !matches!(self, Verb::Get | Verb::List | Verb::Watch)
    }
}

label!(
    /// The values of `scope` (`CleanScope` there).
    Scope {
        /// No resource request.
        None = "",
        /// One object; also every create.
        Resource = "resource",
        /// Objects of a namespace.
        Namespace = "namespace",
        /// Objects of the cluster, or of all namespaces.
        Cluster = "cluster",
    }
);

impl Scope {
    /// The scope of a request as `RequestInfo` describes it.
    pub fn of(is_resource_request: bool, verb: &str, namespace: &str, name: &str) -> Scope {
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
        /// The request means what it says.
        No = "",
        /// `dryRun=All`.
        All = "All",
        /// A `dryRun` that the API does not know.
        Invalid = "invalid",
    }
);

impl DryRun {
    /// From the values of the parameter `dryRun`.
    pub fn of<'v>(values: impl IntoIterator<Item = &'v str>) -> DryRun {
        values.into_iter().fold(DryRun::No, |seen, value| match (seen, value) {
            (DryRun::Invalid, _) => DryRun::Invalid,
            (_, "All") => DryRun::All,
            _ => DryRun::Invalid,
        })
    }
}

/// What a request asks for, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLabels<'r> {
    /// From [`Verb::of_resource`] or [`Verb::of_method`].
    pub verb: Verb,
    /// As the path has it; judged by the `known` that goes with it.
    pub group: &'r str,
    /// As the path has it.
    pub version: &'r str,
    /// As the path has it.
    pub resource: &'r str,
    /// As the path has it; for a request that is for no resource, its path.
    pub subresource: &'r str,
    /// From [`Scope::of`].
    pub scope: Scope,
    /// From [`DryRun::of`].
    pub dry_run: DryRun,
}

/// How much of a [`RequestLabels`] is a name of ours rather than the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// No APIService claims it: everything but the verb is dropped, except our own well-known paths.
    Nothing,
    /// An APIService claims group and version; the resource is none that its discovery names.
    GroupVersion,
    /// Discovery names the resource, and the subresource if there is one.
    Resource,
}

/// Paths of ours that may stand in `subresource`, as upstream has them.
const PATHS: &[&str] =
    &["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];

impl<'r> RequestLabels<'r> {
    /// A request that is for no resource: only its method and, of ours, its path are counted.
    pub fn path(method: &Method, path: &'r str) -> RequestLabels<'r> {
        RequestLabels {
            verb: Verb::of_method(method),
            group: "",
            version: "",
            resource: "",
            subresource: path,
            scope: Scope::None,
            dry_run: DryRun::No,
        }
    }

    /// The labels with every name that is the client's own replaced.
    pub(super) fn bounded(self, known: Known) -> RequestLabels<'r> {
        match known {
            Known::Resource => self,
            Known::GroupVersion if self.resource.is_empty() => RequestLabels { subresource: "", ..self },
            Known::GroupVersion => RequestLabels { resource: "other", subresource: "", ..self },
            Known::Nothing => {
                let subresource = PATHS.iter().find(|path| **path == self.subresource).copied().unwrap_or("");
                let resource = if self.resource.is_empty() { "" } else { "other" };
                RequestLabels { group: "", version: "", resource, subresource, ..self }
            }
        }
    }

    /// Equality, in which two empty names are never handed to `memcmp`: glibc's reads them under an empty
    /// mask, and where they point nowhere, as ours do, the processor takes a hundred nanoseconds for it.
    pub(super) fn same(&self, other: &RequestLabels<'_>) -> bool {
        (self.verb, self.scope, self.dry_run) == (other.verb, other.scope, other.dry_run)
            && [self.group, self.version, self.resource, self.subresource]
                .into_iter()
                .zip([other.group, other.version, other.resource, other.subresource])
                .all(|(one, other)| one.len() == other.len() && (one.is_empty() || one == other))
    }

    /// One hash of all names; equality is still asked.
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

/// Reads the last words overlapping, so that no rest is copied.
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
    /// How an attempt to authenticate ended.
    Authentication {
        /// Somebody is known.
        Success = "success",
        /// Nobody said who it is, or nobody is known by it.
        Failure = "failure",
        /// An authenticator could not say, or refused.
        Error = "error",
    }
);

label!(
    /// Where the time of a relayed request goes.
    BackendPhase {
        /// Opening the connection, if one was opened for it: the TCP part.
        Dial = "dial",
        /// Until an egress proxy had connected, if there is one.
        Proxy = "proxy",
        /// The TLS part of that.
        Tls = "tls",
        /// From the request's last header byte to the answer's.
        Headers = "headers",
        /// From the answer's headers to its end.
        Body = "body",
    }
);

label!(
    /// What is spoken on a connection to a backend.
    Protocol {
        /// HTTP/1.1.
        Http1 = "http/1.1",
        /// HTTP/2.
        Http2 = "h2",
    }
);

label!(
    /// What a connection to a backend is doing.
    ConnectionState {
        /// Dialling or shaking hands.
        Connecting = "connecting",
        /// No request on it.
        Idle = "idle",
        /// At least one request on it.
        Active = "active",
        /// No new request goes to it; what runs is finished.
        Draining = "draining",
    }
);

label!(
    /// Why a request went to a backend once more.
    Retry {
        /// The connection could not be opened.
        Connect = "connect",
        /// The backend refused the stream before it began (GOAWAY, REFUSED_STREAM).
        RefusedStream = "refused-stream",
        /// A kept connection turned out to be closed.
        StaleConnection = "stale-connection",
        /// The request is safe to repeat and its connection broke.
        BrokenConnection = "broken-connection",
    }
);

/// The value of `username`: never a person's name (`compressUsername` in
/// k8s.io/apiserver/pkg/endpoints/filters/metrics.go).
pub(super) fn username(name: &str) -> usize {
    USERNAMES.iter().position(|known| *known == name).unwrap_or(if name.contains('@') { EMAIL } else { OTHER })
}

/// The values that [`username`] indexes.
pub(super) const USERNAMES: [&str; 7] =
    ["admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default", "email_id", "other"];
const EMAIL: usize = 5;
const OTHER: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_upstreams() {
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
            assert_eq!(Verb::of_resource(&Method::GET, verb, subresource, apply).as_str(), expected, "{verb}");
        }
        assert_eq!(Verb::of_method(&Method::from_bytes(b"FROB").unwrap()), Verb::Other);
    }

    #[test]
    fn scopes_are_upstreams() {
        assert_eq!(Scope::of(true, "create", "default", ""), Scope::Resource);
        assert_eq!(Scope::of(true, "get", "default", "hello"), Scope::Resource);
        assert_eq!(Scope::of(true, "list", "default", ""), Scope::Namespace);
        assert_eq!(Scope::of(true, "list", "", ""), Scope::Cluster);
        assert_eq!(Scope::of(false, "get", "", ""), Scope::None);
    }

    #[test]
    fn dry_run_has_three_values() {
        assert_eq!(DryRun::of([]), DryRun::No);
        assert_eq!(DryRun::of(["All", "All"]), DryRun::All);
        assert_eq!(DryRun::of(["All", "None"]), DryRun::Invalid);
        assert_eq!(DryRun::of([""]), DryRun::Invalid);
    }

    #[test]
    fn what_a_client_invents_is_no_label() {
        let invented = RequestLabels {
            verb: Verb::Get,
            group: "evil.example",
            version: "v666",
            resource: "nonsense",
            subresource: "more",
            scope: Scope::Cluster,
            dry_run: DryRun::No,
        };
        let nothing = invented.bounded(Known::Nothing);
        assert_eq!((nothing.group, nothing.version, nothing.resource, nothing.subresource), ("", "", "other", ""));
        let claimed = invented.bounded(Known::GroupVersion);
        assert_eq!(
            (claimed.group, claimed.version, claimed.resource, claimed.subresource),
            ("evil.example", "v666", "other", "")
        );
        assert_eq!(RequestLabels::path(&Method::GET, "/livez").bounded(Known::Nothing).subresource, "/livez");
        assert_eq!(RequestLabels::path(&Method::GET, "/wp-login").bounded(Known::Nothing).subresource, "");
    }

    #[test]
    fn user_names_stay_private() {
        assert_eq!(USERNAMES[username("jane@example.com")], "email_id");
        assert_eq!(USERNAMES[username("jane")], "other");
        assert_eq!(USERNAMES[username("email_id")], "email_id");
        assert_eq!(USERNAMES[username("kubelet")], "kubelet");
    }

    #[test]
    fn the_hash_sees_where_one_name_ends() {
        fn hash(group: &str, version: &str) -> u64 {
            RequestLabels { group, version, ..RequestLabels::path(&Method::GET, "") }.hash()
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
