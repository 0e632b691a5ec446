//! A headless Chromium, controlled by the DevTools protocol over two pipes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use base64::Engine;
use serde_json::{Value, json};

use super::process::{Process, TIMEOUT, eventually};

/// Names of the program.
const NAMES: [&str; 6] = [
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// One browser page. The browser ends when this is dropped.
pub(crate) struct Browser {
    _process: Process,
    requests: File,
    responses: Receiver<Value>,
    last_id: u64,
    session: Option<String>,
}

impl Browser {
    /// Returns the installed browser. Without one it prints a note and the test is skipped, unless `CI` is set: then
    /// it panics.
    pub(crate) fn installed() -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = std::env::split_paths(&path);
        let found = folders.find_map(|folder| NAMES.iter().map(|name| folder.join(name)).find(|path| path.is_file()));
        if found.is_none() {
            let missing = "NOT TESTED: this needs Chromium (Debian: apt install chromium-headless-shell)";
            assert!(std::env::var_os("CI").is_none(), "{missing}");
            println!("interop: {missing}");
        }
        found
    }

    /// Starts a browser that resolves `name` to `127.0.0.1`.
    pub(crate) fn start(program: &Path, name: &str, directory: &Path) -> Browser {
        let [requests, responses] = ["questions", "answers"].map(|pipe| directory.join(pipe));
        assert!(Command::new("mkfifo").args([&requests, &responses]).status().unwrap().success());
        let script = format!("exec \"$@\" 3<'{}' 4>'{}'", requests.display(), responses.display());
        let (profile, rule) = (directory.join("profile"), format!("MAP {name} 127.0.0.1"));
        let arguments = [
            "-c".to_owned(),
            script,
            "sh".to_owned(),
            program.display().to_string(),
            "--headless".to_owned(),
            // Pages are the test's own, and Chromium's sandbox does not work for root.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            // The browser sends no requests of its own.
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--no-proxy-server".to_owned(),
            format!("--host-resolver-rules={rule}"),
            format!("--user-data-dir={}", profile.display()),
            "--remote-debugging-pipe".to_owned(),
        ];
        let process = Process::start("browser", Path::new("/bin/sh"), arguments, directory);
        // Opened in the same order as by the shell: opening a FIFO blocks until the other end is open.
        let requests = File::options().write(true).open(requests).unwrap();
        let response_pipe = File::open(responses).unwrap();
        let (sender, responses) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(response_pipe).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser { _process: process, requests, responses, last_id: 0, session: None };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"})).unwrap();
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attached).unwrap();
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        browser
    }

    fn call(&mut self, method: &str, params: &Value) -> Result<Value, String> {
        self.last_id += 1;
        let mut request = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = session.clone().into();
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).map_err(|error| error.to_string())?;
        loop {
            let mut message = self.responses.recv_timeout(TIMEOUT).map_err(|error| format!("{method}: {error}"))?;
            // Messages without this id are events.
            if message["id"] == self.last_id {
                let error = &message["error"];
                return if error.is_null() { Ok(message["result"].take()) } else { Err(error.to_string()) };
            }
        }
    }

    /// Navigates to a URL.
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({ "url": url })).unwrap();
        assert_eq!(opened["errorText"], Value::Null, "{url}");
    }

    /// Sets the size of the page in pixels, and the color scheme that it is told.
    pub(crate) fn emulate(&mut self, (width, height): (u32, u32), color_scheme: &str) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &metrics).unwrap();
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": color_scheme}]});
        self.call("Emulation.setEmulatedMedia", &features).unwrap();
    }

    /// The visible part of the page as a PNG.
    pub(crate) fn screenshot(&mut self) -> Vec<u8> {
        let captured = self.call("Page.captureScreenshot", &json!({"format": "png"})).unwrap();
        base64::engine::general_purpose::STANDARD.decode(captured["data"].as_str().unwrap()).unwrap()
    }

    /// Evaluates a JavaScript expression in the page and waits for a promise.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Result<Value, String> {
        let request = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut response = self.call("Runtime.evaluate", &request)?;
        match response.get("exceptionDetails") {
            None => Ok(response["result"]["value"].take()),
            Some(thrown) => Err(thrown.to_string()),
        }
    }

    /// Waits until the page's text satisfies `wanted`.
    pub(crate) fn wait_for_text(&mut self, what: &str, wanted: impl Fn(&str) -> bool) {
        eventually(what, || {
            let text = self.evaluate("document.body.innerText")?;
            let text = text.as_str().unwrap_or_default().trim();
            if wanted(text) { Ok(()) } else { Err(text.to_owned()) }
        });
    }
}
