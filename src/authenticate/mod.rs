//! Who is asking.
//!
//! The order is upstream's: the front proxy's word, the client certificate, the bearer token, the token
//! in a WebSocket's protocols, and anonymous last, if asked for. The first that knows somebody wins;
//! when nobody does and one of them found something wrong, the answer is 401 and never anonymous
//! (`k8s.io/apiserver/pkg/authentication/authenticatorfactory/delegating.go`).
//!
//! Whatever comes out, the credentials and every front-proxy header are gone from the request
//! afterwards, in any spelling.
//!
//! Tokens are judged by [`Tokens`] and by [`TokenReviews`], behind the same two places that find a token in a
//! request.

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

/// What fuzz targets need to see of our parsers.
#[doc(hidden)]
pub mod parsers {
    pub use super::bearer::{Bearer, parse as bearer};
    pub use super::csv::{Record, records};
    pub use super::websocket::{Protocols, parse as websocket};
}

/// The group of everybody who is known.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of everybody who is not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The name of everybody who is not known.
pub const ANONYMOUS: &str = "system:anonymous";
