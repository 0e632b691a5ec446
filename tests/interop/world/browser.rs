//! A real browser without a window, spoken to by the DevTools protocol over a pair of pipes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use super::process::{PATIENCE, Process, eventually};

/// What it may be called.
const NAMES: [&str; 6] = [
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// One page of a browser; it ends when dropped.
pub(crate) struct Browser {
    _process: Process,
    questions: File,
    answers: Receiver<Value>,
    asked: u64,
    session: Option<String>,
}

impl Browser {
    /// The browser of this machine. Without one, a test that needs it says so and ends; where everything must be tested
    /// (`CI` is set), it fails.
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

    /// Starts one, for which `name` is at `127.0.0.1`.
    pub(crate) fn start(program: &Path, name: &str, directory: &Path) -> Browser {
        let [questions, answers] = ["questions", "answers"].map(|pipe| directory.join(pipe));
        assert!(Command::new("mkfifo").args([&questions, &answers]).status().unwrap().success());
        let script = format!("exec \"$@\" 3<'{}' 4>'{}'", questions.display(), answers.display());
        let (profile, rule) = (directory.join("profile"), format!("MAP {name} 127.0.0.1"));
        let arguments = [
            "-c".to_owned(),
            script,
            "sh".to_owned(),
            program.display().to_string(),
            "--headless".to_owned(),
            // The pages are ours, and root has no sandbox.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-proxy-server".to_owned(),
            format!("--host-resolver-rules={rule}"),
            format!("--user-data-dir={}", profile.display()),
            "--remote-debugging-pipe".to_owned(),
        ];
        let process = Process::start("browser", Path::new("/bin/sh"), arguments, directory);
        // In the order in which the shell opens them: each waits for its other end.
        let questions = File::options().write(true).open(questions).unwrap();
        let reading = File::open(answers).unwrap();
        let (said, answers) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(reading).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if said.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser { _process: process, questions, answers, asked: 0, session: None };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"})).unwrap();
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attached).unwrap();
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        browser
    }

    fn call(&mut self, method: &str, params: &Value) -> Result<Value, String> {
        self.asked += 1;
        let mut question = json!({"id": self.asked, "method": method, "params": params});
        if let Some(session) = &self.session {
            question["sessionId"] = session.clone().into();
        }
        self.questions.write_all(format!("{question}\0").as_bytes()).map_err(|error| error.to_string())?;
        loop {
            let mut message = self.answers.recv_timeout(PATIENCE).map_err(|error| format!("{method}: {error}"))?;
            // Others tell what happens in the page.
            if message["id"] == self.asked {
                let error = &message["error"];
                return if error.is_null() { Ok(message["result"].take()) } else { Err(error.to_string()) };
            }
        }
    }

    /// Opens a page.
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({ "url": url })).unwrap();
        assert_eq!(opened["errorText"], Value::Null, "{url}");
    }

    /// What an expression of JavaScript comes to in the page; a promise is waited for.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Result<Value, String> {
        let question = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", &question)?;
        match answer.get("exceptionDetails") {
            None => Ok(answer["result"]["value"].take()),
            Some(thrown) => Err(thrown.to_string()),
        }
    }

    /// Waits until the page reads as `wanted` says.
    pub(crate) fn wait_for_text(&mut self, what: &str, wanted: impl Fn(&str) -> bool) {
        eventually(what, || {
            let text = self.evaluate("document.body.innerText")?;
            let text = text.as_str().unwrap_or_default().trim();
            if wanted(text) { Ok(()) } else { Err(text.to_owned()) }
        });
    }
}
