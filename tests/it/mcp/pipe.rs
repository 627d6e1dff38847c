//! A client that is nothing but a pipe: what it sends is what the test wrote, byte for byte.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{PATIENCE, Scratch};

pub struct Pipe {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    last_id: u64,
}

impl Pipe {
    pub fn open(scratch: &Scratch, dir: &Path, flags: &[&str]) -> Self {
        let mut command = scratch.fettlefs();
        command.current_dir(dir).arg("mcp").args(flags).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the built program runs");
        let (tell, output) = channel();
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        thread::spawn(move || {
            // Who listened may have gone.
            lines.map_while(Result::ok).take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
        });
        let input = child.stdin.take();
        Self { child, input, output, last_id: 100 }
    }

    /// A handshake that asks for `version`, and gets it.
    #[track_caller]
    pub fn initialize(&mut self, version: &str) {
        let client = json!({"name": "pipe", "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client});
        self.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}));
        let told = self.receive();
        assert_eq!(told["result"]["protocolVersion"], version, "{told}");
        assert_eq!(told["result"]["serverInfo"]["name"], "fettlefs", "{told}");
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    /// Calls a tool and does not wait; gives the call's id.
    #[track_caller]
    pub fn begin(&mut self, tool: &str, arguments: Value) -> u64 {
        self.last_id += 1;
        let params = json!({"name": tool, "arguments": arguments});
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": "tools/call", "params": params}));
        self.last_id
    }

    /// The structured answer of a call.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.answer(tool, arguments);
        assert_eq!(answer["isError"], false, "{answer}");
        answer["structuredContent"].clone()
    }

    /// The answer of a call as a model reads it.
    #[track_caller]
    pub fn text(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.answer(tool, arguments);
        assert_eq!(answer["isError"], false, "{answer}");
        answer["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// The code with which a call is refused.
    #[track_caller]
    pub fn refused(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.answer(tool, arguments);
        assert_eq!(answer["isError"], true, "{answer}");
        answer["structuredContent"]["error"]["code"].as_str().expect("a code").to_owned()
    }

    #[track_caller]
    pub fn answer(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.begin(tool, arguments);
        let told = self.receive();
        assert_eq!(told["id"], id, "{told}");
        told["result"].clone()
    }

    #[track_caller]
    pub fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    #[track_caller]
    pub fn write(&mut self, bytes: &[u8]) {
        self.input.as_mut().expect("it is open").write_all(bytes).expect("it listens");
    }

    /// The next line, which is JSON: nothing else is ever printed.
    #[track_caller]
    pub fn receive(&mut self) -> Value {
        let line = self.output.recv_timeout(PATIENCE).expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|err| panic!("not JSON: {err}: {line}"))
    }

    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
    }

    /// Closes its input, and gives its exit status. What it still says must be JSON.
    #[track_caller]
    pub fn close(mut self) -> i32 {
        drop(self.input.take());
        while let Ok(line) = self.output.recv_timeout(PATIENCE) {
            assert!(serde_json::from_str::<Value>(&line).is_ok(), "not JSON: {line}");
        }
        self.child.wait().expect("a child").code().unwrap_or(-1)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // Only what a test that fails has left.
        if let Ok(None) = self.child.try_wait() {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}
