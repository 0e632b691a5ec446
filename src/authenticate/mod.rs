//! Authentication of requests.
//!
//! The authenticators run in Kubernetes' order: request headers of a front proxy, client certificate, bearer token,
//! token in the WebSocket protocols, anonymous (if enabled). The first that identifies a user wins. If none does and
//! one of them failed, the response is 401, never anonymous
//! (`k8s.io/apiserver/pkg/authentication/authenticatorfactory/delegating.go`).
//!
//! Credentials and front-proxy headers are always removed from the request, in any spelling.
//!
//! Tokens are verified by [`StaticTokens`], [`ServiceAccountAuthenticator`], [`JwtAuthenticator`] and [`TokenReviewClient`], wherever in the request
//! they were found.

mod auth_configmap;
mod authenticator;
mod bearer;
mod groups;
mod header_safe;
mod identity_headers;
pub mod jwt;
mod notes;
mod peer;
mod request_header;
#[cfg(test)]
mod security_regressions;
pub mod service_accounts;
mod static_tokens;
mod token_review;
mod token_review_server;
mod websocket;

pub use auth_configmap::{AuthConfigMapError, AuthConfigMapWatcher, load_auth_configmap};
pub use authenticator::{AuthenticatedUser, AuthenticationError, Authenticator, Settings};
pub use groups::GroupFilter;
pub(crate) use header_safe::check_header_safe as check_speakable;
pub use identity_headers::IdentityHeaderMatcher;
pub use jwt::JwtAuthenticator;
pub use notes::AuthenticationNotes;
pub use peer::Peer;
pub use request_header::{RequestHeaderConfig, RequestHeaderNames};
pub use service_accounts::ServiceAccountAuthenticator;
pub use static_tokens::{StaticTokens, TokenFile};
pub use token_review::{TokenReviewClient, TokenReviewError, TokenReviewSettings};
pub use token_review_server::{AuthenticatedToken, TokenError};

/// Parsers that are exposed to the fuzz targets.
#[doc(hidden)]
pub mod parsers {
    pub use super::bearer::{Bearer, parse as bearer};
    pub use super::websocket::{WebSocketProtocols, parse as websocket};
    pub use crate::process::csv::{Record, records};
}

/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of all unauthenticated users.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The name of the anonymous user.
pub const ANONYMOUS: &str = "system:anonymous";
