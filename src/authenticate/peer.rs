//! The other end of a connection: its address, its certificate, and what we found of that certificate.

use std::cell::{Ref, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::request_header::RequestHeaders;
use super::{AUTHENTICATED, Tokens, speakable};
use crate::kubeapi::User;
use crate::tls::{Bundle, PeerCertificate, Trust};

/// Key of the extra that names the certificate, as upstream's `user.CredentialIDKey`.
pub(super) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// One client connection.
///
/// Its certificate chain is judged at the first request, and again only when the trust changed or the
/// clock passed the point where the answer may be another: a signature check for every request would
/// cost more than all the rest of it.
pub struct Peer {
    remote: SocketAddr,
    chain: Vec<CertificateDer<'static>>,
    verdict: RefCell<Option<Verdict>>,
    holder: RefCell<Option<Holder>>,
}

/// Whose token the last one on this connection was: nearly always the next request has the same. Looking it up
/// costs an HMAC.
struct Holder {
    tokens: Arc<Tokens>,
    token: Box<[u8]>,
    user: Arc<User>,
}

/// What one generation of trust says about a chain.
pub(super) struct Verdict {
    generation: u64,
    judged: UnixTime,
    /// The first second in which it must be judged again.
    again: UnixTime,
    /// Whether the holder may speak for others; none without a request-header authority.
    pub(super) front_proxy: Option<Result<(), String>>,
    /// Who the holder is; none without a client authority, or without a common name.
    pub(super) client: Option<Result<Arc<User>, String>>,
}

impl Peer {
    /// A connection from `remote` that presented `chain` (leaf first, possession of the key proved),
    /// which may be empty.
    pub fn new(remote: SocketAddr, chain: Vec<CertificateDer<'static>>) -> Peer {
        Peer { remote, chain, verdict: RefCell::new(None), holder: RefCell::new(None) }
    }

    /// The client's address.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// What the client presented, leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The holder of `token`.
    pub(super) fn holder(&self, tokens: &Arc<Tokens>, token: &str) -> Option<Arc<User>> {
        let mut last = self.holder.borrow_mut();
        if let Some(last) = &*last
            && Arc::ptr_eq(&last.tokens, tokens)
            && verify_slices_are_equal(&last.token, token.as_bytes()).is_ok()
        {
            return Some(last.user.clone());
        }
        let user = tokens.user(token)?.clone();
        *last = Some(Holder { tokens: tokens.clone(), token: token.as_bytes().into(), user: user.clone() });
        Some(user)
    }

    /// The judgement of the chain; none when there is no chain.
    pub(super) fn judge(
        &self,
        trust: &Trust,
        request_headers: &RequestHeaders,
        now: UnixTime,
    ) -> Option<Ref<'_, Verdict>> {
        if self.chain.is_empty() {
            return None;
        }
        let holds = self.verdict.borrow().as_ref().is_some_and(|verdict| verdict.holds(trust.generation, now));
        if !holds {
            *self.verdict.borrow_mut() = Some(self.judge_anew(trust, request_headers, now));
        }
        Ref::filter_map(self.verdict.borrow(), Option::as_ref).ok()
    }

    #[cold]
    fn judge_anew(&self, trust: &Trust, request_headers: &RequestHeaders, now: UnixTime) -> Verdict {
        let mut verdict = Verdict {
            generation: trust.generation,
            judged: now,
            again: UnixTime::since_unix_epoch(std::time::Duration::MAX),
            front_proxy: None,
            client: None,
        };
        let certificate =
            self.chain.first().map_or(Err("no certificate".to_owned()), |leaf| PeerCertificate::parse(leaf));
        if let Some(bundle) = &trust.request_header {
            let judged =
                verdict.chain(bundle, &self.chain, now).and_then(|()| certificate.as_ref().map_err(String::clone));
            verdict.front_proxy =
                Some(judged.and_then(|certificate| request_headers.check_name(certificate.common_name.as_deref())));
        }
        if let Some(bundle) = &trust.client {
            let judged =
                verdict.chain(bundle, &self.chain, now).and_then(|()| certificate.as_ref().map_err(String::clone));
            verdict.client = match judged {
                Ok(certificate) => user_of(certificate).transpose(),
                Err(why) => Some(Err(why)),
            };
        }
        verdict.tell(self.remote);
        verdict
    }
}

impl Verdict {
    fn holds(&self, generation: u64, now: UnixTime) -> bool {
        // A clock that was set back may have left a certificate's first day, too.
        self.generation == generation && now < self.again && now >= self.judged
    }

    fn chain(&mut self, bundle: &Bundle, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), String> {
        let (result, again) = match bundle.judge_client(chain, now) {
            Ok(judged) => (Ok(()), Some(judged.again())),
            Err(untrusted) => (Err(untrusted.why), untrusted.again),
        };
        self.again = again.map_or(self.again, |again| self.again.min(again));
        result
    }

    /// Which certificate nobody trusts, and why. A request that is refused for it tells that in the access log.
    fn tell(&self, remote: SocketAddr) {
        let judgements =
            [self.front_proxy.as_ref().map(|it| it.as_ref().err()), self.client.as_ref().map(|it| it.as_ref().err())];
        let judged = || judgements.iter().flatten();
        if judged().count() > 0 && judged().all(Option::is_some) {
            let why: Vec<&str> = judged().flatten().map(|why| why.as_str()).collect();
            tracing::debug!(%remote, why = why.join("; "), "the client's certificate is not trusted");
        }
    }
}

/// The identity in a certificate; none without a common name, as
/// `k8s.io/apiserver/pkg/authentication/request/x509.CommonNameUserConversion` has it.
fn user_of(certificate: &PeerCertificate) -> Result<Option<Arc<User>>, String> {
    let Some(name) = certificate.common_name.clone() else { return Ok(None) };
    let uid = certificate.uid()?.unwrap_or_default().to_owned();
    let mut groups = certificate.organizations.clone();
    // An empty group cannot be told to a backend: the line would be dropped there.
    groups.retain(|group| !group.is_empty());
    super::authenticator::add_group(&mut groups, AUTHENTICATED);
    let extra = [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={}", certificate.fingerprint)])].into();
    let user = User { name, uid, groups, extra };
    speakable::check(&user)?;
    Ok(Some(Arc::new(user)))
}
