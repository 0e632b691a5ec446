//! `--serve-delegation`: backends that run against us instead of a kube-apiserver.
//!
//! An extension API server asks three things of the cluster it belongs to: whom to believe
//! (ConfigMap `kube-system/extension-apiserver-authentication`), who holds a token (`TokenReview`), and what a user
//! may (`SubjectAccessReview`). Here our own chains answer. Who asks needs permission for it like for everything
//! else, which the request had to get before it comes here.

mod config_map;
mod question;
mod serve;
mod token_review;
mod watch;

pub use config_map::{ConfigMap, Speaker, who_vouches};
pub use question::Question;
pub use serve::{Reviewer, answer_config_map};
pub use token_review::token_review;
