//! The frame of status pages: one self-contained HTML document that is updated by `/events`, and useful without scripts.

use std::sync::LazyLock;
use std::time::SystemTime;

use askama::Template;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;

use super::events::encode_event;

const STYLESHEET: &str = include_str!("templates/status_page.css");
const SCRIPT: &str = include_str!("templates/status_page.js");

/// A report that has a status page.
pub trait PageReport: PartialEq + Serialize {
    /// Heading of the page.
    const HEADING: &'static str;
    /// Paths that the page links to, without the first slash.
    const LINKS: &'static [&'static str];

    /// One line as of `now`: what fails, or `OK`.
    fn headline(&self, now: SystemTime) -> String;

    /// HTML of what changes while the page is open. The element with the attribute `data-announce` has the headline as
    /// its text.
    fn render_content(&self, now: SystemTime) -> String;

    /// The report as it is served as data: with its verdict at `now`, if it has one.
    #[must_use]
    fn with_verdict(self, now: SystemTime) -> Self;
}

/// Content security policy of the page: allows its one style sheet, its one script, and the events of this process.
pub(super) static PAGE_SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(digest(&SHA256, text.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(STYLESHEET),
        hash(SCRIPT)
    )
});

/// Renders `report` as of `now`.
pub(super) fn render<R: PageReport>(report: &R, now: SystemTime) -> String {
    let page = StatusPage {
        heading: R::HEADING,
        headline: report.headline(now),
        content: report.render_content(now),
        links: R::LINKS,
    };
    // Only a `Display` that fails is an error.
    page.render().unwrap_or_default()
}

/// Renders the content of the page as a server-sent event.
pub(super) fn render_event(report: &impl PageReport, now: SystemTime) -> Bytes {
    encode_event(&report.render_content(now))
}

#[derive(Template)]
#[template(path = "status_page.html", whitespace = "minimize", config = "src/admin/askama.toml")]
struct StatusPage {
    heading: &'static str,
    headline: String,
    content: String,
    links: &'static [&'static str],
}

#[cfg(test)]
mod tests {
    use super::super::status_report::StatusReport;
    use super::*;

    #[test]
    fn status_page_loads_nothing_external() {
        let page = render(&StatusReport::default(), SystemTime::UNIX_EPOCH);
        for elsewhere in ["http://", "https://", "src=", "url(", "@import", "style=", "onclick"] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
        assert!(PAGE_SECURITY_POLICY.starts_with("default-src 'none'; style-src 'sha256-"));
        assert!(!PAGE_SECURITY_POLICY.contains("unsafe") && !SCRIPT.contains("innerHTML"));
    }
}
