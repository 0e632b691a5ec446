//! Authentication of requests.
//!
//! The authenticators run in upstream's order: request headers of a front proxy, client certificate, bearer token,
//! token in the WebSocket protocols, anonymous (if enabled). The first that identifies a user wins. If none does and
//! one of them failed, the response is 401, never anonymous
//! (`k8s.io/apiserver/pkg/authentication/authenticatorfactory/delegating.go`).
//!
//! Credentials and front-proxy headers are always removed from the request, in any spelling.
//!
//! Tokens are verified by [`Tokens`], [`Jwt`] and [`TokenReviews`], wherever in the request they were found.

mod authenticator;
mod bearer;
mod csv;
mod groups;
mod identity_headers;
pub mod jwt;
mod lookup;
mod peer;
#[cfg(test)]
mod pitfalls;
mod request_header;
mod speakable;
mod token_question;
mod token_review;
mod tokens;
mod websocket;

pub use authenticator::{Authenticated, Authenticator, Settings, Unauthenticated};
pub use groups::GroupFilter;
pub use identity_headers::IdentityHeaders;
pub use jwt::Jwt;
pub use lookup::{Following, LookupFailure, look_up};
pub use peer::Peer;
pub use request_header::{RequestHeaderNames, RequestHeaders};
pub(crate) use speakable::check as check_speakable;
pub use token_question::{NoHolder, TokenHolder};
pub use token_review::{TokenReviewSettings, TokenReviews};
pub use tokens::{TokenFile, Tokens};

/// Parsers that are exposed to the fuzz targets.
#[doc(hidden)]
pub mod parsers {
    pub use super::bearer::{Bearer, parse as bearer};
    pub use super::csv::{Record, records};
    pub use super::websocket::{Protocols, parse as websocket};
}

/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of all unauthenticated users.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The name of the anonymous user.
pub const ANONYMOUS: &str = "system:anonymous";
