//! The terminal while it is ours, raw, on its alternate screen and without a cursor; given back whatever happens.

use std::io::{self, Stdout, Write};
use std::panic;
use std::thread;

use crossterm::cursor::{Hide, Show};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use jiff::Timestamp;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

use super::draw::{Paint, draw};
use super::model::Model;

/// The exit status that Rust gives a program that panics.
const PANICKED: i32 = 101;

/// Restores the terminal when dropped.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub fn open() -> io::Result<Self> {
        give_back_at_panic();
        take()?;
        let screen = Self { terminal: Terminal::new(CrosstermBackend::new(io::stdout()))? };
        Ok(screen)
    }

    pub fn draw(&mut self, model: &mut Model, paint: Paint) -> io::Result<()> {
        self.terminal.draw(|frame| draw(model, frame, paint, Timestamp::now())).map(|_drawn| ())
    }

    /// Draws everything anew, because another program may have written on the screen. `Terminal::clear` would ask the
    /// terminal for its cursor position, and the answer would be read as a key.
    pub fn clear(&mut self) -> io::Result<()> {
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        execute!(io::stdout(), Clear(ClearType::All))
    }

    pub fn leave(&mut self) -> io::Result<()> {
        give_back()
    }

    /// Takes the terminal again, in whatever state another program has left it.
    pub fn enter(&mut self) -> io::Result<()> {
        disable_raw_mode()?;
        take()?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Err(err) = give_back() {
            log::warn!("give the terminal back: {err}");
        }
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

fn give_back() -> io::Result<()> {
    let mut stdout = io::stdout();
    queue!(stdout, LeaveAlternateScreen, Show)?;
    let written = stdout.flush();
    // Even if nothing can be written, the shell gets its modes back.
    disable_raw_mode()?;
    written
}

/// Gives the terminal back at a panic, so that its message can be read, and ends the program if another thread panics.
fn give_back_at_panic() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        if let Err(err) = give_back() {
            log::warn!("give the terminal back: {err}");
        }
        before(panicked);
        if thread::current().name() != Some("main") {
            std::process::exit(PANICKED);
        }
    }));
}
