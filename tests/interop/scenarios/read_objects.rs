//! kubectl get and describe.

use super::Scenario;
use crate::environment::Session;

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("read: get", get),
    ("read: get in chunks", get_in_chunks),
    ("read: get by selector", get_by_selector),
    ("read: get missing objects", get_what_is_not_there),
    ("read: get --raw", get_raw),
    ("read: describe", describe),
];

/// Creates three flunders.
fn create_flunders(session: &mut Session<'_>) {
    let names = [("fern", "green"), ("moss", "green"), ("rose", "red")];
    let flunders: String = names
        .iter()
        .map(|(name, color)| {
            format!(
                "apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {{name: {name}, labels: {{color: \
                 {color}}}}}\nspec: {{reference: of-{name}}}\n---\n"
            )
        })
        .collect();
    session.with_input("create -f -", &flunders).ok();
}

fn get(session: &mut Session<'_>) {
    create_flunders(session);
    let step = session.kubectl("get flunders");
    assert_eq!(step.ok().lines().count(), 4, "{}", step.output);
    assert!(step.output.contains("rose"));
    session.kubectl("get flunder fern -o yaml").ok();
    session.kubectl("get flunders -o json").ok();
    session.kubectl("get flunders -o wide --show-labels").ok();
    session.kubectl("get flunder fern -o yaml --show-managed-fields").ok();
    session.kubectl("get flunders.v1beta1.wardle.example.com moss -o yaml").ok();
    session.kubectl("get flunder rose -o jsonpath={.spec.flunderReference}").ok();
    let step = session.kubectl("get flunders.v1alpha1.wardle.example.com");
    step.ok();
    assert!(step.errors.contains("Warning: wardle.example.com/v1alpha1 Flunder is deprecated"), "{}", step.errors);
    let all = session.run_unrecorded("get flunders --all-namespaces --no-headers");
    assert!(all.ok().contains(&session.namespace));
    session.kubectl("get fischers").ok();
}

fn get_in_chunks(session: &mut Session<'_>) {
    create_flunders(session);
    let step = session.kubectl("get flunders --chunk-size=1 -o name");
    assert_eq!(step.ok().lines().count(), 3);
    let path = format!("/apis/wardle.example.com/v1alpha1/namespaces/{}/flunders?limit=2", session.namespace);
    let page: serde_json::Value = serde_json::from_str(session.kubectl(&format!("get --raw {path}")).ok()).unwrap();
    assert_eq!(page["items"].as_array().map(Vec::len), Some(2));
    let next = page["metadata"]["continue"].as_str().unwrap();
    let rest = session.run_unrecorded(&format!("get --raw {path}&continue={next}"));
    let rest: serde_json::Value = serde_json::from_str(rest.ok()).unwrap();
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(1));
}

fn get_by_selector(session: &mut Session<'_>) {
    create_flunders(session);
    assert_eq!(session.kubectl("get flunders -l color=green -o name").ok().lines().count(), 2);
    assert_eq!(session.kubectl("get flunders -l color!=green,color -o name").ok().lines().count(), 1);
    assert_eq!(session.kubectl("get flunders --field-selector metadata.name=moss -o name").ok().lines().count(), 1);
    session.kubectl("get flunders --field-selector spec.nothing=1").expect_error("is not a known field selector");
}

fn get_what_is_not_there(session: &mut Session<'_>) {
    session.kubectl("get flunder nobody").expect_error("flunders.wardle.example.com \"nobody\" not found");
    session.kubectl("get flunder nobody --ignore-not-found").ok();
    session.kubectl("get flunders").ok();
    session.kubectl("get bicycles").expect_error("the server doesn't have a resource type \"bicycles\"");
    session.kubectl("get --raw /apis/wardle.example.com/v1alpha1/bicycles").expect_error("forbidden");
    session.as_user(session.environment.cluster.admin(), |admin| {
        admin.kubectl("get --raw /apis/wardle.example.com/v1alpha1/bicycles").expect_error("could not find");
    });
    session.kubectl("get --raw /apis/wardle.example.com/v1alpha1/flunders?limit=many").expect_error("invalid syntax");
}

fn get_raw(session: &mut Session<'_>) {
    create_flunders(session);
    let base = format!("/apis/wardle.example.com/v1alpha1/namespaces/{}/flunders", session.namespace);
    for path in [base.clone(), format!("{base}/fern"), format!("{base}?labelSelector=color%3Dgreen")] {
        session.kubectl(&format!("get --raw {path}")).ok();
    }
    session.with_input(&format!("replace --raw {base}/none -f -"), "{}").expect_error("name must be provided");
    session.kubectl(&format!("delete --raw {base}/fern")).ok();
    session.kubectl(&format!("delete --raw {base}?labelSelector=color%3Dgreen")).ok();
    assert_eq!(session.kubectl("get flunders -o name").ok().trim(), "flunder.wardle.example.com/rose");
}

fn describe(session: &mut Session<'_>) {
    create_flunders(session);
    assert!(session.kubectl("describe flunder moss").ok().contains("of-moss"));
}
