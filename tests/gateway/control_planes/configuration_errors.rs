//! Mistakes in the file of control planes, all at once.

use crate::control_planes::fixture::{TestControlPlane, flag, write_control_planes, write_file};
use crate::support::fixtures::{TestEnvironment, run_narthex};

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_config_errors_reported_together() {
    let environment = TestEnvironment::new();
    write_file(
        &environment,
        "apiVersion: narthex.dev/v1\nkind: ControlPlanes\nextra: 1\ncontrolPlanes:\n\
         - name: a\n  hosts: [a.example, A.example, '*.example', 127.0.0.1]\n  registryDir: r\n\
         - name: a\n  pathPrefix: /apis\n  registryDir: r\n\
         - name: b\n  pathPrefix: /x/../y\n  registryDir: r\n\
         - name: c\n  hosts: [c.example]\n  pathPrefix: /c\n  kubeconfig: k\n\
         - name: d\n  pathPrefix: /d\n  clientCAFile: d.crt\n\
         - name: e\n  pathPrefix: /e\n  registryDir: r\n  securePort: 1\n  clientCaFil: x\n  requestTimeout: soon\n\
         - name: f\n  pathPrefix: /d\n  registryDir: r\n- name: g\n  pathPrefix: /d\n  registryDir: r\n",
    );
    let mut arguments = environment.gateway_arguments(&[&flag(&environment)]);
    arguments.insert(0, "gateway".to_owned());
    let output = run_narthex(&arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for expected in [
        "line 1: apiVersion: \"narthex.dev/v1\" is not known here; use narthex.dev/v1alpha1",
        "line 3: extra: unknown field; the fields are apiVersion, kind and controlPlanes",
        "controlPlanes[a].hosts: a.example is given twice",
        "controlPlanes[a].hosts: \"*.example\" is a wildcard; name each host",
        "controlPlanes[a].hosts: \"127.0.0.1\" is an IP address",
        "controlPlanes[a].pathPrefix: \"/apis\": is a path of the Kubernetes API itself",
        "controlPlanes[b].pathPrefix: \"/x/../y\": must not have",
        "controlPlanes[c]: give hosts or pathPrefix, not both",
        "controlPlanes[d]: has no backend; give registryDir, kubeconfig or delegateKubeconfig",
        "controlPlanes[e].securePort: unknown field",
        "controlPlanes[e].clientCaFil: unknown field; did you mean clientCaFile?",
        "controlPlanes[e].requestTimeout: \"soon\": use a duration",
        "controlPlanes[g].pathPrefix: /d belongs to two control planes",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_files_checked_with_their_fields() {
    let environment = TestEnvironment::new();
    let c = TestControlPlane::start(&environment, "c").await;
    let mut arguments = environment.gateway_arguments(&[&flag(&environment)]);
    arguments.splice(0..0, ["check".to_owned(), "gateway".to_owned()]);
    write_control_planes(&environment, &[c.by_path("")]);
    let output = run_narthex(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(environment.path("c-ca.crt"), "nothing").unwrap();
    let output = run_narthex(&arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("controlPlanes[c].clientCAFile") && text.contains("c-ca.crt"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}
