//! Client certificates of users and front proxies: validity, trust bundles that change, names.

use super::*;

#[test]
fn client_certificate_yields_user_groups_uid_and_credential_id() {
    let world = fixture(|_| {});
    let chain = world.clients.issue("jane", |params| {
        params.distinguished_name.push(DnType::OrganizationName, "devs");
        params.distinguished_name.push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), "uid-1");
    });
    let peer = peer(chain);
    let jane = world.authenticate_with(&peer, &mut HeaderMap::new()).unwrap();
    assert_eq!((&*jane.name, &*jane.uid), ("jane", "uid-1"));
    assert_eq!(jane.groups, ["devs", "system:authenticated"]);
    let id = &jane.extra["authentication.kubernetes.io/credential-id"];
    assert!(id.len() == 1 && id[0].len() == "X509SHA256=".len() + 64 && id[0].starts_with("X509SHA256="));
    // The second request gets the same allocation: the verification is cached.
    let again = world.authenticate_with(&peer, &mut HeaderMap::new()).unwrap();
    assert!(Arc::ptr_eq(jane.user(), again.user()));
}

#[test]
fn trust_bundle_removal_applies_to_open_connections() {
    let world = fixture(|_| {});
    let (jane, proxy) = (world.clients.client("jane"), world.proxies.client("front-proxy-client"));
    let word = [("x-remote-user", "bob")];
    assert_eq!(world.authenticate(&jane, &[]).unwrap(), "jane");
    assert_eq!(world.authenticate(&proxy, &word).unwrap(), "bob");
    let strangers = ca("strangers").bundle;
    let trust = |client, request_header, generation| ClientTrust {
        client,
        request_header,
        generation,
        ..ClientTrust::default()
    };
    world.trust.publish(Arc::new(trust(Some(strangers.clone()), Some(strangers), 2)));
    assert!(world.authenticate(&jane, &[]).unwrap_err().contains("no authority of the bundle signed it"));
    assert!(world.authenticate(&proxy, &word).unwrap_err().starts_with("request header: "));
    world.trust.publish(Arc::new(trust(None, None, 3)));
    assert!(world.authenticate(&jane, &[]).is_err());
    world.trust.publish(Arc::new(trust(Some(world.clients.bundle.clone()), None, 4)));
    assert_eq!(world.authenticate(&jane, &[]).unwrap(), "jane");
    assert!(world.authenticate(&proxy, &word).is_err());
}

#[test]
fn peer_verification_follows_trust_changes() {
    let world = fixture(|_| {});
    let (jane, proxy) = (world.clients.client("jane"), world.proxies.client("front-proxy-client"));
    assert_eq!((world.authenticator.verify_peer(&jane), world.authenticator.verify_peer(&proxy)), (Ok(()), Ok(())));
    assert!(world.authenticator.verify_peer(&world.proxies.client("another")).is_err());
    world.trust.publish(Arc::new(ClientTrust {
        client: Some(world.clients.bundle.clone()),
        request_header: None,
        generation: 2,
        ..ClientTrust::default()
    }));
    assert_eq!(world.authenticator.verify_peer(&jane), Ok(()));
    assert!(world.authenticator.verify_peer(&proxy).unwrap_err().contains("no authority of the bundle signed it"));
}

#[test]
fn certificate_validity_rechecked_on_open_connection() {
    let world = fixture(|_| {});
    let peer = world.clients.client("jane");
    let ask = |seconds| {
        let mut headers = HeaderMap::new();
        world.authenticator.authenticate_at(&peer, "/", &mut headers, || at(seconds)).now_or_never().unwrap().is_ok()
    };
    let (begin, end) = (1_704_067_200, 1_893_456_000);
    assert!(!ask(begin - 1));
    assert!(ask(begin));
    assert!(ask(end));
    assert!(!ask(end + 1));
    assert!(ask(end - 1), "the clock was set back");
}

#[test]
fn client_certificate_invalid_is_rejected_with_cause() {
    let world = fixture(|settings| settings.anonymous = true);
    let uid = |params: &mut CertificateParams, uid: &str| {
        params.distinguished_name.push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), uid);
    };
    for (what, chain) in [
        (
            "not for client authentication",
            world.clients.issue("x", |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }),
        ),
        ("expired", world.clients.issue("x", |params| params.not_after = date_time_ymd(2025, 1, 1))),
        ("not valid before", world.clients.issue("x", |params| params.not_before = date_time_ymd(2027, 1, 1))),
        (
            "critical extension",
            world.clients.issue("x", |params| {
                let mut extension = CustomExtension::from_oid_content(&[1, 2, 3], vec![5, 0]);
                extension.set_criticality(true);
                params.custom_extensions = vec![extension];
            }),
        ),
        ("UID is empty", world.clients.issue("x", |params| uid(params, ""))),
        ("no authority of the bundle", ca("others").issue("x", |_| {})),
        ("cannot be read", vec![CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])]),
    ] {
        let cause = world.authenticate(&peer(chain), &[]).unwrap_err();
        assert!(cause.contains("client certificate: ") && cause.contains(what), "{what}: {cause}");
    }
}

#[test]
fn request_header_empty_allowed_names_accepts_only_its_ca() {
    let world = fixture(|settings| settings.request_headers.allowed_names.clear());
    let lines = [("x-remote-user", "jane")];
    assert_eq!(world.authenticate(&world.proxies.client("whoever"), &lines).unwrap(), "jane");
    assert_eq!(world.authenticate(&world.clients.client("bob"), &lines).unwrap(), "bob");
}

#[test]
fn request_header_allowed_names_ignore_san_and_organization() {
    let world = fixture(|_| {});
    let chain = world.proxies.issue("other", |params| {
        params.subject_alt_names = vec![rcgen::SanType::DnsName("front-proxy-client".try_into().unwrap())];
        params.distinguished_name.push(DnType::OrganizationName, "front-proxy-client");
    });
    assert!(
        world
            .authenticate(&peer(chain), &[("x-remote-user", "jane")])
            .unwrap_err()
            .contains("cn=other is not in the allowed list")
    );
}
