//! A program on a pseudo terminal, and what a person sees there.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::{PATIENCE, within};

/// Which no program of ours writes, and no terminal shows.
const LAST: u8 = 0;

/// A terminal of its own for one program. Dropped, the program is killed.
pub struct Screen {
    child: Child,
    terminal: File,
    /// The program's side; open so that what it left can be looked at.
    programs: OwnedFd,
    seen: Arc<Mutex<Seen>>,
}

struct Seen {
    parser: vt100::Parser,
    /// Everything the terminal was sent.
    bytes: Vec<u8>,
}

impl Screen {
    /// Starts `command` as the leader of a session whose terminal this is.
    pub fn start(command: &Command, rows: u16, columns: u16) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&terminal).expect("a terminal");
        unlockpt(&terminal).expect("a terminal");
        tcsetwinsize(&terminal, winsize(rows, columns)).expect("a terminal has a size");
        let name = ptsname(&terminal, Vec::new()).expect("a terminal has a name");
        let name = name.to_str().expect("terminals have plain names").to_owned();
        let open = || File::options().read(true).write(true).open(&name).expect("the program's side");
        let mut started = Command::new("setsid");
        started.arg("-c").arg(command.get_program()).args(command.get_args());
        started.current_dir(command.get_current_dir().expect("it is said where it runs"));
        started.env("TERM", "xterm-256color");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => started.env(name, value),
                None => started.env_remove(name),
            };
        }
        let child = started.stdin(open()).stdout(open()).stderr(open()).spawn().expect("setsid runs");
        let parser = vt100::Parser::new(rows, columns, 0);
        let seen = Arc::new(Mutex::new(Seen { parser, bytes: Vec::new() }));
        let terminal = File::from(terminal);
        read_all(terminal.try_clone().expect("a terminal"), Arc::clone(&seen));
        Self { child, terminal, programs: open().into(), seen }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    pub fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    pub fn resize(&mut self, rows: u16, columns: u16) {
        self.seen.lock().parser.screen_mut().set_size(rows, columns);
        tcsetwinsize(&self.terminal, winsize(rows, columns)).expect("a terminal has a size");
    }

    /// What is on it, row by row.
    pub fn text(&self) -> String {
        self.seen.lock().parser.screen().contents()
    }

    /// Everything that the terminal was sent so far.
    pub fn sent(&self) -> Vec<u8> {
        self.seen.lock().bytes.clone()
    }

    /// Waits until it shows `text`.
    #[track_caller]
    pub fn shows(&self, text: &str) {
        let shown = within(PATIENCE, || self.text().contains(text));
        assert!(shown, "{text:?} is not on the screen:\n{}", self.text());
    }

    #[track_caller]
    pub fn shows_no_more(&self, text: &str) {
        let gone = within(PATIENCE, || !self.text().contains(text));
        assert!(gone, "{text:?} is still on the screen:\n{}", self.text());
    }

    /// Whether the terminal is as a shell has it: lines are edited and echoed, the first screen, a cursor.
    pub fn is_given_back(&self) -> bool {
        let modes = tcgetattr(&self.programs).expect("a terminal has modes").local_modes;
        let seen = self.seen.lock();
        let screen = seen.parser.screen();
        modes.contains(LocalModes::ICANON | LocalModes::ECHO) && !screen.alternate_screen() && !screen.hide_cursor()
    }

    /// Waits for its end: the exit status, or 128 and the signal's number.
    #[track_caller]
    pub fn ends(&mut self) -> i32 {
        let ended = within(PATIENCE, || self.child.try_wait().expect("a child can be waited for").is_some());
        assert!(ended, "it goes on:\n{}", self.text());
        let status = self.child.wait().expect("a child can be waited for");
        self.hears_it_out();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        status.code().unwrap_or_else(|| 128 + signal.unwrap_or_default())
    }

    /// What it said last may still be on its way, and comes before what is written after its end.
    fn hears_it_out(&self) {
        rustix::io::write(&self.programs, &[LAST]).expect("a terminal can be written to");
        let heard = within(PATIENCE, || self.seen.lock().bytes.contains(&LAST));
        assert!(heard, "the terminal sends no more:\n{}", self.text());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            super::kill(self.pid());
            self.child.wait().expect("a child that was killed ends");
        }
    }
}

fn winsize(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Until no program has the terminal any more, which is an error of reading.
fn read_all(mut terminal: File, seen: Arc<Mutex<Seen>>) {
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = terminal.read(&mut piece) {
            let mut seen = seen.lock();
            seen.parser.process(&piece[..count]);
            seen.bytes.extend_from_slice(&piece[..count]);
        }
    });
}
