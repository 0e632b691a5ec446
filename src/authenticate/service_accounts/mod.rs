//! Tokens of ServiceAccounts of the embedded API server: their keys, how they are issued, and how they are verified.

mod authenticator;
mod issuer;
mod key_set;
mod key_source;
mod keys;
mod root_ca;
mod token_claims;

pub use authenticator::{AccountTokenError, RecordSecretUse, ServiceAccountAuthenticator, TokenObjects, TokenUser};
pub use issuer::{
    BoundObject, IssuedToken, ObjectIdentity, TokenAccount, TokenClaims, TokenIssuer, TokenSettings, user_name,
};
pub use key_set::{KEY_SET_MAX_AGE, KeySet, TokenKey, TokenKeyMaterial};
pub use key_source::{EXTENDED_LIFETIME, KEY_FILE_NAME, KeyRotation, KeySource, KeySourceWatcher, rotate_keys};
pub use root_ca::RootCa;
