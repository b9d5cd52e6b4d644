//! Browser: Chromium, driven by the WebDriver protocol.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use xtask::Watchdog;

use crate::client::Client;

/// A browser with one window.
pub(crate) struct Browser {
    pub(crate) driver: Child,
    client: Client,
    session: String,
    /// The output of the driver, kept open for it.
    _output: Lines<BufReader<ChildStdout>>,
    /// Number of waits that have ended.
    reached: Arc<AtomicU64>,
    /// The expression of the last wait.
    awaited: Arc<Mutex<String>>,
    _watched: Watchdog,
}

/// The keys that tests press, as WebDriver names them.
pub(crate) mod key {
    pub(crate) const TAB: &str = "\u{e004}";
    pub(crate) const ENTER: &str = "\u{e007}";
    pub(crate) const ESCAPE: &str = "\u{e00c}";
    pub(crate) const END: &str = "\u{e010}";
    pub(crate) const HOME: &str = "\u{e011}";
    pub(crate) const LEFT: &str = "\u{e012}";
    pub(crate) const UP: &str = "\u{e013}";
    pub(crate) const DOWN: &str = "\u{e015}";
}

impl Browser {
    pub(crate) fn new() -> Browser {
        let (reached, awaited) = (Arc::<AtomicU64>::default(), Arc::<Mutex<String>>::default());
        let (seen, last) = (Arc::clone(&reached), Arc::clone(&awaited));
        let watched = Watchdog::new(
            // ORDERING: Relaxed; the number has no partner.
            move || seen.load(Ordering::Relaxed),
            move || format!("the page; its last wait was for {}\n", last.lock().unwrap()),
        );
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromedriver of Debian's package chromium-driver starts");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = |line: &str| line.rsplit_once("on port ")?.1.trim_end_matches('.').parse::<u16>().ok();
        let port = lines.find_map(|line| port(&line.unwrap()).filter(|&port| port > 0));
        let port = port.expect("chromedriver tells its port");
        let client = Client::tcp(([127, 0, 0, 1], port).into());
        let args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": args},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let mut browser = Browser {
            driver,
            client,
            session: String::new(),
            _output: lines,
            reached,
            awaited,
            _watched: watched,
        };
        let made = browser.ask("POST", "/session", &wanted);
        browser.session = format!("/session/{}", made["sessionId"].as_str().unwrap());
        browser
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let reply = self.client.send(method, path, body.to_string().as_bytes());
        let value = reply.json()["value"].take();
        assert_eq!(reply.status, 200, "{method} {path}: {value}");
        value
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}{path}", self.session), body)
    }

    pub(crate) fn open(&self, address: &str) {
        self.post("/url", &json!({"url": address}));
    }

    /// The value of an expression in the page.
    pub(crate) fn get(&self, expression: &str) -> Value {
        self.post("/execute/sync", &json!({"script": format!("return {expression}"), "args": []}))
    }

    pub(crate) fn text(&self, selector: &str) -> String {
        self.get(&format!("document.querySelector({selector:?}).textContent")).as_str().unwrap().to_owned()
    }

    /// Waits until an expression is true in the page.
    pub(crate) fn until(&self, expression: &str) {
        expression.clone_into(&mut self.awaited.lock().unwrap());
        while self.get(&format!("Boolean({expression})")) != Value::Bool(true) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        // ORDERING: Relaxed; the number has no partner.
        self.reached.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the page is connected.
    pub(crate) fn until_live(&self) {
        self.until("document.body.className === 'live'");
    }

    pub(crate) fn click(&self, selector: &str) {
        self.get(&format!("document.querySelector({selector:?}).click()"));
    }

    /// Presses and releases keys, one after the other, for the element that has the focus.
    pub(crate) fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})))
            .collect();
        self.post("/actions", &json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]}));
    }

    /// A command of Chromium's own protocol.
    pub(crate) fn command(&self, name: &str, params: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": name, "params": params}))
    }

    pub(crate) fn set_size(&self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", &size);
    }

    /// The lines of the console since the last call, without failed requests.
    pub(crate) fn console(&self) -> Vec<Value> {
        let mut lines = self.post("/se/log", &json!({"type": "browser"}));
        let mut lines = std::mem::take(lines.as_array_mut().unwrap());
        lines.retain(|line| line["source"] != "network");
        lines
    }

    /// The requests since the last call, each with its address and headers.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let entries = self.post("/se/log", &json!({"type": "performance"}));
        let messages = entries.as_array().unwrap().iter().map(|entry| {
            let mut entry: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            entry["message"].take()
        });
        messages
            .filter(|message| message["method"] == "Network.requestWillBeSent")
            .map(|mut message| message["params"]["request"].take())
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser; the driver has no other one.
        let _ended = self.client.try_send("DELETE", &self.session, b"");
        let _killed = self.driver.kill();
        let _waited = self.driver.wait();
    }
}
