//! One review from beginning to end: the loop between the terminal, the model and the threads that ask.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crossterm::event::Event;

use super::asking::{Way, follow, hand_to, work};
use super::draw::Paint;
use super::model::{Input, Model, Task};
use super::screen::Screen;
use crate::client::Offline;
use crate::protocol::{Acted, ErrorBody};
use crate::sys::job::{self, Job, JobControl};

/// How stale a displayed `5s ago` may become.
const DRAW_EVERY: Duration = Duration::from_secs(10);

/// What a review needs.
pub struct Review {
    pub directory: PathBuf,
    pub offline: Offline,
    pub told: fn(&Acted) -> String,
    pub paint: Paint,
}

/// How a review ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing was held, and nothing was shown.
    Nothing,
    Left,
}

#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    #[error("{}", .0.message)]
    Refused(Box<ErrorBody>),
    #[error("the terminal: {0}")]
    Terminal(#[from] io::Error),
}

enum News {
    Input(Input),
    Told(JobControl),
    Resized,
    Broken(io::Error),
}

/// Shows what is held until the person leaves. If a signal says so, ends the program.
pub fn review(review: &Review) -> Result<End, ReviewError> {
    let way = Way { directory: review.directory.clone(), offline: review.offline, told: review.told };
    let status = way.status().map_err(|err| ReviewError::Refused(Box::new(err)))?;
    if status.held.is_empty() {
        return Ok(End::Nothing);
    }
    // Before there are other threads.
    let job = Job::block()?;
    let mut screen = Screen::open()?;
    let (sender, news) = channel();
    let (tasks, work_to_do) = channel();
    let seq = status.seq;
    start("keys", &sender, |sender| read_keys(&sender))?;
    start("signals", &sender, move |sender| read_signals(&job, &sender))?;
    start("asking", &sender, {
        let way = way.clone();
        move |sender| work(&way, &work_to_do, hand_to(sender, News::Input))
    })?;
    start("following", &sender, move |sender| {
        let hand = hand_to(sender, News::Input);
        follow(&way, seq, || hand(Input::Happened));
    })?;
    let mut desk = Desk { model: Model::new(*status), tasks, paint: review.paint };
    let ended = desk.run(&mut screen, &news);
    drop(screen);
    match ended? {
        None => {}
        Some(signal) => job::end_by(signal)?,
    }
    Ok(End::Left)
}

/// Starts a thread that ends with the program, since it waits for events from outside.
fn start(name: &str, sender: &Sender<News>, work: impl FnOnce(Sender<News>) + Send + 'static) -> io::Result<()> {
    let sender = sender.clone();
    thread::Builder::new().name(name.to_owned()).spawn(move || work(sender)).map(|_detached| ())
}

fn read_keys(sender: &Sender<News>) {
    loop {
        let news = match crossterm::event::read() {
            Ok(Event::Key(key)) if key.is_press() => News::Input(Input::Key(key)),
            Ok(Event::Resize(..)) => News::Resized,
            Ok(_) => continue,
            Err(err) => News::Broken(err),
        };
        let is_broken = matches!(news, News::Broken(_));
        if sender.send(news).is_err() || is_broken {
            return;
        }
    }
}

fn read_signals(job: &Job, sender: &Sender<News>) {
    loop {
        let news = job.wait().map_or_else(News::Broken, News::Told);
        let is_broken = matches!(news, News::Broken(_));
        if sender.send(news).is_err() || is_broken {
            return;
        }
    }
}

struct Desk {
    model: Model,
    tasks: Sender<Task>,
    paint: Paint,
}

impl Desk {
    /// Runs until the person leaves, or until a signal ends the review, whose number is returned.
    fn run(&mut self, screen: &mut Screen, news: &Receiver<News>) -> io::Result<Option<i32>> {
        let tasks = self.model.begin();
        self.give(tasks, screen)?;
        while !self.model.is_over() {
            screen.draw(&mut self.model, self.paint)?;
            let first = match news.recv_timeout(DRAW_EVERY) {
                Ok(news) => Some(news),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("nobody reads the keys any more")),
            };
            // Everything that has arrived is handled before the next drawing.
            for news in first.into_iter().chain(news.try_iter()) {
                if let Some(signal) = self.take(news, screen)? {
                    return Ok(Some(signal));
                }
                if self.model.is_over() {
                    break;
                }
            }
        }
        Ok(None)
    }

    fn take(&mut self, news: News, screen: &mut Screen) -> io::Result<Option<i32>> {
        match news {
            News::Input(input) => {
                let tasks = self.model.handle(input);
                self.give(tasks, screen)?;
            }
            News::Told(JobControl::End(signal)) => return Ok(Some(signal)),
            News::Told(JobControl::Stop) => stop(screen)?,
            News::Told(JobControl::GoOn) => screen.enter()?,
            News::Resized => {}
            News::Broken(err) => return Err(err),
        }
        Ok(None)
    }

    fn give(&self, tasks: Vec<Task>, screen: &mut Screen) -> io::Result<()> {
        for task in tasks {
            match task {
                Task::Stop => stop(screen)?,
                Task::Redraw => screen.clear()?,
                task @ (Task::List | Task::Diff(_) | Task::Act(_)) => {
                    self.tasks.send(task).map_err(|_| io::Error::other("nobody asks the daemon any more"))?;
                }
            }
        }
        Ok(())
    }
}

fn stop(screen: &mut Screen) -> io::Result<()> {
    screen.leave()?;
    job::stop()?;
    screen.enter()
}
