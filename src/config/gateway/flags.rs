//! The gateway's flags, group by group. Names, meanings and defaults are kube-apiserver's where it has
//! such a flag; see each help text for ours.

mod authentication;
mod authorization;
mod backends;
mod embedded_api;
mod serving;

pub use self::authentication::AUTHENTICATION;
pub use self::authorization::{AUTHORIZATION, AUTHORIZATION_MODE};
pub use self::backends::BACKENDS;
pub(in crate::config) use self::backends::RESOLVER;
pub use self::embedded_api::EMBEDDED_API;
pub use self::serving::{PORT, SERVING};

use crate::config::flag::{Flag, FlagGroup, FlagKind};
use crate::config::observability_flags::{OBSERVABILITY, QUICKSTART_OBSERVABILITY};

/// The configuration file and the data directory.
pub static CONFIGURATION: FlagGroup = FlagGroup {
    heading: "Configuration",
    flags: &[
        Flag::new(
            "config",
            FlagKind::File,
            "",
            "YAML file (apiVersion narthex.dev/v1alpha1, kind GatewayConfiguration) that holds these flags by their names in camelCase. The command line comes first, then the environment, then this file",
        ),
        DATA_DIR,
    ],
};

/// The data directory alone, for the quickstart.
pub static FILES: FlagGroup = FlagGroup { heading: "Configuration", flags: &[DATA_DIR] };

pub(in crate::config) const DATA_DIR: Flag = Flag::new(
    "data-dir",
    FlagKind::Directory,
    "",
    "Directory for generated certificates, last good documents and admin.kubeconfig (default $XDG_STATE_HOME/narthex, else ~/.local/state/narthex)",
);

/// Generated keys of the quickstart.
pub static KEYS: FlagGroup = FlagGroup {
    heading: "Certificates",
    flags: &[Flag::new(
        "key-type",
        FlagKind::Choice(&["ecdsa", "rsa"]),
        "ecdsa",
        "Type of generated keys; RSA is for clients that read no other",
    )],
};

/// Leader election among gateways with the same registry.
pub static LEADER_ELECTION: FlagGroup = FlagGroup {
    heading: "Leader election",
    flags: &[
        Flag::new(
            "leader-elect",
            FlagKind::Switch,
            "true",
            "Elect one of the gateways with the same --kubeconfig or --etcd-servers to write the condition Available of APIServices and to run the controllers of --embedded-api; with false, this one always does",
        ),
        Flag::new(
            "leader-elect-lease-duration",
            FlagKind::Duration,
            "15s",
            "Time that candidates wait after the leader's last renewal before they take the Lease",
        ),
        Flag::new(
            "leader-elect-renew-deadline",
            FlagKind::Duration,
            "10s",
            "Time that a leader retries to renew its Lease before it gives up leadership",
        ),
        Flag::new(
            "leader-elect-retry-period",
            FlagKind::Duration,
            "2s",
            "Time between attempts to take or renew the Lease",
        ),
        Flag::new("leader-elect-resource-lock", FlagKind::Choice(&["leases"]), "leases", "Kind of the lock object"),
        Flag::new("leader-elect-resource-name", FlagKind::Text("NAME"), "narthex", "Name of the Lease"),
        Flag::new(
            "leader-elect-resource-namespace",
            FlagKind::Text("NAMESPACE"),
            "kube-system",
            "Namespace of the Lease",
        ),
    ],
};

/// All of the gateway's groups.
pub static GATEWAY: &[&FlagGroup] = &[
    &CONFIGURATION,
    &SERVING,
    &AUTHENTICATION,
    &AUTHORIZATION_MODE,
    &AUTHORIZATION,
    &BACKENDS,
    &EMBEDDED_API,
    &LEADER_ELECTION,
    &OBSERVABILITY,
];

/// All of the quickstart's groups.
pub static QUICKSTART: &[&FlagGroup] = &[&FILES, &KEYS, &PORT, &QUICKSTART_OBSERVABILITY];
