//! kcp-front-proxy's path mapping as the file of control planes.

use crate::control_planes::fixture::{TestControlPlane, answer, connect, flag, request, write_file};
use crate::support::fixtures::TestEnvironment;

#[tokio::test(flavor = "multi_thread")]
async fn kcp_path_mapping_relayed_with_prefix_and_identity_headers() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    write_file(
        &environment,
        &format!(
            "- path: /services/\n  backend: https://{}\n  backend_server_ca: backend-ca.crt\n\
             \x20 proxy_client_cert: front-proxy.crt\n  proxy_client_key: front-proxy.key\n\
             - path: /services/inner\n  backend: https://{}\n  backend_server_ca: backend-ca.crt\n\
             \x20 proxy_client_cert: front-proxy.crt\n  proxy_client_key: front-proxy.key\n\
             \x20 user_header: X-My-User\n  group_header: X-My-Group\n  extra_header_prefix: X-My-Extra-\n",
            c.server.address, d.server.address
        ),
    );
    let gateway = environment.start_gateway(&[&flag(&environment)]);
    let jane = environment.issue_user("jane", &["devs"]);
    let client = connect(&environment, &gateway, "localhost", Some(&jane), "http/1.1").await;
    let path = "/services/root:org/api/v1/pods";
    let spoofed = [("x-my-user", "root"), ("x-my-extra-scopes", "all"), ("x-remote-user", "root")];
    assert_eq!(request(&client, "localhost", path, &spoofed).await.json(), answer("c", path));
    let seen = c.last_client_request();
    assert_eq!(
        (seen.header_values("x-remote-user"), seen.peer.as_str()),
        (vec!["jane".to_owned()], "narthex-front-proxy")
    );
    assert_eq!(seen.header_values("x-remote-group"), ["devs", "system:authenticated"]);
    let path = "/services/inner/api";
    assert_eq!(request(&client, "localhost", path, &spoofed).await.json(), answer("d", path));
    let seen = d.last_client_request();
    assert_eq!(seen.header_values("x-my-user"), ["jane"]);
    assert_eq!(seen.header_values("x-my-group"), ["devs", "system:authenticated"]);
    assert!(seen.header_values("x-my-extra-scopes").is_empty() && seen.header_values("x-remote-user").is_empty());
    assert_eq!(seen.header_values("x-my-extra-authentication.kubernetes.io%2fcredential-id").len(), 1, "{seen:?}");
    // The gateway's own client CA counts, and others do not.
    let client = connect(&environment, &gateway, "localhost", Some(&c.admin), "http/1.1").await;
    request(&client, "localhost", path, &[]).await.assert_failure(401, "Unauthorized");
}
