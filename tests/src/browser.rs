//! Chromium without a screen, driven by its DevTools protocol over two pipes
//! (<https://chromedevtools.github.io/devtools-protocol/>, `--remote-debugging-pipe`).

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{self, Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::folder::Folder;
use crate::requirements;
use crate::wait::{patient, until};

/// How long one answer may take.
const LIMIT: Duration = Duration::from_secs(60);
/// As Debian installs it: without what only a screen needs, so it takes half the time of `chromium --headless`.
const PROGRAM: &str = "chromium-headless-shell";
/// Neither other processes than its own, nor the network, nor a profile that stays.
const FLAGS: [&str; 12] = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// A browser with one page; dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last: u64,
    /// What scripts and the content security policy complained about.
    complaints: Vec<String>,
    _profile: Folder,
}

impl Browser {
    /// Starts it, with an empty page of this size.
    ///
    /// # Errors
    /// It is not installed, or does not answer.
    pub fn start(width: u32, height: u32) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        requirements::command(PROGRAM, PROGRAM)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tl{}-browser-{number}", process::id());
        let profile = Folder::make(env::temp_dir().join(name))?;
        // It reads requests from descriptor 3, and writes to 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", PROGRAM])
            .args(FLAGS)
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a shell")?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let (requests, answers) = requests.zip(answers).context("the pipes")?;
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            requests,
            messages,
            session: None,
            last: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}))?;
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", target)?;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}))?;
        }
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        browser.ask("Emulation.setDeviceMetricsOverride", size)?;
        Ok(browser)
    }

    /// Calls a method of the protocol.
    ///
    /// # Errors
    /// The browser has ended, refuses, or does not answer in time.
    pub fn ask(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.last += 1;
        let mut request = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.requests.write_all(request.to_string().as_bytes()).context("the browser has ended")?;
        self.requests.write_all(b"\0").context("the browser has ended")?;
        let end = Instant::now() + patient(LIMIT);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message = self.messages.recv_timeout(left);
            let message = message.with_context(|| format!("no answer to {method}"))?;
            if message["id"] != self.last {
                self.note(&message);
                continue;
            }
            if let Some(error) = message.get("error") {
                bail!("{method}: {error}");
            }
            return Ok(message["result"].clone());
        }
    }

    fn note(&mut self, message: &Value) {
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(message["params"]["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if message["params"]["entry"]["level"] == "error" => {
                self.complaints.push(message["params"]["entry"].to_string());
            }
            _ => {}
        }
    }

    /// Opens a URL.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); or the URL cannot be opened.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.ask("Page.navigate", json!({"url": url}))?;
        ensure!(opened.get("errorText").is_none(), "cannot open {url}: {opened}");
        let is_open = format!(
            "document.readyState === 'complete' && location.href.startsWith({})",
            json!(url)
        );
        // A script of the page before may end in an error.
        until("the page", LIMIT, || {
            Ok(match self.run(&is_open) {
                Ok(Value::Bool(true)) => Ok(()),
                other => Err(format!("{other:?}")),
            })
        })?;
        Ok(())
    }

    /// The value of a script; of what it awaits, if it is a promise.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); or the script throws.
    pub fn run(&mut self, script: &str) -> Result<Value> {
        let asked = json!({"expression": script, "awaitPromise": true, "returnByValue": true});
        let answer = self.ask("Runtime.evaluate", asked)?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("{script}: {thrown}");
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until a script has a value that JavaScript takes for true, and returns it.
    ///
    /// # Errors
    /// As [`run`](Self::run); or that does not happen in time.
    pub fn until(&mut self, script: &str) -> Result<Value> {
        let end = Instant::now() + patient(LIMIT);
        loop {
            let value = self.run(script)?;
            if !matches!(&value, Value::Null | Value::Bool(false)) && value != "" && value != 0 {
                return Ok(value);
            }
            if Instant::now() > end {
                let page = self.run("document.body.innerText")?;
                bail!("{script} stays {value}; {:?}; the page: {page}", self.complaints);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses and releases a key, by its name in DOM events: `a`, `Enter`, `ArrowDown`.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn press(&mut self, key: &str) -> Result<()> {
        let is_letter = key.chars().count() == 1;
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowUp" => 38,
            "ArrowDown" => 40,
            _ => 0,
        };
        let mut event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if is_letter || key == "Enter" {
            event["text"] = json!(if key == "Enter" { "\r" } else { key });
        }
        self.ask("Input.dispatchKeyEvent", event.clone())?;
        event["type"] = json!("keyUp");
        self.ask("Input.dispatchKeyEvent", event)?;
        Ok(())
    }

    /// Whether pages are to be light or dark.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn prefer(&mut self, scheme: &str) -> Result<()> {
        let feature = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": feature}))?;
        Ok(())
    }

    /// The page as PNG.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn picture(&mut self) -> Result<Vec<u8>> {
        let answer = self.ask("Page.captureScreenshot", json!({"format": "png"}))?;
        let data = answer["data"].as_str().context("no picture")?;
        BASE64_STANDARD.decode(data).context("the picture is no base64")
    }

    /// What scripts and the content security policy have complained about so far.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // If it closes by itself, its other processes have ended, too, and write no more.
        self.session = None;
        let closed = self.ask("Browser.close", json!({})).and_then(|_| {
            let ended = || Ok(self.child.try_wait()?.map(drop).ok_or("it runs"));
            until("the end of the browser", LIMIT, ended)
        });
        if let Err(error) = closed {
            eprintln!("{error:#}");
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
