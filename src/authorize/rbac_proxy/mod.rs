//! What kube-rbac-proxy is asked to ask: its authorization file, and which questions a request makes of it.
//!
//! For one request there may be several questions, and all must be answered with yes; see
//! [`Authorizer::authorize_all`](super::Authorizer::authorize_all). Facts are those of kube-rbac-proxy v0.19.1
//! (`pkg/proxy/proxy.go`, `pkg/authz/auth.go`). What is meant to differ:
//!
//! * `HEAD` is `get`; there it has no verb and becomes `*`.
//! * `groups` of a static rule count; there they are read and never compared.
//! * `rules`: several resources by path and method; there one serves all.
//! * Values that the server behind us would read in another way than we do are refused, and no request makes more than
//!   [`Questions::MOST`] questions.
//! * A mistake in the file is told at the start, or keeps the last good file; there an unknown field is skipped, a
//!   template that is none breaks every request, and a file without `authorization` ends the process.

mod attributes;
mod file;
mod glob;
mod odd;
mod paths;
mod static_rule;
mod value;

use std::sync::Arc;

use http::{HeaderMap, Method};

pub use file::RulesFile;
pub use paths::{Open, Paths, Way};

use self::attributes::{Asking, Resource, verb_of};
use self::glob::Glob;
use self::static_rule::StaticRule;
use super::Attributes;
use crate::kubeapi::{CanonicalPath, Query, RequestInfo, Status};
use crate::message::hop_by_hop::is_same_header;
use crate::message::{Blame, Refusal};
use crate::process::Problem;

/// What is asked of which request, and what is allowed without asking.
///
/// Without a file every request is asked about by its path.
#[derive(Debug, Default)]
pub struct Rules {
    /// By path and method; the first that fits.
    by_path: Vec<PathRule>,
    /// For all other requests.
    asking: Asking,
    statics: Vec<StaticRule>,
    warnings: Vec<Problem>,
}

/// What is asked of requests to some paths: our own addition to the file.
#[derive(Debug)]
struct PathRule {
    paths: Vec<Glob>,
    /// All without any.
    methods: Vec<Method>,
    verb: Option<String>,
    asking: Asking,
}

/// The questions that one request makes; never none.
#[derive(Debug)]
pub struct Questions<'r>(Asked<'r>);

#[derive(Debug)]
enum Asked<'r> {
    One(RequestInfo<'r>),
    /// One for each value that the request brought.
    Filled {
        verb: &'r str,
        resources: Vec<Resource>,
    },
}

/// A request from which no question can be made. Turns into the 400 that kube-rbac-proxy gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(&'static str);

impl Rules {
    /// What is to be asked about a request, before those of its headers are taken away that end here.
    ///
    /// Copies nothing but where values of the request are put into a template.
    ///
    /// # Errors
    /// When the request brings none of the values it is asked about by, too many, or one that others may read in
    /// another way.
    pub fn questions<'r>(
        &'r self,
        method: &'r Method,
        path: &'r CanonicalPath<'_>,
        query: &Query<'_>,
        headers: &HeaderMap,
    ) -> Result<Questions<'r>, Malformed> {
        let mut rule = None;
        if !self.by_path.is_empty() {
            if !paths::reads_one_way(path) {
                return Err(Malformed("the path can be read in more than one way"));
            }
            rule = self.by_path.iter().find(|rule| rule.is_for(method, path.decoded()));
        }
        let asking = rule.map_or(&self.asking, |rule| &rule.asking);
        let verb = rule.and_then(|rule| rule.verb.as_deref()).unwrap_or_else(|| verb_of(method));
        asking.questions(verb, path.decoded(), query, headers)
    }

    /// Whether any request is asked about by its query. If not, nobody judges it, and it goes on as it came.
    pub fn read_queries(&self) -> bool {
        self.askings().any(|asking| matches!(asking, Asking::Values { sources, .. } if sources.parameter.is_some()))
    }

    /// Whether any request is asked about by the header `name`, in whatever spelling.
    pub fn read_header(&self, name: &str) -> bool {
        self.askings().any(|asking| match asking {
            Asking::Values { sources, .. } => {
                sources.header.as_ref().is_some_and(|header| is_same_header(name, header.as_str()))
            }
            Asking::Path | Asking::Resource(_) => false,
        })
    }

    /// All ways in which questions are made.
    fn askings(&self) -> impl Iterator<Item = &Asking> {
        std::iter::once(&self.asking).chain(self.by_path.iter().map(|rule| &rule.asking))
    }

    /// Why something is allowed without asking anybody else, if it is.
    pub(super) fn allows(&self, attributes: Attributes<'_>) -> Option<&Arc<str>> {
        self.statics.iter().find(|rule| rule.allows(attributes)).map(|rule| &rule.why)
    }

    /// Whether it allows anything by itself: if not, it need not be among the modes.
    pub fn allow_something(&self) -> bool {
        !self.statics.is_empty()
    }

    /// What is no mistake but odd, for the operator.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Writes into the log that it was read, and what is odd about it.
    pub fn tell(&self) {
        tracing::info!(paths = self.by_path.len(), statics = self.statics.len(), "authorization file read");
        for warning in &self.warnings {
            tracing::warn!(%warning, "authorization file");
        }
    }
}

impl PathRule {
    fn is_for(&self, method: &Method, path: &str) -> bool {
        self.takes(method) && self.paths.iter().any(|glob| glob.matches(path))
    }

    /// Whoever may have all of it may have its head: where GET is among the methods, HEAD is.
    fn takes(&self, method: &Method) -> bool {
        self.methods.is_empty()
            || self.methods.contains(method)
            || *method == Method::HEAD && self.methods.contains(&Method::GET)
    }
}

impl<'r> Questions<'r> {
    /// More at once are not asked for one request: a client could have thousands asked.
    pub const MOST: usize = 64;

    /// Each of them, in the order in which they are asked.
    pub fn iter(&self) -> impl Iterator<Item = RequestInfo<'_>> {
        let (one, verb, resources): (_, &str, &[Resource]) = match &self.0 {
            Asked::One(one) => (Some(one.clone()), "", &[]),
            Asked::Filled { verb, resources } => (None, verb, resources),
        };
        one.into_iter().chain(resources.iter().map(move |resource| resource.asked(verb)))
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Refusal {
        let status =
            Status::bad_request(format!("it cannot be found out what to ask about this request: {}", malformed.0));
        Refusal::new(Blame::Client, status)
            .with_rbac_proxy_text("Bad Request. The request or configuration is malformed.")
    }
}

#[cfg(test)]
mod tests;
