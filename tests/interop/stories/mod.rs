//! What people do. A [`Story`] is told at each target with each kubectl, and what was said is compared;
//! a [`Trial`] stands by itself.

mod auditing;
mod browser;
mod cluster;
mod controller;
mod converting;
mod crowd;
mod delegation;
mod discovery;
mod documents;
mod elected;
mod failure;
mod followed;
mod front_proxy_pairs;
mod identity;
mod impersonation;
mod isolation;
mod konnectivity;
mod kube_rbac_proxy;
mod kubeconfigs;
mod metrics;
mod pages;
mod proxy;
mod quickstart;
mod reading;
mod schedulers;
mod served;
mod sidecar;
mod socks5;
mod standalone;
mod tutorial;
mod watching;
mod writing;

use crate::world::{Identity, Kubectl, Session, Step, Target, World};

/// Told once for each target; the transcripts must agree.
pub(crate) type Story = fn(&mut Session<'_>);

/// A test that makes its own comparison, or has nothing to compare with.
pub(crate) type Trial = fn(&World);

/// A trial with one kubectl.
pub(crate) type TrialWith = fn(&World, &Kubectl);

/// Told at every target.
pub(crate) fn everywhere() -> Vec<(&'static str, Story)> {
    [reading::STORIES, writing::STORIES, watching::STORIES, discovery::STORIES, identity::STORIES].concat()
}

/// Told at a whole cluster and at narthex before it.
pub(crate) fn of_a_cluster() -> Vec<(&'static str, Story)> {
    [cluster::STORIES, converting::STORIES].concat()
}

/// Told at narthex only: what an extension server alone cannot do.
pub(crate) fn through_narthex() -> Vec<(&'static str, Story)> {
    discovery::THROUGH.to_vec()
}

/// Trials that ask every target there is.
pub(crate) fn trials_everywhere() -> Vec<(&'static str, Trial)> {
    [identity::TRIALS, writing::TRIALS, crowd::TRIALS, kube_rbac_proxy::TRIALS].concat()
}

/// Trials of narthex with each kubectl.
pub(crate) fn trials_with_kubectl() -> Vec<(&'static str, TrialWith)> {
    [
        quickstart::THROUGH,
        metrics::WITH_KUBECTL,
        failure::WITH_KUBECTL,
        delegation::WITH_KUBECTL,
        impersonation::WITH_KUBECTL,
        standalone::WITH_KUBECTL,
        served::WITH_KUBECTL,
        sidecar::WITH_KUBECTL,
        tutorial::WITH_KUBECTL,
        socks5::WITH_KUBECTL,
        proxy::WITH_KUBECTL,
        kubeconfigs::WITH_KUBECTL,
        browser::WITH_KUBECTL,
        konnectivity::WITH_KUBECTL,
    ]
    .concat()
}

/// Trials of narthex.
pub(crate) fn trials_of_narthex() -> Vec<(&'static str, Trial)> {
    [
        identity::THROUGH,
        failure::THROUGH,
        isolation::THROUGH,
        followed::THROUGH,
        front_proxy_pairs::THROUGH,
        elected::THROUGH,
        auditing::THROUGH,
        schedulers::THROUGH,
        cluster::THROUGH,
        controller::THROUGH,
        documents::THROUGH,
        konnectivity::CLIENT,
        socks5::THROUGH,
        konnectivity::THROUGH,
        sidecar::THROUGH,
        pages::THROUGH,
    ]
    .concat()
}

/// Tells `story` as jane at narthex, where there is nothing to compare with.
pub(crate) fn tell_through(world: &World, kubectl: &Kubectl, story: Story) {
    story(&mut Session::open(world, kubectl, Target::Through, world.cluster.jane()));
}

/// Tells `story` as jane at every target and compares what was said with the first.
pub(crate) fn tell(world: &World, kubectl: &Kubectl, story: Story) {
    tell_at(world.targets(), world.cluster.jane(), world, kubectl, story);
}

/// Tells `story` as an administrator at kube-apiserver and at narthex before it, and compares.
pub(crate) fn tell_of_a_cluster(world: &World, kubectl: &Kubectl, story: Story) {
    tell_at(world.whole_targets(), world.cluster.admin(), world, kubectl, story);
}

fn tell_at(targets: [Target; 2], who: &Identity, world: &World, kubectl: &Kubectl, story: Story) {
    let mut first: Option<Vec<Step>> = None;
    for target in targets {
        let mut session = Session::open(world, kubectl, target, who);
        story(&mut session);
        let transcript = session.into_transcript();
        match &first {
            None => first = Some(transcript),
            Some(reference) => compare(reference, &transcript),
        }
    }
}

fn compare(direct: &[Step], through: &[Step]) {
    for (direct, through) in direct.iter().zip(through) {
        assert_eq!(direct, through, "left: straight to the server; right: through narthex");
    }
    assert_eq!(direct.len(), through.len(), "the story took another turn");
}
