//! The peer of a connection: its address, its certificate, and the cached verification of that certificate.

use std::cell::{Ref, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use kubeapi::{CREDENTIAL_ID, User};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::request_header::RequestHeaderConfig;
use super::{AUTHENTICATED, StaticTokens, groups, header_safe};
use crate::tls::{Bundle, ClientTrust, PeerCertificate};

/// One client connection.
///
/// Its certificate chain is verified at the first request. It is verified again only when the trust changed or the
/// validity of a certificate began or ended: a signature check costs more than the rest of a request.
pub struct Peer {
    remote: SocketAddr,
    chain: Vec<CertificateDer<'static>>,
    verification: RefCell<Option<ChainVerification>>,
    last_token: RefCell<Option<LastToken>>,
}

/// The last token seen on this connection, and its user: the next request nearly always has the same token, and a
/// lookup costs an HMAC.
struct LastToken {
    tokens: Arc<StaticTokens>,
    token: Box<[u8]>,
    user: Arc<User>,
}

/// The verification of a chain against one generation of trust.
pub(super) struct ChainVerification {
    generation: u64,
    verified_at: UnixTime,
    /// Time at which the chain must be verified again.
    valid_until: UnixTime,
    /// Whether the peer is an allowed front proxy; none without a request-header CA.
    pub(super) front_proxy: Option<Result<(), String>>,
    /// The user of the certificate; none without a client CA, or without a common name.
    pub(super) client: Option<Result<Arc<User>, String>>,
}

impl Peer {
    /// Creates a peer at `remote` that presented `chain`, which may be empty. The leaf is first, and the peer has
    /// proved possession of its key.
    pub fn new(remote: SocketAddr, chain: Vec<CertificateDer<'static>>) -> Peer {
        Peer { remote, chain, verification: RefCell::new(None), last_token: RefCell::new(None) }
    }

    /// The client's address.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// The certificate chain that the client presented, leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// Returns the user of `token` in the token file.
    pub(super) fn token_user(&self, tokens: &Arc<StaticTokens>, token: &str) -> Option<Arc<User>> {
        let mut last = self.last_token.borrow_mut();
        if let Some(last) = &*last
            && Arc::ptr_eq(&last.tokens, tokens)
            && verify_slices_are_equal(&last.token, token.as_bytes()).is_ok()
        {
            return Some(last.user.clone());
        }
        let user = tokens.user(token)?.clone();
        *last = Some(LastToken { tokens: tokens.clone(), token: token.as_bytes().into(), user: user.clone() });
        Some(user)
    }

    /// Returns the verification of the chain; none when there is no chain.
    pub(super) fn verify(
        &self,
        trust: &ClientTrust,
        request_headers: &RequestHeaderConfig,
        now: UnixTime,
    ) -> Option<Ref<'_, ChainVerification>> {
        if self.chain.is_empty() {
            return None;
        }
        let holds =
            self.verification.borrow().as_ref().is_some_and(|verdict| verdict.is_current(trust.generation, now));
        if !holds {
            *self.verification.borrow_mut() = Some(self.verify_uncached(trust, request_headers, now));
        }
        Ref::filter_map(self.verification.borrow(), Option::as_ref).ok()
    }

    #[cold]
    fn verify_uncached(
        &self,
        trust: &ClientTrust,
        request_headers: &RequestHeaderConfig,
        now: UnixTime,
    ) -> ChainVerification {
        let mut verdict = ChainVerification {
            generation: trust.generation,
            verified_at: now,
            valid_until: UnixTime::since_unix_epoch(std::time::Duration::MAX),
            front_proxy: None,
            client: None,
        };
        let certificate =
            self.chain.first().map_or(Err("no certificate".to_owned()), |leaf| PeerCertificate::parse(leaf));
        if let Some(bundle) = &trust.request_header {
            let checked = verdict
                .verify_chain(bundle, &self.chain, now)
                .and_then(|()| certificate.as_ref().map_err(String::clone));
            verdict.front_proxy =
                Some(checked.and_then(|certificate| request_headers.check_name(certificate.common_name.as_deref())));
        }
        if let Some(bundle) = &trust.client {
            let checked = verdict
                .verify_chain(bundle, &self.chain, now)
                .and_then(|()| certificate.as_ref().map_err(String::clone));
            verdict.client = match checked {
                Ok(certificate) => certificate_user(certificate).transpose(),
                Err(why) => Some(Err(why)),
            };
        }
        verdict.log_untrusted(self.remote);
        verdict
    }
}

impl ChainVerification {
    fn is_current(&self, generation: u64, now: UnixTime) -> bool {
        // After the clock was set back, a certificate may not be valid yet.
        self.generation == generation && now < self.valid_until && now >= self.verified_at
    }

    fn verify_chain(&mut self, bundle: &Bundle, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), String> {
        let (result, again) = match bundle.verify_client(chain, now) {
            Ok(judged) => (Ok(()), Some(judged.recheck_at())),
            Err(untrusted) => (Err(untrusted.reason), untrusted.retry_at),
        };
        self.valid_until = again.map_or(self.valid_until, |again| self.valid_until.min(again));
        result
    }

    /// Logs an untrusted certificate and the reason. The access log has the reason for each refused request.
    fn log_untrusted(&self, remote: SocketAddr) {
        let judgments =
            [self.front_proxy.as_ref().map(|it| it.as_ref().err()), self.client.as_ref().map(|it| it.as_ref().err())];
        let failures = || judgments.iter().flatten();
        if failures().count() > 0 && failures().all(Option::is_some) {
            let why: Vec<&str> = failures().flatten().map(|why| why.as_str()).collect();
            tracing::debug!(%remote, why = why.join("; "), "client certificate is not trusted");
        }
    }
}

/// Returns the user of a certificate; none without a common name, as
/// `k8s.io/apiserver/pkg/authentication/request/x509.CommonNameUserConversion`.
fn certificate_user(certificate: &PeerCertificate) -> Result<Option<Arc<User>>, String> {
    let Some(name) = certificate.common_name.clone() else { return Ok(None) };
    let uid = certificate.uid()?.unwrap_or_default().to_owned();
    let mut groups = certificate.organizations.clone();
    // An empty group cannot be sent to a backend: the header line would be dropped there.
    groups.retain(|group| !group.is_empty());
    groups::add_group(&mut groups, AUTHENTICATED);
    let extra = [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={}", certificate.fingerprint)])].into();
    let user = User { name, uid, groups, extra };
    header_safe::check_header_safe(&user)?;
    Ok(Some(Arc::new(user)))
}
