//! Tests of impersonation with permissions from RBAC objects.

use http::{HeaderName, HeaderValue, Method};
use kubeapi::{CanonicalPath, Query};

use super::*;
use crate::authorize::{AccessReviewClient, AccessReviewSettings, AuthorizationMode, RbacPolicy};
use crate::kubeclient::ClientHandle;

const PODS: &str = "/api/v1/namespaces/ns/pods";

struct ImpersonationFixture {
    authorizer: Authorizer,
    impersonator: Impersonator,
    groups: GroupFilter,
    metrics: Arc<Metrics>,
}

/// The impersonated user and the constraint; or the code and the message of the refusal.
type ImpersonationOutcome = Result<(User, Option<&'static str>), (u16, String)>;

impl ImpersonationFixture {
    /// `rules` are pairs of a user and a rule, which applies to all namespaces.
    fn new(rules: &[(&str, &str)]) -> ImpersonationFixture {
        ImpersonationFixture::with_modes(vec![ImpersonationFixture::policy(rules)])
    }

    fn policy(rules: &[(&str, &str)]) -> AuthorizationMode {
        let mut text = String::new();
        for (number, (user, rule)) in rules.iter().enumerate() {
            text += &format!(
                "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: r{number}}}\n\
                 rules: [{rule}]\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n\
                 metadata: {{name: b{number}}}\nroleRef: {{kind: ClusterRole, name: r{number}}}\n\
                 subjects: [{{kind: User, name: '{user}'}}]\n"
            );
        }
        let policy = RbacPolicy::parse("policy.yaml", &text, false).unwrap();
        AuthorizationMode::Static(policy.into(), "RBAC")
    }

    fn with_modes(modes: Vec<AuthorizationMode>) -> ImpersonationFixture {
        let metrics = Metrics::new();
        ImpersonationFixture {
            authorizer: Authorizer { chain: modes.into(), ..Authorizer::default() },
            impersonator: Impersonator::new(&metrics),
            groups: GroupFilter::default(),
            metrics,
        }
    }

    async fn impersonate(&self, requester: &User, path: &str, lines: &[(&str, &str)]) -> ImpersonationOutcome {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(format!("impersonate-{name}").as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        let requester = AuthenticatedUser::for_test(requester.clone(), true);
        let (path, query) = (CanonicalPath::parse(path).unwrap(), Query::parse(""));
        let request = RequestInfo::parse(&Method::GET, &path, &query).unwrap();
        let judged =
            self.impersonator.impersonate(&self.authorizer, &self.groups, &requester, &mut headers, &request).await;
        let actor = judged.map_err(|refusal| (refusal.status().code, refusal.status().message.clone()))?;
        assert!(headers.is_empty(), "{headers:?}");
        assert!(Arc::ptr_eq(actor.authenticated().user(), requester.user()));
        Ok((User::clone(actor.user()), actor.impersonated().and_then(|it| it.constraint)))
    }

    async fn impersonate_as_jane(&self, lines: &[(&str, &str)]) -> ImpersonationOutcome {
        self.impersonate(&named("jane"), PODS, lines).await
    }

    fn count(&self, sample: &str) -> u64 {
        let text = self.metrics.render(crate::observe::metrics::ExpositionFormat::Classic);
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }
}

fn named(name: &str) -> User {
    User { name: name.to_owned(), ..User::default() }
}

fn with_groups(name: &str, groups: &[&str]) -> User {
    User { groups: groups.iter().map(|group| (*group).to_owned()).collect(), ..named(name) }
}

fn forbidden(message: &str) -> ImpersonationOutcome {
    Err((403, message.to_owned()))
}

/// Permissions of the legacy mode for all attributes of a user.
const LEGACY: &[(&str, &str)] = &[
    (
        "jane",
        "{verbs: [impersonate], apiGroups: [''], resources: [users], resourceNames: [bob, 'system:anonymous', 'system:node:a']}",
    ),
    ("jane", "{verbs: [impersonate], apiGroups: [''], resources: [serviceaccounts], resourceNames: [robot]}"),
    (
        "jane",
        "{verbs: [impersonate], apiGroups: [''], resources: [groups], resourceNames: [a, b, 'system:unauthenticated', 'system:masters', '']}",
    ),
    ("jane", "{verbs: [impersonate], apiGroups: [authentication.k8s.io], resources: [uids], resourceNames: ['7']}"),
    (
        "jane",
        "{verbs: [impersonate], apiGroups: [authentication.k8s.io], resources: [userextras/scopes, userextras/a.b/c], resourceNames: [x, 'y']}",
    ),
];

#[tokio::test]
async fn impersonation_legacy_mode_checks_each_attribute_and_adds_groups() {
    let world = ImpersonationFixture::new(LEGACY);
    let all =
        &[("user", "bob"), ("uid", "7"), ("group", "b"), ("group", "a"), ("extra-Scopes", "x"), ("extra-scopes", "y")];
    let mut bob = with_groups("bob", &["b", "a", "system:authenticated"]);
    bob.uid = "7".into();
    bob.extra = [("scopes".to_owned(), vec!["x".to_owned(), "y".to_owned()])].into();
    assert_eq!(world.impersonate_as_jane(all).await, Ok((bob, None)));
    for (lines, expected) in [
        (&[("user", "bob")][..], with_groups("bob", &["system:authenticated"])),
        (&[("user", "bob"), ("group", "system:unauthenticated")], with_groups("bob", &["system:unauthenticated"])),
        (
            &[("user", "bob"), ("group", "system:masters")],
            with_groups("bob", &["system:masters", "system:authenticated"]),
        ),
        (&[("user", "bob"), ("group", "")], with_groups("bob", &["", "system:authenticated"])),
        (&[("user", "system:anonymous")], with_groups("system:anonymous", &["system:unauthenticated"])),
        (
            &[("user", "system:anonymous"), ("group", "a")],
            with_groups("system:anonymous", &["a", "system:unauthenticated"]),
        ),
        (&[("user", "system:node:a")], with_groups("system:node:a", &["system:authenticated"])),
        (
            &[("user", "system:serviceaccount:ns:robot")],
            with_groups(
                "system:serviceaccount:ns:robot",
                &["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"],
            ),
        ),
        (
            &[("user", "system:serviceaccount:ns:robot"), ("group", "a")],
            with_groups("system:serviceaccount:ns:robot", &["a", "system:authenticated"]),
        ),
    ] {
        assert_eq!(world.impersonate_as_jane(lines).await, Ok((expected, None)), "{lines:?}");
    }
    assert_eq!(world.count("apiserver_impersonation_attempts_total{decision=\"allowed\",mode=\"legacy\"}"), 10);
}

/// The first denial is returned: that of the mode that succeeded last, otherwise that of the first mode.
#[tokio::test]
async fn impersonation_denied_without_permission() {
    let world = ImpersonationFixture::new(LEGACY);
    let on = forbidden(
        r#"pods is forbidden: User "jane" cannot impersonate-on:user-info:list resource "pods" in API group "" in the namespace "ns""#,
    );
    assert_eq!(world.impersonate_as_jane(&[("user", "eve")]).await, on);
    assert_eq!(
        world.impersonate(&named("jane"), "/metrics", &[("user", "eve")]).await,
        forbidden(r#"forbidden: User "jane" cannot impersonate-on:user-info:get path "/metrics""#)
    );
    assert_eq!(
        world.impersonate_as_jane(&[("user", "system:serviceaccount:ns:other")]).await,
        forbidden(
            r#"pods is forbidden: User "jane" cannot impersonate-on:serviceaccount:list resource "pods" in API group "" in the namespace "ns""#
        )
    );
    assert_eq!(
        world.impersonate_as_jane(&[("user", "system:node:b")]).await,
        forbidden(
            r#"pods is forbidden: User "jane" cannot impersonate-on:arbitrary-node:list resource "pods" in API group "" in the namespace "ns""#
        )
    );
    assert_eq!(
        world.impersonate_as_jane(&[("user", "system:node:b"), ("uid", "1")]).await,
        forbidden(
            r#"users "system:node:b" is forbidden: User "jane" cannot impersonate resource "users" in API group "" at the cluster scope"#
        )
    );
    assert!(world.impersonate_as_jane(&[("user", "bob")]).await.is_ok());
    for (lines, message) in [
        (
            &[("user", "eve")][..],
            r#"users "eve" is forbidden: User "jane" cannot impersonate resource "users" in API group "" at the cluster scope"#,
        ),
        (
            &[("user", "bob"), ("uid", "8"), ("group", "nope"), ("extra-scopes", "z")],
            r#"uids.authentication.k8s.io "8" is forbidden: User "jane" cannot impersonate resource "uids" in API group "authentication.k8s.io" at the cluster scope"#,
        ),
        (
            &[("user", "bob"), ("group", "a"), ("group", "nope"), ("extra-scopes", "z")],
            r#"groups "nope" is forbidden: User "jane" cannot impersonate resource "groups" in API group "" at the cluster scope"#,
        ),
        (
            &[("user", "bob"), ("extra-a.b%2fc", "x"), ("extra-scopes", "z")],
            r#"userextras.authentication.k8s.io "z" is forbidden: User "jane" cannot impersonate resource "userextras/scopes" in API group "authentication.k8s.io" at the cluster scope"#,
        ),
        (
            &[("user", "system:serviceaccount:ns:other")],
            r#"serviceaccounts "other" is forbidden: User "jane" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "ns""#,
        ),
    ] {
        assert_eq!(world.impersonate_as_jane(lines).await, forbidden(message), "{lines:?}");
    }
    assert_eq!(world.impersonate(&named("eve"), PODS, &[("user", "bob")]).await, {
        let Err((code, message)) = on.clone() else { unreachable!() };
        Err((code, message.replace("jane", "eve")))
    });
    assert_eq!(world.count("apiserver_impersonation_attempts_total{decision=\"denied\",mode=\"\"}"), 11);
}

const CONSTRAINED: &[(&str, &str)] = &[
    (
        "jane",
        "{verbs: ['impersonate-on:user-info:list', 'impersonate-on:serviceaccount:list', 'impersonate-on:arbitrary-node:list'], apiGroups: [''], resources: [pods]}",
    ),
    (
        "jane",
        "{verbs: ['impersonate:user-info'], apiGroups: [authentication.k8s.io], resources: [users], resourceNames: [bob, 'system:anonymous']}",
    ),
    (
        "jane",
        "{verbs: ['impersonate:user-info'], apiGroups: [authentication.k8s.io], resources: [groups], resourceNames: [a, b, c, '', 'system:masters']}",
    ),
    (
        "jane",
        "{verbs: ['impersonate:user-info'], apiGroups: [authentication.k8s.io], resources: [userextras/a.b/c, userextras/scopes], resourceNames: [x]}",
    ),
    (
        "jane",
        "{verbs: ['impersonate:serviceaccount'], apiGroups: [authentication.k8s.io], resources: [serviceaccounts]}",
    ),
    ("jane", "{verbs: ['impersonate:arbitrary-node'], apiGroups: [authentication.k8s.io], resources: [nodes]}"),
    ("all", "{verbs: ['*'], apiGroups: [''], resources: [pods]}"),
    ("all", "{verbs: ['impersonate:user-info'], apiGroups: [authentication.k8s.io], resources: [users]}"),
    (
        "all",
        "{verbs: ['impersonate:user-info'], apiGroups: [authentication.k8s.io], resources: [groups, userextras/*], resourceNames: ['*']}",
    ),
];

#[tokio::test]
async fn impersonation_constrained_modes_allow_only_matching_requests() {
    let world = ImpersonationFixture::new(CONSTRAINED);
    for (lines, expected, constraint) in [
        (&[("user", "bob")][..], with_groups("bob", &["system:authenticated"]), "impersonate:user-info"),
        (
            &[("user", "bob"), ("group", "a"), ("extra-a.b%2fc", "x")],
            User {
                extra: [("a.b/c".to_owned(), vec!["x".to_owned()])].into(),
                ..with_groups("bob", &["a", "system:authenticated"])
            },
            "impersonate:user-info",
        ),
        (
            &[("user", "system:anonymous")],
            with_groups("system:anonymous", &["system:unauthenticated"]),
            "impersonate:user-info",
        ),
        (
            &[("user", "system:serviceaccount:ns:robot")],
            with_groups(
                "system:serviceaccount:ns:robot",
                &["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"],
            ),
            "impersonate:serviceaccount",
        ),
        (
            &[("user", "system:node:a")],
            with_groups("system:node:a", &["system:nodes", "system:authenticated"]),
            "impersonate:arbitrary-node",
        ),
    ] {
        assert_eq!(world.impersonate_as_jane(lines).await, Ok((expected, Some(constraint))), "{lines:?}");
    }
    let user = r#"in API group "authentication.k8s.io" at the cluster scope"#;
    for (lines, message) in [
        (
            &[("user", "eve")][..],
            format!(
                r#"users.authentication.k8s.io "eve" is forbidden: User "jane" cannot impersonate:user-info resource "users" {user}"#
            ),
        ),
        (
            &[("user", "bob"), ("uid", "1")],
            format!(
                r#"uids.authentication.k8s.io "1" is forbidden: User "jane" cannot impersonate:user-info resource "uids" {user}"#
            ),
        ),
        (
            &[("user", "bob"), ("group", "nope")],
            format!(
                r#"groups.authentication.k8s.io "nope" is forbidden: User "jane" cannot impersonate:user-info resource "groups" {user}"#
            ),
        ),
        (
            &[("user", "bob"), ("group", "")],
            format!(
                r#"groups.authentication.k8s.io is forbidden: User "jane" cannot impersonate:user-info resource "groups" {user}: impersonating the empty string group is not allowed"#
            ),
        ),
        (
            &[("user", "bob"), ("group", "system:masters")],
            format!(
                r#"groups.authentication.k8s.io "system:masters" is forbidden: User "jane" cannot impersonate:user-info resource "groups" {user}: impersonating the system:masters group is not allowed"#
            ),
        ),
        (
            &[("user", "bob"), ("extra-scopes", "x")],
            format!(
                r#"userextras.authentication.k8s.io is forbidden: User "jane" cannot impersonate:user-info resource "userextras" {user}: impersonating an invalid key in extra is not allowed: extra.key: Invalid value: "scopes": must be a domain-prefixed path (such as "acme.io/foo")"#
            ),
        ),
        // Four values: the wildcard is checked first, then each value.
        (
            &[("user", "bob"), ("group", "a"), ("group", "b"), ("group", "c"), ("group", "d")],
            format!(
                r#"groups.authentication.k8s.io "d" is forbidden: User "jane" cannot impersonate:user-info resource "groups" {user}"#
            ),
        ),
    ] {
        // A new fixture: the denial of the mode that succeeded last would come first.
        let world = ImpersonationFixture::new(CONSTRAINED);
        assert_eq!(world.impersonate_as_jane(lines).await, forbidden(&message), "{lines:?}");
    }
    let list = world.impersonate(&named("jane"), "/api/v1/namespaces/ns/pods/x", &[("user", "bob")]).await;
    // The mode for arbitrary nodes succeeded last; it does not apply to bob.
    assert_eq!(
        list,
        forbidden(
            r#"pods "x" is forbidden: User "jane" cannot impersonate-on:user-info:get resource "pods" in API group "" in the namespace "ns""#
        )
    );
    // From four values on, the wildcard is checked first.
    for (groups, values, allowed) in [(20, 4, true), (3, 4, false), (20, 3, false), (4, 0, true)] {
        let mut lines = vec![("user", "bob")];
        lines.extend((0..groups).map(|_| ("group", "any")));
        lines.extend((0..values).map(|_| ("extra-x.y%2fz", "any")));
        let judged = world.impersonate(&named("all"), PODS, &lines).await;
        assert_eq!(judged.is_ok(), allowed, "{groups} {values}: {judged:?}");
    }
}

/// A service account may be allowed to impersonate the node that its pod runs on, whichever it is.
#[tokio::test]
async fn impersonation_associated_node_allowed_for_pod_on_node() {
    let robot = "system:serviceaccount:ns:robot";
    let world = ImpersonationFixture::new(&[
        (robot, "{verbs: ['impersonate-on:associated-node:list'], apiGroups: [''], resources: [pods]}"),
        (robot, "{verbs: ['impersonate:associated-node'], apiGroups: [authentication.k8s.io], resources: [nodes]}"),
    ]);
    let on = |node: &str| User {
        extra: [("authentication.kubernetes.io/node-name".to_owned(), vec![node.to_owned()])].into(),
        ..named(robot)
    };
    for node in ["a", "b"] {
        let wanted = format!("system:node:{node}");
        let expected = with_groups(&wanted, &["system:nodes", "system:authenticated"]);
        assert_eq!(
            world.impersonate(&on(node), PODS, &[("user", &wanted)]).await,
            Ok((expected, Some("impersonate:associated-node")))
        );
    }
    let other = world.impersonate(&on("a"), PODS, &[("user", "system:node:b")]).await.unwrap_err();
    assert!(other.1.contains("cannot impersonate-on:arbitrary-node:list"), "{other:?}");
    let named_nodes = ImpersonationFixture::new(&[
        (robot, "{verbs: ['impersonate-on:associated-node:list'], apiGroups: [''], resources: [pods]}"),
        (
            robot,
            "{verbs: ['impersonate:associated-node'], apiGroups: [authentication.k8s.io], resources: [nodes], resourceNames: [a]}",
        ),
    ]);
    assert_eq!(
        named_nodes.impersonate(&on("a"), PODS, &[("user", "system:node:a")]).await,
        forbidden(&format!(
            r#"nodes.authentication.k8s.io "*" is forbidden: User "{robot}" cannot impersonate:associated-node resource "nodes" in API group "authentication.k8s.io" at the cluster scope"#
        ))
    );
}

/// After a success of the legacy mode, the constrained modes are not checked again.
#[tokio::test]
async fn impersonation_last_successful_mode_tried_first() {
    let world = ImpersonationFixture::new(LEGACY);
    let asked = |mode: &str, decision: &str| {
        world.count(&format!(
            "apiserver_impersonation_authorization_attempts_total{{decision=\"{decision}\",mode=\"{mode}\"}}"
        ))
    };
    for _ in 0..3 {
        assert!(world.impersonate_as_jane(&[("user", "bob")]).await.is_ok());
    }
    assert_eq!((asked("legacy", "allowed"), asked("user-info", "denied")), (3, 1));
}

#[tokio::test]
async fn impersonation_without_user_keeps_authenticated_user() {
    let world = ImpersonationFixture::new(&[("nobody", "{verbs: [get], nonResourceURLs: [/]}")]);
    for lines in [&[("user", "")][..], &[("uid", "")], &[("anything", "x")]] {
        assert_eq!(world.impersonate_as_jane(lines).await, Ok((named("jane"), None)), "{lines:?}");
    }
    assert_eq!(world.impersonate_as_jane(&[("group", "a")]).await.unwrap_err().0, 400);
}

/// Neither `AlwaysAllow` nor a privileged group or always-allowed path may authorize impersonation.
#[tokio::test]
async fn impersonation_requires_mode_that_evaluates_users() {
    let root = with_groups("root", &["system:masters"]);
    for modes in [
        vec![],
        vec![AuthorizationMode::AlwaysAllow],
        vec![AuthorizationMode::AlwaysDeny],
        vec![AuthorizationMode::AlwaysDeny, AuthorizationMode::AlwaysAllow],
    ] {
        let world = ImpersonationFixture::with_modes(modes);
        for path in [PODS, "/healthz"] {
            for lines in [&[("user", "bob")][..], &[("group", "a")], &[("user", "")]] {
                let (code, message) = world.impersonate(&root, path, lines).await.unwrap_err();
                assert_eq!(code, 403);
                let expected = "forbidden: User \"root\" cannot impersonate: no authorization mode";
                assert!(message.starts_with(expected), "{message}");
            }
        }
    }
    let policy = ImpersonationFixture::policy(&[("nobody", "{verbs: [get], nonResourceURLs: [/]}")]);
    let world = ImpersonationFixture::with_modes(vec![policy, AuthorizationMode::AlwaysAllow]);
    assert_eq!(
        world.impersonate_as_jane(&[("user", "bob")]).await.unwrap_err().0,
        403,
        "AlwaysAllow cannot authorize impersonation"
    );
    assert_eq!(world.impersonate(&named("jane"), "/healthz", &[("user", "bob")]).await.unwrap_err().0, 403);
    // As in Kubernetes: a privileged user may impersonate if a mode evaluates users.
    assert!(world.impersonate(&root, PODS, &[("user", "bob"), ("group", "x")]).await.is_ok());
}

/// With a silent authorizer, all modes together take no longer than one check.
#[tokio::test(start_paused = true)]
async fn impersonation_times_out_when_authorizer_is_silent() {
    let (remote, _nobody_serves_them) = ClientHandle::new();
    let reviews = AccessReviewClient::new(remote, AccessReviewSettings::default(), &Metrics::new()).unwrap();
    let world = ImpersonationFixture::with_modes(vec![AuthorizationMode::Webhook(reviews)]);
    let began = tokio::time::Instant::now();
    let (code, message) =
        world.impersonate_as_jane(&[("user", "bob"), ("group", "a"), ("group", "b")]).await.unwrap_err();
    assert_eq!(code, 403);
    assert!(message.ends_with(": an authorizer failed"), "{message}");
    // The paused clock only advances when all tasks are idle.
    assert_eq!(began.elapsed().as_secs(), TIMEOUT.as_secs());
}

#[tokio::test]
async fn impersonation_filtered_groups_dropped_after_authorization() {
    let mut world = ImpersonationFixture::new(LEGACY);
    world.groups = GroupFilter::new(&[], &["system:masters", "b"]);
    let lines = &[("user", "bob"), ("group", "system:masters"), ("group", "a"), ("group", "b")];
    assert_eq!(world.impersonate_as_jane(lines).await.unwrap().0, with_groups("bob", &["a", "system:authenticated"]));
    assert_eq!(world.impersonate_as_jane(&[("user", "bob"), ("group", "nope")]).await.unwrap_err().0, 403);
}
