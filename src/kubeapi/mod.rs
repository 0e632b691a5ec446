//! Kubernetes words on the wire. Values in, values out: nothing here does I/O.

mod status;
mod user;

pub use status::{Cause, Details, Status};
pub use user::User;
