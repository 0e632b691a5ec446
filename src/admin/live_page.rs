//! A report as status page (`/`), as the events that keep the page live (`/events`), and as data (`/status.json`).

use std::pin::pin;
use std::time::SystemTime;

use http::{HeaderMap, Response};
use tokio::time::Instant;

use super::events::{EventStreams, MAX_INTERVAL};
use super::host::is_cross_origin;
use super::page::{self, PageReport};
use super::response::{AdminBody, cross_origin_refusal, event_stream, finish, html, json, refused_stream};

/// Serves one report on the thread of an admin listener. Access is the matter of the listener.
pub struct LivePage<R> {
    make_report: Box<dyn Fn() -> R>,
    events: EventStreams,
}

impl<R: PageReport> LivePage<R> {
    /// The paths that [`respond`](LivePage::respond) knows.
    pub const PATHS: [&'static str; 3] = ["/", "/events", "/status.json"];

    /// The page of what `make_report` returns, which is called for each request and each event.
    pub fn new(make_report: impl Fn() -> R + 'static) -> LivePage<R> {
        LivePage { make_report: Box::new(make_report), events: EventStreams::new() }
    }

    /// The response to a GET or HEAD request; `None` if `path` is not one of the page. Web pages of another origin may not
    /// hold the event streams: the number of streams is limited.
    pub fn respond(&self, path: &str, headers: &HeaderMap) -> Option<Response<AdminBody>> {
        match path {
            "/" => Some(finish(html(page::render(&(self.make_report)(), SystemTime::now())))),
            "/events" if is_cross_origin(headers) => Some(finish(cross_origin_refusal())),
            "/events" => Some(self.events.open().map_or_else(|why| finish(refused_stream(why)), event_stream)),
            "/status.json" => Some(finish(json(&(self.make_report)().with_verdict(SystemTime::now())))),
            _ => None,
        }
    }

    /// Sends the content of the page to the event streams whenever it changes. Ends them, with a last event, at `end`.
    pub async fn publish_until(&self, end: impl Future<Output = ()>) {
        let mut end = pin!(end);
        let (mut last_report, mut last_render, mut last_event) = (None, None, Instant::now());
        loop {
            tokio::select! {
                () = self.events.next_turn(last_render) => {}
                () = &mut end => break,
            }
            let report = (self.make_report)();
            last_render = Some(Instant::now());
            if self.events.has_no_event()
                || last_event.elapsed() >= MAX_INTERVAL
                || last_report.as_ref() != Some(&report)
            {
                self.events.publish(Some(page::render_event(&report, SystemTime::now())));
                (last_report, last_event) = (Some(report), Instant::now());
            }
        }
        if !self.events.is_empty() {
            self.events.publish(Some(page::render_event(&(self.make_report)(), SystemTime::now())));
        }
        self.events.close();
    }
}
